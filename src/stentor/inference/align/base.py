"""Forced alignment interface: clips with their texts, words with their times, and the `Aligner` protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stentor.audio.activity import Activity
from stentor.inference.recording import Recording

Reason = Literal["no_words", "too_long_text", "mismatch"]
"""Reason why a text has no word times, or none to trust: nothing in it is spoken, there is not enough audio to say it,
or it is not what was said."""


@dataclass
class Clip:
    """A recording with the text that is spoken in it."""

    id: str
    text: str
    language: str | None
    recording: Recording
    activity: Activity  # levels and speech of the recording, see `stentor.audio.activity.Activity`

    @property
    def samples(self) -> int:
        return self.activity.samples

    @property
    def seconds(self) -> float:
        return self.activity.samples / self.recording.rate


@dataclass
class Word:
    """A word with its time in seconds from the start of the clip."""

    word: str
    start: float
    end: float
    confidence: float  # from 0 to 1; its meaning depends on the engine

    def as_dict(self) -> dict[str, Any]:
        start, end, confidence = round(self.start, 3), round(self.end, 3), round(self.confidence, 4)
        return {"word": self.word, "start": start, "end": end, "confidence": confidence}


@dataclass
class Aligned:
    """Word times of one clip."""

    words: list[Word]
    hypothesis: str | None = None  # the model's own transcript, where that was asked for or needed
    cost: float | None = None
    """Score of the text minus that of the model's own transcript, in the engine's measure."""
    reason: Reason | None = None  # what is wrong. With `mismatch` there are words all the same


class Aligner(Protocol):
    """A way of finding word times of known texts."""

    rate: int
    """Samples per second of the recordings that it takes."""

    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """Word times of each clip, of any length; with `transcribe` also the model's own transcript."""


def describe_problem(clip: Clip, aligned: Aligned) -> str | None:
    """Fault of word times, in a sentence; None without one."""
    match aligned.reason:
        case "no_words":
            return f"Nothing in the text {clip.text!r} is spoken: it has no letter and no digit."
        case "too_long_text":
            return (
                f"{clip.id}: {clip.seconds:.2f} s of audio cannot hold a text of {len(clip.text):,} characters: text "
                "and audio do not belong together."
            )
        case "mismatch":
            hypothesis = f" The model hears: {aligned.hypothesis[:200]!r}." if aligned.hypothesis else ""
            return f"{clip.id}: the text does not seem to be what is said, so that its times mean little.{hypothesis}"
    return None


def transcript(clip: Clip, aligned: Aligned, model: str) -> dict[str, Any]:
    """The transcript as `stentor transcribe --words` writes it."""
    words = [word.as_dict() for word in aligned.words]
    return {
        "audio": clip.recording.name,
        "duration": round(clip.seconds, 3),
        "language": clip.language,
        "text": clip.text,
        "words": words,
        "segments": [{"start": words[0]["start"], "end": words[-1]["end"], "text": clip.text}],
        "model": model,
        **({} if clip.recording.channel is None else {"channel": clip.recording.channel}),
    }
