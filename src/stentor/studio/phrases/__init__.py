"""Phrases to read aloud where the Hub is out of reach: one file `<code>.txt` for each language, read by builtin.py."""

from stentor.studio.phrases.builtin import NAMES, OTHER_CODES, checked_language, language_name, languages, phrases

__all__ = ["NAMES", "OTHER_CODES", "checked_language", "language_name", "languages", "phrases"]
