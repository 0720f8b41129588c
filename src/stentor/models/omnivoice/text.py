"""Style and text of an utterance as strings with OmniVoice's special tokens, and their ids."""

import re
from typing import Any

from stentor.models.text.control_tokens import add_control_tokens
from stentor.text.languages import find

DENOISE = "<|denoise|>"
LANGUAGE = ("<|lang_start|>", "<|lang_end|>")
INSTRUCT = ("<|instruct_start|>", "<|instruct_end|>")
TEXT = ("<|text_start|>", "<|text_end|>")
SPECIAL = (DENOISE, *LANGUAGE, *INSTRUCT, *TEXT)
"""Tokens that are added to the language model's tokenizer, in this order."""
ABSENT = "None"
"""Stands in the style for a language or an instruct that is not given."""
NONVERBAL = re.compile(
    r"(\[(?:laughter|sigh|confirmation-en|question-(?:en|ah|oh|ei|yi)|surprise-(?:ah|oh|wa|yo)|dissatisfaction-hnn)\])"
)
"""Tags of sounds, each tokenised by itself: its ids are the same whatever stands around it, as in OmniVoice's use."""
HAN = r"[\u4e00-\u9fff]"


def style(language: str | None, instruct: str | None, denoise: bool = False) -> str:
    """The first part: whether to denoise, the language, and the voice in words."""
    text = style_language(language).join(LANGUAGE) + (instruct or ABSENT).join(INSTRUCT)
    return DENOISE + text if denoise else text


def style_language(language: str | None) -> str:
    """The language as a style names it: by OmniVoice's code where the table of languages has one."""
    row = find(language) if language else None
    return (row.omnivoice if row is not None else "") or language or ABSENT


def spoken(text: str) -> str:
    """The second part."""
    return text.join(TEXT)


def cleaned(text: str) -> str:
    """A text as OmniVoice reads it in use: on one line, with single spaces, none beside Chinese characters, and with
    plain round brackets."""
    text = text.strip().replace("（", "(").replace("）", ")")
    text = re.sub(r"[ \t\r\n]+", " ", text)
    return re.sub(rf"(?<={HAN})\s+|\s+(?={HAN})", "", text)


def add_special(tokenizer: Any) -> int:
    """Add the special tokens that a tokenizer does not have yet; returns how many."""
    missing = [token for token in SPECIAL if token not in tokenizer.get_vocab()]
    return add_control_tokens(tokenizer, missing)
