"""What is said and done when the Hub, the network or the right to write is missing; and where tokens never are."""

import hashlib
import json
import logging
import os
import subprocess
import sys
import time

import pytest

from stentor.errors import ConfigError, StentorError
from stentor.publish import hub as publishing
from stentor.publish.hub import Target, clean, licence_of, publish, upload

CANARY = "hf_canaryCanaryCanaryCanary99"
PLAIN = "a-login-token-of-no-known-form"


@pytest.fixture
def folder(tmp_path):
    place = tmp_path / "made"
    (place / "sub").mkdir(parents=True)
    (place / "README.md").write_text("---\nlicense: cc0-1.0\nsdk: gradio\n---\n# Ours\n")
    for i in range(3):
        (place / "sub" / f"weights-{i}.safetensors").write_bytes(bytes([i]) * 60_000)
    return place


@pytest.fixture(autouse=True)
def at_once(hub, monkeypatch):
    hub.user = "anna"
    monkeypatch.setattr(publishing, "WAITS", [0.0])


def test_a_folder_arrives_in_a_private_repository(hub, folder):
    messages = []
    link = upload(folder, Target("anna/model", "model"), say=messages.append)
    repo = hub.repos["anna/model"]
    assert link == f"{hub.endpoint}/anna/model" and link in messages[-1]
    assert repo.private is True
    assert {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()} <= set(repo.files)
    assert "private model anna/model" in messages[0]
    assert licence_of("anna/model", "model") == "cc0-1.0"
    assert licence_of("anna/other", "model") is None


def test_the_same_command_goes_on_after_a_broken_connection(hub, folder):
    target = Target("anna/model", "model")
    hub.fail(503, "^PUT .*|/commit/", times=None, message="out of order")
    with pytest.raises(StentorError, match="Run the same command again") as failed:
        upload(folder, target, say=lambda _: None)
    assert failed.value.exit_code == 1
    hub.faults.clear()
    before = len(hub.requests)
    assert upload(folder, target, say=lambda _: None).endswith("anna/model")
    assert not [r for r in hub.requests[before:] if r.path.startswith("/api/repos/create")]
    assert {f"sub/weights-{i}.safetensors" for i in range(3)} <= set(hub.repos["anna/model"].files)


def test_a_connection_that_breaks_in_a_file_is_tried_again(hub, folder):
    hub.break_after(100_000)
    upload(folder, Target("anna/model", "model"), say=lambda _: None)
    assert [r for r in hub.requests if r.status == 0]
    assert {f"sub/weights-{i}.safetensors" for i in range(3)} <= set(hub.repos["anna/model"].files)


def test_a_pulled_cable_is_told_and_survived(hub, folder):
    hub.pull()
    with pytest.raises(StentorError, match=r"connection to the Hugging Face Hub failed.*same command again") as failed:
        upload(folder, Target("anna/model", "model"), say=lambda _: None)
    assert hub.token not in str(failed.value)
    hub.plug()
    upload(folder, Target("anna/model", "model"), say=lambda _: None)
    assert "README.md" in hub.repos["anna/model"].files


def test_what_the_hub_has_is_not_sent_again(hub, folder):
    target = Target("anna/model", "model")
    upload(folder, target, say=lambda _: None)
    sent = len([r for r in hub.requests if r.method == "PUT"])
    (folder / "sub" / "weights-3.safetensors").write_bytes(b"new" * 20_000)
    upload(folder, target, say=lambda _: None)
    assert sent == 3 and len([r for r in hub.requests if r.method == "PUT"]) == 4


def test_files_from_before_are_named(hub, folder):
    target, messages = Target("anna/model", "model"), []
    upload(folder, target, say=messages.append)
    assert not [s for s in messages if "still holds" in s]
    (folder / "sub" / "weights-2.safetensors").unlink()
    upload(folder, target, say=messages.append)
    assert [s for s in messages if "still holds 1 other files: sub/weights-2.safetensors" in s]


def test_no_token(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(ConfigError, match=r"no token.*HF_TOKEN.*hf auth login"):
        upload(folder, Target("anna/model", "model"))
    with pytest.raises(ConfigError, match="no token"):  # before anything is built
        publish(lambda _: pytest.fail("built"), Target("anna/model", "model"))
    assert not hub.repos


def test_a_name_that_something_else_has(hub, folder):
    hub.fail(409, "/api/repos/create", times=None, message="You already created this space repo")
    with pytest.raises(ConfigError, match="anna/model is taken by something else than a model"):
        upload(folder, Target("anna/model", "model"), say=lambda _: None)


def test_nothing_goes_by_accident_where_everybody_sees_it(hub, folder):
    upload(folder, Target("anna/open", "model", private=False), say=lambda _: None)
    with pytest.raises(ConfigError, match="everybody can read it: add --public"):
        upload(folder, Target("anna/open", "model"), say=lambda _: None)
    with pytest.raises(ConfigError, match="is public, but is to be private"):
        upload(folder, Target("anna/open", "model", private=True), say=lambda _: None)
    upload(folder, Target("anna/open", "model", private=False), say=lambda _: None)


def test_a_space_gets_its_secrets_through_the_api_only(hub, folder):
    messages = []
    upload(folder, Target("anna/demo", "space"), say=messages.append, secrets={"DEMO_PASSWORD": "the-secret-value"})
    assert hub.repos["spaces/anna/demo"].secrets == {"DEMO_PASSWORD": "the-secret-value"}
    assert "the-secret-value" not in " ".join(messages) and "DEMO_PASSWORD" in " ".join(messages)


@pytest.mark.parametrize(
    "name", ["model", "anna/", "../model", "anna/../x", "anna/a b", "anna/-x", "anna/x--y", "a/b/c"]
)
def test_names_that_are_none(name):
    with pytest.raises(ConfigError, match="USER/REPO"):
        Target(name, "model")


@pytest.mark.parametrize("name", ["README.md", "config.json", ".env"])
def test_a_token_in_a_file_stops_everything(hub, folder, name):
    with (folder / name).open("a") as file:
        file.write(f"\nkey: {CANARY}\n")
    with pytest.raises(ConfigError, match=rf"{name} line \d+ holds an access token") as failed:
        upload(folder, Target("anna/model", "model"))
    assert CANARY not in str(failed.value) and not hub.requests


def test_no_token_is_ever_said(hub, folder, tmp_path, monkeypatch, caplog, capsys):
    """Two canaries: one of the Hub's form, and one that only the login's file knows."""
    hub.tokens[PLAIN] = "write"
    monkeypatch.delenv("HF_TOKEN")
    from huggingface_hub import constants

    (tmp_path / "hub-home").mkdir(exist_ok=True)
    with open(constants.HF_TOKEN_PATH, "w") as file:
        file.write(PLAIN)
    lines = []
    with caplog.at_level(logging.DEBUG):
        upload(folder, Target("anna/model", "model"), say=lines.append)
        assert {r.token for r in hub.requests if r.path.startswith("/api")} == {PLAIN}  # it was used
        hub.fail(400, "/commit/", times=None, message=f"you sent {PLAIN} and {CANARY}")
        (folder / "new.txt").write_text("new")
        with pytest.raises(ConfigError, match=r"refused .*\*\*\*") as failed:
            publish(lambda to: [(to / "x.txt").write_text("x"), []][1], Target("anna/model", "model"), say=lines.append)
    log = "\n".join(r.getMessage() for r in caplog.records if r.name.startswith(("stentor", "huggingface_hub")))
    written = "\n".join([str(failed.value), *lines, capsys.readouterr().out, capsys.readouterr().err, log])
    for canary in (PLAIN, CANARY):
        assert canary not in written
        assert not [f for f in hub.repos["anna/model"].files.values() if canary.encode() in bytes(f)]


def test_signed_addresses_are_not_said():
    text = clean("PUT https://bucket.example/key?X-Amz-Signature=abcdef&x=1 failed")
    assert text == "PUT https://bucket.example/key?*** failed"


def test_a_dry_run_sends_nothing_and_needs_no_token(hub, tmp_path, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")

    def build(to):
        (to / "a.json").write_text(json.dumps({"a": 1}))
        return ["a remark"]

    messages = []
    assert publish(build, None, tmp_path / "dry", say=messages.append) == str(tmp_path / "dry")
    assert messages[0] == "a remark" and "Nothing was sent" in messages[1]
    assert not hub.requests and (tmp_path / "dry" / "a.json").is_file()
    with pytest.raises(ConfigError, match="is not empty"):
        publish(build, None, tmp_path / "dry")
    with pytest.raises(ConfigError, match="--to USER/REPO"):
        publish(build, None)


STUCK = """
import sys
from pathlib import Path
from stentor.publish import hub
hub.WAITS = [1000.0]
hub.upload(Path(sys.argv[1]), hub.Target("anna/model", "model"), None, lambda _: None)
"""
BUILDING = """
import sys, time
from pathlib import Path
from stentor.publish import hub
def build(place):
    Path(sys.argv[1], "begun").touch()
    time.sleep(100)
try:
    hub.publish(build, hub.Target("anna/model", "model"), beside=Path(sys.argv[1]))
except KeyboardInterrupt:
    sys.exit(130)
"""


def process(hub, code, *arguments):
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, env={**os.environ, **hub.fresh})


def test_a_process_that_is_killed_goes_on_where_it_was(hub, folder):
    """Killed in the middle of an upload, then the same again: no file that had arrived is sent twice."""
    files = {hashlib.sha256(p.read_bytes()).hexdigest(): p for p in folder.rglob("*.safetensors")}
    [stuck, *others] = sorted(files)
    hub.fail(503, f"PUT /upload/{stuck}", times=None)
    child = process(hub, STUCK, folder)
    until = time.monotonic() + 60
    # Its own tries are over when it asks for the file's place again no more; then it waits for 1000 s.
    while time.monotonic() < until and (
        len(sent(hub, stuck)) < 2 or not all(sent(hub, o) for o in others) or hub.requests[-1].method != "PUT"
    ):
        time.sleep(0.02)
    child.kill()
    assert child.wait() == -9 and all(len(sent(hub, o)) == 1 for o in others)
    hub.faults.clear()
    before = len(hub.requests)
    upload(folder, Target("anna/model", "model"), say=lambda _: None)
    again = [r for r in hub.requests[before:] if r.method == "PUT"]
    assert [r.path.split("?")[0] for r in again] == [f"/upload/{stuck}"]  # 60,000 of 180,000 bytes
    assert set(hub.repos["anna/model"].lfs) == {p.relative_to(folder).as_posix() for p in files.values()}


def sent(hub, sha):
    return hub.asked(f"^PUT /upload/{sha}")


def test_a_folder_is_built_beside_what_it_links_to(hub, folder, tmp_path):
    (tmp_path / ".stentor-publish-999999999-left").mkdir()  # of a process that was killed
    seen = []

    def build(place):
        seen.append(place)
        (place / "README.md").hardlink_to(folder / "README.md")
        return []

    publish(build, Target("anna/model", "model"), say=lambda _: None, beside=tmp_path)
    assert seen[0].parent == tmp_path and not list(tmp_path.glob(".stentor-publish-*"))


def test_a_process_that_is_ended_leaves_nothing_behind(hub, tmp_path):
    child = process(hub, BUILDING, tmp_path)
    until = time.monotonic() + 60
    while not (tmp_path / "begun").exists() and time.monotonic() < until:
        time.sleep(0.02)
    assert list(tmp_path.glob(".stentor-publish-*"))
    child.terminate()
    assert child.wait(60) == 130 and not list(tmp_path.glob(".stentor-publish-*"))


def test_what_the_client_says_of_its_progress_is_said():
    messages = []
    with publishing._logged(messages.append):
        logging.getLogger("huggingface_hub._upload_pipeline").info(
            "Uploading... 12/12 files checked, 3/11 uploaded (1.20GB transferred), 0 committed in 0 commit(s)"
        )
        logging.getLogger("huggingface_hub._upload_pipeline").info(
            "Uploading... 1/12 files checked, 0/0 uploaded (0.00B transferred), 0 committed in 0 commit(s)"
        )
    assert messages == ["3 of 11 large files have arrived (1.20 GB sent)."]


def test_a_benchmark_names_its_tasks(hub, folder):
    (folder / "eval.yaml").write_text(
        "name: B\ntasks:\n- {id: clean, config: en, split: test}\n- {id: rest, config: de, split: test}\n"
    )
    upload(folder, Target("anna/bench", "dataset"), say=lambda _: None)
    source = {"name": "anna/bench", "config": "de", "split": "test"}
    assert publishing.benchmark_task(source) == "rest"
    assert publishing.benchmark_task({**source, "config": "fr"}) is None
    assert publishing.benchmark_task({**source, "name": "anna/none"}) is None
