"""`stentor serve` as a user starts and stops it."""

import re
import signal
import subprocess
import sys

import openai
import pytest


@pytest.mark.long
def test_a_process_from_start_to_signal(whisper, tone):
    command = [sys.executable, "-m", "stentor", "serve", whisper, "--port", "0", "--name", f"whisper-1={whisper}"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        url = re.search(r"http://\S+", process.stdout.readline()).group()
        client = openai.OpenAI(base_url=url, api_key="none", max_retries=20, timeout=120)  # while it is loading
        path = tone("a.wav", (0.5, -10))
        answer = client.audio.transcriptions.create(file=path, model="whisper-1", response_format="verbose_json")
        assert answer.duration == 0.5
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0
    assert f"{answer._request_id} POST /v1/audio/transcriptions 200" in log and path.name not in log


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "There is nothing to serve"),
        (["MODEL", "--host", "0.0.0.0"], "open to everybody who reaches 0.0.0.0"),
        (["MODEL", "--host", "0.0.0.0", "--api-key-env", "NO_SUCH_KEY"], "must hold keys of at least 16 characters"),
        (["MODEL", "--name", "whisper-1"], "write ALIAS=RUN"),
        (["MODEL", "--diarizer", "MODEL"], "not to tell speakers apart"),
        (["nothing"], "There is no model nothing"),
        (["--name", "a=MODEL", "--name", "a=nothing"], "Two of the models are called a:"),
        (["MODEL", "--allow-origin", "example.org"], "write scheme and host"),
        (["MODEL", "--host", "no.such.host.example", "--api-key-env", "KEYS"], "knows no such address"),
    ],
)
def test_wrong_usage(export, run, monkeypatch, options, message):
    monkeypatch.setenv("KEYS", "a-key-of-sixteen-characters another-key-of-the-server")
    model = str(export())
    code, out, err = run("serve", "--port", "0", *(option.replace("MODEL", model) for option in options))
    assert (code, out) == (2, "") and message in err and len(err.strip().splitlines()) == 1
