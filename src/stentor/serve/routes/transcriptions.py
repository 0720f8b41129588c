"""`POST /v1/audio/transcriptions` and `/v1/audio/translations`."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from stentor.inference.transcribe import RecordingPlan, Transcriber, Transcript
from stentor.serve import responses
from stentor.serve.errors import ApiError
from stentor.serve.forms import TranscriptionForm, TranslationForm, schema, transcriber
from stentor.serve.known_speakers import Diarizer, naming, write_reference
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service, WindowsInProgress
from stentor.serve.streams import ClientGone, EventResponse, unless_gone
from stentor.serve.uploads import Form, UploadedFile, read_form

router = APIRouter(tags=["audio"])
ANSWERS: Any = {200: {"content": {kind: {} for kind in ("application/json", "text/plain", "text/vtt")}}}
STREAMED: Any = {200: {"content": {**ANSWERS[200]["content"], "text/event-stream": {}}}}


@router.post("/v1/audio/transcriptions", openapi_extra=schema(TranscriptionForm), responses=STREAMED)
async def transcriptions(request: Request) -> Response:
    """The text of a recording, in the language that is spoken."""
    return await _answer(request, TranscriptionForm)


@router.post("/v1/audio/translations", openapi_extra=schema(TranslationForm), responses=ANSWERS)
async def translations(request: Request) -> Response:
    """The text of a recording in the language that the model translates to (Whisper: English)."""
    return await _answer(request, TranslationForm)


async def _answer(request: Request, kind: type[TranslationForm]) -> Response:
    service: Service = request.app.state.service
    form: Form | None = await read_form(request, service.limits.upload_bytes)
    assert form is not None
    try:
        work = _Work(service, form, kind)
        if getattr(work.fields, "stream", None):
            plan = await unless_gone(request.receive, work.plan())
            response = EventResponse(work.events(plan), work.close)
            form = None  # the response closes it
            return response
        transcript = await unless_gone(request.receive, work.transcript())
        return work.response(transcript)
    except ClientGone:
        return Response(status_code=499)
    finally:
        if form is not None:
            form.remove()


class _Work:
    """One request: its fields, its file and its model."""

    def __init__(self, service: Service, form: Form, kind: type[TranslationForm]):
        self.service, self.form = service, form
        self.fields = kind.model_validate(form.values())
        file = form.file()
        if others := [name for name in form.files if name != "file"]:
            raise ApiError(400, f"{others[0]} is no file of this request.", others[0])
        self.served: ServedModel = service.model(self.fields.model, "transcribes")
        self.speakers = getattr(self.fields, "speakers", False)
        self.known: list[str] = getattr(self.fields, "known_speaker_names", [])
        self.recording = service.recording(file, self.served.model.bundle.processor.sample_rate)
        self.transcriber: Transcriber = transcriber(service, self.served, self.fields, self._diarizer())

    def _diarizer(self) -> Diarizer | None:
        """What says who speaks, with the names that the request knows."""
        served = self.service.registry.diarizer
        if not self.speakers or served is None or self.served.says_who:
            return None
        references = []
        for number, url in enumerate(getattr(self.fields, "known_speaker_references", [])):
            path = write_reference(url, self.form.folder / f"reference{number}")
            file = UploadedFile(path, f"reference {number + 1}")
            references.append(self.service.recording(file, served.model.bundle.processor.sample_rate))
            references[-1].cancelled = self.recording.cancelled
        return naming(served.diarizer(), self.known, references) if references else served.diarizer()

    def close(self) -> None:
        self.recording.cancelled.set()
        self.form.remove()

    async def plan(self) -> RecordingPlan:
        return await self.service.plan(self.transcriber, self.recording)

    async def transcript(self) -> Transcript:
        plan = await self.plan()
        async with aclosing(WindowsInProgress(self.service, self.served, self.transcriber, plan).done()) as counts:
            async for _ in counts:
                pass
        return await run_in_threadpool(self.transcriber.transcript, plan)

    async def events(self, plan: RecordingPlan) -> AsyncGenerator[dict[str, Any], None]:
        """Events of a transcript as its windows are done."""
        events = responses.TranscriptEvents(self.speakers, self.known)
        async with aclosing(WindowsInProgress(self.service, self.served, self.transcriber, plan).done()) as counts:
            async for done in counts:
                if done < len(plan.windows):
                    for event in events.grown(await run_in_threadpool(self.transcriber.transcript, plan, done)):
                        yield event
        for event in events.done(await run_in_threadpool(self.transcriber.transcript, plan)):
            yield event

    def response(self, transcript: Transcript) -> Response:
        granularities = getattr(self.fields, "timestamp_granularities", [])
        task = "translate" if self.transcriber.task.translate else "transcribe"
        return responses.transcription(transcript, self.fields.response_format, granularities, task, self.known)
