"""Speech: a text and how it is to be spoken, and its audio as the model makes it. `POST /v1/audio/speech` and
`GET /v1/audio/voices`."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import AsyncGenerator
from contextlib import AbstractContextManager, aclosing, nullcontext
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import APIRouter, Request
from fastapi.responses import Response
from pydantic import Field, model_validator
from starlette.concurrency import run_in_threadpool

from stentor.audio.encoder import Encoder
from stentor.errors import ConfigError, DataError
from stentor.inference.speak.pieces import SpeechPiece, SpeechPlan
from stentor.inference.speak.utterance import LEAST_SPEED, MOST_SPEED, Utterance
from stentor.inference.speak.voice import VOICES, describe_voice, join_names
from stentor.serve.errors import ApiError, blaming
from stentor.serve.openapi import Fields, ModelName, body_schema
from stentor.serve.registry import ServedModel
from stentor.serve.scheduler import QueuedJob, Worker
from stentor.serve.service import Service
from stentor.serve.streams import Stream, event_stream, unless_gone, warned
from stentor.web.body import read

router = APIRouter(tags=["audio"])
BODY_BYTES = 2**16
"""Besides the text, of whose characters none takes more than 12 bytes."""
MEDIA_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg"}
"""Media types of formats with another name."""
KINDS: Any = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm", "text/event-stream")
DEFAULT = "default"
"""Default voice."""


class VoiceId(Fields):
    """A voice by its id, which is its name."""

    id: str = Field(max_length=500)


class SpeechForm(Fields):
    """A text to speak."""

    model: ModelName
    input: str
    """The text."""
    voice: VoiceId | Annotated[str, Field(max_length=500)] = DEFAULT
    """A voice of `GET /v1/audio/voices`, a voice in several words, or `default`: the model's own, or that of the
    instructions."""
    instructions: str | None = None
    """The voice in words."""
    response_format: Literal["mp3", "opus", "aac", "flac", "wav", "pcm"] = "mp3"
    speed: float = Field(1.0, ge=LEAST_SPEED, le=MOST_SPEED)
    stream_format: Literal["audio", "sse"] | None = None
    """Where one is asked for the first pieces are short, so that the first comes early (`stentor speak --stream`). Left
    out: audio, in the pieces of `stentor speak`."""
    language: str | None = Field(None, max_length=100)
    """Language of the text, as a code such as en."""
    seed: int | None = Field(None, ge=0, lt=2**63)

    @model_validator(mode="before")
    @classmethod
    def _without_nulls(cls, fields: Any) -> Any:
        """Some clients send null for what is not set."""
        return {key: v for key, v in fields.items() if v is not None} if isinstance(fields, dict) else fields

    def utterance(self, served: ServedModel, limit: int) -> Utterance:
        """Utterance to speak. Raises ApiError for an empty or too long text, and a voice that is not there."""
        if not self.input.strip():
            raise ApiError(400, "The input is empty: there is nothing to speak.", "input")
        if len(self.input) > limit:
            message = f"The input has {len(self.input):,} characters, and {limit:,} are the most here."
            raise ApiError(400, message, "input", "string_above_max_length")
        name = self.voice.id if isinstance(self.voice, VoiceId) else self.voice
        saved, words = name in served.model.voices, len(name.split()) > 1 and isinstance(self.voice, str)
        if not (saved or words or name == DEFAULT):
            known = join_names([*served.model.voices, DEFAULT])
            message = f"{self.model} has no voice {name!r}; known: {known}. Words for one go into instructions."
            raise ApiError(400, message, "voice", "voice_not_found")
        if words and not saved and self.instructions:
            raise ApiError(400, "Describe the voice in `voice` or in `instructions`, not in both.", "instructions")
        instruct = name if words and not saved else self.instructions or None
        return Utterance(
            self.input,
            voice=name if saved else None,
            instruct=instruct,
            language=self.language or None,
            speed=self.speed,
            seed=self.seed,
        )


async def planned(service: Service, served: ServedModel, form: SpeechForm) -> SpeechPlan:
    """The plan of what a form asks for, made in a thread. Raises ApiError for what the model cannot do, and
    TimeoutError."""
    utterance, speaker = form.utterance(served, service.limits.characters), served.first.speaker

    def plan() -> SpeechPlan:
        codec: AbstractContextManager[Any] = nullcontext() if speaker.holds(utterance.voice) else served.first.turn
        with codec:  # it checks a voice once
            return speaker.plan(speaker.prepare(utterance), early=form.stream_format is not None)

    fields = {"instruct": "instructions", "voice": "voice", "language": "language"}
    with blaming("input", fields, speaker.voices):
        return await asyncio.wait_for(asyncio.to_thread(plan), service.limits.least_time)


class SpeechInProgress:
    """One text, and how much of it was spoken."""

    def __init__(self, service: Service, served: ServedModel, plan: SpeechPlan):
        self.service, self.served, self.plan = service, served, plan
        self.frames = 0
        """Samples that were made."""
        self._sounded = 0
        self._turn = threading.Lock()
        """Workers that speak its pieces."""

    async def audio(self) -> AsyncGenerator[np.ndarray, None]:
        """Float [samples] of each piece, in their order. Raises as `Service.results` does, and is to be closed as
        well."""
        rate = self.plan.codec.frame_rate
        deadline = time.monotonic() + self.service.limits.time(sum(piece.frames for piece in self.plan.pieces) / rate)
        for group in self.plan.groups():
            sizes, pieces = [piece.frames / rate for piece in group], [(self, piece) for piece in group]
            job = QueuedJob(sizes, SpeechInProgress, pieces.__getitem__, _synthesize)
            async with aclosing(self.service.results(self.served, job, deadline - time.monotonic())) as batches:
                async for batch in batches:
                    for _, result in batch:
                        if isinstance(result, Exception):
                            raise result
                        for audio in result:
                            yield audio

    def ready_audio(self, codec: Any) -> list[np.ndarray] | Exception:
        """Audio that was not handed out yet, or why there is none: that is no matter of others in the batch."""
        audio = []
        try:
            with self._turn:
                for piece in self.plan.pieces[self._sounded :]:
                    if piece.codes is None:
                        break
                    audio.append(self.plan.audio(piece, codec))
                    self._sounded += 1
                    self.frames += piece.codes.shape[1]
                    if piece.number:  # the first may be the voice of the others
                        piece.codes = None
        except Exception as error:
            return error
        self.service.metrics.audio.labels(self.served.name).inc(sum(map(len, audio)) / self.plan.codec.sample_rate)
        return audio


def _synthesize(
    worker: Worker, items: list[tuple[SpeechInProgress, SpeechPiece]]
) -> list[list[np.ndarray] | Exception]:
    """Speak pieces of several texts; each one's result is the audio that can be heard now."""
    worker.speaker.synthesize([(text.plan, piece) for text, piece in items])
    return [text.ready_audio(worker.speaker.codec) for text, _ in items]


@router.post(
    "/v1/audio/speech",
    openapi_extra=body_schema(SpeechForm),
    responses={200: {"content": {kind: {} for kind in KINDS}}},
    response_class=Response,
)
async def speech(request: Request) -> Response:
    """A text, spoken. The answer begins when its first piece is made."""
    service: Service = request.app.state.service
    body = await read(request, BODY_BYTES + 16 * service.limits.characters, timed=True)
    form, warnings = SpeechForm.requested(body)
    served = service.model(form.model, "speak")
    if form.instructions and served.model.bundle.traits.instructs == []:
        form.instructions = None
        warnings.append(f"{form.model} takes no instructions: they have no effect.")
    return warned(await unless_gone(request.receive, _answer(service, served, form)), warnings)


async def _answer(service: Service, served: ServedModel, form: SpeechForm) -> Response:
    plan = await planned(service, served, form)
    with blaming("response_format"):  # a text of one piece is one file, whose length is known when it is sent
        encoder = Encoder(form.response_format, plan.codec.sample_rate, at_once=len(plan.pieces) == 1)
    progress = SpeechInProgress(service, served, plan)
    if form.stream_format == "sse":
        return event_stream(_events(progress, encoder))
    parts = _parts(progress, encoder)
    first = await anext(parts, b"")
    kind = MEDIA_TYPES.get(form.response_format, f"audio/{form.response_format}")
    if encoder.at_once:
        await parts.aclose()
        return Response(first, media_type=kind)
    return Stream(_after(first, parts), kind)


async def _parts(progress: SpeechInProgress, encoder: Encoder) -> AsyncGenerator[bytes, None]:
    """Bytes that can be sent, as they become available."""
    last = len(progress.plan.pieces)
    number = 0
    async with aclosing(progress.audio()) as pieces:
        async for audio in pieces:
            number += 1
            if part := await run_in_threadpool(encoder.add, audio, number == last):
                yield part


async def _after(first: bytes, parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    async with aclosing(parts):
        yield first
        async for part in parts:
            yield part


async def _events(progress: SpeechInProgress, encoder: Encoder) -> AsyncGenerator[dict[str, Any], None]:
    async with aclosing(_parts(progress, encoder)) as parts:
        async for part in parts:
            yield {"type": "speech.audio.delta", "audio": base64.b64encode(part).decode()}
    text = sum(len(piece.text) for piece in progress.plan.pieces)
    counts = {"input_tokens": text, "output_tokens": progress.frames, "total_tokens": text + progress.frames}
    yield {"type": "speech.audio.done", "usage": counts}


@router.get("/v1/audio/voices")
def voices(request: Request) -> dict[str, Any]:
    """The saved voices of every model that speaks."""
    models = request.app.state.service.registry.models.values()
    return {"object": "list", "data": [voice for served in models if served.can("speak") for voice in _voices(served)]}


def _voices(served: ServedModel) -> list[dict[str, Any]]:
    described = []
    for name in served.model.voices:
        try:
            facts = describe_voice(served.model.folder / VOICES / name)
        except (ConfigError, DataError):  # `stentor voices` says what is wrong with it
            continue
        created = int((served.model.folder / VOICES).stat().st_mtime)
        head = {"object": "audio.voice", "id": name, "type": "audio_sample", "created_at": created}
        described.append({**head, "model": served.name, **facts})
    return described
