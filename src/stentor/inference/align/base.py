"""Forced alignment interface: clips with their texts, words with their times, and the `Aligner` protocol."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from stentor.audio.activity import Activity
from stentor.inference.recording import Recording

Reason = Literal["no_words", "too_long_text", "mismatch"]
"""Reason for missing or unreliable word times: the text has no words, is too long for the audio, or does not match."""


@dataclass
class Clip:
    """A recording and its transcript."""

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
    """Cost of the text compared with the model's own transcript, in the engine's measure."""
    reason: Reason | None = None  # what is wrong. With `mismatch` there are words all the same


class Aligner(Protocol):
    """A method of forced alignment."""

    rate: int
    """Sample rate of its recordings in Hz."""

    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """Return the word times of each clip, of any length; with `transcribe`, also the model's own transcript."""


def describe_problem(clip: Clip, aligned: Aligned) -> str | None:
    """Return the problem of word times as a message; None if there is none."""
    match aligned.reason:
        case "no_words":
            return f"The text {clip.text!r} has no words: it has no letter and no digit."
        case "too_long_text":
            return (
                f"{clip.id}: a text of {len(clip.text):,} characters is too long for {clip.seconds:.2f} s of audio: "
                "text and audio do not belong together."
            )
        case "mismatch":
            hypothesis = f" The model's transcript: {aligned.hypothesis[:200]!r}." if aligned.hypothesis else ""
            return f"{clip.id}: the text does not match the audio, so its times are unreliable.{hypothesis}"
    return None


def transcript(clip: Clip, aligned: Aligned, model: str) -> dict[str, Any]:
    """Return the transcript in the format of `stentor transcribe --words`."""
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
