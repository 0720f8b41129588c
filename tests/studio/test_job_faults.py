"""What goes wrong around a run: whatever is killed or fills up, nothing is lost, one sentence tells it, and there are
never two runs in one folder."""

import json
import multiprocessing
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import pytest
from stand_in import YAML, ended, process_of, starts, until

from stentor.errors import ConfigError, StentorError
from stentor.studio import files
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, jobs, supervisor
from stentor.studio.runs.jobs import state
from stentor.studio.runs.progress import progress_of


def test_a_killed_training_is_told_and_goes_on(projects, tmp_path, running):
    os.kill(process_of(running), signal.SIGKILL)
    status = ended(running)
    assert (status.state, status.exit) == ("failed", -9) and "memory ran out" in status.sentence and status.step == 2
    (running.folder / "go").touch()
    jobs.resume(projects, running)
    assert ended(running).state == "finished" and len(starts(tmp_path)) == 2


def test_a_switched_off_machine_is_told(projects, running):
    """Keeper and training die in the same moment, with no last word."""
    training = process_of(running)
    supervisor = os.getsid(training)
    assert supervisor not in (training, os.getsid(0))
    os.kill(supervisor, signal.SIGKILL)
    assert state(running).alive, "the training still runs, and no second one may start"
    with pytest.raises(ConfigError, match="running already"):
        jobs.resume(projects, running)
    os.kill(training, signal.SIGKILL)
    status = ended(running)
    assert (status.state, status.exit) == ("failed", None) and "machine was switched off" in status.sentence


def test_a_killed_studio_leaves_its_run(projects, train, tmp_path):
    train("wait")
    forked = multiprocessing.get_context("fork")
    began = forked.Event()
    studio = forked.Process(target=lambda: (jobs.start(projects, YAML), began.set(), time.sleep(600)))
    studio.start()
    assert began.wait(60)
    job = jobs.find(projects, "first")
    until((job.folder / "ready").exists)
    studio.kill()
    studio.join()
    again = Projects(projects.folder)
    job = jobs.jobs(again)[0]
    assert state(job).state == "running" and state(job).step == 2
    (job.folder / "go").touch()
    assert ended(job).state == "finished" and starts(tmp_path) == [f"first {starts(tmp_path)[0].split()[1]}"]


def test_a_full_disk_starts_nothing(projects, train, monkeypatch, tmp_path):
    def refuse(handle):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(files.os, "fsync", refuse)
        with pytest.raises(StentorError, match="is full"):
            jobs.start(projects, YAML)
    assert not list(projects.runs.iterdir()) and not starts(tmp_path)


def test_how_a_run_ended_fits_on_a_disk_that_filled_up(tmp_path):
    from stentor.studio.runs.supervisor import ENDING_BYTES, write_ending

    (tmp_path / "ending.json").write_bytes(b"{}".ljust(ENDING_BYTES))
    place = (tmp_path / "ending.json").stat().st_ino
    write_ending(tmp_path, {"exit": 1, "said": "é\n\0" * 5000})
    status = (tmp_path / "ending.json").stat()
    assert (status.st_ino, status.st_size) == (place, ENDING_BYTES)
    assert files.read_json(tmp_path / "ending.json")["said"].startswith("é\n")


def test_a_killed_keeper_ends_nothing(running):
    """The training goes on without it; how it ended is told by its own last event, as nobody kept its exit code."""
    os.kill(os.getsid(process_of(running)), signal.SIGKILL)
    assert state(running).state == "running"
    (running.folder / "go").touch()
    status = ended(running)
    assert (status.state, status.exit, status.step) == ("finished", None, 6)


def test_a_run_without_a_keeper_is_stopped(running):
    os.kill(os.getsid(process_of(running)), signal.SIGKILL)
    detached.end(running.folder)
    status = ended(running)
    assert (status.state, status.exit) == ("stopped", None) and "Everything is saved" in status.sentence


def test_a_run_that_hears_nothing_is_asked_then_killed(projects, train):
    """It waits for data that does not come: it saves nothing, but it can be ended."""
    train("deaf", "wait")
    job = jobs.start(projects, YAML)
    until((job.folder / "ready").exists)
    detached.end(job.folder)
    assert state(job).state == "stopping"
    with pytest.raises(ConfigError, match="running already"):
        jobs.resume(projects, job)
    detached.end(job.folder, kill=True)
    status = ended(job)
    assert (status.state, status.exit) == ("stopped", -9) and "last checkpoint" in status.sentence


def test_a_run_is_stopped_before_it_can_hear(projects, train):
    """SIGTERM comes while the training is still being imported, before it has a handler."""
    train("wait")
    job = jobs.start(projects, YAML)
    detached.end(job.folder)
    status = ended(job)
    assert status.state == "stopped" and status.exit in (-15, 75) and "resume" in status.sentence


def test_a_number_that_another_process_has_by_now_is_not_signalled(projects, running):
    with subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"]) as other:
        ending = json.loads((running.folder / "ending.json").read_text())
        before = dict(ending)
        (running.folder / "ending.json").write_text(json.dumps({**ending, "pid": other.pid}))
        assert detached.process(running.folder) is None
        detached.end(running.folder), detached.end(running.folder, kill=True)
        assert other.poll() is None and state(running).alive
        other.kill()
    (running.folder / "ending.json").write_text(json.dumps(before))


def another_studio(act, ready, said):
    """Does it in a thread or process of its own, when the others are ready."""
    ready.wait()
    try:
        act()
        said.put("made")
    except ConfigError as error:
        said.put(str(error))


THREADS = SimpleNamespace(Barrier=threading.Barrier, SimpleQueue=queue.SimpleQueue, Process=threading.Thread)
PROCESSES = multiprocessing.get_context("fork")


@pytest.mark.parametrize(("kind", "count"), [(THREADS, 6), (PROCESSES, 2)], ids=["threads", "processes"])
def test_of_several_starts_at_once_one_makes_a_run(projects, train, tmp_path, kind, count):
    """Pages of one studio, and two studios over one folder, do the same at the same moment."""

    def at_once(act):
        ready, said = kind.Barrier(count), kind.SimpleQueue()
        starters = [kind.Process(target=another_studio, args=(act, ready, said)) for _ in range(count)]
        for starter in starters:
            starter.start()
        for starter in starters:
            starter.join()
        return sorted(said.get() for _ in starters)

    train("wait")
    *refused, made = at_once(lambda: jobs.start(projects, YAML))
    assert made == "made" and all(told.startswith("There is a run first already") for told in refused)
    job = jobs.find(projects, "first")
    until((job.folder / "ready").exists)
    detached.end(job.folder)
    ended(job)
    (job.folder / "ready").unlink()
    *refused, made = at_once(lambda: jobs.resume(projects, jobs.find(projects, "first")))
    assert made == "made" and set(refused) == {"The run first is running already: stop it first, or wait."}
    until((job.folder / "ready").exists)
    assert len(starts(tmp_path)) == 2


def test_a_start_that_was_cut_off_can_be_resumed(projects, train, tmp_path):
    """The studio is killed when the run's folder has its name and nothing runs yet."""
    train()
    job = jobs.start(projects, YAML)
    ended(job)
    for name in ("ending.json", "run.lock", "events.jsonl", "output.txt"):
        (job.folder / name).unlink()
    assert state(job).state == "failed" and not state(job).alive
    jobs.resume(projects, job)
    assert ended(job).state == "finished"


@pytest.fixture
def small_disk(tmp_path):
    """A real disk of 200 KB."""
    place = tmp_path / "disk"
    place.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "tmpfs", str(place)], capture_output=True).returncode:
        pytest.skip("a small disk cannot be mounted here")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def fill(place):
    handle = os.open(place / "filler", os.O_WRONLY | os.O_CREAT)
    with pytest.raises(OSError, match="No space"):
        while True:
            os.write(handle, b"x" * 4096)
    os.close(handle)


def test_a_disk_that_fills_up_while_a_run_goes(small_disk, train, tmp_path):
    projects = Projects(small_disk)
    train("wait")
    job = jobs.start(projects, YAML)
    until((job.folder / "ready").exists)
    fill(small_disk)
    detached.end(job.folder)
    status = ended(job)  # how it ended is told, though there is no room for it
    assert status.exit is not None and status.state in ("stopped", "failed"), status
    with pytest.raises(StentorError, match="is full"):
        jobs.resume(projects, job)
    with pytest.raises(StentorError, match="is full"):
        jobs.start(projects, YAML, "second")
    assert state(job) == status and len(starts(tmp_path)) == 1 and [j.name for j in jobs.jobs(projects)] == ["first"]
    (small_disk / "filler").unlink()
    (job.folder / "go").touch()
    jobs.resume(projects, job)
    assert ended(job).state == "finished"


LEAVES = """\
import subprocess, sys
subprocess.Popen([sys.executable, "-S", "-c", "import time; time.sleep(600)"])
print("done", flush=True)
"""


def test_what_a_command_leaves_behind_is_ended(tmp_path, monkeypatch):
    """Loader workers that outlive their training would hold the lock for ever."""
    with detached.exclusive(tmp_path, "busy") as lock:
        os.set_inheritable(lock, True)
        (tmp_path / "ending.json").write_bytes(b"{}".ljust(supervisor.ENDING_BYTES))
        run = "from stentor.studio.runs import supervisor; supervisor._LINGER = 0.2; "
        run += f"supervisor.main({[str(tmp_path), str(lock)]!r} + [{sys.executable!r}, '-S', '-c', {LEAVES!r}])"
        done = subprocess.run([sys.executable, "-c", run], pass_fds=(lock,), timeout=60, check=False)
    assert done.returncode == 0
    until(lambda: not detached.alive(tmp_path))
    assert (detached.ending(tmp_path).exit, detached.tail(tmp_path / "output.txt")) == (0, "done")


def test_a_command_that_is_not_there(tmp_path):
    with detached.exclusive(tmp_path, "busy") as lock:
        detached.launch(tmp_path, [str(tmp_path / "none")], lock, tmp_path)
    until(lambda: not detached.alive(tmp_path))
    ending = detached.ending(tmp_path)
    assert ending.exit == 127 and "No such file" in ending.message


@pytest.mark.slow
def test_a_real_run_that_is_killed_goes_on(projects, tiny):
    text = tiny().read_text().replace("steps: 6", "steps: 60").replace("save_every: 2", "save_every: 10")
    job = jobs.start(projects, text, "real")
    until(lambda: state(job).step >= 12 or not state(job).alive, 300)
    os.kill(detached.process(job.folder), signal.SIGKILL)
    status = ended(job)
    assert (status.state, status.exit) == ("failed", -9), jobs.log(job)
    jobs.resume(projects, job)
    # Its supervisor is killed as well: the run continues to its end, and tells it.
    until(lambda: state(job).state == "running", 300)
    os.kill(os.getsid(process_of(job)), signal.SIGKILL)
    until(lambda: not jobs.alive(job), 300)
    status = state(job)
    assert (status.state, status.exit, status.step) == ("finished", None, 60), jobs.log(job)
    assert progress_of(job.folder).numbers.values["train/loss"][0] == list(range(1, 61))
    assert "finished" in (job.folder / "events.jsonl").read_text() and (job.folder / "report.html").exists()
