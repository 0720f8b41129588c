"""Frame grid: texts as one token for each frame of the audio, for models that listen and write at the same time
(delayed streams: Zeghidour et al. 2025, arXiv 2509.08753; Voxtral Realtime: arXiv 2602.11298)."""

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from stentor.data.word_units import timed_units

SECONDS_A_TOKEN = 0.3
"""Longest time that word times give to one token: a model tells one end of a word and not the other."""
_TINY = 1e-6  # frames; times in seconds are not exact


@dataclass(frozen=True)
class FrameGrid:
    """Where the tokens of words stand among those that a model writes, one for each frame.

    The word-start token of a word is due at the frame in which the word has ended (`at_end`), or one before that in
    which it begins, `shift` seconds later. Its tokens follow, one a frame; everywhere else there is a pause. A word
    that is due while another one is written is written behind it, without a word-start token: what does not fit before
    the next word is late, and nothing is left out.
    """

    rate: float
    """Frames a second."""
    pause_id: int
    word_id: int
    """The word-start token."""
    at_end: bool = True
    shift: float = 0.0
    """Seconds between the first written token and the frame of the audio's start: the delay, where it is no part of the
    prompt, and silence before the audio."""

    def due(self, start: float, end: float) -> int:
        """Frame of the word-start token of a word between these seconds of the audio."""
        if self.at_end:
            return max(math.ceil((end + self.shift) * self.rate - _TINY) - 1, 0)
        return max(math.floor((start + self.shift) * self.rate + _TINY) - 1, 0)

    def place(self, words: Sequence[tuple[list[int], float, float]], length: int) -> tuple[list[int], int]:
        """(tokens of so many frames, how many are left over behind the last frame) for words in order: (tokens, start
        and end in seconds)."""
        coming = deque((self.due(start, end), ids) for ids, start, end in words if ids)
        waiting: deque[int] = deque()
        frames = []
        for frame in range(length):
            while coming and coming[0][0] <= frame:
                _, ids = coming.popleft()
                waiting.extend(ids if waiting else [self.word_id, *ids])
            frames.append(waiting.popleft() if waiting else self.pause_id)
        return frames, len(waiting) + sum(len(ids) for _, ids in coming)

    def texts(self, frames: Sequence[int]) -> tuple[list[int], list[tuple[float, float]]]:
        """(indices of the tokens that are text, their seconds in the audio) of what a model wrote.

        The tokens behind one word-start token share its word's time evenly; the end of the word that a model does not
        tell is where the neighbour is, at most `SECONDS_A_TOKEN` a token away.
        """
        groups: list[tuple[int, list[int]]] = []  # (frame of the word-start token, indices of the tokens behind it)
        for i, token in enumerate(frames):
            if token == self.word_id:
                groups.append((i, []))
            elif token != self.pause_id:
                if not groups:  # a text that begins without one
                    groups.append((i, []))
                groups[-1][1].append(i)
        groups = [(frame, indices) for frame, indices in groups if indices]
        moments = [0.0, *(self.moment(frame) for frame, _ in groups), self.moment(len(frames) - 1)]
        indices, spans = [], []
        for g, (_, tokens) in enumerate(groups, 1):
            indices += tokens
            spans += self.spans(len(tokens), moments[g - 1 : g + 2])
        return indices, spans

    def moment(self, frame: int) -> float:
        """Second of the audio that a word-start token in this frame tells."""
        return max((frame + 1) / self.rate - self.shift, 0.0)

    def spans(self, count: int, moments: Sequence[float]) -> list[tuple[float, float]]:
        """The seconds of each of so many tokens behind one word-start token, from the `moments` of the one before (0
        for none), of this one and of the one behind it, or of the last frame."""
        before, moment, behind = moments
        longest = count * SECONDS_A_TOKEN
        start = max(before, moment - longest) if self.at_end else moment
        end = moment if self.at_end else min(behind, moment + longest)
        step = (end - start) / count
        return [(start + i * step, start + (i + 1) * step) for i in range(count)]


def timed_pieces(text: str, times: Sequence[dict[str, Any]], language: str | None) -> list[tuple[str, float, float]]:
    """The text cut into (piece with the white space before it, start and end of its word in seconds), one for each word
    of `times` that is a word of the text too. Words without a time are at that of the word before them, or behind them
    where there is none. Empty when fewer than half of the words have a time."""
    units = timed_units(text, times, language)
    if not units or 2 * sum("start" in unit for unit in units) < len(units):
        return []
    first = next(unit for unit in units if "start" in unit)
    start, end = first["start"], first["start"]
    pieces = []
    stops = [unit["span"][1] for unit in units[:-1]] + [len(text)]
    for unit, begin, stop in zip(units, [0, *stops], stops):
        start, end = unit.get("start", start), unit.get("end", end)
        pieces.append((text[begin:stop], start, end))
    return pieces
