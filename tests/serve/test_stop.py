"""The command under signals: what runs is answered, what is new is refused, and nothing stays."""

import fcntl
import os
import re
import signal
import socket
import termios
import threading
from concurrent.futures import Future

import pytest
from damaged import Upload, exchange, request
from process import Served, parent
from realtime import until


@pytest.fixture
def served(export, tmp_path):
    with Served(export(), tmp_path / "temporary") as served:
        yield served


def asked(served: Served, upload: Upload) -> Future:
    """The answer to a request, in a thread."""
    answer: Future = Future()
    threading.Thread(target=lambda: answer.set_result(exchange(served.address, upload)), daemon=True).start()
    return answer


def held(served: Served, upload: Upload, helper: int) -> Future:
    """A request whose decoder stands still."""
    os.kill(helper, signal.SIGSTOP)
    answer = asked(served, upload)
    until(lambda: waiting(helper))
    return answer


def waiting(helper: int) -> bool:
    """Whether a request lies in the pipe to a helper."""
    with open(f"/proc/{helper}/fd/0", "rb") as pipe:
        return any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)))


@pytest.mark.long
def test_a_signal_while_requests_run(served, tone):
    upload = request(tone("a.wav", (1, -10)).read_bytes(), response_format="verbose_json")
    status, text = exchange(served.address, upload)
    (helper,) = served.helpers
    assert status == 200 and "level 10" in text

    answers = [held(served, upload, helper)]
    answers += [asked(served, upload) for _ in range(4)]
    until(lambda: any(answer.done() for answer in answers[1:]))
    helpers = served.helpers
    served.process.send_signal(signal.SIGTERM)
    until(lambda: served.health()["status"] == "stopping")
    status, message = exchange(served.address, upload)
    assert status == 503 and "stopping" in message
    assert served.process.poll() is None
    os.kill(helper, signal.SIGCONT)
    assert [answer.result(60) for answer in answers] == [(200, text)] * 5
    assert served.process.wait(60) == 0
    assert list(served.folder.iterdir()) == [] and not any(parent(pid) for pid in helpers)
    log = served.log.read_text()
    assert re.search(r"req_\w+ POST /v1/audio/transcriptions 200 ", log)
    assert "Traceback" not in log and "a.wav" not in log


@pytest.mark.slow
def test_a_client_that_sends_nothing_more_and_two_signals(served, tone):
    upload = request(tone("a.wav", (1, -10)).read_bytes())
    with socket.create_connection(served.address) as silent:
        silent.sendall(upload.head)
        until(lambda: served.health()["requests"] == 1)
        assert exchange(served.address, upload)[0] == 200
        served.process.send_signal(signal.SIGTERM)
        until(lambda: served.health()["status"] == "stopping")
        served.process.send_signal(signal.SIGTERM)  # whoever sends it does not wait for the client
        assert silent.recv(1000).startswith(b"HTTP/1.1 503 ")
        assert served.process.wait(60) in (0, -signal.SIGTERM)
    assert list(served.folder.iterdir()) == []
    assert "Traceback" not in served.log.read_text()
