"""Style and text of an utterance as strings with OmniVoice's special tokens, and their ids."""

from typing import Any

DENOISE = "<|denoise|>"
LANGUAGE = ("<|lang_start|>", "<|lang_end|>")
INSTRUCT = ("<|instruct_start|>", "<|instruct_end|>")
TEXT = ("<|text_start|>", "<|text_end|>")
SPECIAL = (DENOISE, *LANGUAGE, *INSTRUCT, *TEXT)
"""Tokens that are added to the language model's tokenizer, in this order."""
ABSENT = "None"
"""Stands in the style for a language or an instruct that is not given."""


def style(language: str | None, instruct: str | None, denoise: bool = False) -> str:
    """The first part: whether to denoise, the language, and the voice in words."""
    text = (language or ABSENT).join(LANGUAGE) + (instruct or ABSENT).join(INSTRUCT)
    return DENOISE + text if denoise else text


def spoken(text: str) -> str:
    """The second part."""
    return text.join(TEXT)


def add_special(tokenizer: Any) -> int:
    """Add the special tokens that a tokenizer does not have yet; returns how many."""
    missing = [token for token in SPECIAL if token not in tokenizer.get_vocab()]
    return int(tokenizer.add_tokens(missing, special_tokens=True))


def ids_of(tokenizer: Any, text: str) -> list[int]:
    """Token ids of a string, as one string in training and in use. Characters without a token are left out: the unknown
    token is not trained."""
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    unknown = tokenizer.unk_token_id
    return ids if unknown is None else [i for i in ids if i != unknown]
