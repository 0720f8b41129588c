"""Responses: a transcript as OpenAI's interface writes it. Times and texts are the transcript's own."""

import math
from collections.abc import Collection, Iterable
from typing import Any

from fastapi.responses import PlainTextResponse, Response

from stentor.inference.formats import render
from stentor.inference.options import SubtitleOptions
from stentor.inference.transcribe import Transcript
from stentor.tasks.decode_checks import compression_ratio
from stentor.text.languages import find

UNKNOWN_LANGUAGE = "unknown"
UNLIKELY = -9999.0
"""The log-probability of what is next to impossible, as OpenAI's interface has it: JSON knows no infinite numbers."""


def rendered(transcript: dict[str, Any], kind: str, rules: SubtitleOptions) -> Response:
    """A transcript in a format of `stentor transcribe` that is text."""
    return PlainTextResponse(render(transcript, kind, rules), media_type="text/vtt" if kind == "vtt" else "text/plain")


def details(transcript: Transcript) -> dict[str, Any]:
    """`languages` of a transcript, where one is known, and its `logprobs`."""
    code = transcript["language"]
    return {**({"languages": [{"code": code}]} if code else {}), **log_probs(transcript.segments)}


def log_probs(segments: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """`logprobs` of the tokens of segments; nothing where they have none."""
    tokens = [token for segment in segments for token in segment.get("tokens", [])]
    listed = [{**t, "logprob": _finite(t["logprob"]), "bytes": list(t["token"].encode())} for t in tokens]
    return {"logprobs": listed} if tokens else {}


def _finite(log_prob: float) -> float:
    return log_prob if math.isfinite(log_prob) else UNLIKELY


def usage(transcript: Transcript) -> dict[str, Any]:
    """The length of the audio, in whole seconds as OpenAI counts them."""
    return {"type": "duration", "seconds": math.ceil(transcript["duration"])}


def verbose(transcript: Transcript, granularities: set[str], task: str) -> dict[str, Any]:
    """`["word"]` alone gives no segments, as the interface has it."""
    language = find(transcript["language"] or "")
    body = {
        "task": task,
        "language": "english" if task == "translate" else language.name.lower() if language else UNKNOWN_LANGUAGE,
        "duration": transcript["duration"],
        "text": transcript.text,
    }
    if "word" in granularities:
        body["words"] = [{name: word[name] for name in ("word", "start", "end")} for word in transcript.words or []]
    if "segment" in granularities:
        body["segments"] = [_segment(number, segment) for number, segment in enumerate(transcript.segments)]
    return {**body, "usage": usage(transcript)}


def _segment(number: int, segment: dict[str, Any]) -> dict[str, Any]:
    """A segment; `seek` is its start in Whisper's frames of 10 ms, and tokens, which belong to a tokenizer that the
    client has not, are not listed."""
    return {
        "id": number,
        "seek": round(100 * segment["start"]),
        "start": segment["start"],
        "end": segment["end"],
        "text": segment["text"],
        "tokens": [],
        "temperature": segment.get("temperature", 0.0),
        "avg_logprob": _finite(segment.get("log_prob", 0.0)),
        "compression_ratio": round(compression_ratio(segment["text"]), 3),
        "no_speech_prob": segment.get("no_speech_prob", 0.0),
    }


def speaker_segments(transcript: Transcript, known: Collection[str]) -> list[dict[str, Any]]:
    """Segments of one speaker each. Speakers are A, B, C in the order in which they are first heard, as the interface
    has them, but for those whose names are `known`."""
    labels = {name: name for name in known}
    return [
        {
            "type": "transcript.text.segment",
            "id": f"seg_{number:03d}",
            "start": segment["start"],
            "end": segment["end"],
            "text": segment["text"],
            "speaker": labels.setdefault(segment.get("speaker") or "", _letters(len(labels) - len(known))),
        }
        for number, segment in enumerate(transcript.segments)
    ]


def _letters(number: int) -> str:
    """A to Z, then AA, AB and so on."""
    return (_letters(number // 26 - 1) if number >= 26 else "") + chr(ord("A") + number % 26)


class TranscriptEvents:
    """Server-sent events of a transcript that grows. The deltas, laid end to end, are the text."""

    def __init__(self, speakers: bool, known: Collection[str] = ()):
        """`speakers`: with an event for each segment of one speaker; `known` as in `speaker_segments`."""
        self.speakers, self.known = speakers, known
        self._sent, self._segments = "", 0

    def grown(self, transcript: Transcript) -> list[dict[str, Any]]:
        """New part of the transcript of the first windows."""
        text, new, events = transcript.text, transcript.segments[self._segments :], list[dict[str, Any]]()
        for segment in speaker_segments(transcript, self.known)[self._segments :] if self.speakers else []:
            end = text.find(segment["text"], len(self._sent)) + len(segment["text"])
            events += [*self._delta(text[:end], segment_id=segment["id"]), segment]
        events += self._delta(text, **log_probs(new))
        self._segments = len(transcript.segments)
        return events

    def _delta(self, text: str, **more: Any) -> list[dict[str, Any]]:
        """New part of a text, if it begins with what was sent."""
        if text == self._sent or not text.startswith(self._sent):
            return []
        delta, self._sent = text[len(self._sent) :], text
        return [{"type": "transcript.text.delta", "delta": delta, **more}]

    def done(self, transcript: Transcript) -> list[dict[str, Any]]:
        """New part at the end, and the last event, whose text is the transcript's whatever came before. Its `usage`
        would be one in tokens, and is left out."""
        last = {"type": "transcript.text.done", "text": transcript.text, **details(transcript)}
        return [*self.grown(transcript), last]
