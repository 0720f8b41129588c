"""The studio without its page: the server with the routes, but no Gradio (whose import takes seconds)."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for stand_in.py
sys.path.append(str(Path(__file__).parents[1]))  # for studio_steps.py; last, so that it hides nothing


@pytest.fixture(scope="session", autouse=True)
def cheap_passwords():
    """Signing in takes its time on purpose, which no test needs."""
    from stentor.studio.server import accounts

    assert accounts.COST >= 2**14  # as it is for everybody else
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(accounts, "COST", 2)
        yield


@pytest.fixture
def projects(tmp_path):
    from stentor.studio.projects import Projects

    return Projects(tmp_path / "studio")


@pytest.fixture
def voices(projects):
    """An empty data set."""
    return projects.create("voices", "de")


@pytest.fixture
def lecture(tmp_path):
    """Eight stretches of three seconds with pauses of one second, as an upload."""
    import numpy as np
    import soundfile
    from studio_audio import tone

    from stentor.studio.uploaded_audio import Upload

    rng = np.random.default_rng(0)
    rate, parts = 16000, []
    for _ in range(8):
        parts += [tone(3.0, rate) + 0.05 * rng.standard_normal(3 * rate), 0.001 * rng.standard_normal(rate)]
    soundfile.write(tmp_path / "long.wav", np.concatenate(parts), rate, subtype="PCM_16")
    return Upload(tmp_path / "long.wav", "lecture.wav")


@pytest.fixture
def client(projects):
    """A browser of the one person of a studio on this machine. `client.projects` is their folder."""
    return browser_of(projects.folder, {})


def browser_of(folder, passwords, **headers):
    """A client of a studio with these passwords by person; it sends what a page of the studio sends."""
    from starlette.testclient import TestClient

    from stentor.studio.serve import ROUTES
    from stentor.studio.server.accounts import Accounts
    from stentor.studio.server.server import StudioServer

    accounts = Accounts(folder, passwords)
    server = StudioServer(accounts, local=True, port=7860, routes=ROUTES, load=lambda: None)
    client = TestClient(server, base_url="http://127.0.0.1:7860", headers={"X-Stentor": "1", **headers})
    client.accounts, client.door = accounts, server
    if accounts.token:
        client.cookies.set(server.cookie, accounts.token)
    client.projects = None if accounts.named else accounts.projects("owner")
    return client


@pytest.fixture
def people():
    """Makes browsers of studios with several people: `browser_of`."""
    return browser_of


@pytest.fixture
def train(tmp_path, monkeypatch, projects):
    """Puts a stand-in in the place of `stentor train`; called with what it shall do. At the end no run is left."""
    import stand_in

    from stentor.studio.runs import detached, jobs

    script = tmp_path / "train.py"
    script.write_text(stand_in.STAND_IN)
    monkeypatch.setattr(jobs, "TRAIN", (sys.executable, "-S", str(script)))
    monkeypatch.setattr(jobs, "checked", lambda text, projects: None)  # takes longer than all else

    def do(*what):
        script.with_name("do").write_text(" ".join(what))

    do()
    yield do
    for job in jobs.jobs(projects):
        detached.end(job.folder, kill=True)
        stand_in.until(lambda job=job: not jobs.alive(job))


@pytest.fixture
def running(projects, train):
    """A run that trains until its folder holds `go`."""
    import stand_in

    from stentor.studio.runs import jobs

    train("wait")
    job = jobs.start(projects, stand_in.YAML)
    stand_in.until((job.folder / "ready").exists)
    return job


@pytest.fixture
def run(projects):
    """A finished run `first` with an export, made without training."""
    import json
    import shutil

    import numpy as np
    from safetensors.numpy import save_file
    from stand_in import exported

    data = {"train": [{"type": "jsonl", "path": "t.jsonl"}], "eval": {}, "test": {}}
    export = exported(projects, "first", {"type": "speech_llm"}, {"type": "transcribe"}, data=data)
    results = {"eval": {}, "data": {"used": 2}, "steps": 9, "command": ["stentor", "train", "/home/me/run.yaml"]}
    (export.parent / "results.json").write_text(json.dumps(results))
    shutil.copy(export / "training_config.json", export.parent / "resolved.yaml")
    save_file({"llm.weight": np.ones(4, np.float32)}, export / "model.safetensors")
    (export / "config.json").write_text('{"model_type": "speech_llm", "bases": {}}')


@pytest.fixture
def at_once(monkeypatch):
    """The command runs in this process, before `launch` is over; the commands that were started."""
    import contextlib
    import io
    import json
    import time

    from stentor.cli import main
    from stentor.studio.files import write_bytes
    from stentor.studio.runs import detached

    commands = []

    def launch(folder, command, lock, cwd):
        commands.append(list(command))
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
            code = main(list(command[3:]))
        with (folder / "output.txt").open("a") as file:
            file.write(printed.getvalue())
        last = printed.getvalue().strip().rpartition("stentor: ")[2]
        ending = {"started": time.time(), "exit": code, "time": time.time(), "said": last}
        write_bytes(folder / "ending.json", json.dumps(ending).encode())

    monkeypatch.setattr(detached, "launch", launch)
    return commands


@pytest.fixture(scope="module")
def chromiums():
    """The Chromiums of a module. Not of a session: while one is open, no test can run an event loop of its own."""
    _tests_on_path()
    import browser

    if not browser.chromium():
        pytest.skip("there is no Chromium on PATH, or no Playwright")
    started = browser.Chromiums()
    yield started
    started.close()


@pytest.fixture
def chromium(chromiums, tmp_path):
    """Opens a browser with an empty profile (tests/browser.py): `with chromium(microphone=WAV) as browser`."""
    import browser

    return lambda microphone=None: browser.Browser(tmp_path, microphone, chromiums)


@pytest.fixture
def opened(tmp_path):
    """`stentor studio` as a process of its own, over tmp_path/studio: `opened.start(...)` opens it
    (tests/studio_process.py). What still runs at the end is ended, its trainings too."""
    _tests_on_path()
    from studio_process import StudioProcess

    process = StudioProcess(tmp_path / "studio")
    yield process
    process.end()


@pytest.fixture(scope="session")
def started_desk(tmp_path_factory):
    _tests_on_path()
    from studio_process import StudioProcess

    process = StudioProcess(tmp_path_factory.mktemp("desk") / "studio")
    process.start()
    yield process
    process.end()


@pytest.fixture
def desk(started_desk):
    """The `stentor studio` that tests share, without data sets, runs and publications. A test that kills it, or wants
    other options or variables, starts its own: `opened`."""
    started_desk.empty()
    return started_desk


def _tests_on_path():
    if (tests := str(Path(__file__).parents[1])) not in sys.path:
        sys.path.append(tests)  # last, so that it hides nothing
