"""What a server refuses, and what is left when a client goes or the server stops."""

import http.client
import threading
from urllib.parse import urlsplit

import openai
import pytest
from damaged import body

from stentor.errors import ConfigError

KEYS = ("a-key-of-sixteen-characters", "another-key-of-the-server")


def test_keys(export, serve, tone):
    server = serve(export(), keys=KEYS)
    path = tone("a.wav", (2, -10))
    for key in KEYS:
        client = server.client.with_options(api_key=key)
        assert client.audio.transcriptions.create(file=path, model="model").text == "level 10"
    with pytest.raises(openai.AuthenticationError) as refusal:
        server.client.with_options(api_key=KEYS[0][:-1]).audio.transcriptions.create(file=path, model="model")
    assert refusal.value.code == "invalid_api_key" and KEYS[0][:-1] not in refusal.value.message
    assert server.http.get("/v1/models").status_code == 401
    assert server.http.get("/metrics").status_code == 401
    assert server.http.get("/health").status_code == 200


def test_other_origins(export, serve):
    server = serve(export(), origins=["https://mine.example"])
    assert server.http.get("/v1/models", headers={"origin": "https://evil.example"}).status_code == 403
    assert server.http.get("/v1/models", headers={"host": "evil.example"}).status_code == 403
    assert server.http.get("/v1/models", headers={"sec-fetch-site": "cross-site"}).status_code == 403
    mine = {"origin": "https://mine.example"}
    assert server.http.get("/v1/models", headers=mine).headers["access-control-allow-origin"] == mine["origin"]
    asked = {**mine, "access-control-request-method": "POST"}
    assert server.http.options("/v1/audio/transcriptions", headers=asked).status_code == 200


def test_large_uploads_and_long_recordings(talks, tone):
    talks.service.limits.upload_bytes, talks.service.limits.audio_seconds = 200_000, 5.0
    with pytest.raises(openai.APIStatusError) as refusal:
        talks.client.audio.transcriptions.create(file=tone("a.wav", (10, -10)), model="model")
    assert (refusal.value.status_code, refusal.value.code) == (413, "file_too_large")

    def chunks():
        content, _ = body(b"x" * 300_000, model="model")
        yield from (content[i : i + 10_000] for i in range(0, len(content), 10_000))

    headers = {"content-type": "multipart/form-data; boundary=x"}
    answer = talks.http.post("/v1/audio/transcriptions", content=chunks(), headers=headers)
    assert answer.status_code == 413
    with pytest.raises(openai.BadRequestError, match="longer than 5 s"):
        talks.client.audio.transcriptions.create(file=tone("a.wav", (5.5, -10)), model="model")


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b"", "multipart/form-data; boundary=x"),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=x"),
        (b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\nmod', "multipart/form-data; boundary=x"),
        (b"{}", "application/json"),
        (b"--x--", "multipart/form-data"),
        (body(b"")[0], "multipart/form-data; boundary=x"),
    ],
)
def test_forms_that_are_none(talks, content, kind):
    answer = talks.http.post("/v1/audio/transcriptions", content=content, headers={"content-type": kind})
    assert answer.status_code == 400 and answer.json()["error"]["type"] == "invalid_request_error"


def test_a_crash_of_the_codec_is_one_refusal(talks, tone, monkeypatch):
    path = tone("a.wav", (2, -10))
    assert talks.client.audio.transcriptions.create(file=path, model="model").text == "level 10"
    helper = talks.service.decoders._idle.get()
    helper.process.kill()
    helper.process.wait()
    monkeypatch.setattr(type(helper), "alive", True)  # while it was reading
    talks.service.decoders._idle.put(helper)
    with pytest.raises(openai.BadRequestError, match="decoding it failed"):
        talks.client.audio.transcriptions.create(file=path, model="model")
    assert talks.client.audio.transcriptions.create(file=path, model="model").text == "level 10"


def asked(gated, path):
    """A request that the model holds; to be called for its text, which is waited for."""
    texts = []

    def ask():
        texts.append(gated.client.audio.transcriptions.create(file=path, model="model").text)

    waiting = threading.Thread(target=ask)
    waiting.start()
    assert gated.entered.wait(30)

    def text():
        waiting.join()
        return texts[0]

    return text


def test_a_request_that_takes_too_long(gated, tone):
    gated.service.limits.least_time, gated.service.limits.time_factor = 0.5, 0.0
    with pytest.raises(openai.APIStatusError) as refusal:
        gated.client.audio.transcriptions.create(file=tone("a.wav", (2, -10)), model="model")
    assert (refusal.value.status_code, refusal.value.code) == (408, "timeout")


def test_a_signal_lets_what_runs_end(export, serve, tone, request):
    path, server = tone("a.wav", (2, -10)), serve(export())
    gated = request.getfixturevalue("gated")  # a server that is loading would wait, too
    server.entered = gated.entered
    answer = asked(server, path)
    server.server.handle_exit(15, None)
    with pytest.raises(openai.InternalServerError) as refusal:
        server.client.audio.transcriptions.create(file=path, model="model")
    assert refusal.value.status_code == 503 and "stopping" in refusal.value.message
    assert server.http.get("/health").json()["status"] == "stopping"
    gated.release.set()
    assert answer() == "level 10"
    server.thread.join()
    assert not server.server.server_state.connections  # idle ones, such as that of `server.http`, delay no stop


def test_silero_at_a_rate_that_it_does_not_know(export, meter, shared_data):
    from stentor.serve.registry import load_models
    from stentor.serve.service import Service

    registry = load_models([str(export())], devices=["cpu"])
    silero = str(shared_data / "weights" / "silero_vad" / "silero_vad.onnx")
    Service(registry, vad=silero)
    registry.models["model"].model.bundle.processor.sample_rate = 24000
    with pytest.raises(ConfigError, match="at 8 or 16 kHz, and this model reads audio at 24000 Hz"):
        Service(registry, vad=silero)


def test_a_refusal_reaches_a_client_that_is_still_sending(export, serve):
    """Also where the connection is to be closed."""
    server = serve(export(), keys=["a-key-of-sixteen-characters"], limits={"upload_bytes": 2**20})
    for status, path, key in (
        (401, "/v1/audio/transcriptions", "another"),
        (413, "/v1/audio/transcriptions", "a-key-of-sixteen-characters"),
        (404, "/v1/audio/nothing", "a-key-of-sixteen-characters"),
    ):
        for close in ({}, {"connection": "close"}):
            connection = http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=60)
            headers = {"authorization": f"Bearer {key}", "content-type": "multipart/form-data; boundary=x", **close}
            connection.request("POST", path, bytes(2**24), headers)
            answer = connection.getresponse()
            assert answer.status == status and b'"error"' in answer.read()
            connection.close()
