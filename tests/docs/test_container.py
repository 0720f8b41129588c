"""Dockerfile and Compose files: the commands of their RUN lines work, and what they name exists."""

import json
import os
import re
import shutil
import subprocess
import sys
import threading
import tomllib
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TORCH_CPU = "https://download.pytorch.org/whl/cpu"


def instructions() -> list[tuple[str, str]]:
    """(keyword, rest) of the Dockerfile in order, without comments and with joined lines."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(encoding="utf-8"), flags=re.MULTILINE)
    lines = re.sub(r"\\\n\s*", " ", text).splitlines()
    return [(line.split(maxsplit=1)[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def values(keyword: str) -> dict[str, str]:
    """NAME=VALUE of all ARG or ENV lines."""
    pairs = [pair for word, rest in instructions() if word == keyword for pair in rest.split()]
    return dict(pair.split("=", 1) for pair in pairs)


def health_command() -> list[str]:
    rest = next(rest for word, rest in instructions() if word == "HEALTHCHECK")
    return json.loads(rest.partition("CMD ")[2])


def test_what_the_image_is_made_of_exists():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(values("ARG")["EXTRAS"].split(",")) <= extras.keys()
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            for source in rest.split()[:-1]:
                assert (ROOT / source).exists() and f"!{source}" in ignored, source
    assert "torch==" in (ROOT / "constraints.txt").read_text(encoding="utf-8")
    assert [rest for word, rest in instructions() if word == "USER"] == ["1000:1000"]


@pytest.mark.parametrize("name", ["compose.yaml", "compose.cuda.yaml"])
def test_services_are_commands_with_options_that_exist(name):
    services = yaml.safe_load((ROOT / name).read_text(encoding="utf-8"))["services"]
    assert services.keys() == {"serve", "studio"}
    for verb, service in services.items():
        if "command" not in service:
            assert service["build"]["args"]["DEVICE"] == "cuda"
            continue
        asked = subprocess.run(
            [sys.executable, "-m", "stentor", verb, "--help"], capture_output=True, text=True, check=True
        )
        assert service["command"][0] == verb
        assert not {w for w in service["command"] if w.startswith("--")} - set(re.findall(r"--[\w-]+", asked.stdout))


@pytest.mark.parametrize("status, healthy", [(200, True), (503, False)])
def test_the_health_check_tells_a_server_that_answers(status, healthy):
    class Answer(BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(status if self.path == "/health" else 404)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = HTTPServer(("127.0.0.1", 0), Answer)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        command = [sys.executable, *health_command()[1:]]
        asked = f"http://127.0.0.1:{server.server_port}/health"
        done = subprocess.run(command, env={**os.environ, "HEALTH": asked}, stderr=subprocess.DEVNULL, check=False)
        assert (done.returncode == 0) is healthy
        assert subprocess.run(command, env={**os.environ, "HEALTH": ""}, check=False).returncode == 0
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.slow
def test_every_run_line_works_in_a_fresh_environment(tmp_path):
    """In folders of its own in the place of the image's, with this machine's Python and CPU build of torch."""
    places = {"/opt/stentor": tmp_path / "opt", "/source": tmp_path / "source", TORCH_CPU: "https://pypi.org/simple"}
    places |= {path: tmp_path / path[1:] for path in ("/models", "/runs", "/cache")}
    done, stage = [], 0
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "PYTEST"))}
    environment |= {k: v for k, v in values("ARG").items() if k != "PYTHON"} | {"PIP_NO_CACHE_DIR": "1"}
    environment["PATH"] = f"{tmp_path / 'opt' / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    (tmp_path / "source").mkdir()
    (tmp_path / "etc").mkdir()
    for word, rest in instructions():
        stage += word == "FROM"
        if word == "COPY" and stage == 1:
            *sources, _ = rest.split()
            for source in sources:
                target = tmp_path / "source" / (source if source == "src" else Path(source).name)
                copy = shutil.copytree if (ROOT / source).is_dir() else shutil.copy
                copy(ROOT / source, target)
        if word == "RUN":
            for path, other in places.items():
                rest = rest.replace(path, str(other))
            if "useradd" in rest:
                if os.geteuid() != 0 or shutil.which("useradd") is None:
                    continue
                rest = rest.replace("useradd", f"useradd --prefix {tmp_path}")
            subprocess.run(
                ["bash", "-o", "pipefail", "-ec", rest], cwd=tmp_path / "source", env=environment, check=True
            )
            done.append(rest)
    assert len(done) >= 3
    licences = (tmp_path / "opt" / "LICENSES").read_text(encoding="utf-8")
    assert re.search(r"^av .*\n(?:    .*\n)*    brings x264: GPL-2.0-or-later", licences, re.MULTILINE)
    assert re.search(r"^torch \S+: ", licences, re.MULTILINE) and "\nstentor " in licences
    if len(done) == 4:
        assert (
            "stentor:x:1000:" in (tmp_path / "etc" / "passwd").read_text() and (tmp_path / "runs").stat().st_uid == 1000
        )
    told = subprocess.run([tmp_path / "opt/bin/stentor", "serve", "--help"], capture_output=True, text=True, check=True)
    assert "--api-key-env" in told.stdout
