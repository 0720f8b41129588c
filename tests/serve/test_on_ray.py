"""`stentor serve --ray`: Ray Serve answers as the server of one machine does, and stops at a signal."""

import signal
import socket
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from realtime import Client, speech, text_of

MANUAL = {"turn_detection": None}


@pytest.fixture(scope="module")
def served(ray_cluster, chunks):
    """The address of `chunks` on the cluster, and its process."""
    import httpx
    import openai

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "stentor", "serve", str(chunks), "--ray", ray_cluster, "--port", str(port)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen([*command, "--max-replicas", "2", "--device", "cpu"], **pipes)
    printed = []
    for line in process.stdout:
        printed.append(line)
        if "Serving at" in line:
            break
    else:
        pytest.fail("".join(printed))
    threading.Thread(target=process.stdout.read, daemon=True).start()
    url = f"http://127.0.0.1:{port}"
    http = httpx.Client(base_url=url, timeout=60)
    while http.get("/health").json()["status"] == "loading":
        pass
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)
    yield SimpleNamespace(url=url, client=client, process=process)
    process.kill()
    process.wait()


@pytest.mark.slow
def test_answers_are_those_of_the_local_server(served, live, tmp_path):
    soundfile.write(tmp_path / "a.wav", speech(6.0, 16000), 16000)
    settings = {"model": "model", "file": tmp_path / "a.wav"}
    answers = [
        server.client.audio.transcriptions.create(**settings, response_format="verbose_json").model_dump()
        for server in (served, live)
    ]
    assert answers[0] == answers[1] and answers[0]["text"]
    events = [
        [event.model_dump() for event in server.client.audio.transcriptions.create(**settings, stream=True)]
        for server in (served, live)
    ]
    assert events[0] == events[1] and len(events[0]) > 1

    def heard(server):
        with Client(server) as client:
            client.configure(**MANUAL)
            client.append(speech(4.0).astype(np.int16), 7)
            client.commit()
            return client.events(".completed")

    assert text_of(heard(served)) == text_of(heard(live)) != ""


@pytest.mark.slow
def test_several_replicas_answer_and_requests_under_way_are_ended(served, tmp_path):
    """With more requests than BUSY a second replica is started; at the signal nobody's answer is lost."""
    from concurrent.futures import ThreadPoolExecutor

    soundfile.write(tmp_path / "a.wav", speech(20.0, 16000), 16000)

    def ask(_):
        with open(tmp_path / "a.wav", "rb") as file:
            return served.client.audio.transcriptions.create(model="model", file=file).text

    alone = ask(None)
    with ThreadPoolExecutor(48) as pool:
        answers = list(pool.map(ask, range(200)))
        assert set(answers) == {alone} and alone
        last = [pool.submit(ask, None) for _ in range(24)]
        time.sleep(0.3)
        served.process.send_signal(signal.SIGTERM)
        assert {answer.result() for answer in last} == {alone}
    assert served.process.wait(60) == 0
