"""Segments of long recordings for training: stages that cut, measure, transcribe and drop them."""
