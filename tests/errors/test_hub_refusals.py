"""A Hub that refuses: a server on this machine answers as the real one does for gated and missing repositories, the
token that it was sent included, and `stentor train` says what to do without showing that token anywhere."""

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.util import find_spec

import pytest

pytestmark = pytest.mark.skipif(find_spec("datasets") is None, reason="datasets is not installed")

TOKEN = "hf_secretsecretsecretsecretsecret42"
OTHER = "wandb-0123456789abcdef"
FAMILIES = ("whisper", "audio_llm", "ctc")
SEVERAL = """
import contextlib, io, json, sys
from stentor.cli import main
for case in json.loads(sys.argv[1]):
    err, out = io.StringIO(), io.StringIO()
    with contextlib.redirect_stderr(err), contextlib.redirect_stdout(out):
        code = main(case)
    print(json.dumps([code, err.getvalue(), out.getvalue()]))
"""


class Hub(BaseHTTPRequestHandler):
    def answer(self):
        sent = self.headers.get("Authorization") or ""
        self.server.sent.append(sent)
        gated = "/locked" in self.path
        body = json.dumps({"error": f"Not for {sent}."}).encode()
        self.send_response(403 if gated else 404)
        self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("X-Error-Message", f"Not for {sent}.")
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    do_GET = do_HEAD = do_POST = answer

    def log_message(self, *_):
        pass


@pytest.fixture(scope="module")
def hub():
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.sent = []
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def ask(folder, cases, **env):
    """(exit code, stderr, stdout) of each command, all run by one process."""
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "HF_"))}
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL, json.dumps(cases)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=500,
        env={**inherited, "OMP_NUM_THREADS": "1", "HF_HOME": str(folder / "home"), "HF_TOKEN": TOKEN, **env},
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("[")]
    assert len(lines) == len(cases), done.stderr[-2000:]
    assert TOKEN not in done.stdout + done.stderr
    return [json.loads(line) for line in lines]


@pytest.fixture(scope="module")
def cases(corpus, tmp_path_factory):
    """The folder with the runs, and the runs by what they want: (kind, repository) -> arguments."""
    folder = tmp_path_factory.mktemp("refused")
    whisper = "config: {d_model: 16, encoder_attention_heads: 2, decoder_attention_heads: 2}"
    texts = {}
    for name in ("someone/locked", "someone/nothing"):
        for family in FAMILIES:
            texts[family, name] = f"model: {{type: {family}, from: {name}}}\n" + (
                "losses: {ctc: ctc}\n" if family == "ctc" else ""
            )
        for stream in ("true", "false"):
            source = f"{{type: hub, name: {name}, stream: {stream}, cache: cache}}"
            texts[f"stream: {stream}", name] = f"model: {{type: whisper, {whisper}}}\ndata: {{train: [{source}]}}\n"
    arguments = {}
    for number, (key, text) in enumerate(texts.items()):
        if "data:" not in text:
            text += f'data: {{train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]}}\n'
        (folder / f"{number}.yaml").write_text(
            f"task: transcribe\n{text}train: {{steps: 1, device: cpu}}\noutput: runs\n"
        )
        arguments[key] = ["train", f"{number}.yaml", "name=run"]
    return folder, arguments


SENTENCES = {
    "locked model": "model.from: the model someone/locked is gated: accept its conditions on "
    "https://huggingface.co/someone/locked, then log in with `hf auth login` (or set HF_TOKEN), and run the same "
    "command again.",
    "locked data": "The data set someone/locked is gated: accept its licence on "
    "https://huggingface.co/datasets/someone/locked, then log in with `hf auth login` (or set HF_TOKEN), and run the "
    "same command again.",
    "nothing model": "model.from: there is no folder someone/nothing, and no model of that name on the Hub, or it is "
    "private: check the spelling on https://huggingface.co/someone/nothing, and log in with `hf auth login` if it is "
    "yours.",
    "nothing data": "There is no data set someone/nothing on the Hub, or it is private: check the spelling on "
    "https://huggingface.co/datasets/someone/nothing, and log in with `hf auth login` if it is yours.",
    "offline model": "model.from: the model someone/nothing could not be reached on the Hub and is not in the cache: "
    "check the network (and that HF_HUB_OFFLINE is not set), or give a folder that holds it.",
    "offline data": "The data set someone/nothing could not be reached on the Hub and is not in the cache: check the "
    "network (and that HF_HUB_OFFLINE is not set), or give a local folder as `name`.",
}


@pytest.mark.parametrize(
    "offline", [pytest.param(False, marks=pytest.mark.long), pytest.param(True, marks=pytest.mark.slow)]
)
def test_repositories_that_cannot_be_had(hub, cases, offline):
    pytest.importorskip("mistral_common")
    folder, arguments = cases
    asked = {key: command for key, command in arguments.items() if not offline or key[1] == "someone/nothing"}
    network = {"HF_HUB_OFFLINE": "1"} if offline else {"HF_ENDPOINT": f"http://127.0.0.1:{hub.server_address[1]}"}
    for (kind, name), (code, message, shown) in zip(asked, ask(folder, list(asked.values()), **network), strict=True):
        what = "model" if kind in FAMILIES else "data"
        sentence = SENTENCES[f"{'offline' if offline else name.removeprefix('someone/')} {what}"]
        assert (code, message) == ({"model": 2, "data": 3}[what], f"stentor: {sentence}\n"), (kind, name)
        assert TOKEN not in shown
    assert offline or any(TOKEN in sent for sent in hub.sent), "the token was used"
    assert not holds(folder, TOKEN)


LEAK = '''
"""A callback whose error quotes the environment."""
import os
from typing import Literal

from stentor.engine.callback import Callback
from stentor.errors import StentorError


class Leak(Callback):
    type: Literal["leak"] = "leak"
    expected: bool = True

    def on_step(self, trainer):
        trainer.say(f"logged in with {os.environ['HF_TOKEN']}")
        trainer.event("told", header=f"Bearer {os.environ['WANDB_API_KEY']}")
        if trainer.step == 2:
            kind = StentorError if self.expected else ValueError
            raise kind(f"refused: {os.environ['HF_TOKEN']}, {os.environ['WANDB_API_KEY']}")
'''


@pytest.mark.long
def test_no_token_in_any_file_or_output(corpus, tiny, tmp_path, cli):
    """Of a whole run, of runs that fail in every way, and of what looks at the machine."""
    secrets = {"HF_TOKEN": TOKEN, "WANDB_API_KEY": OTHER}
    yaml = tiny()
    plugin = tmp_path / "leak.py"
    plugin.write_text(LEAK)
    done = [cli("train", yaml, "name=whole", "train.steps=2", **secrets), cli("doctor", check=False, **secrets)]
    assert (tmp_path / "runs" / "whole" / "results.json").exists()
    text = yaml.read_text()
    for expected, code in (("true", 1), ("false", 2)):
        yaml.write_text(text + f"callbacks: [{{type: leak, expected: {expected}}}]\n")
        failed = cli("train", yaml, f"name=failed-{expected}", "--plugin", plugin, "--debug", check=False, **secrets)
        assert failed.returncode == code and "refused: ***, ***" in failed.stderr and "Traceback" in failed.stderr
        assert "logged in with ***" in failed.stdout
        done.append(failed)
    for process in done:
        assert not any(secret in process.stdout + process.stderr for secret in secrets.values())
    for secret in secrets.values():
        assert not holds(tmp_path, secret)


def holds(folder, secret):
    """Files whose name or content holds the secret."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    assert files
    return [p for p in files if secret in str(p) or secret.encode() in p.read_bytes()]
