"""Servers in a thread of the test, with the models of tests/inference; the unmodified openai client talks to them."""

import importlib.util
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

for package in ("fastapi", "uvicorn", "python_multipart", "prometheus_client", "openai"):
    pytest.importorskip(package)

sys.path.insert(0, str(Path(__file__).parent))  # for test_limits

spec = importlib.util.spec_from_file_location(
    "inference_models", Path(__file__).parents[1] / "inference" / "conftest.py"
)
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
diarizer, export, meter, run, talk, talker, tiny_family, tone, tones = (
    getattr(models, name)
    for name in ("diarizer", "export", "meter", "run", "talk", "talker", "tiny_family", "tone", "tones")
)


@pytest.fixture
def serve() -> Iterator:
    """Starts a server of `load_models(runs, **options)` with `limits`, `keys` and `origins`; answers its `url`, its
    `service` and an openai `client`, once it is ready."""
    import httpx
    import openai

    from stentor.serve.app import create_app
    from stentor.serve.registry import load_models
    from stentor.serve.run import drained
    from stentor.serve.service import Limits, Service
    from stentor.studio.server.origins import listen

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

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join()
