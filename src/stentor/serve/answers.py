"""Answers: what is in the JSON of the routes, for the OpenAPI page. Tests hold the routes to it."""

from __future__ import annotations

from functools import partial
from types import GenericAlias
from typing import Any, Literal

from pydantic import ConfigDict, create_model


def _answer(title: str, **keys: Any) -> Any:
    """A description; a pair is a type, and what stands for a key that is not there."""
    fields: dict[str, Any] = {key: kind if isinstance(kind, tuple) else (kind, ...) for key, kind in keys.items()}
    return create_model(title, __config__=ConfigDict(extra="forbid"), **fields)


_several = partial(GenericAlias, list)
_text: dict[str, Any] = {"text": str, "usage": _answer("Usage", type=Literal["duration"], seconds=int)}
_span: dict[str, Any] = {"text": str, "start": float, "end": float}
_scores = dict.fromkeys(("temperature", "avg_logprob", "compression_ratio", "no_speech_prob"), float)

LogProb = _answer("LogProb", token=str, logprob=float, bytes=list[int])
Language = _answer("Language", code=str)
Word = _answer("Word", word=str, start=float, end=float)
Segment = _answer("Segment", id=int, seek=int, tokens=list[int], **_span, **_scores)
SpeakerSegment = _answer("SpeakerSegment", type=Literal["transcript.text.segment"], id=str, speaker=str, **_span)
_verbose: dict[str, Any] = {"language": str, "words": (_several(Word), []), "segments": (_several(Segment), [])}

Json = _answer("Transcription", languages=(_several(Language), []), logprobs=(_several(LogProb), []), **_text)
Verbose = _answer("Verbose", task=Literal["transcribe", "translate"], duration=float, **_verbose, **_text)
Diarized = _answer("Diarized", task=Literal["transcribe"], duration=float, segments=_several(SpeakerSegment), **_text)
Model = _answer("Model", id=str, object=Literal["model"], created=int, owned_by=str, task=str)
ModelList = _answer("ModelList", object=Literal["list"], data=_several(Model))
Health = _answer("Health", status=Literal["ok", "loading", "stopping", "failed"], requests=int)
