import json
import os
import shutil
import signal
import subprocess
import sys

import pytest

from stentor.engine.checkpoint import (
    begin,
    complete,
    damage,
    existing,
    hash_of,
    name_of,
    newest_good,
    point,
    prune,
    set_aside_after,
    step_of,
)
from stentor.errors import ConfigError, DataError, StentorError
from stentor.version import __version__


def pointed(parent, name):
    """The checkpoint that the file `name` names, if it is there."""
    file = parent / name
    folder = parent / file.read_text().strip() if file.exists() else None
    return folder if folder and (folder / "meta.json").is_file() else None


def fill(folder, text="weights"):
    weights = folder / "resume" / "weights.safetensors"
    weights.write_text(text)
    (folder / "export").mkdir()
    (folder / "export" / "config.json").write_text("{}")
    return {"resume/weights.safetensors": hash_of(weights)}


def write(parent, step, fill):
    begin(parent, step)
    return complete(parent, step, fill)


def entries(parent) -> set[str]:
    return {p.name for p in parent.iterdir()}


def test_a_checkpoint_names_and_hashes_its_files(tmp_path):
    folder = write(tmp_path, 400, fill)
    assert folder.name == "step-000400" and step_of(folder) == 400
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["step"] == 400 and meta["format"] == 1
    assert set(meta["files"]) == {"resume/weights.safetensors", "export/config.json"}
    assert damage(folder) is None
    assert entries(tmp_path) == {"step-000400", "latest"} and pointed(tmp_path, "latest") == folder


def test_steps_sort_by_number(tmp_path):
    for step in (5, 1_000_000, 999_999):
        write(tmp_path, step, fill)
    assert [step_of(p) for p in existing(tmp_path)] == [1_000_000, 999_999, 5]


def test_a_failure_while_filling_leaves_nothing(tmp_path):
    write(tmp_path, 1, fill)

    def fails(folder):
        fill(folder)
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        write(tmp_path, 2, fails)
    assert entries(tmp_path) == {"step-000001", "latest"} and pointed(tmp_path, "latest").name == "step-000001"


def test_a_full_disk_says_what_is_left(tmp_path):
    def full(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(StentorError, match=r"step 2 could not be written(.*)No space left(.*)no earlier checkpoint"):
        write(tmp_path, 2, full)
    write(tmp_path, 1, fill)
    with pytest.raises(StentorError, match=r"the newest complete checkpoint is step-000001. Free disk space"):
        write(tmp_path, 2, full)
    assert entries(tmp_path) == {"step-000001", "latest"}


KILLED = """
import os, signal
from pathlib import Path
from stentor.engine.checkpoint import begin, complete
def fill(folder):
    (folder / "half").write_text("half of the wei")
    {}
    return {{}}
begin(Path({!r}), 2)
complete(Path({!r}), 2, fill)
"""


@pytest.mark.parametrize("where", ["while filling", "before the rename"])
def test_a_killed_writer_leaves_nothing_under_the_name(tmp_path, where):
    write(tmp_path, 1, fill)
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    if where == "before the rename":
        kill = f"os.rename = lambda *a: {kill}"
    code = KILLED.format(kill, str(tmp_path), str(tmp_path))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert {p.name for p in existing(tmp_path)} == {"step-000001"}
    assert pointed(tmp_path, "latest").name == "step-000001"
    assert newest_good(tmp_path, print).name == "step-000001"
    write(tmp_path, 3, fill)
    assert entries(tmp_path) == {"step-000001", "step-000003", "latest"}, "what the killed one left is cleared away"


def test_writing_a_step_again_replaces_it(tmp_path):
    write(tmp_path, 7, fill)
    folder = write(tmp_path, 7, lambda f: fill(f, "other"))
    assert (folder / "resume" / "weights.safetensors").read_text() == "other" and damage(folder) is None


@pytest.mark.parametrize(
    ("harm", "says"),
    [
        (
            lambda f: (f / "resume" / "weights.safetensors").write_text("weightz"),
            "weights.safetensors is not as it was",
        ),
        (lambda f: (f / "resume" / "weights.safetensors").write_text("weigh"), "weights.safetensors is not as it was"),
        (lambda f: (f / "export" / "config.json").unlink(), "export/config.json is missing"),
        (lambda f: (f / "meta.json").write_text('{"step": 4, "fil'), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").write_text('{"step": 4}'), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").write_text("[]"), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").write_text('{"files": []}'), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").write_bytes(b"\xff\xfe"), "meta.json cannot be read"),
        (lambda f: (f / "meta.json").unlink(), "meta.json is missing"),
    ],
    ids=[
        "a flipped byte",
        "cut off",
        "a lost file",
        "half a meta.json",
        "a meta.json without files",
        "another meta.json",
        "files that are no mapping",
        "no text",
        "no meta.json",
    ],
)
def test_damage_is_found_and_passed_over(tmp_path, harm, says):
    for step in (2, 3, 4):
        write(tmp_path, step, fill)
    harm(tmp_path / "step-000004")
    assert says in damage(tmp_path / "step-000004")
    messages = []
    assert newest_good(tmp_path, messages.append).name == "step-000003"
    (line,) = messages
    assert line.startswith("Checkpoint step-000004 is damaged (") and says in line
    set_aside_after(tmp_path, 3, "damaged")
    assert entries(tmp_path) >= {"damaged-step-000004", "step-000003", "step-000002"}
    assert newest_good(tmp_path, messages.append).name == "step-000003" and len(messages) == 1
    assert pointed(tmp_path, "latest").name == "step-000003"


def test_the_same_step_may_be_damaged_twice(tmp_path):
    write(tmp_path, 1, fill)
    for _ in range(2):
        write(tmp_path, 2, fill)
        (tmp_path / "step-000002" / "export" / "config.json").unlink()
        assert newest_good(tmp_path, lambda line: None).name == "step-000001"
        set_aside_after(tmp_path, 1, "damaged")


def test_when_all_are_damaged_nothing_is_begun(tmp_path):
    for step in (1, 2):
        write(tmp_path, step, fill)
        (tmp_path / name_of(step) / "export" / "config.json").unlink()
    before, messages = entries(tmp_path), []
    for _ in range(2):
        with pytest.raises(DataError, match=r"step-000002: export/config.json is missing; step-000001(.*)start again"):
            newest_good(tmp_path, messages.append)
    assert entries(tmp_path) == before and not messages
    for step in (1, 2):
        (tmp_path / name_of(step) / "meta.json").unlink()
    with pytest.raises(DataError, match=r"step-000002: meta.json is missing"):
        newest_good(tmp_path, messages.append)
    assert newest_good(tmp_path / "never written", messages.append) is None


@pytest.mark.skipif(not os.path.exists("/proc/self/mem"), reason="no file that refuses to be read")
def test_a_disk_that_refuses_to_read_is_not_damage(tmp_path):
    """Linux answers EIO to a read of a process's memory at address 0."""
    for step in (1, 2):
        write(tmp_path, step, fill)
    for name in ("resume/weights.safetensors", "meta.json"):
        file = tmp_path / name_of(2) / name
        file.unlink()
        file.symlink_to("/proc/self/mem")
        before = entries(tmp_path)
        with pytest.raises(StentorError, match=rf"{name} cannot be read \(Input/output error\). Nothing was changed"):
            newest_good(tmp_path, print)
        assert entries(tmp_path) == before


def test_folders_of_the_user_are_left_alone(tmp_path):
    folder = write(tmp_path, 12, fill)
    copies = [shutil.copytree(folder, tmp_path / name) for name in ("step-000012.old", "step-best", "step-12")]
    (tmp_path / "step-000012.old" / "meta.json").unlink()
    assert existing(tmp_path) == [folder] and newest_good(tmp_path, print) == folder
    prune(tmp_path, 1, set())
    assert all(copy.is_dir() for copy in copies)


def test_a_checkpoint_of_another_version_is_neither_damaged_nor_passed_over(tmp_path):
    write(tmp_path, 1, fill)
    folder = write(tmp_path, 2, fill)
    meta = json.loads((folder / "meta.json").read_text())
    assert meta["format"] == 1
    assert meta["stentor_version"] == __version__
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 3, "stentor_version": "7.8.9"}))
    message = (
        r"step-000002/meta.json .* another version of Stentor \(format 3; this one reads up to 2\): install Stentor 7"
    )
    with pytest.raises(ConfigError, match=message):
        newest_good(tmp_path, print)
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 2}))
    assert newest_good(tmp_path, print) == folder
    del meta["format"]  # as the first versions wrote it
    (folder / "meta.json").write_text(json.dumps(meta))
    assert newest_good(tmp_path, print) == folder


def test_prune_keeps_the_newest_and_the_best(tmp_path):
    for step in range(1, 8):
        write(tmp_path, step, fill)
    prune(tmp_path, None, set())
    assert len(existing(tmp_path)) == 7
    prune(tmp_path, 2, {name_of(3), name_of(7), name_of(99)})
    assert [step_of(p) for p in existing(tmp_path)] == [7, 6, 3]
    assert entries(tmp_path) == {name_of(3), name_of(6), name_of(7), "latest"}
    assert all(damage(p) is None for p in existing(tmp_path))


def test_prune_finishes_a_deletion_that_was_cut_off(tmp_path):
    for step in (1, 2, 3):
        write(tmp_path, step, fill)
    os.unlink(tmp_path / name_of(1) / "meta.json")
    prune(tmp_path, 2, set())
    assert entries(tmp_path) == {name_of(2), name_of(3), "latest"}


def test_pointers(tmp_path):
    assert pointed(tmp_path, "best") is None
    folder = write(tmp_path, 5, fill)
    point(tmp_path, "best", folder)
    assert (tmp_path / "best").read_text() == "step-000005\n" and pointed(tmp_path, "best") == folder
    write(tmp_path, 6, fill)
    prune(tmp_path, 1, set())
    assert pointed(tmp_path, "best") is None, "it names a checkpoint that is gone"
