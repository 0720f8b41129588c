"""Spelling table: British to American, for scoring only, as Whisper has it (`spellings.yaml`)."""

from functools import cache
from importlib import resources


@cache
def american() -> dict[str, str]:
    """British spelling -> American spelling, lower case, inflected forms included."""
    import yaml

    facts = yaml.safe_load(resources.files(__package__).joinpath("spellings.yaml").read_text("utf-8"))
    table = pairs(facts["irregular"])
    for part, becomes, endings, beginnings in facts["regular"]:
        for ending in endings.replace("-", "").split(" "):
            table |= {word + part + ending: word + becomes + ending for word in beginnings.split()}
    return table


def pairs(text: str) -> dict[str, str]:
    """A table written `word becomes word becomes ...`."""
    words = text.split()
    return dict(zip(words[::2], words[1::2], strict=True))
