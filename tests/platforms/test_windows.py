"""Stentor without what Python on Windows lacks (windows/sitecustomize.py): locks, processes, training, serving.

It shows that no module needs `fcntl`, `fork`, POSIX signals or symbolic links, not that Windows itself behaves so.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import textwrap
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from process_group import environment
from studio_process import StudioProcess

PATH = os.pathsep.join([str(Path(__file__).parent / "windows"), os.environ.get("PYTHONPATH", "")])


def windows(*arguments: object, **extra: str) -> subprocess.CompletedProcess:
    command = [sys.executable, *(str(a) for a in arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=300, check=False, env=environment(PYTHONPATH=PATH, **extra)
    )


def stentor(*arguments: object, **extra: str) -> str:
    done = windows("-m", "stentor", *arguments, **extra)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return done.stdout + done.stderr


def script(text: str, *arguments: object) -> str:
    done = windows("-c", textwrap.dedent(text), *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_imitation_hides_what_it_says():
    """Else the other tests would show nothing."""
    told = script("""\
        import stentor.data.system as system
        assert not system.POSIX and system.fcntl is None
        assert not vars(system.os).keys() & {"fork", "killpg", "pread", "getuid"}
        assert "SIGKILL" not in vars(system.signal) and len(system.STOP_SIGNALS) == 2
        assert not system.can_fork()
        try:
            system.subprocess.Popen(["true"], start_new_session=True)
        except AssertionError as error:
            print(error)
    """)
    assert told == "start_new_session does nothing on Windows\n"


@pytest.mark.long
def test_every_module_is_imported():
    told = script("""\
        import importlib, pkgutil, stentor
        names = [m.name for m in pkgutil.walk_packages(stentor.__path__, "stentor.") if "templates" not in m.name]
        for name in names:
            if not name.endswith("__main__"):
                importlib.import_module(name)
        print(len(names))
    """)
    assert int(told) > 300


def test_a_run_folder_is_locked(tmp_path):
    code = """\
        import subprocess, sys
        from pathlib import Path
        from stentor.engine.run_lock import run_lock, run_locked
        from stentor.errors import ConfigError

        folder = Path(sys.argv[1])
        if len(sys.argv) == 3:
            try:
                with run_lock(folder):
                    print("free")
            except ConfigError as error:
                print(error)
            raise SystemExit
        again = [sys.executable, folder.parent / "code.py", folder, "other"]
        with run_lock(folder):
            assert run_locked(folder)
            print(subprocess.run(again, capture_output=True, text=True).stdout, end="")
        print(subprocess.run(again, capture_output=True, text=True).stdout, end="")
        assert not run_locked(folder)
    """
    (tmp_path / "code.py").write_text(textwrap.dedent(code))
    first, second = script(code, tmp_path / "run").splitlines()
    assert re.match(r".*is already being trained by process \d+ on .* since \d{4}-.*: wait for it", first)
    assert second == "free"


def test_the_studio_changes_a_folder_alone_and_keeps_what_is_used(tmp_path):
    told = script(
        """\
        import os, sys, threading, time
        from pathlib import Path
        from stentor.data.system import link_folder, open_to_read, read_at, sync
        from stentor.data import storage_cache
        from stentor.studio.files import append_line, locked, write_bytes
        from stentor.studio.server.accounts import local_token

        folder = Path(sys.argv[1])
        order = []

        def second():
            with locked(folder):
                order.append("second")

        thread = threading.Thread(target=second)
        with locked(folder):
            thread.start()
            time.sleep(0.3)
            order.append("first")
        thread.join()
        write_bytes(folder / "a.bin", b"a\\r\\nbc")
        append_line(folder / "lines", "x")
        file = open_to_read(folder / "a.bin")
        assert (read_at(file, 2, 3), read_at(file, 9, 0)) == (b"bc", b"a\\r\\nbc")
        sync(folder)
        assert local_token(folder) == local_token(folder)
        for text in ("one", "two"):
            (folder / text).mkdir()
            (folder / text / "w").write_text(text, encoding="utf-8")
            link_folder(folder / "export", Path(text))
            assert (folder / "export" / "w").read_text(encoding="utf-8") == text
        os.environ.update(STENTOR_CACHE=str(folder / "cache"), STENTOR_CACHE_GB="0.000001")
        for name in ("old", "new"):
            (storage_cache.cache_folder() / "files" / name).write_bytes(bytes(900))
        storage_cache.make_room(50)
        left = os.listdir(folder / "cache" / "files")
        print(*order, len(left))
        """,
        tmp_path,
    )
    assert told == "first second 1\n"


def test_a_command_outlives_the_studio_and_is_stopped_and_killed(tmp_path):
    """Without a lock that is inherited: the supervisor is known by its number, and watches for the file `stop`."""
    told = script(
        """\
        import sys, time
        from pathlib import Path
        from stentor.errors import ConfigError
        from stentor.studio.runs import detached

        folder = Path(sys.argv[1])
        command = "import signal, sys, time; signal.signal(signal.SIGTERM, lambda *_: sys.exit(7)); "
        command += "print('up', flush=True)"

        def run(rest, end=None, **how):
            with detached.exclusive(folder, "busy") as lock:
                detached.launch(folder, [sys.executable, "-c", f"{command}; {rest}"], lock, folder)
            until = time.monotonic() + 60
            if end is not None:
                while "up" not in detached.tail(folder / "output.txt"):
                    assert time.monotonic() < until and detached.alive(folder)
                    time.sleep(0.05)
                try:
                    with detached.exclusive(folder, "busy"):
                        raise AssertionError("it is alone with a folder in use")
                except ConfigError as error:
                    assert str(error) == "busy"
                end(folder, **how)
            while detached.alive(folder):
                assert time.monotonic() < until
                time.sleep(0.05)
            (folder / "output.txt").unlink()
            ending = detached.ending(folder)
            print(ending.exit, ending.stop_requested_at is not None)

        run("print('done')")
        run("time.sleep(60)", detached.end)
        run("time.sleep(60)", detached.end, kill=True)
        """,
        tmp_path,
    )
    assert told.splitlines() == ["0 False", "7 True", "-9 True"]


@pytest.fixture(scope="module")
def trained(corpus, tiny_text, tmp_path_factory) -> Path:
    """The run folder of two steps, with loader workers and a prepared index."""
    folder = tmp_path_factory.mktemp("as-windows")
    data = shutil.copytree(corpus, folder / "corpus")  # an index beside the shared one would change other tests
    (folder / "tiny.yaml").write_text(tiny_text.format(folder=data, runs=folder / "runs", dropout=0.0))
    stentor("prepare", "index", data / "train.jsonl")
    changes = ("train.steps=2", "train.eval_every=2", "data.workers=1")
    told = stentor("train", folder / "tiny.yaml", "--processes", 2, *changes, OMP_NUM_THREADS="1")
    assert "2 processes" in told
    return next((folder / "runs").iterdir())


@pytest.mark.long
def test_a_run_trains_and_transcribes(trained, corpus):
    assert (trained / "checkpoints" / "latest").read_text() == "step-000002\n"
    assert json.loads((trained / "results.json").read_text())["eval"]["dev"]
    assert {"text", "segments"} <= json.loads(
        stentor("transcribe", trained, corpus / "dev0.wav", "--format", "json")
    ).keys()


@pytest.mark.long
def test_a_killed_run_resumes(trained):
    told = stentor("train", trained.parent.parent / "tiny.yaml", "train.steps=3", "train.eval_every=3")
    assert "step 2" in told.lower()


@pytest.mark.long
def test_a_model_is_served(trained, corpus):
    pytest.importorskip("uvicorn")
    command = [sys.executable, "-m", "stentor", "serve", str(trained), "--port", "0", "--device", "cpu"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment(PYTHONPATH=PATH))
    try:
        assert server.stdout
        address = next(m[0] for line in server.stdout if (m := re.search(r"http://[\d.]+:\d+", line)))
        until = time.monotonic() + 120
        while time.monotonic() < until:
            try:
                with urllib.request.urlopen(f"{address}/health") as answer:
                    assert json.load(answer)
                    break
            except urllib.error.HTTPError:
                time.sleep(0.2)
        import httpx

        files = {"file": (corpus / "dev0.wav").read_bytes()}
        answer = httpx.post(f"{address}/v1/audio/transcriptions", data={"model": trained.name}, files=files, timeout=60)
        assert answer.status_code == 200, answer.text
        assert "text" in answer.json()
    finally:
        server.terminate()
        server.wait(30)


@pytest.mark.long
def test_the_studio_starts(tmp_path):
    pytest.importorskip("gradio")
    studio = StudioProcess(tmp_path / "projects")
    try:
        studio.start(PYTHONPATH=PATH)
        with urllib.request.urlopen(studio.address) as page:
            assert page.status == 200
    finally:
        studio.end()
