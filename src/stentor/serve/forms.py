"""Forms: the fields of requests about recordings, as OpenAI's interface has them, and what they ask of a model."""

from __future__ import annotations

import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from stentor.errors import ConfigError
from stentor.inference.transcribe import Transcriber
from stentor.serve.errors import ApiError
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service
from stentor.text.languages import find, unknown_language

STREAMED = ("json", "text", "diarized_json")


class ServerVad(BaseModel):
    """How speech is found, in the place of the server's settings."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["server_vad"]
    prefix_padding_ms: int | None = Field(None, ge=0, le=10_000)
    """Silence that stays on either side of speech."""
    silence_duration_ms: int | None = Field(None, ge=0, le=60_000)
    """Longer silence is not given to the model."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Probability of speech, where the server finds it with Silero."""


class TranslationForm(BaseModel):
    """A recording that is to be translated."""

    model_config = ConfigDict(extra="forbid")

    model: str
    """A name of `GET /v1/models`."""
    prompt: str | None = None
    """Text that is taken to come before, or what the recording is about, as the model has a place for it."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(None, ge=0, le=1)
    """Sampling temperature of the first attempt. 0: the most probable text, and higher ones where it seems made up."""

    def option_fields(self) -> dict[str, Any]:
        return {"translate": True}

    def check(self, served: ServedModel, service: Service) -> None:
        """Raises ApiError for fields that do not go together, or not with the model."""

    @property
    def words(self) -> bool:
        return False


class TranscriptionForm(TranslationForm):
    """A recording that is to be transcribed."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"  # type: ignore[assignment]
    language: str | None = None
    """Of the recording, as a code such as en."""
    languages: list[str] = []
    """One language, where `language` is not there."""
    timestamp_granularities: list[Literal["word", "segment"]] = []
    """Of verbose_json: `word`, `segment` (the default) or both."""
    stream: bool | None = None
    """Server-sent events, of json, text and diarized_json."""
    include: list[Literal["logprobs"]] = []
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    keywords: list[str] = []
    """Names and terms that may be heard."""
    known_speaker_names: list[str] = Field([], max_length=4)
    known_speaker_references: list[str] = Field([], max_length=4)
    """Data URLs of 2 to 10 s of each of these speakers."""

    @field_validator("chunking_strategy", mode="before")
    @classmethod
    def _parsed(cls, value: Any) -> Any:
        if isinstance(value, str) and value.lstrip().startswith("{"):
            try:
                return json.loads(value)
            except ValueError:
                raise ValueError("is neither auto nor a JSON object") from None
        return value

    @field_validator("languages", "timestamp_granularities", "include", "keywords", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _together(self) -> TranscriptionForm:
        if self.words and self.response_format != "verbose_json":
            raise ApiError(400, "Word times need response_format=verbose_json.", "timestamp_granularities")
        if self.include and self.response_format != "json":
            raise ApiError(400, "Log-probabilities need response_format=json.", "include")
        if self.stream and self.response_format not in STREAMED:
            message = f"{self.response_format} is not streamed: take one of {', '.join(STREAMED)}."
            raise ApiError(400, message, "response_format")
        for code in filter(None, [self.language, *self.languages]):
            if find(code) is None:
                raise ApiError(400, unknown_language(code), "language" if code == self.language else "languages")
        if self.language is None and len(self.languages) > 1:
            message = "The models here are told one language, or find it out: send `language`, or leave both out."
            raise ApiError(400, message, "languages")
        if len(self.known_speaker_names) != len(self.known_speaker_references):
            message = "Each of known_speaker_names needs one of known_speaker_references."
            raise ApiError(400, message, "known_speaker_references")
        if self.known_speaker_names and self.response_format != "diarized_json":
            raise ApiError(400, "Known speakers need response_format=diarized_json.", "known_speaker_names")
        return self

    @property
    def words(self) -> bool:
        return "word" in self.timestamp_granularities

    @property
    def speakers(self) -> bool:
        return self.response_format == "diarized_json"

    def option_fields(self) -> dict[str, Any]:
        options: dict[str, Any] = {"language": self.language or (self.languages or [None])[0]}
        if self.include:
            options["tokens"] = True
        if self.keywords:
            options["hotwords"] = self.keywords
        if isinstance(self.chunking_strategy, ServerVad):
            silence, padding = self.chunking_strategy.silence_duration_ms, self.chunking_strategy.prefix_padding_ms
            options |= {"min_silence": silence / 1000} if silence is not None else {}
            options |= {"speech_pad": padding / 1000} if padding is not None else {}
        return options

    def check(self, served: ServedModel, service: Service) -> None:
        if self.words and not served.model.knows_times:
            message = f"{self.model} knows no word times: ask for segments, or serve a model of the task words."
            raise ApiError(400, message, "timestamp_granularities")
        says_who = served.says_who
        if self.speakers and service.registry.diarizer is None and not says_who:
            message = "This server tells no speakers apart: start it with --diarizer RUN."
            raise ApiError(400, message, "response_format")
        if self.known_speaker_names and says_who:
            message = f"{self.model} says itself who speaks, and knows nobody by a reference."
            raise ApiError(400, message, "known_speaker_references")


def transcriber(service: Service, served: ServedModel, form: TranslationForm, diarizer: Any = None) -> Transcriber:
    """What transcribes as a form asks. Raises ApiError for what the model cannot do."""
    form.check(served, service)
    options = form.option_fields()
    places = served.model.bundle.family.decoding_options()
    if form.prompt:
        options["context" if "context" in places and "prompt" not in places else "prompt"] = form.prompt
    if form.temperature:
        options["temperature"] = form.temperature
    vad = getattr(form, "chunking_strategy", None)
    threshold = vad.threshold if isinstance(vad, ServerVad) else None
    detector = service.detector if threshold is None else service.detector_at(threshold)
    task = served.model.for_transcription()
    options |= {"model": served.name, "words": form.words, "detector": detector, "diarizer": diarizer}
    try:
        return Transcriber(served.model.bundle, task, **options)
    except ConfigError as error:
        raise ApiError(400, str(error), _blamed(options, str(error))) from None


def _blamed(options: dict[str, Any], message: str) -> str | None:
    """The field that a sentence is about."""
    fields = {"temperature": "temperature", "hotwords": "keywords", "prompt": "prompt"}
    return next((field for name, field in fields.items() if name in options and name in message), None)


def schema(form: type[BaseModel]) -> dict[str, Any]:
    """The part of an OpenAPI operation that describes a form with a file."""
    properties = form.model_json_schema()
    properties = _inlined(properties, properties.pop("$defs", {}))
    properties["properties"] = {"file": {"type": "string", "format": "binary"}, **properties["properties"]}
    properties["required"] = ["file", *properties.get("required", [])]
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": properties}}}}


def _inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """A JSON schema without references."""
    if isinstance(node, dict):
        if "$ref" in node:
            return _inlined(definitions[node["$ref"].rpartition("/")[2]], definitions)
        return {key: _inlined(value, definitions) for key, value in node.items()}
    return [_inlined(item, definitions) for item in node] if isinstance(node, list) else node
