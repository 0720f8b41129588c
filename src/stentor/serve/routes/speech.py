"""`POST /v1/audio/speech` and `GET /v1/audio/voices`."""

from __future__ import annotations

import base64
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from stentor.audio.encoder import Encoder
from stentor.errors import ConfigError, DataError
from stentor.inference.speak.voice import VOICES, describe_voice
from stentor.serve.errors import blaming
from stentor.serve.openapi import body_schema
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service
from stentor.serve.speaking import SpeechForm, SpeechInProgress, planned
from stentor.serve.streams import Stream, event_stream, unless_gone
from stentor.web.body import read

router = APIRouter(tags=["audio"])
BODY_BYTES = 2**16
"""Besides the text, of whose characters none takes more than 12 bytes."""
MEDIA_TYPES = {"mp3": "audio/mpeg", "opus": "audio/ogg"}
"""Of kinds that are not called so."""
KINDS: Any = ("audio/mpeg", "audio/ogg", "audio/aac", "audio/flac", "audio/wav", "audio/pcm", "text/event-stream")


@router.post(
    "/v1/audio/speech",
    openapi_extra=body_schema(SpeechForm),
    responses={200: {"content": {kind: {} for kind in KINDS}}},
    response_class=Response,
)
async def speech(request: Request) -> Response:
    """A text, spoken. The answer begins when its first piece is made."""
    service: Service = request.app.state.service
    form = SpeechForm.model_validate_json(await read(request, BODY_BYTES + 16 * service.limits.characters, timed=True))
    return await unless_gone(request.receive, _answer(service, form))


async def _answer(service: Service, form: SpeechForm) -> Response:
    served = service.model(form.model, "speak")
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
    """What can be sent, each time that there is something."""
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
