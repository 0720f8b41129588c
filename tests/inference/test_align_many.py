"""`stentor align` without TEXT: the recordings of a folder or a manifest with their texts."""

import json
import shutil

import pytest

from stentor.cli import main
from stentor.commands.align_many import AlignWorker
from stentor.inference.formats import record_names


@pytest.fixture
def folder(corpus, tmp_path):
    """A corpus as the Montreal Forced Aligner takes it: two speakers of three clips each, with texts beside them."""
    folder = tmp_path / "corpus"
    texts = [json.loads(line)["text"] for line in (corpus / "train.jsonl").read_text().splitlines()]
    for i in range(6):
        speaker = folder / f"s{i % 2}"
        speaker.mkdir(parents=True, exist_ok=True)
        shutil.copy(corpus / f"train{i}.wav", speaker / f"clip.{i}.wav")
        (speaker / f"clip.{i}{['.lab', '.txt'][i % 2]}").write_text(f"{texts[i]}\n")
    return folder


def outputs(folder):
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("[!.]*") if path.is_file()}


def test_a_folder_with_texts(ctc_export, folder, tmp_path, here):
    here("align", ctc_export, folder, "--out", tmp_path / "out", "--format", "textgrid,json,ctm", "--device", "cpu")
    made = outputs(tmp_path / "out")
    names = [f"s{i % 2}/clip.{i}" for i in range(6)]
    assert set(made) == {f"{name}.{suffix}" for name in names for suffix in ("TextGrid", "json", "ctm")}
    answer = json.loads(made["s1/clip.3.json"])
    assert (answer["id"], answer["audio"]) == ("s1/clip.3.wav", str(folder / "s1" / "clip.3.wav"))
    assert [word["word"] for word in answer["words"]] == (folder / "s1" / "clip.3.txt").read_text().split()
    assert all(line.startswith("clip.3 1 ") for line in made["s1/clip.3.ctm"].splitlines())
    alone = here("align", ctc_export, folder / "s1" / "clip.3.wav", folder / "s1" / "clip.3.txt", "--device", "cpu")
    assert json.loads(alone)["words"] == answer["words"], "as one by one"


def test_a_manifest_with_records_that_cannot_be_aligned(ctc_export, corpus, tmp_path, capsys, monkeypatch):
    from stentor.inference.align import ctc

    monkeypatch.setattr(ctc, "MISMATCH", -1.0)
    records = [
        {"id": "good", "audio_path": str(corpus / "train2.wav"), "text": "three four five", "language": "en"},
        {"id": "part", "audio_path": str(corpus / "train2.wav"), "text": "three", "start": 0.1, "duration": 0.6},
        {"id": "silent", "audio_path": str(corpus / "train1.wav")},
        {"id": "dash", "audio_path": str(corpus / "train1.wav"), "text": "— !"},
        {"id": "long", "audio_path": str(corpus / "train1.wav"), "text": "one " * 300},
        {"id": "gone", "audio_path": "nowhere.wav", "text": "one"},
    ]
    data = tmp_path / "data.jsonl"
    data.write_text("".join(json.dumps(record) + "\n" for record in records))
    command = ["align", str(ctc_export), str(data), "--out", str(tmp_path / "out"), "--device", "cpu"]
    assert main([*command, "--language", "de"]) == 3
    said = [line for line in capsys.readouterr().err.splitlines() if not line.startswith("aligning:")]
    made = {name: json.loads(text) for name, text in outputs(tmp_path / "out").items()}
    assert set(made) == {"good.json", "part.json"}
    assert (made["good.json"]["language"], made["part.json"]["language"]) == ("de", "de")
    assert any("de replaces the language of 1 record (en 1)" in line for line in said)
    assert made["part.json"]["start"] == 0.1 and made["part.json"]["duration"] == 0.6
    warned = [line for line in said if line.startswith("stentor: warning: ")]
    assert sum("the text does not match the audio" in line for line in warned) == 2
    for name in ("silent", "dash", "long", "nowhere.wav"):
        assert any(name in line and not line.startswith("stentor: warning: ") for line in said[:-1]), name
    assert said[-1].startswith("stentor: 4 of 6 records could not be aligned: ")
    assert said[-1].endswith("The reasons are above; the others are done.")


def test_what_is_there_is_left_out(ctc_export, folder, tmp_path, monkeypatch, here):
    command = ["align", ctc_export, folder, "--out", tmp_path / "out", "--format", "srt,ctm", "--device", "cpu"]
    here(*command)
    first = outputs(tmp_path / "out")
    (tmp_path / "out" / "s0" / "clip.2.ctm").unlink()
    (tmp_path / "out" / "s1" / "clip.1.srt").write_text("mine")
    done, real = [], AlignWorker.process
    monkeypatch.setattr(AlignWorker, "process", lambda self, group: done.extend(group) or real(self, group))
    assert "5 of 6 records are already done" in here(*command, "--skip-existing")
    assert [cut.id for cut in done] == ["s0/clip.2.wav"]
    assert outputs(tmp_path / "out") == first | {"s1/clip.1.srt": "mine"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DATA"], "The word times of many recordings go into a folder: give one with --out."),
        (["talk.wav"], "What is said in talk.wav? Give its TEXT, or a folder or a manifest without TEXT."),
        (["-"], "What is said in -? Give its TEXT"),
        (["DATA", "--format", "elan", "--out", "x"], "Unknown --format elan"),
        (["DATA", "--gpus-per-worker", "1", "--out", "x"], "--gpus-per-worker requires --ray"),
        (
            ["talk.wav", "one", "--jobs", "2"],
            "--jobs is for many recordings, not for one recording with its TEXT: leave it out.",
        ),
        (["talk.wav", "one", "--skip-existing"], "--skip-existing is for many recordings"),
        (["DATA", "--engine", "aligner", "--out", "x"], "does not support --engine aligner, only ctc."),
    ],
)
def test_wrong_usage(ctc_export, folder, tmp_path, monkeypatch, attempt, arguments, message):
    monkeypatch.chdir(tmp_path)
    code, said = attempt("align", ctc_export, *[str(folder) if a == "DATA" else a for a in arguments])
    assert code == 2 and message in said


def test_an_output_that_cannot_be_written(ctc_export, folder, tmp_path, attempt):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "s0").write_text("a file")
    code, said = attempt("align", ctc_export, folder, "--out", tmp_path / "out", "--device", "cpu")
    assert code == 3 and said.count("cannot be written") == 3 and "3 of 6 records could not be aligned" in said
    assert {path.name for path in (tmp_path / "out" / "s1").glob("[!.]*")} == {f"clip.{i}.json" for i in (1, 3, 5)}


def test_names_of_records():
    ids = ["a/b.wav", "A/B.mp3", "utt.001", "/data/x.flac", "../y.wav", "talk.wav@3.5", "a/b-2"]
    assert record_names(ids) == ["a/b", "A/B-2", "utt.001", "data/x", "y", "talk.wav@3.5", "a/b-2-2"]
