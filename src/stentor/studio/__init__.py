"""The studio: a local web page from a voice to a published model, without writing code."""
