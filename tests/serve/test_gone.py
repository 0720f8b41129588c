"""A client that goes, or whose time is up, frees its place in whatever phase its request is."""

import asyncio
import http.client
import os
import signal
import socket
import threading
from types import SimpleNamespace
from urllib.parse import urlsplit

import openai
import pytest
from damaged import body
from realtime import until


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where temporary files of the test lie."""
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    return tmp_path / "temporary"


def post(server, content, headers, length=None):
    """A connection that has sent a request, or its beginning."""
    url = urlsplit(server.url)
    connection = http.client.HTTPConnection(url.hostname, url.port)
    connection.putrequest("POST", "/v1/audio/transcriptions")
    for name, value in {**headers, "content-length": str(length or len(content))}.items():
        connection.putheader(name, value)
    connection.endheaders()
    connection.send(content)
    return connection


def leave(connection):
    connection.sock.shutdown(socket.SHUT_RDWR)
    connection.close()


def nothing_left(server, folder):
    service = server.service
    until(lambda: service.active == 0 and not list(folder.iterdir()))
    until(lambda: service.threads._work_queue.empty() and service.decoders._idle.qsize() == service.readers + 1)
    assert len(service.registry.models["model"].queue) == 0 and service.held.left == type(service.held).left


@pytest.fixture
def stuck(talks, tone, folder):
    """A server whose next decoder hangs; `helper` is that."""
    path = tone("a.wav", (2, -10))
    talks.client.audio.transcriptions.create(file=path, model="model")  # a helper runs now
    talks.helper = talks.service.decoders._idle.get()
    os.kill(talks.helper.process.pid, signal.SIGSTOP)
    talks.service.decoders._idle.put(talks.helper)
    yield talks
    talks.helper.process.kill()


def test_while_uploading(talks, tone, folder):
    content, headers = body(tone("a.wav", (2, -10)).read_bytes(), model="model")
    for size in (0, 50, len(content) // 2, len(content) - 1):
        connection = post(talks, content[:size], headers, len(content))
        until(lambda: talks.service.active == 1)
        leave(connection)
        nothing_left(talks, folder)


def test_while_a_codec_hangs(stuck, tone, folder):
    content, headers = body(tone("a.wav", (2, -10)).read_bytes(), model="model")
    connection = post(stuck, content, headers)
    until(lambda: stuck.helper.busy)
    leave(connection)
    until(lambda: stuck.helper.process.poll() is not None)
    nothing_left(stuck, folder)
    answer = stuck.client.audio.transcriptions.create(file=tone("a.wav", (2, -20)), model="model")
    assert answer.text == "level 20"


def test_the_deadline_ends_a_codec_that_hangs(stuck, tone, folder):
    stuck.service.limits.least_time, stuck.service.limits.time_factor = 0.3, 0.0
    with pytest.raises(openai.APIStatusError) as refusal:
        stuck.client.audio.transcriptions.create(file=tone("a.wav", (2, -10)), model="model")
    assert refusal.value.status_code == 408
    until(lambda: stuck.helper.process.poll() is not None)
    nothing_left(stuck, folder)


def test_while_waiting_for_a_reader(stuck, tone, folder, monkeypatch):
    service = stuck.service
    others = [service.decoders._idle.get() for _ in range(service.decoders._idle.qsize())]  # all helpers are taken
    content, headers = body(tone("a.wav", (2, -10)).read_bytes(), model="model")
    connections = [post(stuck, content, headers) for _ in range(service.readers + 2)]  # and more than all threads
    until(lambda: service.active == len(connections) and not service.threads._work_queue.empty())
    for connection in connections:
        leave(connection)
    until(lambda: service.active == 0)
    for helper in others:
        service.decoders._idle.put(helper)
    nothing_left(stuck, folder)


def test_a_cancelled_reader_keeps_its_place_until_it_has_ended(talks, tmp_path, monkeypatch):
    from stentor.serve import service as module

    service = talks.service
    (tmp_path / "large").write_bytes(bytes(module.LARGE + 1))
    recording = SimpleNamespace(path=tmp_path / "large")
    begun, end = threading.Event(), threading.Event()

    def work(recording):
        begun.set()
        assert end.wait(30)

    async def cancelled():
        monkeypatch.setattr(service, "_large", asyncio.Semaphore(1))
        task = asyncio.create_task(service.read(work, recording))
        await asyncio.to_thread(begun.wait)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert service._large.locked()
        end.set()
        await service._large.acquire()

    asyncio.run(cancelled())


def test_while_the_model_works(gated, tone):
    path = tone("long.wav", *[part for _ in range(4) for part in ((20, -10), (3, None))])
    connection = post(gated, *body(path.read_bytes(), model="model"))
    assert gated.entered.wait(30)
    queue = gated.service.registry.models["model"].queue
    assert len(queue) == 1 and gated.service.active == 1
    leave(connection)
    until(lambda: gated.service.active == 0)
    assert len(queue) == 0
    gated.release.set()
    answer = gated.client.audio.transcriptions.create(file=tone("a.wav", (2, -20)), model="model")
    assert answer.text == "level 20" and len(gated.windows) == 2


def test_a_stream_that_is_left(gated, tone):
    path = tone("long.wav", *[part for _ in range(4) for part in ((20, -10), (3, None))])
    stream = gated.client.audio.transcriptions.create(file=path, model="model", stream=True)
    assert gated.entered.wait(30) and gated.service.active == 1
    stream.close()
    until(lambda: gated.service.active == 0)
    assert len(gated.service.registry.models["model"].queue) == 0


@pytest.mark.parametrize("content", ["#EXTM3U\n#EXTINF:1,\n{}\n#EXT-X-ENDLIST\n", "ffconcat version 1.0\nfile {}\n"])
@pytest.mark.parametrize("place", ["{}", "file:{}", "http://127.0.0.1:9/{}"])
def test_an_upload_that_names_other_files(talks, tone, content, place):
    secret = tone("secret.wav", (2, -10))
    for name in ("list.m3u8", "list.wav"):
        with pytest.raises(openai.BadRequestError) as refusal:
            file = (name, content.format(place.format(secret)).encode())
            talks.client.audio.transcriptions.create(file=file, model="model")
        assert refusal.value.code == "audio_unreadable" and str(secret) not in refusal.value.message
        assert f"{name} cannot be read: it is text and no audio" in refusal.value.message
