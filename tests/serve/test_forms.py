"""Forms without a server: what is read of an upload, and what is wrong with fields."""

import asyncio
from pathlib import Path

import pytest
from fastapi import Request

from stentor.errors import AudioError
from stentor.serve import uploads
from stentor.serve.errors import ApiError, api_error
from stentor.serve.transcriptions import TranscriptionForm
from stentor.serve.uploads import read_form
from stentor.web import body
from stentor.web.origins import from_elsewhere

HEADERS = [(b"content-type", b"multipart/form-data; boundary=x")]


def part(disposition: str, content: bytes = b"text") -> bytes:
    return f"--x\r\nContent-Disposition: form-data; {disposition}\r\n\r\n".encode() + content + b"\r\n"


def form(*parts: bytes, pause: float = 0.0, most: int = 10_000, held=None):
    messages = [*parts, b"--x--\r\n"]

    async def receive():
        await asyncio.sleep(pause)
        return {"type": "http.request", "body": messages.pop(0), "more_body": bool(messages)}

    scope = {"type": "http", "method": "POST", "path": "/", "headers": HEADERS}
    return asyncio.run(read_form(Request(scope, receive), most, held))


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        (part('name="file"'), "file is text"),
        (part('name="other"'), "file is missing"),
        (part('name="file"; filename="a.wav"', b""), "file is empty"),
    ],
)
def test_what_is_sent_in_place_of_a_file(sent, message):
    upload = form(sent)
    with pytest.raises(ApiError, match=message) as refusal:
        upload.file()
    upload.remove()
    assert (refusal.value.status, refusal.value.param) == (400, "file")


def test_names_of_any_kind():
    upload = form(part('name="a[]"'), part('name="a[]"', b"\xff"), part('name="é"; filename="../é.wév"', b"x"))
    assert upload.values() == {"a": ["text", "ÿ"]} and upload.folder in Path(upload.files["é"].file.name).parents
    upload.remove()


@pytest.mark.parametrize("parts", [[part(f'name="{n}"') for n in range(65)], [part('name="a"', b"x" * 20_000)]])
def test_too_much(parts, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(ApiError) as refusal:
        form(*parts)
    assert refusal.value.status in (400, 413) and not list(tmp_path.iterdir())


def test_a_sender_who_never_ends(monkeypatch):
    monkeypatch.setattr(body, "SILENT", 0.05)
    monkeypatch.setattr(body, "SLOWEST", 10**9)
    with pytest.raises(ApiError, match="too slowly") as refusal:
        form(*[part(f'name="{n}"') for n in range(60)], pause=0.01)  # never silent for long
    assert refusal.value.status == 408


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"temperature": "nan"}, "temperature"),
        ({"chunking_strategy": '{"a":' * 100_000}, "chunking_strategy"),
        ({"chunking_strategy": '{"\\ud800": 1}'}, "chunking_strategy"),
        ({"chunking_strategy": {"type": "server_vad", "threshold": "0"}}, "chunking_strategy.threshold"),
        ({"model": "m" * 1000}, "model"),
        ({"é": "1"}, "é"),
    ],
)
def test_wrong_fields(fields, param):
    with pytest.raises(ApiError) as refusal:
        TranscriptionForm.requested({"model": "m", **fields})
    problem = refusal.value
    assert (problem.status, problem.param) == (400, param) and len(str(problem)) < 400


def test_one_value_is_a_list_of_one():
    sent = {"known_speaker_names": "Bob", "known_speaker_references": "data:", "keywords": "Stentor"}
    fields = TranscriptionForm.model_validate({"model": "m", "response_format": "diarized_json", **sent})
    assert (fields.known_speaker_names, fields.keywords) == (["Bob"], ["Stentor"])


def test_statuses_of_errors():
    assert api_error(OSError(28, "No space left on device")).status == 503
    assert api_error(AudioError("a.wav is none.", "unreadable")).code == "audio_unreadable"


@pytest.mark.parametrize("headers", [{"host": "["}, {"host": "localhost", "origin": "http://["}])
def test_addresses_that_are_none(headers):
    assert from_elsewhere(headers, True, False)


def test_fields_in_memory_are_bounded(monkeypatch):
    monkeypatch.setattr(uploads, "FIELDS_BYTES", 1000)
    with pytest.raises(ApiError, match="larger than") as refusal:
        form(*[part(f'name="{n}"', b"x" * 300) for n in range(4)])
    assert refusal.value.status == 400
    held = uploads.HeldBytes()
    held.left = 1000
    first = form(part('name="a"', b"x" * 900), held=held)
    with pytest.raises(ApiError, match="Too many large fields") as refusal:
        form(part('name="a"', b"x" * 200), held=held)
    assert refusal.value.status == 429 and held.left == 100
    first.remove()
    first.remove()
    assert held.left == 1000


def test_files_are_not_held_in_memory(tmp_path):
    upload = form(part('name="file"; filename="a.wav"', b"x" * 5000), part('name="b"; filename="c"', b"y"))
    files = {file.name: file.read_bytes() for file in upload.folder.iterdir()}
    assert files == {"1.wav": b"x" * 5000, "2": b"y"} and upload.file().size == 5000
    upload.remove()
    assert not upload.folder.exists() and upload.cancelled.is_set()
