"""Utterance pool: the utterances of each speaker, out of which the `conversation` source takes turns."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.atomic_write import atomic_path
from stentor.data.cut import RATE, UnusableRecord
from stentor.errors import AudioError

if TYPE_CHECKING:
    from lhotse.cut import Cut
    from lhotse.supervision import SupervisionSegment

    from stentor.sources.base import Source

MARGIN = 0.05
"""Seconds around the speech of a turn that are taken along."""
CUT_PAUSE = 0.2
"""Seconds of a pause where an utterance may be cut."""
MOST_DRAWN = 50
"""Utterances of a speaker that one conversation chooses from."""

Span = tuple[float, float]


@dataclass(slots=True)
class Turn:
    """A piece of an utterance, with what is said in it."""

    utterance: Cut
    spans: list[Span]
    """Segments in seconds from the start of the utterance, pauses of `split` seconds between them."""
    start: float
    """Of the piece, with a margin before the first segment."""
    end: float

    @property
    def lead(self) -> float:
        """Seconds of the piece before its speech."""
        return self.spans[0][0] - self.start

    def cut(self, name: str, level: float, room: dict[str, Any] | None, longest: float | None) -> Cut:
        """The piece at a level in dBFS, heard in a room, cut off after `longest` seconds."""
        start, seconds = on_grid(self.start), on_grid(self.end - self.start)
        duration = seconds if longest is None else min(seconds, longest)
        part = {"first": round(self.utterance.start + start, 6), "seconds": seconds, "level": level, "room": room}
        segments = [
            self._supervision(f"{name}-{i}", a, min(b, start + duration), start)
            for i, (a, b) in enumerate(self.spans)
            if a < start + duration
        ]
        cut = replace(self.utterance, id=name, start=part["first"], duration=duration, supervisions=segments)
        cut.custom = {**(self.utterance.custom or {}), "mixed_turn": part}
        return cut

    def _supervision(self, name: str, a: float, b: float, start: float) -> SupervisionSegment:
        """The supervision of a segment, with its words where their times are known; a word cut off is none."""
        (supervision,) = self.utterance.supervisions
        at = self.utterance.start
        items = [
            item
            for item in (supervision.alignment or {}).get("word", [])
            if a - 1e-3 <= item.start - at and item.end - at <= b + 1e-3 and item.symbol
        ]
        start, duration = round(a - start, 6), round(b - a, 6)
        text = " ".join(item.symbol for item in items) or None
        alignment = {"word": items} if items else None
        return replace(supervision, id=name, start=start, duration=duration, text=text, alignment=alignment)


class UtterancePool:
    """A source's utterances by speaker. When somebody speaks in them is found out when they are first used.

    `unusable` lists records that cannot be used at all; `refused` is filled, as they are drawn, with those that turn
    out to be unreadable or without enough speech.
    """

    def __init__(self, source: Source, turn: Span, split: float, cache: Path | None):
        self.shortest, self.longest, self.split = *turn, split
        self.cache = cache.expanduser() if cache is not None else None
        self.known: dict[str, list[Span]] = {}
        """Stretches of speech by utterance."""
        self.stored = 0
        if self.cache is not None and self.cache.exists():
            self.known = {k: [(a, b) for a, b in v] for k, v in json.loads(self.cache.read_text("utf-8")).items()}
            self.stored = len(self.known)
        self.unusable: list[UnusableRecord] = []
        self.refused: list[UnusableRecord] = []
        utterances: dict[str, list[Cut]] = defaultdict(list)
        seconds = 0.0
        for cut in source.cuts():
            single = cut if isinstance(cut, UnusableRecord) else _single(cut)
            if isinstance(single, UnusableRecord):
                self.unusable.append(single)
            elif single.duration < self.shortest:
                message = f"{cut.id}: {single.duration:.2f} s, less than a turn (`turn`) has at least."
                self.unusable.append(UnusableRecord(cut.id, "too_short", message))
            else:
                utterances[single.supervisions[0].speaker].append(single)
                seconds += min(single.duration, self.longest)
        self.utterances = dict(utterances)
        self.speakers = sorted(utterances)
        self.mean_turn = seconds / max(1, sum(map(len, utterances.values())))
        """Seconds of a turn, about."""

    def why(self) -> str:
        """What happened to the others, for an error."""
        reasons = Counter(u.reason for u in self.unusable)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f" ({counts}; the first: {self.unusable[0].message})" if counts else ""

    def shuffled(self, speaker: str, rng: random.Random) -> list[Cut]:
        """Utterances of a speaker in a drawn order, for `turn` to take from the end."""
        utterances = self.utterances[speaker]
        return rng.sample(utterances, min(len(utterances), MOST_DRAWN))

    def turn(self, utterances: list[Cut], rng: random.Random) -> Turn | None:
        """The next turn, from the last usable utterance, which goes to the front; None when none is usable."""
        target = rng.uniform(self.shortest, self.longest)
        for _ in range(len(utterances)):
            utterance = utterances.pop()
            if spans := self._speech(utterance):
                utterances.insert(0, utterance)
                return self._turn(utterance, _stretch(spans, self.shortest, target, rng))
        return None

    def backchannel(self, utterances: list[Cut], rng: random.Random, longest: float) -> Turn | None:
        """A few words out of one of the utterances; None when there is nothing short."""
        utterance = rng.choice(utterances) if utterances else None
        spans = self._speech(utterance) if utterance is not None else []
        first = [i for i, (a, b) in enumerate(spans) if 0.15 <= b - a <= longest]
        if not first:
            return None
        i = rng.choice(first)
        target, last = rng.uniform(0.3, longest), i
        while last + 1 < len(spans) and spans[last + 1][1] - spans[i][0] <= target:
            last += 1
        return self._turn(utterance, spans[i : last + 1])

    def save(self) -> None:
        """Keep what was found out in the cache file."""
        if self.cache is None or len(self.known) == self.stored:
            return
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.cache) as part:
            part.write_text(json.dumps(self.known), encoding="utf-8")

    def _turn(self, utterance: Cut, spans: list[Span]) -> Turn:
        from stentor.data.activity import join_spans

        start, end = max(spans[0][0] - MARGIN, 0.0), min(spans[-1][1] + MARGIN, utterance.duration)
        return Turn(utterance, join_spans(spans, self.split), start, end)

    def _speech(self, utterance: Cut) -> list[Span]:
        """Stretches of speech of an utterance: its words, or what is loud; empty for one that cannot be used."""
        from stentor.data.activity import speech_spans

        (supervision,) = utterance.supervisions
        if supervision.alignment and supervision.alignment.get("word"):
            return speech_spans(utterance)
        key = f"{utterance.id}@{utterance.start:g}+{utterance.duration:g}"
        if key not in self.known:
            spans: list[Span] = []
            try:
                spans = [(round(a, 3), round(b, 3)) for a, b in speech_spans(utterance)]
                if sum(b - a for a, b in spans) < self.shortest:
                    spans = []
                    message = f"{utterance.id}: less than {self.shortest:g} s of speech (`turn`)."
                    self.refused.append(UnusableRecord(utterance.id, "too_short", message))
            except AudioError as error:
                self.refused.append(UnusableRecord(utterance.id, error.reason, str(error)))
            self.known[key] = spans
        return self.known[key]


def _stretch(spans: list[Span], shortest: float, target: float, rng: random.Random) -> list[Span]:
    """Consecutive spans of about `target` seconds from one pause to another; all of them when that is no more."""
    from stentor.data.activity import join_spans

    if spans[-1][1] - spans[0][0] <= target:
        return spans
    runs = join_spans(spans, CUT_PAUSE)
    first = rng.randrange(len(runs))
    last = first
    while last + 1 < len(runs) and runs[last + 1][1] - runs[first][0] <= target:
        last += 1
    # A last short run takes those before it along.
    while first and runs[last][1] - runs[first][0] < shortest:
        first -= 1
    while last + 1 < len(runs) and runs[last][1] - runs[first][0] < shortest:
        last += 1
    start, end = runs[first][0], runs[last][1]
    return [(a, b) for a, b in spans if a >= start - 1e-9 and b <= end + 1e-9]


def _single(cut: Cut) -> Cut | UnusableRecord:
    """The one recording with one speaker that a cut is, without silence around it; otherwise why it is none."""
    from lhotse.cut import MixedCut, PaddingCut

    if isinstance(cut, MixedCut):
        tracks = [t for t in cut.tracks if not isinstance(t.cut, PaddingCut) and not t.mute]
        if len(tracks) != 1 or cut.transforms:
            message = f"{cut.id}: a conversation is made of single recordings, this is a mix of {len(tracks)}."
            return UnusableRecord(cut.id, "not_single", message)
        cut = replace(tracks[0].cut, id=cut.id)
    speakers = {s.speaker for s in cut.supervisions}
    if len(speakers) != 1 or None in speakers:
        message = f"{cut.id}: an utterance of a conversation needs one `speaker`, this has {len(speakers - {None})}."
        return UnusableRecord(cut.id, "no_speaker", message)
    if len(cut.supervisions) > 1:
        words = list(chain.from_iterable((s.alignment or {}).get("word", []) for s in cut.supervisions))
        words.sort(key=lambda word: word.start)
        alignment = {"word": words} if words else None
        merged = replace(cut.supervisions[0], start=0.0, duration=cut.duration, text=None, alignment=alignment)
        return replace(cut, supervisions=[merged])
    return cut


def on_grid(seconds: float) -> float:
    """The nearest time of a sample."""
    return round(seconds * RATE) / RATE
