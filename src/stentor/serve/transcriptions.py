"""Transcriptions: what a request asks of a model, in the fields of OpenAI's interface, and its answer.
`POST /v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import BeforeValidator, Field, model_validator
from starlette.concurrency import run_in_threadpool

from stentor.inference.formats import SUBTITLES
from stentor.inference.options import DecodingOptions
from stentor.inference.transcribe import RecordingPlan, Transcriber, Transcript
from stentor.serve import responses
from stentor.serve.errors import ApiError, blaming
from stentor.serve.known_speakers import Diarizer, naming, write_references
from stentor.serve.openapi import Diarized, Fields, Json, ModelName, SubtitleFields, Verbose, form_schema
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service
from stentor.serve.streams import event_stream, unless_gone, warned
from stentor.serve.uploads import Form, Upload

router = APIRouter(tags=["audio"])
TEXT: Any = {"text/plain": {}, "text/vtt": {}}
ANSWERS: Any = {200: {"model": Json | Verbose, "content": TEXT}}
STREAMED: Any = {200: {"model": Json | Verbose | Diarized, "content": {**TEXT, "text/event-stream": {}}}}
HINTS = {"context", "prompt"}
STREAMABLE = ("json", "text", "diarized_json")


class ServerVad(Fields):
    """Settings of speech detection instead of the server's."""

    type: Literal["server_vad"] = "server_vad"
    prefix_padding_ms: int | None = Field(None, ge=0, le=10_000)
    """Silence that stays on either side of speech."""
    silence_duration_ms: int | None = Field(None, ge=0, le=60_000)
    """Longer silence is not given to the model."""
    threshold: float | None = Field(None, gt=0, lt=1)
    """Probability of speech, where the server finds it with Silero; else the level above the noise, 1 for 12 dB."""


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


T = TypeVar("T")
Listed = Annotated[list[T], BeforeValidator(_as_list)]
"""Fields whose single item may be sent as a plain value."""


class TranslationForm(SubtitleFields):
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
    """Language of the recording, as a code such as en."""
    languages: Listed[str] = []
    """One language, where `language` is not there."""
    timestamp_granularities: Listed[Literal["word", "segment"]] = []
    """For verbose_json: `word`, `segment` (the default) or both."""
    task: Literal["transcribe", "translate"] = "transcribe"
    """`translate`: as `/v1/audio/translations`."""
    stream: bool | None = None
    """Server-sent events, of json, text and diarized_json."""
    include: Listed[Literal["logprobs"]] = []
    chunking_strategy: Literal["auto"] | ServerVad | None = None
    keywords: Listed[str] = []
    """Names and terms that may be heard."""
    known_speaker_names: Listed[str] = Field([], max_length=4)
    """For diarized_json; other formats have no speakers."""
    known_speaker_references: Listed[str] = Field([], max_length=4)
    """Data URLs of 2 to 10 s of each of these speakers."""

    @model_validator(mode="after")
    def _together(self) -> TranscriptionForm:
        kind = self.response_format
        if self.words and kind != "verbose_json":
            raise ApiError(400, "Word times need response_format=verbose_json.", "timestamp_granularities")
        if self.include and kind != "json":
            raise ApiError(400, "Log-probabilities need response_format=json.", "include")
        if self.stream and kind not in STREAMABLE:
            raise ApiError(400, f"{kind} is not streamed: take {', '.join(STREAMABLE)}.", "response_format")
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


@router.post("/v1/audio/transcriptions", openapi_extra=form_schema(TranscriptionForm), responses=STREAMED)
async def transcriptions(request: Request, upload: Upload) -> Response:
    """The text of a recording, in the language that is spoken."""
    return await _answer(request, upload, TranscriptionForm)


@router.post("/v1/audio/translations", openapi_extra=form_schema(TranslationForm), responses=ANSWERS)
async def translations(request: Request, upload: Upload) -> Response:
    """The text of a recording in the language that the model translates to (Whisper: English)."""
    return await _answer(request, upload, TranslationForm)


async def _answer(request: Request, upload: Form, kind: type[TranslationForm]) -> Response:
    asked = await run_in_threadpool(_TranscriptionRequest, request.app.state.service, upload, kind)
    return warned(await unless_gone(request.receive, asked.response()), asked.warnings)


class _TranscriptionRequest:
    """One request: its fields, its file, its model and what transcribes as they ask. Raises ApiError for what the model
    cannot do."""

    def __init__(self, service: Service, upload: Form, kind: type[TranslationForm]):
        self.service = service
        if others := [name for name in upload.files if name != "file"]:
            raise ApiError(400, f"{others[0]} is no file of this request: send the recording as `file`.", others[0])
        asked, self.warnings = kind.requested(upload.values())
        self.fields = TranscriptionForm.model_validate(asked.model_dump())
        self.known = self.fields.known_speaker_names
        self.served: ServedModel = service.model(self.fields.model, "transcribe")
        self.recording = service.recording(
            upload, self.served.model.bundle.processor.sample_rate, self.fields.selection
        )
        self._check()
        self.transcriber = self._transcriber(kind is TranslationForm or self.fields.task == "translate")

    def _check(self) -> None:
        """Raises ApiError for what the model cannot do."""
        name, says_who, speakers = self.fields.model, self.served.says_who, self.fields.speakers
        if self.fields.words and not self.served.model.knows_times:
            message = f"{name} knows no word times: ask for segments, or serve a model of the task words."
            raise ApiError(400, message, "timestamp_granularities")
        if speakers and self.service.registry.diarizer is None and not says_who:
            message = "This server tells no speakers apart: start it with --diarizer RUN."
            raise ApiError(400, message, "response_format")
        if speakers and self.known and says_who:
            message = f"{name} names speakers itself and takes no reference speakers."
            raise ApiError(400, message, "known_speaker_references")

    def _transcriber(self, translate: bool) -> Transcriber:
        form, bundle, vad = self._without_unused(), self.served.model.bundle, self.fields.chunking_strategy
        places = bundle.family.decoding_options()
        as_context = "context" in places and "prompt" not in places
        vad = vad if isinstance(vad, ServerVad) else ServerVad(type="server_vad")
        options = DecodingOptions(
            language=form.language or next(iter(form.languages), None),
            words=form.words or (form.response_format in SUBTITLES and self.served.model.knows_times),
            translate=translate or None,
            context=form.prompt if as_context else None,
            prompt=None if as_context else form.prompt,
            hotwords=form.keywords,
            temperature=form.temperature or None,
            min_silence=None if vad.silence_duration_ms is None else vad.silence_duration_ms / 1000,
            speech_pad=None if vad.prefix_padding_ms is None else vad.prefix_padding_ms / 1000,
        )
        find_speech = self.service.detector if vad.threshold is None else self.service.detector_at(vad.threshold)
        with blaming(None, {"language": "language" if form.language else "languages"}):
            return Transcriber(
                bundle,
                self.served.model.for_transcription(),
                options,
                self.served.name,
                self._diarizer(),
                tokens=bool(form.include),
                detector=find_speech,
            )

    def _without_unused(self) -> TranscriptionForm:
        """The fields without those that the model has no place for, each with a warning."""
        places = self.served.model.bundle.family.decoding_options()
        needs = {"temperature": {"temperature"}, "prompt": HINTS, "keywords": HINTS | {"hotwords"}}
        unused = [name for name, options in needs.items() if self.fields.model_dump()[name] and not options & places]
        self.warnings += [f"{self.fields.model} takes no {name}: it has no effect." for name in unused]
        return self.fields.model_copy(update={name: None if name != "keywords" else [] for name in unused})

    def _diarizer(self) -> Diarizer | None:
        """Diarizer of a request, with its known speaker names."""
        served = self.service.registry.diarizer
        if not self.fields.speakers or served is None or self.served.says_who:
            return None
        references = write_references(self.fields.known_speaker_references, self.recording)
        return naming(served.diarizer(), self.known, references) if references else served.diarizer()

    async def events(self, plan: RecordingPlan) -> AsyncGenerator[dict[str, Any], None]:
        """Events of a transcript as its windows are done."""
        events, transcript = responses.TranscriptEvents(self.fields.speakers, self.known), self.transcriber.transcript

        def grown(done: int) -> list[dict[str, Any]]:
            return events.grown(transcript(plan, done))

        async with aclosing(self.service.windows(self.served, self.transcriber, plan)) as counts:
            async for done in counts:
                if done < len(plan.windows):
                    for event in await run_in_threadpool(grown, done):
                        yield event
        for event in await run_in_threadpool(lambda: events.done(transcript(plan))):
            yield event

    async def response(self) -> Response:
        plan = await self.service.read(self.transcriber.plan, self.recording)
        if plan.error is not None:
            raise plan.error
        if self.fields.stream:
            return event_stream(self.events(plan))
        async with aclosing(self.service.windows(self.served, self.transcriber, plan)) as counts:
            async for _ in counts:
                pass
        task = "translate" if self.transcriber.task.translate else "transcribe"
        return await run_in_threadpool(lambda: transcription(self.transcriber.transcript(plan), self.fields, task))


def transcription(transcript: Transcript, fields: TranscriptionForm, task: str) -> Response:
    """The answer to a request for a transcript. `task`: transcribe or translate."""
    match fields.response_format:
        case "text":
            return PlainTextResponse(transcript.text + "\n")
        case "srt" | "vtt" as kind:
            return responses.rendered(transcript, kind, fields.rules)
        case "verbose_json":
            return JSONResponse(responses.verbose(transcript, set(fields.timestamp_granularities) or {"segment"}, task))
        case "diarized_json":
            segments = responses.speaker_segments(transcript, fields.known_speaker_names)
            body = {"task": "transcribe", "duration": transcript["duration"], "text": transcript.text}
            return JSONResponse({**body, "segments": segments, "usage": responses.usage(transcript)})
    return JSONResponse(
        {"text": transcript.text, **responses.details(transcript), "usage": responses.usage(transcript)}
    )
