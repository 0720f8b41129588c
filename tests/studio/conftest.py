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

    from stentor.studio.runs import jobs

    script = tmp_path / "train.py"
    script.write_text(stand_in.STAND_IN)
    monkeypatch.setattr(jobs, "TRAIN", (sys.executable, "-S", str(script)))
    monkeypatch.setattr(jobs, "checked", lambda text, projects: None)  # takes longer than all else

    def do(*what):
        script.with_name("do").write_text(" ".join(what))

    do()
    yield do
    for job in jobs.jobs(projects):
        jobs.kill(job)
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
def chromium(tmp_path):
    """Opens a Chromium of this test's own (tests/browser.py): `with chromium(microphone=WAV) as browser`."""
    _tests_on_path()
    import browser

    if not browser.chromium():
        pytest.skip("there is no Chromium on PATH, or no Playwright")
    return lambda microphone=None: browser.Browser(tmp_path, microphone)


@pytest.fixture
def opened(tmp_path):
    """`stentor studio` as a process of its own, over tmp_path/studio: `opened.start(...)` opens it
    (tests/studio_process.py). What still runs at the end is ended, its trainings too."""
    _tests_on_path()
    from studio_process import StudioProcess

    process = StudioProcess(tmp_path / "studio")
    yield process
    process.end()


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A `stentor studio` that the tests of a module share."""
    _tests_on_path()
    from studio_process import StudioProcess

    process = StudioProcess(tmp_path_factory.mktemp("desk") / "studio")
    process.start()
    yield process
    process.end()


def _tests_on_path():
    if (tests := str(Path(__file__).parents[1])) not in sys.path:
        sys.path.append(tests)  # last, so that it hides nothing
