"""The unmodified openai client in each of its ways, strict about every field: synchronous and not, raw and streamed."""

import asyncio
import io
import json
import threading

import numpy as np
import openai
import pytest
import soundfile
from openai.types.audio import (
    Transcription,
    TranscriptionDiarized,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionTextSegmentEvent,
    TranscriptionVerbose,
    Translation,
    TranslationVerbose,
)
from realtime import until

HEARD = {"json": Transcription, "verbose_json": TranscriptionVerbose, "diarized_json": TranscriptionDiarized}
TRANSLATED = {"json": Translation, "verbose_json": TranslationVerbose}
TEXTS = {"text": str, "srt": str, "vtt": str}
SPOKEN = {"model": "tts-1", "input": "one two", "voice": "alloy"}


@pytest.fixture
def example(tone):
    return tone("example.wav", (1, -10))


def options(server) -> dict:
    more = {"max_retries": 0, "timeout": 300, "_strict_response_validation": True}
    return {"base_url": f"{server.url}/v1", "api_key": "none", **more}


def check(answer, kind) -> None:
    assert isinstance(answer, kind)
    if kind is not str:  # each value is of its field's type without conversion, and no key is unknown
        kind.model_validate(answer.model_dump(), strict=True)
        assert kind in (Translation, TranslationVerbose) or set(answer.model_extra) <= {"task"}


def check_events(events, speakers) -> None:
    kinds = {TranscriptionTextDeltaEvent, TranscriptionTextDoneEvent}
    assert {type(event) for event in events} == kinds | ({TranscriptionTextSegmentEvent} if speakers else set())
    for event in events:
        type(event).model_validate(event.model_dump(), strict=True)
        assert not event.model_extra


def test_calls(strangers, example):
    with openai.OpenAI(**options(strangers)) as client:
        for call, model, kinds in (
            (client.audio.transcriptions, "gpt-4o-transcribe", HEARD | TEXTS),
            (client.audio.translations, "whisper-1", TRANSLATED | TEXTS),
        ):
            for name, kind in kinds.items():
                check(call.create(file=example, model=model, response_format=name), kind)
            raw = call.with_raw_response.create(file=example, model=model)
            assert raw.http_response.headers["content-type"] == "application/json"
            check(raw.parse(), kinds["json"])
            with call.with_streaming_response.create(file=example, model=model) as answer:
                check(answer.parse(), kinds["json"])
        asked = {"file": example, "model": "whisper-1", "stream": True}
        for name in ("json", "text", "diarized_json"):
            with client.audio.transcriptions.create(**asked, response_format=name) as stream:
                check_events(list(stream), speakers=name == "diarized_json")
        with client.audio.transcriptions.with_streaming_response.create(**asked) as answer:
            check_events(list(answer.parse()), speakers=False)
        assert client.audio.speech.create(**SPOKEN).content == client.audio.speech.create(**SPOKEN).read()
        assert client.audio.speech.with_raw_response.create(**SPOKEN).parse().content


def test_calls_that_are_awaited(strangers, example):
    async def ask():
        async with openai.AsyncOpenAI(**options(strangers)) as client:
            create = client.audio.transcriptions.create
            together = [create(file=example, model="whisper-1", response_format=name) for name in HEARD]
            for answer, kind in zip(await asyncio.gather(*together), HEARD.values(), strict=True):
                check(answer, kind)
            check(await client.audio.translations.create(file=example, model="whisper-1"), Translation)
            check_events([e async for e in await create(file=example, model="whisper-1", stream=True)], False)
            speech = client.audio.speech.with_streaming_response
            async with speech.create(**SPOKEN, stream_format="sse", instructions="fox") as answer:
                events = [json.loads(line[6:]) async for line in answer.iter_lines() if line]
            assert [event["type"] for event in events] == ["speech.audio.delta", "speech.audio.done"]
            assert [model.id async for model in client.models.list()] == list(strangers.service.registry.names)

    asyncio.run(ask())


def test_every_field_at_once(strangers, example):
    """As the client's own tests send them, with values that can be."""
    import base64

    sample = soundfile.read(example)[0]
    wav = io.BytesIO()
    soundfile.write(wav, np.tile(sample, 3), 16000, format="wav")
    url = f"data:audio/wav;base64,{base64.b64encode(wav.getvalue()).decode()}"
    fields = {
        "file": example.read_bytes(),
        "model": "gpt-4o-transcribe",
        "chunking_strategy": "auto",
        "include": ["logprobs"],
        "keywords": ["string"],
        "known_speaker_names": ["string"],
        "known_speaker_references": [url],
        "language": "en",
        "languages": ["en"],
        "prompt": "prompt",
        "response_format": "json",
        "temperature": 0,
        "timestamp_granularities": ["segment"],
    }
    answer = strangers.client.audio.transcriptions.create(**fields, stream=False)
    check(answer, Transcription)
    assert [language.code for language in answer.languages] == ["en"]
    *deltas, done = strangers.client.audio.transcriptions.create(**fields, stream=True)
    assert "".join(event.delta for event in deltas) == done.text == answer.text
    assert [language.code for language in done.languages] == ["en"]
    check(
        strangers.client.audio.transcriptions.create(**{**fields, "include": [], "response_format": "diarized_json"}),
        TranscriptionDiarized,
    )


def test_classes_of_errors(serve, export, tone, monkeypatch):
    key = "a-key-of-sixteen-characters"
    server = serve(export(), keys=[key], limits={"upload_bytes": 100_000, "requests": 1})
    create, path = server.client.audio.transcriptions.create, tone("a.wav", (1, -10))

    def refused(kind, status, **fields):
        with pytest.raises(kind) as refusal:
            create(**{"file": path, "model": "model", **fields})
        error = refusal.value
        assert (error.status_code, set(error.body)) == (status, {"message", "type", "param", "code"})
        return error

    assert refused(openai.BadRequestError, 400, response_format="docx").param == "response_format"
    assert refused(openai.NotFoundError, 404, model="gpt").code == "model_not_found"
    assert refused(openai.APIStatusError, 413, file=b"0" * 200_000).code == "file_too_large"
    other = openai.OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0)
    with pytest.raises(openai.AuthenticationError) as refusal:
        other.models.list()
    assert refusal.value.code == "invalid_api_key" and refusal.value.type == "authentication_error"
    with pytest.raises(openai.NotFoundError):
        server.client.models.retrieve("gpt")
    with pytest.raises(openai.PermissionDeniedError):
        server.client.models.list(extra_headers={"origin": "https://elsewhere.example"})

    passed, model = threading.Event(), server.service.registry.models["model"].model.bundle.model
    real = model.generate
    monkeypatch.setattr(model, "generate", lambda *a, **k: passed.wait(20) and real(*a, **k))
    waiting = threading.Thread(target=create, kwargs={"file": path, "model": "model"})
    waiting.start()
    until(lambda: server.service.active)
    error = refused(openai.RateLimitError, 429)
    assert int(error.response.headers["retry-after"]) >= 1 and error.type == "rate_limit_error"
    passed.set()
    waiting.join()
    monkeypatch.setattr(model, "generate", lambda *a, **k: 1 / 0)
    assert "ZeroDivisionError" in refused(openai.InternalServerError, 500).message
    server.service.draining = True
    assert refused(openai.InternalServerError, 503).response.headers["retry-after"]
