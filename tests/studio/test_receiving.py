"""Uploads through the browser's routes, and long recordings that a process of their own splits."""

import io
import itertools
import json
import os
import time
from types import SimpleNamespace

import pytest
import soundfile
from studio_audio import tone

from stentor.errors import StentorError
from stentor.studio.dataset import long_recordings, receiving
from stentor.studio.dataset_folder import DataSet
from stentor.studio.projects import Projects
from stentor.studio.runs import detached
from stentor.studio.texts import say

BATCH = "0123456789abcdef"


def put(client, number, name, data, batch=BATCH):
    return client.put(f"/studio/upload/{batch}/{number}", params={"name": name}, content=data)


def wav(seconds=1.0, rate=8000, **options):
    file = io.BytesIO()
    soundfile.write(file, tone(seconds, rate), rate, format="WAV", **options)
    return file.getvalue()


def lines(answer):
    return [json.loads(line) for line in answer.text.splitlines()]


def break_second_recording(monkeypatch, error):
    """Of the recordings that a data set takes from now on, the second fails."""
    add, count = DataSet.add, itertools.count(1)

    def add_or_fail(self, *args, **kwargs):
        if next(count) == 2:
            raise error
        return add(self, *args, **kwargs)

    monkeypatch.setattr(DataSet, "add", add_or_fail)


def test_a_batch_becomes_records(client, voices):
    for number, (name, data) in enumerate(
        [("b.wav", wav(1.1)), ("a.wav", wav(1.2)), ("x.wav", b"<html>"), ("../../t.csv", b"file,text\na.wav,<b>\n")]
    ):
        answer = put(client, number, name, data)
        assert answer.status_code == 200 and answer.json()["size"] == len(data)
    asked = {"batch": BATCH, "files": [1, 0, 2, 3], "speaker": "Ann"}
    plan = client.post("/studio/preview/voices", json=asked).json()
    assert voices.records() == [] and plan["counts"]["new"] == 2 and plan["counts"]["silent"] == 1
    assert [(r["name"], r["text"], r["fate"]) for r in plan["rows"]] == [
        ("x.wav", "", "refused"),
        ("a.wav", "<b>", "new"),
        ("b.wav", "", "new"),
    ]
    answer = client.post("/studio/take/voices", json=asked)
    *steps, last = lines(answer)
    assert answer.status_code == 200 and [s["done"] for s in steps] == [1, 2]
    assert (last["records"], last["refused"]) == (2, [plan["rows"][0]["note"]])
    assert last["refused"] == [say("not_audio", name="x.wav")]
    assert [(r["text"], r["speaker"]) for r in voices.records()] == [("<b>", "Ann"), ("", "Ann")]
    assert not list(client.projects.tmp.glob("upload-*"))


def test_a_mistake_takes_nothing_and_keeps_the_batch(client, voices):
    put(client, 0, "a.wav", wav())
    asked = {"batch": BATCH, "pasted": "eins\nzwei"}
    assert lines(client.post("/studio/take/voices", json=asked))[-1]["error"].startswith(
        "Lines of text: 2, recordings without a text: 1"
    )
    assert voices.records() == []
    assert lines(client.post("/studio/take/voices", json={"batch": BATCH, "pasted": "eins"}))[-1]["records"] == 1
    for asked in ({"batch": BATCH}, {"batch": "../../x"}, {"batch": BATCH, "files": [True]}, [], {}):
        answer = client.post("/studio/take/voices", json=asked)
        assert answer.status_code == 400 and "hoose" in answer.json()["error"]


def test_limits_of_uploads(client, monkeypatch):
    monkeypatch.setattr(receiving, "MOST_BYTES", 1000)
    monkeypatch.setattr(receiving, "MOST_BATCH", 1500)
    assert put(client, 0, "a.wav", bytes(900)).status_code == 200
    answer = put(client, 1, "b.wav", bytes(1001))
    assert answer.status_code == 413 and "there is room for 0 MB more" in answer.json()["error"]
    monkeypatch.setattr(receiving, "MOST_BATCH", 10_000)

    def chunks():  # without a length in front, so that only counting helps
        yield from [bytes(600)] * 3

    answer = client.put(f"/studio/upload/{BATCH}/1", params={"name": "b.wav"}, content=chunks())
    assert answer.status_code == 413 and "b.wav is larger than" in answer.json()["error"]
    assert sorted(p.name for p in (client.projects.tmp / f"upload-{BATCH}").iterdir()) == ["0", "name-0.json"]
    for path in ("x" * 16 + "/0", f"{BATCH}/99999", f"{BATCH}/-1", "../0"):
        assert client.put(f"/studio/upload/{path}", content=b"x").status_code in (400, 404)
    assert [p.name for p in client.projects.tmp.iterdir()] == [f"upload-{BATCH}"]


def test_a_batch_is_taken_once_at_a_time(client, voices, monkeypatch):
    put(client, 0, "a.wav", wav())
    asked, answers = {"batch": BATCH, "files": [0]}, []
    add = receiving.add_uploads

    def again(*args, **kwargs):  # the page sends it again while it goes on
        answers.append(client.post("/studio/take/voices", json=asked))
        return add(*args, **kwargs)

    monkeypatch.setattr(receiving, "add_uploads", again)
    assert lines(client.post("/studio/take/voices", json=asked))[-1]["records"] == 1
    assert answers[0].status_code == 400 and "being added already" in answers[0].json()["error"]
    # Now it is gone, and the page is told to send it anew.
    assert "not there any more" in client.post("/studio/take/voices", json=asked).json()["error"]
    assert len(voices.records()) == 1 and not receiving._taking


def test_what_was_left_behind_is_deleted_after_a_day(client):
    left, young = client.projects.tmp / "deleted-run-x", client.projects.tmp / "upload-young"
    for folder in (left, young, client.projects.tmp / "long-x"):
        (folder / "export").mkdir(parents=True)
    for path in (left, client.projects.tmp / "long-x"):
        os.utime(path, (0, 0))
    put(client, 0, "a.wav", wav())
    assert sorted(p.name for p in client.projects.tmp.iterdir()) == ["long-x", f"upload-{BATCH}", "upload-young"]


def test_nobody_reaches_the_files_of_another(people, tmp_path):
    anna, ben = (people(tmp_path / "studio", {"anna": "long password", "ben": "other password"}) for _ in range(2))
    for who, name, word in ((anna, "anna", "long password"), (ben, "ben", "other password")):
        who.post("/studio/sign-in", data={"name": name, "password": word})
        who.accounts.projects(name).create("voices", "de")
    put(anna, 0, "a.wav", wav())
    answer = ben.post("/studio/take/voices", json={"batch": BATCH})
    assert answer.status_code == 400 and "Choose recordings first" in answer.json()["error"]
    assert lines(anna.post("/studio/take/voices", json={"batch": BATCH}))[-1]["records"] == 1
    assert ben.accounts.projects("ben").dataset("voices").records() == []
    stranger = people(tmp_path / "studio", {"anna": "long password"})
    assert put(stranger, 0, "a.wav", wav()).status_code == 401


def test_a_full_disk_while_uploading(client, voices, monkeypatch):
    usage = receiving.shutil.disk_usage
    monkeypatch.setattr(receiving.shutil, "disk_usage", lambda path: SimpleNamespace(free=receiving.SPARE + 100))
    answer = put(client, 0, "a.wav", wav())
    assert answer.status_code == 413 and "does not fit" in answer.json()["error"]
    monkeypatch.setattr(receiving.shutil, "disk_usage", usage)
    put(client, 0, "a.wav", wav(1.0))
    put(client, 1, "b.wav", wav(1.1))
    break_second_recording(monkeypatch, StentorError("The disk is full: nothing was changed."))
    assert "disk is full" in lines(client.post("/studio/take/voices", json={"batch": BATCH}))[-1]["error"]
    assert len(voices.records()) == 1
    last = lines(client.post("/studio/take/voices", json={"batch": BATCH}))[-1]  # the same again: nothing twice
    assert last["records"] == 1 and len(last["refused"]) == 1 and len(voices.records()) == 2


def test_a_long_recording_by_a_model(client, voices, lecture, monkeypatch):
    """The detached process's own function, called here; a model that writes a word."""
    launched = []
    monkeypatch.setattr(detached, "launch", lambda folder, command, lock, cwd: launched.append((folder, command)))
    models = {"": ("nobody", None), "whisper_tiny": ("Tiny", "openai/whisper-tiny")}
    monkeypatch.setattr(long_recordings, "writers", lambda projects: models)
    put(client, 0, "lecture.wav", lecture.path.read_bytes())
    put(client, 1, "broken.wav", b"no audio")
    asked = {"batch": BATCH, "model": "whisper_tiny", "speaker": "L"}
    refused = client.post("/studio/long/voices", json={**asked, "model": "/etc/passwd"})
    assert refused.status_code == 400
    begun = client.post("/studio/long/voices", json=asked).json()
    assert begun["refused"][0].startswith("broken.wav is no audio")
    [(folder, command)] = launched
    assert (
        command[1:3] == ["-m", "stentor.studio.dataset.long_recordings"]
        and command[4] == folder.name == f"long-{begun['id']}"
    )

    class Model:
        def transcribe(self, audio, rate, language, keep_failed):
            assert language == "de" and keep_failed  # a person reads the draft
            return SimpleNamespace(text=" Stück ")

    monkeypatch.setattr(
        "stentor.studio.dataset.long_recordings.load", lambda source: Model() if source == "openai/whisper-tiny" else 0
    )
    long_recordings.main(*command[3:5])
    [work] = client.get("/studio/long/voices").json()["works"]
    assert work["state"] == "finished" and work["done"] == work["of"] == work["added"] == len(voices.records()) > 1
    assert {(r["text"], r["draft"], r["speaker"]) for r in voices.records()} == {("Stück", True, "L")}
    assert not (folder / "files").exists()
    assert client.post(f"/studio/long/voices/{begun['id']}/forget").json()["works"] == []
    assert client.post(f"/studio/long/voices/{begun['id']}/forget").status_code == 400
    assert client.post("/studio/long/voices/..%2F..%2Fx/forget").status_code in (400, 404)


def test_what_ended_early_can_go_on(client, voices, lecture, monkeypatch):
    launched = []
    monkeypatch.setattr(detached, "launch", lambda folder, command, lock, cwd: launched.append(command))
    put(client, 0, "lecture.wav", lecture.path.read_bytes())
    id = client.post("/studio/long/voices", json={"batch": BATCH}).json()["id"]
    break_second_recording(monkeypatch, KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        long_recordings.main(*launched[0][3:5])
    [work] = client.get("/studio/long/voices").json()["works"]
    assert work["state"] == "failed" and work["added"] == 1 and "What was done is kept" in work["sentence"]
    assert client.post(f"/studio/long/voices/{id}/resume").status_code == 200
    long_recordings.main(*launched[1][3:5])
    [work] = client.get("/studio/long/voices").json()["works"]
    assert work["state"] == "finished" and work["added"] == work["of"] == len(voices.records())
    assert client.post(f"/studio/long/voices/{id}/resume").status_code == 400  # nothing is left to do


@pytest.mark.slow
def test_a_long_recording_outlives_the_page(client, voices, lecture):
    put(client, 0, "lecture.wav", lecture.path.read_bytes())
    assert client.post("/studio/long/voices", json={"batch": BATCH}).status_code == 200
    for _ in range(300):
        [work] = client.get("/studio/long/voices").json()["works"]
        if work["state"] != "running":
            break
        time.sleep(0.2)
    assert work["state"] == "finished", work
    assert len(voices.records()) == work["added"] > 1


def test_drafts_are_written_by_models_that_transcribe(tmp_path):
    """No encoder is offered: neither one of the catalogue, nor one in a folder of models."""
    for name, architecture in (("encoder", "Wav2Vec2ForPreTraining"), ("recogniser", "Wav2Vec2ForCTC")):
        (tmp_path / "models" / name).mkdir(parents=True)
        (tmp_path / "models" / name / "config.json").write_text(json.dumps({"architectures": [architecture]}))
    writers = long_recordings.writers(Projects(tmp_path / "studio", models=(tmp_path / "models",)))
    assert {"whisper_tiny", "parakeet_ctc", "mms"} <= writers.keys()
    assert not {"wav2vec2", "wavlm", "small_transducer"} & writers.keys()
    assert [label for choice, (label, _) in writers.items() if choice.startswith("folder:")] == ["recogniser"]
