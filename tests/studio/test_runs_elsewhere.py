"""Runs that were trained on the command line, and names in people's own alphabets."""

import shutil
import subprocess
import sys

import pytest

from stentor.errors import ConfigError
from stentor.studio.files import is_name, name_from
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs, publish_jobs, settings, try_model, watch
from stentor.studio.server.accounts import Accounts

NAMES = ("Anna-Stimme", "голос", "声音", "हिन्दी-आवाज़", "صوت_1", "Ελένη", "목소리", "ä" * 64)
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'a'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


def test_they_are_seen_tried_and_trained_on(tmp_path, cli, tiny, projects):
    elsewhere = tmp_path / "my runs"
    cli("train", tiny(), f"output={elsewhere}", "name=by.hand", "train.steps=3")
    run = elsewhere / "by.hand"
    (elsewhere / "notes").mkdir()
    assert jobs.jobs(projects) == []
    projects = Projects(projects.folder, more_runs=(elsewhere,))
    (job,) = jobs.jobs(projects)
    assert jobs.find(projects, "by.hand") == job and job.folder == run and job.about["created"] > 1e9
    assert jobs.state(job).state == jobs.word(job) == "finished" and not jobs.alive(job)
    assert watch.view(projects, job).can == {"retry"} and "tiny" not in job.name
    assert try_model.runs(projects) == ["by.hand"] and try_model.trial(projects, "by.hand").name == "by.hand"
    assert settings.runs("transcribe", projects) == ["run:by.hand"]
    assert ("model", "by.hand") in publish_jobs.offers(projects)
    # It is not the studio's to change.
    for change in (jobs.resume, jobs.delete):
        with pytest.raises(ConfigError, match="trained on the command line"):
            change(projects, job)
    assert not (run / "run.lock").exists()
    # One of the same name in the studio's own folder.
    shutil.copytree(run, projects.runs / "by.hand")
    assert sorted(job.name for job in jobs.jobs(projects)) == ["by.hand", "by.hand (2)"]
    assert jobs.find(projects, "by.hand (2)").folder == run
    # While it is trained, by whomever.
    (run / "results.json").unlink()
    (run / "events.jsonl").write_text("")
    with subprocess.Popen([sys.executable, "-c", HOLD, run / ".lock"], stdin=-1, stdout=-1, text=True) as holder:
        holder.stdout.readline()
        assert jobs.word(jobs.find(projects, "by.hand (2)")) == "running"
        holder.communicate("\n")
    assert jobs.state(jobs.find(projects, "by.hand (2)")).state == "failed"


def test_several_people_see_no_other_runs(tmp_path):
    with pytest.raises(ConfigError, match="--runs"):
        Accounts(tmp_path / "studio", {"anna": "a password", "ben": "another one"}, more_runs=(tmp_path,))


@pytest.mark.parametrize("name", NAMES)
def test_names_in_peoples_own_alphabets(name, projects, client):
    import numpy as np

    assert is_name(name) and name_from(name) == name
    dataset = projects.create(name)
    record = dataset.add(np.full(800, 0.1, "float32"), 16000, "text", speaker=name)
    assert projects.datasets() == [name] and record["speaker"] == name
    assert client.get(f"/studio/check/{name}").json()["total"] == 1
    assert client.get(f"/studio/audio/{name}/{record['id']}").status_code == 200
    assert is_name(settings.run_name(projects, name, "whisper_tiny"))
    user, _, repo = publish_jobs.suggested(f"dataset:{name}", "anna").partition("/")
    assert user == "anna" and repo and repo.isascii()


def test_one_name_is_taken_once(projects):
    projects.create("Gru\u0308n")  # as some keyboards type it
    for same in ("Gr\u00fcn", "GR\u00dcN", "gr\u00fcn"):
        with pytest.raises(ConfigError, match="already"):
            projects.create(same)
    assert projects.datasets() == ["Gr\u00fcn"]
    for unsafe in ("a\u200bb", "a\u202eb", "a/b", "\u0301a", "a\U0001f600", "-\u00e4", "ä" * 65, "声" * 65):
        with pytest.raises(ConfigError):
            projects.create(unsafe)
