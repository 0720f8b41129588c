"""OpenAPI: what requests and answers hold, also for the page that says so. Tests hold the routes to it."""

import re
from contextlib import suppress
from functools import partial
from types import GenericAlias
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, create_model, model_validator
from pydantic_core import from_json

from stentor.audio.selection import Selection
from stentor.data.yaml_text import scalar
from stentor.errors import ConfigError
from stentor.inference.declarations import declarations
from stentor.inference.formats import check_subtitles
from stentor.inference.options import SubtitleOptions
from stentor.section.explain import explain, sentences
from stentor.serve.errors import ApiError
from stentor.serve.foreign import own_fields


class Fields(BaseModel):
    """Fields of a request; any other field is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    @classmethod
    def read(cls, sent: Any, place: str = "") -> Self:
        """Read fields that a client sends; `place`: the field that they are in. Raises ApiError."""
        form, warnings = cls.requested(sent, place)
        if warnings:
            raise ApiError(400, " ".join(warnings), place or None)
        return form

    @classmethod
    def requested(cls, sent: Any, place: str = "") -> tuple[Self, list[str]]:
        """Read fields from plain data or the bytes of a JSON object, also by the names of other servers; return them
        and warnings about what has no effect. Raises ApiError."""
        with suppress(ValueError):
            sent = from_json(sent) if isinstance(sent, bytes) else sent
        if not isinstance(sent, dict):
            raise ApiError(400, f"{place or 'The body'} must be a JSON object.", place or None)
        sent, warnings = own_fields(sent, cls.model_fields)
        try:
            return cls.model_validate(sent), warnings
        except ValidationError as error:
            shown = {name: scalar(value) if isinstance(value, str) else value for name, value in sent.items()}
            key = explain(error, shown, cls)[0].key
            raise ApiError(400, sentences(error, shown, cls), ".".join(filter(None, [place, key])) or None) from None


class AudioFields(Fields):
    """Fields of a request with a recording."""

    partial: bool = False
    """Read what is there of a file that is cut short or damaged."""
    track: int | None = Field(None, ge=0)
    """Audio track, from 0. Default: the first."""

    @property
    def selection(self) -> Selection:
        return Selection(track=self.track, partial=self.partial)


_RULES: dict[str, Any] = {
    rule.name: (type(rule.default), Field(rule.default, ge=declared.min, description=declared.help))
    for rule, declared in declarations(SubtitleOptions)
}


class SubtitleFields(create_model("SubtitleRules", __base__=AudioFields, **_RULES)):  # type: ignore[misc]
    """Fields of a request whose answer may be subtitles: their rules, as `stentor transcribe` has them."""

    @property
    def rules(self) -> SubtitleOptions:
        return SubtitleOptions(**self.model_dump(include=_RULES.keys()))

    @model_validator(mode="after")
    def _possible(self) -> Self:
        try:
            check_subtitles(self.rules, [self.response_format])
        except ConfigError as error:
            text = str(error).replace("--format", "response_format")
            raise ApiError(400, re.sub(r"--([a-z-]+)", lambda flag: flag[1].replace("-", "_"), text)) from None
        return self


ModelName = Annotated[str, Field(max_length=500, description="A name of `GET /v1/models`.")]


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


def body_schema(body: type[BaseModel], media_type: str = "application/json") -> dict[str, Any]:
    """The part of an OpenAPI operation that describes a body."""
    properties = body.model_json_schema()
    properties = _inlined(properties, properties.pop("$defs", {}))
    return {"requestBody": {"required": True, "content": {media_type: {"schema": properties}}}}


def form_schema(form: type[BaseModel]) -> dict[str, Any]:
    """The same of a form with a file."""
    operation = body_schema(form, "multipart/form-data")
    properties = operation["requestBody"]["content"]["multipart/form-data"]["schema"]
    fields = {name: _sent(field) for name, field in properties["properties"].items()}
    properties["properties"] = {"file": {"type": "string", "format": "binary"}, **fields}
    properties["required"] = ["file", *properties.get("required", [])]
    return operation


def _sent(field: dict[str, Any]) -> dict[str, Any]:
    """The schema of a field that is left out where it is null, as forms have no null."""
    kinds = [kind for kind in field.get("anyOf", []) if kind != {"type": "null"}]
    rest = {key: value for key, value in field.items() if key != "anyOf" and (key, value) != ("default", None)}
    return {**rest, **kinds[0]} if len(kinds) == 1 else {**rest, **({"anyOf": kinds} if kinds else {})}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """A JSON schema without references."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    return [_inlined(item, definitions) for item in node] if isinstance(node, list) else node
