"""A data set's name and language change, and all that names it follows; what works on it refuses."""

import io
import json
import zipfile

import numpy as np
import pytest

from stentor.config.load import parse_source
from stentor.errors import ConfigError
from stentor.studio.dataset import identity, prompts
from stentor.studio.dataset.recorder import PhraseRows
from stentor.studio.runs import detached
from stentor.studio.texts import say

SOUND = (0.1 * np.sin(np.arange(8000))).astype(np.float32)


def test_a_renamed_data_set_is_found_by_all_that_named_it(client, projects, voices, monkeypatch):
    voices.add(SOUND, 16000, "eins")
    manifest = f"{voices.folder}/train.jsonl"
    works = {"runs/a/studio.json": {"copies": {"train": manifest}}, "tmp/long-1/long.json": {"dataset": "voices"}}
    works["published/b/publication.json"] = {"what": "dataset", "of": "voices"}
    for name, content in works.items():
        (projects.folder / name).parent.mkdir(parents=True)
        (projects.folder / name).write_text(json.dumps(content))
    monkeypatch.setattr(detached, "alive", lambda folder: folder.name == "a")
    with pytest.raises(ConfigError, match=say("identity_busy", name="voices")):
        identity.rename(projects, "voices", "stimmen")
    monkeypatch.setattr(detached, "alive", lambda folder: False)
    projects.create("taken")
    for name in ("Taken", "../voices", ""):
        with pytest.raises(ConfigError):
            identity.rename(projects, "voices", name)
    assert set(projects.datasets()) == {"voices", "taken"}
    renamed = identity.rename(projects, "voices", " stimmen ")
    assert renamed.name == renamed.about["name"] == "stimmen" and set(projects.datasets()) == {"stimmen", "taken"}
    after = [json.loads((projects.folder / name).read_text()) for name in works]
    assert after == [
        {"copies": {"train": f"{renamed.folder}/train.jsonl"}},
        {"dataset": "stimmen"},
        {"what": "dataset", "of": "stimmen"},
    ]
    # A page that was open before reaches it by its old name, until another data set has that.
    assert client.get("/studio/check/voices").json()["total"] == 1
    assert projects.create("voices").folder != renamed.folder
    assert client.get("/studio/check/voices").json()["total"] == 0


def test_the_language_changes_with_its_recordings(projects, voices, monkeypatch):
    """Recordings in another language keep it, and those of an own list stay with their phrases."""
    prompts.set_source(voices, "own", ["first phrase", "second phrase"])
    key = prompts.prompt_id("first phrase", "de")
    voices.add(SOUND, 16000, "first phrase", prompt=key)
    voices.add(SOUND, 16000, "dritte", language="fr")
    (projects.tmp / "long-1").mkdir()
    (projects.tmp / "long-1" / "long.json").write_text('{"dataset": "voices"}')
    monkeypatch.setattr(detached, "alive", lambda folder: True)
    with pytest.raises(ConfigError):
        identity.change_language(projects, voices, "nl")
    monkeypatch.setattr(detached, "alive", lambda folder: False)
    (voices.folder / "phrases-fleurs.txt").write_text("ein deutscher Satz")
    assert identity.change_language(projects, voices, "nl") == 1 and not prompts.stored_phrases(voices, "fleurs")
    assert [r["language"] for r in voices.records()] == ["nl", "fr"] and voices.about["language"] == "nl"
    rows = PhraseRows(voices).page()["rows"]
    assert rows[0]["text"] == "first phrase" and rows[0]["id"] == voices.records()[0]["id"]
    assert identity.change_language(projects, voices, "nl") == 0


def test_a_data_set_is_downloaded_and_read_again(client, voices, tmp_path):
    words = [{"word": "eins", "start": 0.1, "end": 0.4}]
    for text in ("eins", "zwei", "weg"):
        voices.add(SOUND, 16000, text, speaker="ann", words=words if text == "eins" else [], draft=True)
    voices.audio(voices.records()[2]).unlink()
    answer = client.get("/studio/download/dataset/voices")
    assert "voices.zip" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        archive.extractall(tmp_path / "read")
    assert say("download_left_out", count=1) in (tmp_path / "read" / "README.md").read_text()
    rows = [json.loads(line) for line in (tmp_path / "read" / "metadata.jsonl").read_text().splitlines()]
    assert "draft" not in rows[0] and (tmp_path / "read" / rows[0]["file_name"]).is_file()  # as AudioFolder wants it
    cuts = list(parse_source(str(tmp_path / "read")).cuts())
    assert [(c.supervisions[0].text, c.supervisions[0].speaker) for c in cuts] == [("eins", "ann"), ("zwei", "ann")]
    assert cuts[0].supervisions[0].alignment["word"][0].start == 0.1
    assert cuts[0].load_audio().shape == (1, 8000) and not list(client.projects.tmp.iterdir())


def test_a_model_is_downloaded(client, projects, tmp_path):
    export = projects.runs / "trained" / "export"
    (export / "onnx").mkdir(parents=True)
    (projects.runs / "trained" / "studio.json").write_text('{"created": 1}')
    assert "no trained model" in client.get("/studio/download/run/trained").json()["error"]
    (export / "onnx" / "model.onnx").write_bytes(b"x" * 3_000_000)
    (tmp_path / "secret").write_text("secret")
    (export / "link").symlink_to(tmp_path / "secret")
    with zipfile.ZipFile(io.BytesIO(client.get("/studio/download/run/trained").content)) as archive:
        assert archive.namelist() == ["trained/onnx/model.onnx"]
        assert archive.read("trained/onnx/model.onnx") == b"x" * 3_000_000
