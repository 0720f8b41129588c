"""`POST /v1/audio/diarizations` and `/v1/audio/alignments`, which OpenAI's interface does not have."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from pydantic import Field, field_validator
from starlette.concurrency import run_in_threadpool

from stentor.errors import ConfigError, DataError
from stentor.inference.align.base import describe_problem, transcript, warnings_of
from stentor.inference.align.engines import clip_of
from stentor.inference.align.written import align_written
from stentor.inference.diarize import diarize, with_speakers
from stentor.inference.options import SpeakerCount
from stentor.serve.errors import ApiError, blaming
from stentor.serve.openapi import AudioFields, ModelName, SubtitleFields, form_schema
from stentor.serve.registry import ServedModel
from stentor.serve.responses import rendered
from stentor.serve.service import Service
from stentor.serve.streams import unless_gone
from stentor.serve.uploads import Form, Upload
from stentor.text.languages import checked_language

router = APIRouter(tags=["audio"])
JSON_OR_TEXT: Any = {200: {"content": {kind: {} for kind in ("application/json", "text/plain", "text/vtt")}}}


class DiarizationForm(AudioFields):
    """A recording for speaker diarization."""

    model: str | None = Field(None, max_length=500)
    """A name of `GET /v1/models`; left out: the server's diarizer."""
    response_format: Literal["json", "rttm"] = "json"
    num_speakers: int | None = Field(None, ge=1)
    min_speakers: int | None = Field(None, ge=1)
    max_speakers: int | None = Field(None, ge=1)

    @property
    def count(self) -> SpeakerCount:
        return SpeakerCount(speakers=self.num_speakers, min_speakers=self.min_speakers, max_speakers=self.max_speakers)


class AlignmentForm(SubtitleFields):
    """A recording and what is said in it."""

    model: ModelName
    text: str
    """All that is said."""
    language: str | None = Field(None, max_length=100)
    normalize: bool = False
    """Read numbers and signs aloud."""
    read_brackets: bool = False
    """Align what stands in brackets, such as [noise], too."""
    response_format: Literal["json", "srt", "vtt", "ctm", "textgrid", "ass", "lrc", "tsv"] = "json"

    @field_validator("text")
    @classmethod
    def _on_one_line(cls, text: str) -> str:
        if not text.strip():
            raise ApiError(400, "The text is empty: give the words that are spoken.", "text")
        return " ".join(text.split())


@router.post("/v1/audio/diarizations", openapi_extra=form_schema(DiarizationForm), responses=JSON_OR_TEXT)
async def diarizations(request: Request, upload: Upload) -> Response:
    """Speaker diarization, as `stentor diarize` has it."""
    return await _answer(request, upload, _diarization)


@router.post("/v1/audio/alignments", openapi_extra=form_schema(AlignmentForm), responses=JSON_OR_TEXT)
async def alignments(request: Request, upload: Upload) -> Response:
    """When each word of a text is said, as `stentor align` has it."""
    return await _answer(request, upload, _alignment)


Work = tuple[ServedModel, Callable[[Any], Response]]
"""A model, and what makes an answer of a recording while it has the model."""


async def _answer(request: Request, upload: Form, prepare: Callable[[Service, dict[str, Any]], Work]) -> Response:
    service: Service = request.app.state.service
    values = upload.values()
    served, work = await run_in_threadpool(prepare, service, values)
    fields = AudioFields.model_validate({k: v for k, v in values.items() if k in AudioFields.model_fields})
    recording = service.recording(upload, served.model.bundle.processor.sample_rate, fields.selection)
    return await unless_gone(request.receive, service.read(served.taking_turns(work), recording))


def _diarization(service: Service, values: dict[str, Any]) -> Work:
    form, registry = DiarizationForm.read(values), service.registry
    name = form.model or (registry.diarizer.name if registry.diarizer is not None else None)
    if name is None:
        raise ApiError(400, "Name a model: this server has no diarizer (`--diarizer RUN`).", "model")
    served = service.model(name, "diarize")
    with blaming("num_speakers"):
        task = with_speakers(served.model.for_diarization(), form.count)

    def work(recording: Any) -> Response:
        (result,) = diarize(served.model.bundle, task, [recording], served.name)
        return PlainTextResponse(result.rttm()) if form.response_format == "rttm" else JSONResponse(result)

    return served, work


def _alignment(service: Service, values: dict[str, Any]) -> Work:
    form = AlignmentForm.read(values)
    served = service.model(form.model, "align")
    with blaming("language"):
        language = checked_language(form.language)

    def work(recording: Any) -> Response:
        try:
            aligner = served.aligner
        except ConfigError as error:
            raise ApiError(400, str(error).replace(str(served.model.folder), served.name), "model") from None
        clip = clip_of(recording.at(aligner.rate), form.text, language)
        (aligned,) = align_written(aligner, [clip], form.normalize, form.read_brackets)
        problem = describe_problem(clip, aligned)
        if problem and not aligned.words:
            raise DataError(problem)
        words = transcript(clip, aligned, served.name)
        if form.response_format != "json":
            return rendered(words, form.response_format, form.rules)
        warnings = warnings_of(problem, words)
        return JSONResponse({**words, **({"warning": "\n".join(warnings)} if warnings else {})})

    return served, work
