"""Utterance pool: the utterances of each speaker, out of which the `conversation` source takes turns."""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.atomic_write import atomic_path
from stentor.data.audio_key import audio_key
from stentor.data.cut import RATE, Cut, UnusableRecord
from stentor.errors import AudioError, DataError

if TYPE_CHECKING:
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
    """Segments in seconds from the start of the utterance as it is played, pauses of `split` seconds between them."""
    start: float
    """Start of the piece, with a margin before the first segment."""
    end: float
    speaker: str
    speed: float = 1.0

    @property
    def lead(self) -> float:
        """Seconds of the piece before its speech."""
        return self.spans[0][0] - self.start

    def cut(self, name: str, level: float, room: dict[str, Any] | None, longest: float | None) -> Cut:
        """The piece at a level in dBFS, heard in a room, cut off after `longest` seconds."""
        start, seconds = on_grid(self.start), on_grid(self.end - self.start)
        duration = seconds if longest is None else min(seconds, longest)
        first = round(self.utterance.start + start * self.speed, 6)
        part = {"first": first, "seconds": seconds, "level": level, "room": room}
        if self.speed != 1.0:
            part["speed"] = self.speed
        segments = [
            self._supervision(f"{name}-{i}", a - start, min(b, start + duration) - start, first)
            for i, (a, b) in enumerate(self.spans)
            if a < start + duration
        ]
        cut = replace(self.utterance, id=name, start=first, duration=duration, supervisions=segments)
        cut.custom = {**(self.utterance.custom or {}), "mixed_turn": part}
        return cut

    def _supervision(self, name: str, a: float, b: float, first: float) -> SupervisionSegment:
        """The supervision of a segment from `a` to `b` seconds of the piece, with its words where their times are
        known; a word cut off is none. An alignment counts from the start of the recording, where the piece is at
        `first`."""
        (supervision,) = self.utterance.supervisions
        words = (supervision.alignment or {}).get("word", [])
        if self.speed != 1.0:
            words = [
                item._replace(start=first + (item.start - first) / self.speed, duration=item.duration / self.speed)
                for item in words
            ]
        items = [
            item for item in words if a - 1e-3 <= item.start - first and item.end - first <= b + 1e-3 and item.symbol
        ]
        text = " ".join(item.symbol for item in items) or None
        alignment = {"word": items} if items else None
        start, duration = round(a, 6), round(b - a, 6)
        whose = {"text": text, "alignment": alignment, "speaker": self.speaker}
        return replace(supervision, id=name, start=start, duration=duration, **whose)


class UtterancePool:
    """A source's utterances by speaker. When somebody speaks in them is found out when they are first used.

    `unusable` lists records that cannot be used at all; `refused` is filled, as they are drawn, with those that turn
    out to be unreadable or without enough speech.
    """

    def __init__(
        self, source: Source, turn: Span, split: float, cache: Path | None, speeds: Sequence[float] | None = None
    ):
        self.shortest, self.longest, self.split = *turn, split
        self.cache = cache.expanduser() if cache is not None else None
        self.known: dict[str, list[Span]] = {}
        """Stretches of speech by utterance, whatever `turn` asks for."""
        self.stored = 0
        if self.cache is not None and self.cache.exists():
            try:
                content = json.loads(self.cache.read_text("utf-8"))
            except ValueError as error:
                raise DataError(
                    f"{self.cache}: this is not the cache of a `conversation` source ({error}). Delete the file, or "
                    "name another one as `cache`."
                ) from None
            # Earlier versions wrote nothing for what was too short for the `turn` of that run.
            self.known = {k: [(a, b) for a, b in v] for k, v in content.items() if v}
            self.stored = len(self.known)
        self.unusable: list[UnusableRecord] = []
        self.refused: dict[str, UnusableRecord] = {}
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
        played = {speed: "" if speed == 1.0 else f"@{speed:g}" for speed in speeds or [1.0]}
        self.recorded = {f"{name}{mark}": (name, speed) for name in utterances for speed, mark in played.items()}
        """The name in the source, and the speed, of each speaker."""
        self.speakers = sorted(self.recorded)
        self.mean_turn = seconds / max(1, sum(map(len, utterances.values())))
        """Seconds of a turn, about."""

    def why(self) -> str:
        """Reasons for the others, for an error."""
        reasons = Counter(u.reason for u in self.unusable)
        counts = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common())
        return f" ({counts}; the first: {self.unusable[0].message})" if counts else ""

    def shuffled(self, speaker: str, rng: random.Random) -> list[Cut]:
        """Utterances of a speaker in a drawn order, for `turn` to take from the end."""
        utterances = self.utterances[self.recorded[speaker][0]]
        return rng.sample(utterances, min(len(utterances), MOST_DRAWN))

    def turn(self, speaker: str, utterances: list[Cut], rng: random.Random) -> Turn | None:
        """The next turn, from the last usable utterance, which goes to the front; None when none is usable."""
        target = rng.uniform(self.shortest, self.longest)
        for _ in range(len(utterances)):
            utterance = utterances.pop()
            if spans := self._played(speaker, utterance):
                utterances.insert(0, utterance)
                return self._turn(speaker, utterance, _stretch(spans, self.shortest, target, rng))
        return None

    def backchannel(self, speaker: str, utterances: list[Cut], rng: random.Random, longest: float) -> Turn | None:
        """A few words out of one of the utterances; None when there is nothing short."""
        utterance = rng.choice(utterances) if utterances else None
        spans = self._played(speaker, utterance) if utterance is not None else []
        first = [i for i, (a, b) in enumerate(spans) if 0.15 <= b - a <= longest]
        if not first:
            return None
        i = rng.choice(first)
        target, last = rng.uniform(0.3, longest), i
        while last + 1 < len(spans) and spans[last + 1][1] - spans[i][0] <= target:
            last += 1
        return self._turn(speaker, utterance, spans[i : last + 1])

    def save(self) -> None:
        """Keep what was found out in the cache file."""
        if self.cache is None or len(self.known) == self.stored:
            return
        self.cache.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.cache) as part:
            part.write_text(json.dumps(self.known), encoding="utf-8")

    def _turn(self, speaker: str, utterance: Cut, spans: list[Span]) -> Turn:
        from stentor.data.activity import join_spans

        speed = self.recorded[speaker][1]
        end = min(spans[-1][1] + MARGIN, utterance.duration / speed)
        return Turn(utterance, join_spans(spans, self.split), max(spans[0][0] - MARGIN, 0.0), end, speaker, speed)

    def _played(self, speaker: str, utterance: Cut) -> list[Span]:
        """`_speech` at the speaker's speed."""
        speed = self.recorded[speaker][1]
        spans = self._speech(utterance)
        return spans if speed == 1.0 else [(a / speed, b / speed) for a, b in spans]

    def _speech(self, utterance: Cut) -> list[Span]:
        """Stretches of speech of an utterance: its words, or what is loud; empty for one that cannot be used."""
        from stentor.data.activity import speech_spans

        (supervision,) = utterance.supervisions
        if supervision.alignment and supervision.alignment.get("word"):
            return speech_spans(utterance)
        key = audio_key(utterance)
        if key in self.refused:
            return []
        try:
            if key not in self.known:
                self.known[key] = [(round(a, 3), round(b, 3)) for a, b in speech_spans(utterance)]
            spans = self.known[key]
            if sum(b - a for a, b in spans) >= self.shortest:
                return spans
            message = f"{utterance.id}: less than {self.shortest:g} s of speech (`turn`)."
            self.refused[key] = UnusableRecord(utterance.id, "too_short", message)
        except AudioError as error:
            self.refused[key] = UnusableRecord(utterance.id, error.reason, str(error))
        return []


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
