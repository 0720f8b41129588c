"""`conversation`: simulated conversations from the utterances of single speakers, for diarization.

The method is that of Landini et al. (2022, arXiv 2204.00890, "simulated conversations", and arXiv 2211.06750 for more
speakers and wide-band speech): turns of real utterances follow each other with pauses, gaps and overlaps drawn from
statistics of real conversations. lhotse has it as `ConversationalMeetingSimulator`, which is not used here: it draws
from global generators (we need a pure function of the seed and the number of the conversation, the same on every rank),
gives each speaker a fixed share of utterances in random order instead of taking turns, places whole utterances with
their silence (labels must be speech), makes meetings of any length, and copies a cut at each mix (0.1 s each).

A conversation is metadata and takes about a millisecond to make. With `fresh` it is made when its turn to be trained on
comes: none is in memory, and none comes twice.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, PrivateAttr, model_validator

from stentor.data.augment import DIRECT, Noise, Reverb, list_audio
from stentor.data.cut import RATE, Cut, recording_of
from stentor.data.rttm import read_rttm
from stentor.data.storage import StoragePath
from stentor.errors import DataError
from stentor.section import ConfigConflict, IntRange, Range
from stentor.sources.base import Source, TightSource
from stentor.sources.turn_taking import TurnStatistics, estimate
from stentor.sources.utterances import UtterancePool, on_grid

if TYPE_CHECKING:
    from stentor.data.cut import UnusableRecord
    from stentor.sources.turn_taking import TurnSampler

NOISE_SECONDS = 30.0
"""Longest stretch of noise that is made at once, so that a window of a long conversation need not make all of it."""
LEAST = 0.25
"""Seconds at the end of a conversation that are too short for another turn."""
APART = 0.05
"""Seconds of silence between two turns of one speaker at least."""

Count = Annotated[int, Field(ge=1)]
Weight = Annotated[float, Field(gt=0)]
Speed = Annotated[float, Field(ge=0.5, le=2)]


class Conversation(Source):
    """Conversations simulated from another source's utterances; the speakers keep their names.

    Only metadata is made: the audio is mixed when it is loaded. The same config makes the same conversations everywhere
    and, unless they are to be `fresh`, in each epoch.
    """

    type: Literal["conversation"] = "conversation"
    source: TightSource
    """Where the utterances come from: any source whose records are single recordings with a `speaker`."""
    count: int = Field(1000, ge=1)
    """Number of conversations."""
    fresh: bool = False
    """Make other conversations in each epoch of training, a function of `train.seed` and the epoch, in place of the
    same `count`: a model cannot learn them by heart. Training reads them as a stream (set `train.steps`)."""
    speeds: list[Speed] | None = Field(None, min_length=1)
    """Play the utterances at these speeds, such as `[0.85, 0.92, 1.0, 1.08, 1.17]`: pitch and formants move along, and
    each speaker at each speed counts as another one (Yamamoto et al. 2019, "speaker augmentation"), named
    `NAME@SPEED`. For sources with few speakers. Null: as they are."""
    speakers: Count | Annotated[list[Count], Field(min_length=1)] = [2, 3, 4]
    """Number of speakers in a conversation, or the numbers to draw from."""
    speaker_weights: list[Weight] | None = None
    """Relative frequency of each number of `speakers`. Null: equal."""
    seconds: float | Range | None = 20.0
    """Length of a conversation, or a range to draw it from; longer speech is cut off there. Null: as `turns`
    say."""
    turns: IntRange | None = None
    """Fewest and most turns of a conversation, with `seconds: null`: each speaker has one at least."""
    turn: Range = (0.5, 10.0)
    """Seconds of speech in one turn; longer utterances are cut at their pauses, shorter ones left out."""
    statistics: TurnStatistics | StoragePath = TurnStatistics()
    """Turn-taking: averages, or an RTTM file of real conversations to estimate it from."""
    level: Range = (-32.0, -22.0)
    """Level of each speaker in dBFS (root mean square of the speech)."""
    level_change: Range = (-3.0, 3.0)
    """Change of a speaker's level from turn to turn in dB."""
    reverb: Reverb | None = None
    """Rooms: one impulse response for each speaker of a conversation. Null: dry."""
    noise: Noise | None = Noise(builtin=["white", "pink"], snr=(10.0, 30.0), p=1.0)
    """Background noise at a signal-to-noise ratio to the speakers' mean level. Null: none."""
    split: float = Field(0.5, ge=0)
    """Seconds of a pause within a turn that end a segment: shorter ones are labelled as speech."""
    cache: Path | None = None
    """File that keeps where utterances without word times hold speech, so that the next run need not listen to them
    again. Null: each run listens."""
    seed: int = 0
    """Draws everything. Training and test sources differ by their utterances, not by the seed."""

    _lane: tuple[int, int] = (0, 1)
    _order: tuple[int, int] | None = None
    """Seed and epoch of a lane."""
    _pools: list[Any] = PrivateAttr(default_factory=list)
    """For `fresh` sources: the utterance pool once it is made; lanes, which are copies, share the list."""

    @model_validator(mode="after")
    def _fits(self) -> Conversation:
        if (self.seconds is None) == (self.turns is None):
            why = "a conversation ends after `seconds` or after `turns`: give one, and null for the other"
            raise ConfigConflict("turns", why)
        if self.turns is not None and self.turns[0] < (most := max(self._numbers())):
            why = f"in fewer than {most} turns not all of {most} `speakers` are heard: give more, or fewer speakers"
            raise ConfigConflict("turns", why)
        if self.speaker_weights is not None and len(self.speaker_weights) != len(self._numbers()):
            raise ConfigConflict("speaker_weights", f"needs one weight for each number of `speakers` {self._numbers()}")
        if self.noise is not None and "babble" in self.noise.builtin:
            why = "babble is made of one utterance; here give white, pink, brown or hum"
            raise ConfigConflict("noise.builtin", why)
        if (self.seconds if isinstance(self.seconds, float) else (self.seconds or (1.0,))[0]) < 2 * LEAST:
            raise ConfigConflict("seconds", f"a conversation lasts {2 * LEAST:g} s at least")
        return self

    def _numbers(self) -> list[int]:
        return [self.speakers] if isinstance(self.speakers, int) else self.speakers

    @property
    def streaming(self) -> bool:  # type: ignore[override]
        return self.fresh

    def num_shards(self, most: int) -> int:
        return most if self.fresh and self.limit is None and not self.skip else 1

    def lane(self, number: int, num_lanes: int, order: tuple[int, int], cursor: Any = None) -> Conversation:
        copy = self.model_copy()
        copy._lane, copy._order = (number, num_lanes), order
        return copy

    def expected(self) -> int:
        return self.count

    def records(self) -> Iterator[Cut | UnusableRecord]:
        number, num_lanes = self._lane
        pool, sampler, mark = self._pool(), self._turn_sampler(), self._mark()
        yield from () if number else pool.unusable
        series = str(self.seed) if self._order is None else ".".join(map(str, (self.seed, *self._order)))
        for index in range(number, self.count, num_lanes):
            name = f"conversation-{series}-{index:05d}"
            yield Scene(self, pool, sampler, name).cut().with_id(f"{name}-{mark}")
        yield from () if number else pool.refused.values()
        pool.save()

    def _pool(self) -> UtterancePool:
        if self._pools:
            return self._pools[0]
        pool = UtterancePool(self.source, self.turn, self.split, self.cache, self.speeds)
        if len(pool.speakers) < max(self._numbers()):
            raise DataError(
                f"Conversations of {max(self._numbers())} speakers need as many in the {self.source.type} source; it "
                f"has {len(pool.speakers)} whose utterances can be used{pool.why()}."
            )
        if self.fresh:
            self._pools.append(pool)
        return pool

    def _mark(self) -> str:
        """Six hexadecimal digits, others for other conversations: training and test data may have the same seed."""
        unset = {"fresh"} if self.speeds else {"fresh", "speeds"}
        plain = self.model_dump_json(exclude={"count", "cache", *unset, *Source.model_fields})
        return f"{zlib.crc32(plain.encode()) & 0xFFFFFF:06x}"

    def _turn_sampler(self) -> TurnSampler:
        if isinstance(self.statistics, TurnStatistics):
            return self.statistics.sampler()
        path = self.statistics.expanduser()
        return estimate(read_rttm(path), path)


class Scene:
    """One conversation in the making."""

    def __init__(self, config: Conversation, pool: UtterancePool, sampler: TurnSampler, name: str):
        self.config, self.pool, self.sampler, self.name = config, pool, sampler, name
        rng = self.rng = random.Random(name)
        numbers = config._numbers()
        (count,) = rng.choices(numbers, config.speaker_weights or [1.0] * len(numbers))
        self.speakers = rng.sample(pool.speakers, count)
        length = config.seconds
        self.seconds = rng.uniform(*length) if isinstance(length, tuple) else length
        self.turns = rng.randint(*config.turns) if config.turns else None
        # Levels, rooms and noise draw for themselves: with and without them the conversation is the same.
        self.loudness = random.Random(f"{name}/level")
        self.levels = {speaker: self.loudness.uniform(*config.level) for speaker in self.speakers}
        self.rooms = self._rooms()
        self.ends = dict.fromkeys(self.speakers, 0.0)
        """End of the last turn of each speaker, in seconds."""
        self.utterances = {speaker: pool.shuffled(speaker, rng) for speaker in self.speakers}
        self.tracks: list[Any] = []

    def cut(self) -> Cut:
        """The conversation: one track for each turn, then noise and silence under the whole."""
        from lhotse.cut import MixedCut

        self._talk()
        length = on_grid(self.seconds if self.seconds is not None else max(self.ends.values()) + self.rng.random())
        return MixedCut(id=self.name, tracks=[*self.tracks, *self._background(length)])

    def _talk(self) -> None:
        rng = self.rng
        speaker, begin, last_begin = self.speakers[0], rng.random(), 0.0
        unheard = set(self.speakers)
        taken = 0
        while self._goes_on(begin, taken):
            end = self._turn(speaker, begin)
            unheard.discard(speaker)
            taken += 1
            if end > begin and rng.random() < self.sampler.backchannel:
                self._backchannel(speaker, begin, end)
            floor = max(self.ends.values())
            same = len(self.speakers) == 1
            same = same or (rng.random() < self.sampler.same_speaker and not self._late(floor, unheard))
            if not same:
                speaker = self._next(speaker, unheard, floor)
            begin, last_begin = self._begin(speaker, floor, last_begin, same), begin

    def _goes_on(self, begin: float, taken: int) -> bool:
        if self.turns is not None:
            return taken < self.turns
        assert self.seconds is not None
        return begin < self.seconds - LEAST

    def _late(self, floor: float, unheard: set[str]) -> bool:
        """Whether those who have said nothing yet must speak now, for all to be heard."""
        if not unheard or self.turns is not None:
            return bool(unheard)
        assert self.seconds is not None
        return self.seconds - floor < (len(unheard) + 1) * self.pool.mean_turn

    def _next(self, speaker: str, unheard: set[str], floor: float) -> str:
        if self._late(floor, unheard):
            return self.rng.choice(sorted(unheard))
        return self.rng.choice([other for other in self.speakers if other != speaker])

    def _begin(self, speaker: str, floor: float, last_begin: float, same: bool) -> float:
        """Start of the next turn: no speaker overlaps with himself, and at most two turns run at once."""
        begin = floor + self.sampler.shift(same, self.rng)
        others = sorted(end for who, end in self.ends.items() if who != speaker)
        earliest = [self.ends[speaker] + APART, last_begin + LEAST, *others[:-1]]
        return max(begin, *earliest)

    def _turn(self, speaker: str, begin: float) -> float:
        """Place a turn of the speaker; its end, or `begin` when the speaker has nothing (left) to say."""
        turn = self.pool.turn(speaker, self.utterances[speaker], self.rng)
        if turn is None:
            self.ends[speaker] = max(self.ends[speaker], begin)
            return begin
        return self._place(speaker, turn, begin)

    def _backchannel(self, speaker: str, begin: float, end: float) -> None:
        """A word or two of somebody who is silent, within the turn."""
        silent = [s for s in self.speakers if s != speaker and self.ends[s] < begin]
        if not silent or end - begin < 2.0:
            return
        other = self.rng.choice(silent)
        turn = self.pool.backchannel(other, self.utterances[other], self.rng, longest=1.0)
        if turn is not None:
            self._place(other, turn, self.rng.uniform(begin + 0.5, end - 1.1))

    def _place(self, speaker: str, turn: Any, begin: float) -> float:
        """Add a track whose speech begins at `begin` seconds; answers when it ends."""
        from lhotse.cut.set import MixTrack

        offset = on_grid(max(begin - turn.lead, 0.0))
        room = None if self.seconds is None else on_grid(self.seconds - offset)
        level = self.levels[speaker] + self.loudness.uniform(*self.config.level_change)
        cut = turn.cut(f"{self.name}-{len(self.tracks)}", round(level, 2), self.rooms.get(speaker), room)
        self.tracks.append(MixTrack(cut=cut, offset=offset))
        end = offset + max(s.end for s in cut.supervisions)
        self.ends[speaker] = max(self.ends[speaker], end)
        return end

    def _rooms(self) -> dict[str, dict[str, Any]]:
        reverb, rng = self.config.reverb, random.Random(f"{self.name}/room")
        if reverb is None or rng.random() >= reverb.p:
            return {}
        files = list_audio(tuple(reverb.paths))
        if files and not (reverb.simulated and rng.random() < 0.5):
            chosen = rng.sample(files, len(self.speakers)) if len(files) >= len(self.speakers) else files * 99
            return {speaker: {"path": str(file)} for speaker, file in zip(self.speakers, chosen)}
        rt60 = rng.uniform(*reverb.rt60)
        far = {} if reverb.direct == DIRECT else {"direct": list(reverb.direct)}
        return {speaker: {"rt60": round(rt60, 3), "seed": rng.getrandbits(32), **far} for speaker in self.speakers}

    def _background(self, length: float) -> list[Any]:
        from lhotse import MonoCut
        from lhotse.cut import PaddingCut
        from lhotse.cut.set import MixTrack

        samples = round(length * RATE)
        silence = PaddingCut(f"{self.name}-silence", length, RATE, feat_value=0.0, num_samples=samples)
        rng = random.Random(f"{self.name}/noise")
        source = self._noise(rng)
        tracks: list[Any] = []
        while source is not None and (offset := len(tracks) * NOISE_SECONDS) < length:
            seconds = min(NOISE_SECONDS, on_grid(length - offset))
            name = f"{self.name}-noise{len(tracks)}"
            custom = {"made_noise": {**source, "seed": rng.getrandbits(32), "seconds": seconds}}
            cut = MonoCut(name, 0.0, seconds, channel=0, recording=recording_of(name, seconds), custom=custom)
            tracks.append(MixTrack(cut=cut, offset=offset))
        return [*tracks, MixTrack(cut=silence)]

    def _noise(self, rng: random.Random) -> dict[str, Any] | None:
        noise = self.config.noise
        if noise is None or rng.random() >= noise.p:
            return None
        files = list_audio(tuple(noise.paths))
        kind = rng.randrange(len(files) + len(noise.builtin))
        level = sum(self.levels.values()) / len(self.levels) - rng.uniform(*noise.snr)
        source = {"path": str(files[kind])} if kind < len(files) else {"kind": noise.builtin[kind - len(files)]}
        return {**source, "level": round(level, 2)}
