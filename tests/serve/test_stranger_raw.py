"""Requests as other programs write them: curl, openai-node, clients that repeat fields or know no length."""

import http.client
import json

import pytest

EDGE = b"--------------------------2d5d"


def part(disposition: str, content: bytes, kind: str = "") -> bytes:
    head = f"Content-Disposition: form-data; {disposition}\r\n" + (f"Content-Type: {kind}\r\n" if kind else "")
    return b"--" + EDGE + b"\r\n" + head.encode() + b"\r\n" + content + b"\r\n"


def body(audio: bytes, *fields: tuple[str, str], file='name="file"; filename="a.wav"') -> bytes:
    parts = [part(f'name="{name}"', value.encode()) for name, value in (("model", "model"), *fields)]
    return b"".join([part(file, audio, "application/octet-stream"), *parts]) + b"--" + EDGE + b"--\r\n"


@pytest.fixture
def words(worded, tone):
    """Sends a body to a server whose model hears words; `words.audio` is a clip of its."""
    host = worded.url.removeprefix("http://")

    def send(content, path="/v1/audio/transcriptions", **headers):
        connection = http.client.HTTPConnection(host, timeout=300)
        head = {"Content-Type": f"multipart/form-data; boundary={EDGE.decode()}", **headers}
        connection.request("POST", path, content, head, encode_chunked="Transfer-Encoding" in head)
        answer = connection.getresponse()
        status, text = answer.status, answer.read().decode()
        connection.close()
        return status, text

    send.audio = tone("a.wav", (2, -10)).read_bytes()
    return send


def test_forms_of_a_file(words):
    for file in (
        "name=file; filename=a.wav",  # without quotes
        'name="file"; filename="blob"',
        'name="file"; filename="gespräch.wav"',
        'name="file"; filename="_.wav"; filename*=UTF-8\'\'gespr%C3%A4ch.wav',
        'filename="a.wav"; name="file"',
        'name="file"; filename="no-suffix"',
        'name="file"; filename="wrong.mp3"',
        'name="file"; filename="../../x"',
        'name="file"; filename="Gespräch № 1 «это» %22quoted%22 会議.wav"',
        'name="file"; filename="a;b=c%0D%0A.wav"',
    ):
        status, text = words(body(words.audio, file=file))
        assert (status, json.loads(text)["text"]) == (200, "level 10"), file


def test_fields_of_every_kind(words):
    verbose = ("response_format", "verbose_json")
    both = {"words", "segments"}
    for fields, keys in (
        ([("timestamp_granularities[]", "word")], {"words"}),
        ([("timestamp_granularities[]", "word"), ("timestamp_granularities[]", "segment")], both),
        ([("timestamp_granularities", "segment"), ("timestamp_granularities", "word")], both),
        ([("timestamp_granularities", "word")], {"words"}),
        ([("temperature", ""), ("language", ""), ("timestamp_granularities[]", "")], {"segments"}),
        ([("chunking_strategy[type]", "server_vad"), ("chunking_strategy[silence_duration_ms]", "500")], {"segments"}),
        ([("chunking_strategy", '{"type": "server_vad"}'), ("stream", "false")], {"segments"}),
    ):
        status, text = words(body(words.audio, verbose, *fields))
        assert status == 200, text
        assert both & json.loads(text).keys() == keys, fields


def test_bodies_without_a_length(words):
    content = body(words.audio)
    pieces = iter([content[i : i + 7000] for i in range(0, len(content), 7000)])
    chunked = {"Transfer-Encoding": "chunked"}
    status, text = words(pieces, **chunked)
    assert (status, json.loads(text)["text"]) == (200, "level 10")
    status, text = words(content, Expect="100-continue")
    assert (status, json.loads(text)["text"]) == (200, "level 10")


def test_addresses(words):
    """No redirection, which would have the file sent again; further parameters do not matter."""
    assert words(body(words.audio), "/v1/audio/transcriptions/")[0] == 404
    assert words(body(words.audio), "/v1/audio/transcriptions?api-version=1")[0] == 200


def test_speech_without_a_content_type(strangers):
    sent = json.dumps({"model": "tts-1", "input": "one two", "voice": "alloy", "response_format": "wav"})
    kinds = ("application/json", "application/json; charset=utf-8", "application/x-www-form-urlencoded")
    answers = [strangers.http.post("/v1/audio/speech", content=sent, headers={"content-type": kind}) for kind in kinds]
    assert {answer.status_code for answer in answers} == {200} and len({a.content for a in answers}) == 1
    assert answers[0].headers["content-length"] == str(len(answers[0].content))
