"""Records as strangers bring them: each is counted with its line, and the others are used."""

import gzip
import json
import os
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.data import jsonl
from stentor.data.cut import UnusableRecord
from stentor.data.load_audio import load_audio, load_record
from stentor.errors import DataError
from stentor.sources.base import Source

RATE = 16000
GOOD = {"audio_path": "good.wav", "text": "one two"}
BAD_LINES = {
    "surrogate in the text": (json.dumps({**GOOD, "text": "a \ud83d b"}), "surrogate"),
    "surrogate in the path": (json.dumps({**GOOD, "audio_path": "\udce4.wav"}), "surrogate"),
    "surrogate in a key": (json.dumps({**GOOD, "\ud800": 1}), "surrogate"),
    "duration": (json.dumps({**GOOD, "duration": 1e308}), "`duration` must be"),
    "infinite": ('{"audio_path": "good.wav", "duration": 1e999}', "`duration` must be"),
    "start": (json.dumps({**GOOD, "start": 1e308}), "`start` must be"),
    "word": (json.dumps({**GOOD, "words": [{"word": "a", "start": 0, "end": 1e300}]}), "`end` must be"),
    "5,000 digits": ('{"audio_path": "good.wav", "duration": ' + "7" * 5000 + "}", "4,300 digits"),
    "4,000 digits": ('{"audio_path": "good.wav", "duration": ' + "7" * 4000 + "}", "`duration` must be"),
    "depth": ('{"audio_path": "good.wav", "x": ' + "[" * 100000 + "]" * 100000 + "}", "too deep"),
    "latin": (b'{"audio_path": "good.wav", "text": "gr\x81n"}', "not UTF-8 text (byte 39"),
    "nul": (json.dumps({**GOOD, "audio_path": "a\0.wav"}), "does not exist"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    time = np.arange(2 * RATE) / RATE
    soundfile.write(tmp_path / "good.wav", 0.2 * np.sin(2 * np.pi * 300 * time) * (np.sin(9 * time) > -0.6), RATE)
    return tmp_path


def listed(path: Path, kind: str = "jsonl"):
    cuts = list(Source.model_validate({"type": kind, "path": str(path)}).cuts())
    return [c for c in cuts if not isinstance(c, UnusableRecord)], [c for c in cuts if isinstance(c, UnusableRecord)]


def as_bytes(line) -> bytes:
    return line if isinstance(line, bytes) else (line if isinstance(line, str) else json.dumps(line)).encode()


def manifest(folder: Path, *lines, name="data.jsonl") -> Path:
    (folder / name).write_bytes(b"\n".join(map(as_bytes, lines)) + b"\n")
    return folder / name


@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_no_record_can_hold_is_one_counted_record(folder, name):
    line, reason = BAD_LINES[name]
    path = manifest(folder, GOOD, line, {**GOOD, "id": "after"})
    good, (bad,) = listed(path)
    assert [c.id for c in good] == ["good.wav", "after"]
    assert f"{path}:2: " in bad.message and reason in bad.message


def test_a_line_beyond_the_bound_is_skipped_without_being_held(folder, monkeypatch):
    monkeypatch.setattr(jsonl, "MAX_LINE", 1000)
    path = manifest(folder, GOOD, {**GOOD, "note": "x" * 5000}, {**GOOD, "id": "after"}, {"id": "z" * 5000})
    good, bad = listed(path)
    assert [c.id for c in good] == ["good.wav", "after"]
    assert [b.message for b in bad] == [
        f"{path}:2: the line has 5,058 bytes; the maximum is 1,000.",
        f"{path}:4: the line has 5,011 bytes; the maximum is 1,000.",
    ]


@pytest.mark.long
def test_a_damaged_gzip_file_gives_the_lines_before_the_damage(folder):
    rng = np.random.default_rng(0)
    lines = [json.dumps({**GOOD, "id": f"{i}", "note": rng.bytes(40).hex()}) for i in range(5000)]
    packed = bytearray(gzip.compress("\n".join(lines).encode()))
    packed[len(packed) // 2] ^= 0x40
    path = folder / "data.jsonl.gz"
    path.write_bytes(packed)
    good, bad = listed(path)
    assert 1000 < len(good) < 5000
    assert sum("the gzip file is damaged" in b.message for b in bad) == 1
    assert all(f"{path}:" in b.message for b in bad)
    path.write_bytes(gzip.compress("\n".join(lines).encode())[:-300])
    good, (cut_off,) = listed(path)
    assert len(good) > 4900 and f"{path}:{len(good) + 1}: the gzip file is damaged" in cut_off.message


def test_a_pipe_is_refused_and_not_waited_for(folder):
    os.mkfifo(folder / "data.jsonl")
    with pytest.raises(DataError, match="is a pipe or a device, which can be read only once"):
        listed(folder / "data.jsonl")


@pytest.mark.parametrize("column", ["mixed_turn", "made_noise", "voice", "hub", "tar", "codes", "shar", "parts"])
def test_columns_that_are_called_like_keys_of_ours_are_columns(folder, column):
    for value in ("yes", 3, True, {"a": 1}, ["b"]):
        (cut,), bad = listed(manifest(folder, {**GOOD, column: value}))
        assert not bad and len(load_audio(cut)) == 2 * RATE
        record = {"id": "a", "audio_path": str(folder / "good.wav"), column: value}
        assert len(load_record(record)) == 2 * RATE


def test_texts_and_cuts_of_lhotse_count_their_bad_lines_too(folder):
    (folder / "texts.txt").write_bytes(b"one\n\xff\xfe\nthree\n")
    good, (bad,) = listed(folder / "texts.txt", "text")
    assert len(good) == 2 and "texts.txt:2: not UTF-8" in bad.message
    (cut,), _ = listed(manifest(folder, GOOD))
    cut = cut.to_dict()
    path = manifest(folder, cut, {**cut, "duration": 1e308}, {**cut, "id": "\ud800"}, name="cuts.jsonl")
    good, bad = listed(path, "manifest")
    assert len(good) == 1
    assert ["cuts.jsonl:2: `duration` must be" in bad[0].message, "surrogate" in bad[1].message] == [True, True]


def test_a_manifest_whose_name_is_not_utf8(folder, attempt, monkeypatch):
    monkeypatch.chdir(folder)
    manifest(folder, GOOD, name="tr\udce4in.jsonl")
    code, output = attempt("prepare", "check", "tr\udce4in.jsonl", "--to", "check", "--jobs", 1)
    assert code == 3 and "is no text, as of a file whose name is not UTF-8: rename it." in output


def test_prepare_check_and_training_count_what_no_one_can_use(folder, attempt, tiny_text):
    loud = np.zeros(RATE, np.float32)
    loud[5] = 8e29
    soundfile.write(folder / "loud.wav", loud, RATE, subtype="FLOAT")
    soundfile.write(folder / "scaled.wav", 30000 * soundfile.read(folder / "good.wav")[0], RATE, subtype="FLOAT")
    (folder / "text.au").write_text("This is no audio at all. " * 400)
    soundfile.write(folder / "cut.aiff", np.full(RATE, 0.1), RATE)
    (folder / "cut.aiff").write_bytes((folder / "cut.aiff").read_bytes()[:9000])
    audio = ["loud.wav", "text.au", "cut.aiff"]
    scaled = {"audio_path": "scaled.wav", "text": "one " * 80}  # of a finding that has a player
    lines = [GOOD, scaled, *({"audio_path": a, "text": "one"} for a in audio), *(b for b, _ in BAD_LINES.values())]
    path = manifest(folder, *lines)
    code, output = attempt("prepare", "check", path, "--to", folder / "check", "--jobs", 1)
    assert code == 3 and f"{len(lines) - 2} of {len(lines)} records cannot be used" in output
    facts = json.loads((folder / "check" / "check.json").read_text(encoding="utf-8"))
    (unusable,) = (f for f in facts["findings"] if f["kind"] == "unusable")
    details = "\n".join(r["detail"] for r in unusable["records"])
    assert unusable["count"] == len(lines) - 2 and (folder / "check" / "check.html").stat().st_size
    for sentence in ("as large as 8.0e+29", "text.au is not an audio file", "cut.aiff is cut short: its header"):
        assert sentence in details
    run = folder / "run.yaml"
    text = tiny_text.format(dropout=0.0, folder=folder, runs=folder / "runs")
    run.write_text(text.replace("train.jsonl", "data.jsonl").replace("dev.jsonl", "good.jsonl"), encoding="utf-8")
    manifest(folder, GOOD, name="good.jsonl")
    code, output = attempt("train", run, "data.max_bad=0.99", "train.steps=2", "train.eval_every=2")
    assert code == 0, output
    dropped = json.loads((folder / "runs" / "run" / "results.json").read_text(encoding="utf-8"))["data"]["dropped"]
    assert dropped == {"unreadable": 7, "wrong_range": 5, "truncated": 1, "missing": 1, "not_finite": 1}
