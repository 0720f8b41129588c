"""Servers in a thread of the test, with the models of tests/inference; the unmodified openai client talks to them."""

import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "openai"):
    pytest.importorskip(package)

sys.path.insert(0, str(Path(__file__).parent))  # for realtime and test_limits

from realtime import streaming_model, until  # noqa: E402

from kinds import kinds_kept  # noqa: E402

spec = importlib.util.spec_from_file_location(
    "inference_models", Path(__file__).parents[1] / "inference" / "conftest.py"
)
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
diarizer, export, meter, run, talk, talker, tiny_family, tone, tones = (
    getattr(models, name)
    for name in ("diarizer", "export", "meter", "run", "talk", "talker", "tiny_family", "tone", "tones")
)


@contextmanager
def servers() -> Iterator:
    """Starts a server of `load_models(runs, **options)` with `limits`, `keys` and `origins`; answers its `url`, its
    `service` and an openai `client`, once it is ready."""
    import httpx
    import openai

    from stentor.serve.app import create_app
    from stentor.serve.registry import load_models
    from stentor.serve.run import drained
    from stentor.serve.service import Limits, Service
    from stentor.web.origins import listen

    running = []

    def start(
        *runs: Path, devices=("cpu",), limits: dict | None = None, keys=(), origins=(), **options
    ) -> SimpleNamespace:
        registry = load_models([str(run) for run in runs], devices=devices, **options)
        service = Service(registry, Limits(**(limits or {})))
        opened = listen("127.0.0.1", 0, "server")
        server = drained(create_app(service, keys, origins), service)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [opened]})
        thread.start()
        running.append((server, thread))
        url = f"http://127.0.0.1:{opened.getsockname()[1]}"
        http = httpx.Client(base_url=url, timeout=300)
        while http.get("/health").json()["status"] == "loading":
            pass
        client = openai.OpenAI(base_url=f"{url}/v1", api_key=(keys or ["none"])[0], max_retries=0, timeout=300)
        return SimpleNamespace(url=url, service=service, client=client, http=http, server=server, thread=thread)

    try:
        yield start
    finally:
        for server, thread in running:
            server.should_exit = True
            thread.join()


@pytest.fixture
def serve() -> Iterator:
    with servers() as start:
        yield start


@pytest.fixture(scope="session")
def open_server() -> Iterator:
    """Starts servers that stay to the end of the run."""
    with servers() as start:
        yield start


@pytest.fixture(scope="session")
def shared(open_server, tmp_path_factory):
    """Servers that all tests of a run share, each started when it is first asked for: `shared(task)` has the `model` of
    the family `test_meter`; with `speakers` a diarizer beside it, whose family is `tones`."""
    started = {}

    def server(task: str = "transcribe", speakers: bool = False) -> SimpleNamespace:
        if (task, speakers) not in started:
            folder = tmp_path_factory.mktemp("shared")
            with kinds_kept():
                _, family = models.meter.__wrapped__(None), models.tones.__wrapped__(None)
                export = models.export.__wrapped__(folder, None)(task=task)
                diarizer = models.diarizer.__wrapped__(folder, None)() if speakers else None
                served = open_server(export, diarizer=str(diarizer) if diarizer else None)
            started[task, speakers] = SimpleNamespace(**vars(served), tones=family)
        return started[task, speakers]

    return server


def borrowed(server: SimpleNamespace, monkeypatch) -> SimpleNamespace:
    """A shared server for one test, which may set its limits."""
    monkeypatch.setattr(server.service, "limits", replace(server.service.limits))
    return SimpleNamespace(**vars(server))


@pytest.fixture
def talks(shared, meter, monkeypatch) -> SimpleNamespace:
    """A shared server of a model that transcribes."""
    return borrowed(shared(), monkeypatch)


@pytest.fixture
def worded(shared, meter, monkeypatch) -> SimpleNamespace:
    """A shared server of a model for the task words."""
    return borrowed(shared("words"), monkeypatch)


@pytest.fixture
def speakers(shared, meter, tones, monkeypatch) -> SimpleNamespace:
    """A shared server with a diarizer."""
    return borrowed(shared(speakers=True), monkeypatch)


@pytest.fixture
def gated(talks, monkeypatch):
    """A server whose model waits for `release` in its batches; `entered` says that it does."""
    served = talks.service.registry.models["model"]
    monkeypatch.setattr(served.queue, "batch_seconds", 30.0)
    talks.entered, talks.release, talks.windows = threading.Event(), threading.Event(), []
    task = type(served.model.task)
    predict = task.predict

    def waiting(self, bundle, examples, **options):
        talks.windows.append(len(examples))
        talks.entered.set()
        assert talks.release.wait(30)
        return predict(self, bundle, examples, **options)

    monkeypatch.setattr(task, "predict", waiting)
    yield talks
    talks.release.set()
    until(lambda: talks.service.active == 0 and not len(served.queue))


@pytest.fixture(scope="session")
def chunks(tmp_path_factory) -> Path:
    """The export of a model that hears chunk by chunk."""
    return streaming_model(tmp_path_factory.mktemp("chunks") / "model")


@pytest.fixture(scope="session")
def live(chunks, open_server) -> SimpleNamespace:
    """A server of it, which all tests share."""
    return open_server(chunks)


@pytest.fixture(scope="session")
def voiced(talker, tmp_path_factory):
    """Makes a copy of the model that speaks, with a saved voice of that name."""
    import stentor
    from stentor.inference.speak.voice import Voice, save_voice

    def make(name: str) -> Path:
        folder = shutil.copytree(talker, tmp_path_factory.mktemp(name) / "voice")
        codec = stentor.load(folder, "cpu").bundle.processor.codec
        codes = codec.encode([np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32)])[0]
        save_voice(Voice(codes, "one two three", "en", f"{name}.wav"), folder / "voices" / name, codec)
        return folder

    return make


@pytest.fixture(scope="session")
def strangers(whisper, voiced, open_server, tmp_path_factory) -> SimpleNamespace:
    """A server whose models have the names that programs insist on: a Whisper and a voice, with random weights."""
    alloy, hear, speak = voiced("alloy"), ("gpt-4o-transcribe", "whisper-1"), ("tts-1", "gpt-4o-mini-tts")
    names = [f"{name}={folder}" for folder, names in ((whisper, hear), (alloy, speak)) for name in names]
    with kinds_kept():
        models.tones.__wrapped__(None)
        diarizer = models.diarizer.__wrapped__(tmp_path_factory.mktemp("diarizer"), None)()
        server = open_server(whisper, alloy, names=names, diarizer=str(diarizer))
    model = server.service.registry.models[whisper.name].model
    off = {"temperatures": [0.0], "mean_log_prob": None, "compression_ratio": None, "no_speech": None}
    model.task = model.task.model_copy(update={"checks": model.task.checks.model_copy(update=off)})
    return server
