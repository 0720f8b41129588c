"""Forced alignment interface: clips with their texts, words with their times, and the `Aligner` protocol."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np

from stentor.audio.activity import FRAME, Activity, runs
from stentor.data.word_times import LEAST, in_order
from stentor.inference.recording import Recording

Reason = Literal["no_words", "too_long_text", "mismatch"]
"""Reason for missing or unreliable word times: the text has no words, is too long for the audio, or does not match."""

LOW = 0.05
"""Confidence under which a word was not found in the audio."""
BESIDE, BREAK = 0.15, 0.3
"""Seconds beside a word that it covers, and of speech that no word covers to be named."""
MANY = 0.1
"""Share of words that were not found, or of speech that is not covered, above which there is a warning."""
NAMED = 10
"""Most words and places that a warning names."""


@dataclass
class Clip:
    """A recording and its transcript."""

    id: str
    text: str
    language: str | None
    recording: Recording
    activity: Activity  # levels and speech of the recording, see `stentor.audio.activity.Activity`
    on_share: Callable[[float], None] = lambda share: None
    """Called with the share of a long recording that is done."""

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
    unwritten: bool = False  # whether the model cannot write it: its time is that of a wildcard, its confidence 0
    at: int = 0  # its first character in the text of the clip
    low: float = LOW  # the confidence under which it was not found; 0 where right words may have any

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
    ignored: list[str] = field(default_factory=list)  # sounds in brackets that were left out


class Aligner(Protocol):
    """A method of forced alignment."""

    rate: int
    """Sample rate of its recordings in Hz."""

    def align(self, clips: Sequence[Clip], transcribe: bool = False) -> list[Aligned]:
        """Return the word times of each clip, of any length; with `transcribe`, also the model's own transcript."""


def describe_problem(clip: Clip, aligned: Aligned) -> str | None:
    """Return the problem of word times as a message; None if there is none."""
    heard = f" The model's transcript: {aligned.hypothesis[:200]!r}." if aligned.hypothesis else ""
    why = "--read-brackets aligns what stands in brackets" if aligned.ignored else "it has no letter and no digit"
    problems: dict[Reason | None, str] = {
        "no_words": f"The text {clip.text!r} has no words: {why}.",
        "too_long_text": f"{clip.id}: a text of {len(clip.text):,} characters is too long for {clip.seconds:.2f} s of "
        "audio: text and audio do not belong together.",
        "mismatch": f"{clip.id}: the text does not match the audio, so its times are unreliable.{heard}",
    }
    return problems.get(aligned.reason)


def transcript(clip: Clip, aligned: Aligned, model: str, lines: Sequence[str] = ()) -> dict[str, Any]:
    """Return the transcript in the format of `stentor transcribe --words`, with a segment for each of the `lines`
    that make the clip's text, and with what audio and text lack of each other."""
    words = in_order([word.as_dict() for word in aligned.words], clip.seconds)
    segments, begin = [], 0
    places = [word.at for word in aligned.words]
    for line in lines or [clip.text]:
        own = words[bisect_left(places, begin) : bisect_left(places, begin := begin + len(line) + 1)]
        segments += [{"start": own[0]["start"], "end": own[-1]["end"], "text": line}] if own else []
    return {
        "audio": clip.recording.name,
        "duration": round(clip.seconds, 3),
        "language": clip.language,
        "text": clip.text,
        "words": words,
        "segments": segments,
        "unwritten": [word.word for word in aligned.words if word.unwritten],
        "ignored": aligned.ignored,
        "not_found": _not_found(aligned.words, words),
        "not_covered": _not_covered(clip.activity, words),
        "model": model,
        **clip.recording.selection.keys,
        **({"notes": list(clip.recording.notes)} if clip.recording.notes else {}),
    }


def _not_found(words: Sequence[Word], times: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The share of the words that the audio does not seem to have, unlikely or squeezed, and where these are."""
    lost = [not w.unwritten and (w.confidence < w.low or w.end - w.start < LEAST) for w in words]
    groups = [times[a:b] for a, b in runs(np.array(lost)).tolist()]
    texts = [" ".join(word["word"] for word in group) for group in groups]
    places = [{"start": g[0]["start"], "end": g[-1]["end"], "text": text} for g, text in zip(groups, texts)]
    return {"share": round(sum(lost) / len(lost), 4), "places": places}


def _not_covered(activity: Activity, times: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The share of the speech that no word covers, and where it is."""
    free = np.ones(len(activity.speech), bool)
    for word in times:
        free[max(0, int((word["start"] - BESIDE) / FRAME)) : int((word["end"] + BESIDE) / FRAME) + 1] = False
    heard = [a + np.flatnonzero(activity.speech[a:b]) for a, b in runs(free).tolist()]
    heard = [frames for frames in heard if len(frames) * FRAME >= BREAK]
    share = sum(map(len, heard)) / max(1, int(activity.speech.sum()))
    places = [{"start": round(float(f[0]) * FRAME, 2), "end": round(float(f[-1] + 1) * FRAME, 2)} for f in heard]
    return {"share": round(share, 4), "places": places}


def warnings_of(problem: str | None, output: dict[str, Any]) -> list[str]:
    """Return the problem and what else a user should know of a transcript with word times."""
    few: dict[str, Any] = {"share": 0, "places": []}
    lost, extra = (output[key] if output[key]["share"] > MANY else few for key in ("not_found", "not_covered"))
    facts = {
        "the model cannot write {}: it takes any sound for these, with confidence 0. If they are numbers or signs, add "
        "--normalize to read them aloud.": [repr(word) for word in output["unwritten"]],
        "sounds in brackets are left out: {}. To align them, add --read-brackets.": output["ignored"],
        f"{lost['share']:.0%} of the words are not found in the audio: {{}}.": [
            f"{place['text'][:40]!r} at {place['start']:.2f} s" for place in lost["places"]
        ],
        f"{extra['share']:.0%} of the speech is not in the text: {{}}.": [
            f"{place['start']:.2f} to {place['end']:.2f} s" for place in extra["places"]
        ],
    }
    texts = [problem] if problem else []
    for fact, names in facts.items():
        some = [*dict.fromkeys(names)]
        more = f" and {len(some) - NAMED} more" if len(some) > NAMED else ""
        texts += [f"{output.get('id', output['audio'])}: {fact.format(', '.join(some[:NAMED]) + more)}"] if some else []
    return texts
