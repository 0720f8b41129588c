"""Forms: the fields of requests about recordings, as OpenAI's interface has them, and what they ask of a model."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import from_json

from stentor.inference.options import DecodingOptions
from stentor.inference.transcribe import Transcriber
from stentor.serve.errors import ApiError, blaming
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service
from stentor.text.languages import find, unknown_language

STREAMED = ("json", "text", "diarized_json")


class Fields(BaseModel):
    """What a request says; anything else in it is an error."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)


ModelName = Annotated[str, Field(max_length=500, description="A name of `GET /v1/models`.")]


class ServerVad(Fields):
    """How speech is found, in the place of the server's settings."""

    type: Literal["server_vad"]
    prefix_padding_ms: int | None = Field(None, ge=0, le=10_000)
    """Silence that stays on either side of speech."""
    silence_duration_ms: int | None = Field(None, ge=0, le=60_000)
    """Longer silence is not given to the model."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Probability of speech, where the server finds it with Silero."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


def _from_json(value: Any) -> Any:
    return from_json(value) if isinstance(value, str) and value.lstrip().startswith("{") else value


T = TypeVar("T")
Listed = Annotated[list[T], BeforeValidator(_as_list)]
"""Of which one may be sent as a single value."""


class TranslationForm(Fields):
    """A recording that is to be translated."""

    model: ModelName
    prompt: str | None = None
    """Text that is taken to come before, or what the recording is about, as the model has a place for it."""
    response_format: Literal["json", "text", "srt", "verbose_json", "vtt"] = "json"
    temperature: float | None = Field(None, ge=0, le=1)
    """Sampling temperature of the first attempt. 0: the most probable text, and higher ones where it seems made up."""


class TranscriptionForm(TranslationForm):
    """A recording that is to be transcribed."""

    response_format: Literal["json", "text", "srt", "verbose_json", "vtt", "diarized_json"] = "json"  # type: ignore[assignment]
    language: str | None = Field(None, max_length=100)
    """Of the recording, as a code such as en."""
    languages: Listed[str] = []
    """One language, where `language` is not there."""
    timestamp_granularities: Listed[Literal["word", "segment"]] = []
    """Of verbose_json: `word`, `segment` (the default) or both."""
    stream: bool | None = None
    """Server-sent events, of json, text and diarized_json."""
    include: Listed[Literal["logprobs"]] = []
    chunking_strategy: Annotated[Literal["auto"] | ServerVad | None, BeforeValidator(_from_json)] = None
    keywords: Listed[str] = []
    """Names and terms that may be heard."""
    known_speaker_names: Listed[str] = Field([], max_length=4)
    """Of diarized_json; other formats have no speakers."""
    known_speaker_references: Listed[str] = Field([], max_length=4)
    """Data URLs of 2 to 10 s of each of these speakers."""

    @model_validator(mode="after")
    def _together(self) -> TranscriptionForm:
        kind = self.response_format
        if self.words and kind != "verbose_json":
            raise ApiError(400, "Word times need response_format=verbose_json.", "timestamp_granularities")
        if self.include and kind != "json":
            raise ApiError(400, "Log-probabilities need response_format=json.", "include")
        if self.stream and kind not in STREAMED:
            raise ApiError(400, f"{kind} is not streamed: take {', '.join(STREAMED)}.", "response_format")
        for field, codes in (("language", [self.language]), ("languages", self.languages)):
            for code in filter(None, codes):
                if find(code) is None:
                    raise ApiError(400, unknown_language(code), field)
        if len(self.languages) > 1 and not self.language:
            message = "Models here take one language: send `language`, or leave both out."
            raise ApiError(400, message, "languages")
        if len(self.known_speaker_names) != len(self.known_speaker_references):
            message = "Each of known_speaker_names needs one of known_speaker_references."
            raise ApiError(400, message, "known_speaker_references")
        return self

    @property
    def words(self) -> bool:
        return "word" in self.timestamp_granularities

    @property
    def speakers(self) -> bool:
        return self.response_format == "diarized_json"

    def check(self, served: ServedModel, service: Service) -> None:
        """Raises ApiError for what the model cannot do."""
        if self.words and not served.model.knows_times:
            message = f"{self.model} knows no word times: ask for segments, or serve a model of the task words."
            raise ApiError(400, message, "timestamp_granularities")
        if self.speakers and service.registry.diarizer is None and not served.says_who:
            message = "This server tells no speakers apart: start it with --diarizer RUN."
            raise ApiError(400, message, "response_format")
        if self.speakers and self.known_speaker_names and served.says_who:
            message = f"{self.model} says itself who speaks, and knows nobody by a reference."
            raise ApiError(400, message, "known_speaker_references")


def transcriber(
    service: Service, served: ServedModel, form: TranscriptionForm, translate: bool = False, diarizer: Any = None
) -> Transcriber:
    """What transcribes as a form asks. Raises ApiError for what the model cannot do."""
    form.check(served, service)
    places = served.model.bundle.family.decoding_options()
    as_context = "context" in places and "prompt" not in places
    vad = form.chunking_strategy if isinstance(form.chunking_strategy, ServerVad) else ServerVad(type="server_vad")
    options = DecodingOptions(
        language=form.language or next(iter(form.languages), None),
        words=form.words,
        translate=translate or None,
        context=form.prompt if as_context else None,
        prompt=None if as_context else form.prompt,
        hotwords=form.keywords,
        temperature=form.temperature or None,
        min_silence=None if vad.silence_duration_ms is None else vad.silence_duration_ms / 1000,
        speech_pad=None if vad.prefix_padding_ms is None else vad.prefix_padding_ms / 1000,
    )
    sent = {"temperature": options.temperature, "hotwords": options.hotwords, "prompt": options.prompt}
    fields = {"temperature": "temperature", "hotwords": "keywords", "prompt": "prompt"}
    with blaming(None, {option: field for option, field in fields.items() if sent[option]}):
        return Transcriber(
            served.model.bundle,
            served.model.for_transcription(),
            options,
            served.name,
            diarizer,
            tokens=bool(form.include),
            detector=service.detector if vad.threshold is None else service.detector_at(vad.threshold),
            on_warning=lambda sentence: None,  # it may quote the request
        )
