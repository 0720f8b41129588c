"""Turn-taking of the `conversation` source: who speaks next, after what pause or with what overlap."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Annotated, Any, TypeAlias

from pydantic import Field

from stentor.errors import DataError
from stentor.section import Section

Share = Annotated[float, Field(ge=0, le=1)]
Seconds = Annotated[float, Field(ge=0)]
BACKCHANNEL = 1.0
"""Seconds of the longest segment that counts as a backchannel ("yeah", "mhm") when it lies within another's."""
LONGEST = 10.0
"""Seconds: longer pauses of an RTTM are interruptions of the conversation and not turn-taking."""


class TurnStatistics(Section):
    """Turn-taking by averages; pauses, gaps and overlaps are drawn from exponential distributions around them.

    The defaults are round figures for telephone and face-to-face talk: four changes of speaker in ten overlap (Heldner
    and Edlund 2010), gaps and overlaps are mostly a few tenths of a second (Levinson and Torreira 2015). Meetings
    pause longer: estimate them with `statistics: file.rttm`.
    """

    same_speaker: Share = 0.25
    """Probability that the speaker continues after a pause."""
    pause: Seconds = 0.6
    """Mean seconds of silence before the same speaker continues."""
    gap: Seconds = 0.4
    """Mean seconds of silence between two speakers."""
    overlap_share: Share = 0.4
    """Probability that the next speaker begins before the last one has ended."""
    overlap: Seconds = 0.5
    """Mean seconds of such an overlap."""
    backchannel: Share = 0.1
    """Probability of a backchannel: another speaker says a word or two during a turn."""

    def sampler(self) -> TurnSampler:
        """Sampler of these averages."""
        return TurnSampler(self.same_speaker, self.overlap_share, self.backchannel, self.pause, self.gap, self.overlap)


Lengths: TypeAlias = float | Sequence[float]
"""A mean of an exponential distribution, or observed values in order."""


@dataclass(frozen=True)
class TurnSampler:
    """Draws of turn-taking: pauses, gaps and overlaps come from a mean or from observed values."""

    same_speaker: float
    overlap_share: float
    backchannel: float
    pause: Lengths
    gap: Lengths
    overlap: Lengths

    @staticmethod
    def length(values: Lengths, rng: Random) -> float:
        """Seconds: exponential around a mean, or between two neighbouring observed values."""
        if not values:
            return 0.0
        if isinstance(values, (int, float)):
            return rng.expovariate(1 / values)
        place = rng.random() * (len(values) - 1)
        low = values[int(place)]
        return low + (values[min(int(place) + 1, len(values) - 1)] - low) * (place % 1)

    def shift(self, same: bool, rng: Random) -> float:
        """Seconds from the end of the last turn to the start of the next; negative where they overlap."""
        if same:
            return self.length(self.pause, rng)
        if rng.random() < self.overlap_share:
            return -self.length(self.overlap, rng)
        return self.length(self.gap, rng)


def estimate(recordings: dict[str, list[dict[str, Any]]], where: Path) -> TurnSampler:
    """Turn-taking of real conversations, from their segments by recording (`stentor.data.rttm.read_rttm`).

    As in Landini et al. (2022, arXiv 2204.00890; 2022, arXiv 2211.06750): pauses of the same speaker, gaps and overlaps
    between speakers are kept as they were observed, with the shares of each. Segments that lie within another's and
    last at most a second count as backchannels. Raises `DataError` when there are too few changes of speaker.
    """
    pauses: list[float] = []
    gaps: list[float] = []
    overlaps: list[float] = []
    backchannels = turns = 0
    for segments in recordings.values():
        floor: dict[str, Any] | None = None
        for segment in segments:
            turns += 1
            if floor is None or segment["start"] - floor["end"] > LONGEST:
                floor = segment
                continue
            other = segment["speaker"] != floor["speaker"]
            if segment["end"] <= floor["end"]:
                backchannels += other and segment["end"] - segment["start"] <= BACKCHANNEL
                continue
            shift = segment["start"] - floor["end"]
            if not other:
                pauses.append(max(shift, 0.0))
            else:
                (gaps if shift >= 0 else overlaps).append(abs(shift))
            floor = segment
    changes = len(gaps) + len(overlaps)
    if changes < 10:
        raise DataError(
            f"{where} has only {changes} changes of speaker, too few for statistics of turn-taking; give an RTTM of "
            "several conversations, or write the averages (`statistics: {gap: 0.4, ...}`)."
        )
    return TurnSampler(
        same_speaker=len(pauses) / (len(pauses) + changes),
        overlap_share=len(overlaps) / changes,
        backchannel=min(1.0, backchannels / max(turns - backchannels, 1)),
        pause=sorted(pauses),
        gap=sorted(gaps),
        overlap=sorted(overlaps),
    )
