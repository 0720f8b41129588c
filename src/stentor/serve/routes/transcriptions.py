"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from stentor.inference.transcribe import RecordingPlan
from stentor.serve import responses
from stentor.serve.errors import ApiError
from stentor.serve.forms import TranscriptionForm, TranslationForm, transcriber
from stentor.serve.known_speakers import Diarizer, naming, write_references
from stentor.serve.openapi import Diarized, Json, Verbose, form_schema
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service
from stentor.serve.streams import event_stream, unless_gone
from stentor.serve.uploads import Form, Upload

router = APIRouter(tags=["audio"])
TEXT: Any = {"text/plain": {}, "text/vtt": {}}
ANSWERS: Any = {200: {"model": Json | Verbose, "content": TEXT}}
STREAMED: Any = {200: {"model": Json | Verbose | Diarized, "content": {**TEXT, "text/event-stream": {}}}}


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
    return await unless_gone(request.receive, asked.response())


class _TranscriptionRequest:
    """One request: its fields, its file and its model."""

    def __init__(self, service: Service, upload: Form, kind: type[TranslationForm]):
        self.service = service
        if others := [name for name in upload.files if name != "file"]:
            raise ApiError(400, f"{others[0]} is no file of this request.", others[0])
        self.fields = TranscriptionForm.model_validate(kind.model_validate(upload.values()).model_dump())
        self.known = self.fields.known_speaker_names
        self.served: ServedModel = service.model(self.fields.model, "transcribe")
        self.recording = service.recording(upload, self.served.model.bundle.processor.sample_rate)
        self.transcriber = transcriber(service, self.served, self.fields, kind is TranslationForm, self._diarizer())

    def _diarizer(self) -> Diarizer | None:
        """What says who speaks, with the names that the request knows."""
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
        return await run_in_threadpool(
            lambda: responses.transcription(self.transcriber.transcript(plan), self.fields, task)
        )
