"""Models that answer with turns: speakers and texts, and in most of them times."""

import re
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any

from stentor.data.batch import Example, num_samples
from stentor.data.cut import Cut
from stentor.data.turns import turn_shares
from stentor.models.audio_llm.chat import ChatProcessor

MOST_ANSWER = 32768
"""Tokens of the longest answer."""
ANONYMOUS = {"speaker": 0, "start": 0.0, "end": 1.0}
"""The turn of a record about whose speakers nothing is asked: one speaker from the start to the end of the clip."""


class TurnsProcessor(ChatProcessor):
    """A model whose answers hold turns. It also serves the task `transcribe`: an example without turns is answered with
    one, and the text of an answer is that of its turns."""

    turns = True

    @abstractmethod
    def turn_ids(self, turns: Sequence[dict[str, Any]]) -> list[int]:
        """Tokens of an answer with these turns, `{"speaker", "start", "end", "text"}`: speakers from 0, seconds."""

    @abstractmethod
    def parse(self, text: str) -> tuple[list[dict[str, Any]], bool]:
        """The turns that can be read in an answer, and whether all of it could be read; see
        `stentor.tasks.who_said_what`."""

    def words_in(self, text: str) -> str:
        """The words that a part of an answer stands for."""
        return text

    def planned(self, cut: Cut, seconds: float) -> Example:
        example = super().planned(cut, seconds)
        example.extra["turns"] = turn_shares(cut)
        return example

    def text_ids(self, example: Example) -> list[int]:
        seconds = num_samples(example) / self.sample_rate
        turns = example.extra.get("turns") or [{**ANONYMOUS, "text": example.text or ""}]
        return self.turn_ids([{**t, "start": t["start"] * seconds, "end": t["end"] * seconds} for t in turns])

    def answer_text(self, ids: Sequence[int]) -> str:
        """An answer as it was written, without special tokens."""
        return super().decode(ids)

    def decode(self, ids: Sequence[int]) -> str:
        text = self.answer_text(ids)
        return " ".join(self.words_in(text[slice(*turn["span"])]).strip() for turn in self.parse(text)[0])

    def max_new_tokens(self, seconds: float) -> int:
        """Twice as many as for the text alone: the rest of a turn may take as much as its words."""
        return min(2 * int(seconds * self.token_rate) + 64, MOST_ANSWER)


TIME = r"\d[\d:]*(?:\.\d+)?"
"""Pattern of a time: `7.56`, `1:07.56` or `1:01:07.56`."""


def read_turns(pattern: re.Pattern[str], text: str) -> list[dict[str, Any]]:
    """The turns that a pattern with the groups `speaker`, `start`, `end` and `text` finds in an answer."""
    return [
        {"speaker": m["speaker"], "start": _seconds(m["start"]), "end": _seconds(m["end"]), "span": m.span("text")}
        for m in pattern.finditer(text)
    ]


def _seconds(time: str | None) -> float | None:
    parts = time.split(":") if time else []
    return sum(float(part) * 60**i for i, part in enumerate(reversed(parts))) if parts else None
