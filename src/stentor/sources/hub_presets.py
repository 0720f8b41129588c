"""Well-known speech data sets on the Hugging Face Hub: where each lies and what its columns are called.

A preset is data alone: an entry of `hub_presets.yaml`. `{language}` in a pattern is the data set's own spelling of the
language, `{config}` and `{split}` what was chosen.
"""

import re
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from stentor.sources.open_asr import BoardSet, boards
from stentor.text.languages import among, known_code

EXPORT = "refs/convert/parquet"
"""The branch on which the Hub keeps its own parquet copy of data sets that were published as a loading script."""


@dataclass(frozen=True)
class Preset:
    """One data set (or one subset of it)."""

    name: str
    """Its id on the Hub."""
    columns: dict[str, str]
    """The source's key -> the column; a dot goes into a column of records."""
    config: str | None = "{language}"
    split: str = "train"
    held_out: str | None = None
    """The split to evaluate on while training. None: it has none, and a part of `split` is held out."""
    more: tuple[str, ...] = ()
    """Other splits."""
    title: str = ""
    """Name for people; empty: it is not offered to be trained on."""
    licence: str = ""
    also: str = ""
    """Pattern of the ids of repositories that hold, or held, the same recordings in a form that cannot be read."""
    pieces: bool = False
    """Its texts are pieces of speech, which need not begin and end like a sentence."""
    languages: dict[str, str] | None = None
    """Language code -> the data set's spelling of it. None: any code, as it is."""
    data_files: str | None = None
    revision: str | None = None
    stream: bool = False
    """Too large to list: read from front to back unless asked otherwise."""
    audio: bool = True
    """False: transcripts alone; the audio comes from the corpora they were made of."""
    quality: dict[str, list[float | None]] = field(default_factory=dict)
    """Default ranges of the section `quality`."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(filter(None, (self.split, self.held_out, *self.more))))

    def spelling(self, language: str) -> str | None:
        """The data set's spelling of a language that is given by any name or code; None where it has none."""
        if self.languages is None:
            return language if re.match("[a-z]{2,3}([-_]|$)", language) else known_code(language)
        name = among(language, (*self.languages, *self.languages.values()))
        return self.languages.get(name or "", name)


def _of_board(test: BoardSet) -> Preset:
    columns = {"audio": "audio", "text": "text", "id": "id" if test.board == "english" else "file_name"}
    return Preset(test.hub, columns, test.config, test.split, languages={test.language: test.language})


def _preset(languages: str | None = None, more: tuple[str, ...] = (), **facts: Any) -> Preset:
    pairs = [word.partition("=") for word in languages.split()] if languages else []
    return Preset(**facts, more=tuple(more), languages={code: name or code for code, _, name in pairs} or None)


def _presets() -> dict[str, dict[str, Preset]]:
    import yaml

    table = yaml.safe_load(resources.files(__package__).joinpath("hub_presets.yaml").read_text("utf-8"))
    return {
        key: {subset: _preset(**facts | own) for subset, own in facts.pop("subsets", {"": {}}).items()}
        for key, facts in table.items()
    }


PRESETS = _presets() | {
    f"open_asr_{board}": {name: _of_board(test) for name, test in sets.items() if test.sessions is None}
    for board, sets in boards().items()
}
"""By name and subset, the usual one first; one without subsets has one without a name."""
