"""Transcription while one speaks, by OpenAI's Realtime interface over WebSocket.

What comes over a socket goes to a `Session` (session.py), which knows its `Settings` (settings.py), finds utterances
(`Turns`) and lets each be an `Item` (item.py). An item's audio is heard by a stream of `inference/stream/`; each of
its steps is a job of the model's queue, in which those of all sessions that ask for the same are batched.
"""
