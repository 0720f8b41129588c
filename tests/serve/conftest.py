"""Servers in a thread of the test, with the models of tests/inference; the unmodified openai client talks to them."""

import importlib.util
import shutil
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "openai"):
    pytest.importorskip(package)

sys.path.insert(0, str(Path(__file__).parent))  # for realtime and test_limits

from realtime import streaming_model  # noqa: E402

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


@pytest.fixture(scope="module")
def chunks(tmp_path_factory) -> Path:
    """The export of a model that hears chunk by chunk."""
    return streaming_model(tmp_path_factory.mktemp("chunks") / "model")


@pytest.fixture(scope="module")
def live(chunks) -> Iterator[SimpleNamespace]:
    """A server of it, which all tests of a module share."""
    with servers() as start:
        yield start(chunks)


@pytest.fixture
def alloy(talker, tmp_path) -> Path:
    """The model that speaks, with a saved voice `alloy`, which clients ask for."""
    import stentor
    from stentor.inference.speak.voice import Voice, save_voice

    folder = shutil.copytree(talker, tmp_path / "voice")
    codec = stentor.load(folder, "cpu").bundle.processor.codec
    codes = codec.encode([np.random.default_rng(0).normal(0, 0.1, 32000).astype(np.float32)])[0]
    save_voice(Voice(codes, "one two three", "en", "alloy.wav"), folder / "voices" / "alloy", codec)
    return folder


@pytest.fixture
def strangers(whisper, alloy, diarizer, serve) -> SimpleNamespace:
    """A server whose models have the names that programs insist on: a Whisper and a voice, with random weights."""
    hear, speak = ("gpt-4o-transcribe", "whisper-1"), ("tts-1", "gpt-4o-mini-tts")
    names = [f"{name}={folder}" for folder, names in ((whisper, hear), (alloy, speak)) for name in names]
    server = serve(whisper, alloy, names=names, diarizer=str(diarizer()))
    model = server.service.registry.models[whisper.name].model
    off = {"temperatures": [0.0], "mean_log_prob": None, "compression_ratio": None, "no_speech": None}
    model.task = model.task.model_copy(update={"checks": model.task.checks.model_copy(update=off)})
    return server
