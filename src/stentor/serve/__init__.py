"""`stentor serve`: trained models behind the interface of OpenAI's audio endpoints.

A request's way: `transcriptions.py` (its form, `uploads.py`) -> `recordings.py` (the file, decoded in a helper process)
-> the plan of `inference/transcribe.py` -> `scheduler.py` (windows of all requests, in turns, and the one thread that
touches the model) -> `responses.py`. Nothing here knows how a window is decoded or a transcript put together.
"""
