"""The app without a socket, with a model that is a function."""

from types import SimpleNamespace

import pytest
from starlette.testclient import TestClient

from stentor.errors import ConfigError
from stentor.serve.app import create_app
from stentor.serve.registry import Registry, ServedModel
from stentor.serve.run import drained
from stentor.serve.scheduler import JobQueue, Worker
from stentor.serve.service import Service
from stentor.tasks.diarize.task import Diarize

MINE = {"origin": "https://mine.example"}


@pytest.fixture
def app():
    """Makes the app of a model that calls `answer`."""

    def make(answer, keys=()):
        queue, task = JobQueue(30.0), Diarize.model_construct(type="diarize")
        model = SimpleNamespace(name="m", task=task, diarize=lambda audio, rate: SimpleNamespace(segments=answer()))
        service = Service(Registry([ServedModel("m", queue, [Worker("m", model, queue)])], {}))
        return TestClient(create_app(service, keys, ["https://mine.example/"]), base_url="http://localhost")

    return make


def settled(client):
    while (health := client.get("/health")).json()["status"] == "loading":
        pass
    return health


@pytest.mark.parametrize(("error", "sentence"), [(ValueError, "ValueError at"), (ConfigError, "takes no hotwords")])
def test_a_model_that_does_not_answer(app, caplog, error, sentence):
    def answer():
        raise error("It takes no hotwords.")

    with app(answer) as client:
        health = settled(client)
        assert (health.status_code, health.json()["status"]) == (503, "failed") and sentence in caplog.text


def test_a_page_elsewhere_reads_what_is_refused(app):
    with app(list, ["a-key-of-sixteen-characters"]) as client:
        assert settled(client).json()["status"] == "ok"
        refusal = client.get("/v1/models", headers=MINE)
        assert refusal.status_code == 401
        assert refusal.headers["access-control-allow-origin"] == MINE["origin"]


def test_a_host_that_is_no_address(app):
    with app(list) as client:
        settled(client)
        assert client.get("/v1/models", headers={"host": "["}).status_code == 403


def test_idle_connections_outlive_those_of_clients_and_balancers(app):
    """AWS's balancers keep one for 60 s: the server is never the first to close it."""
    client = app(list)
    assert drained(client.app, client.app.state.service).config.timeout_keep_alive > 60
