"""`stentor prepare codec`: a fitted codec with its report, and what it refuses."""

import json
import re

import numpy as np
import pytest

from stentor.audio.io import read
from stentor.commands.prepare.codec import prepare_codec
from stentor.commands.prepare_options import CodecOptions
from stentor.errors import DataError
from stentor.models.codecs.base import open_codec

FAST = ("entries=16", "rounds=2", "iterations=2")


def test_a_codec_of_a_corpus(attempt, corpus, tmp_path):
    to = tmp_path / "codec"
    options = [part for option in FAST for part in ("--option", option)]
    code, output = attempt("prepare", "codec", corpus / "train.jsonl", "--to", to, *options, "--seed", 3)
    assert code == 0, output
    assert "mel_rvq fitted on 15 records" in output and "1 clips" in output and "mel distance" in output
    assert "16000 Hz, 50 frames per second, 4 codebooks of 16" in output and f"--codec {to}" in output
    report = json.loads((to / "resynthesis.json").read_text())
    assert report["clips"] == 1 and 0 < report["mel_distance"] < 20 and len(report["usage"]) == 4
    assert report["bit_rate"] == 50 * 4 * 4
    codec = open_codec(str(to))
    original, decoded = (read(to / "samples" / f"1-{kind}.wav") for kind in ("original", "decoded"))
    assert np.allclose(codec.decode(codec.encode([original]))[0][: len(original)], decoded, atol=0.02)
    code, output = attempt("prepare", "codec", corpus / "train.jsonl", "--to", to)
    assert code == 2 and "holds something already" in output
    assert not list(tmp_path.glob(".*"))


def test_the_same_data_gives_the_same_codec(corpus, tmp_path):
    for name in ("a", "b"):
        prepare_codec(CodecOptions(data=str(corpus / "train.jsonl"), to=tmp_path / name, option=FAST))
    prepare_codec(CodecOptions(data=str(corpus / "train.jsonl"), to=tmp_path / "c", option=FAST, seed=1))
    a, b, c = ((tmp_path / name / "model.safetensors").read_bytes() for name in "abc")
    assert a == b != c


def test_an_existing_codec_is_measured(corpus, tmp_path, capsys):
    data = str(corpus / "dev.jsonl")
    prepare_codec(CodecOptions(data=data, to=tmp_path / "a", option=FAST))
    prepare_codec(CodecOptions(data=data, to=tmp_path / "b", option=(f"from={tmp_path / 'a'}", "iterations=8")))
    figures = [json.loads((tmp_path / name / "resynthesis.json").read_text()) for name in "ab"]
    assert figures[0]["usage"] == figures[1]["usage"]
    assert figures[1]["mel_distance"] < figures[0]["mel_distance"]  # more of Griffin-Lim
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]


def test_few_hours_are_read(corpus, tmp_path, capsys):
    prepare_codec(CodecOptions(data=str(corpus / "train.jsonl"), to=tmp_path / "a", option=FAST, hours=1 / 3600))
    [count] = re.findall(r"fitted on (\d+) records", capsys.readouterr().out)
    assert 1 <= int(count) < 15


def test_unusable_records_are_named(corpus, tmp_path, capsys):
    records = [json.loads(line) for line in (corpus / "dev.jsonl").read_text().splitlines()]
    for record in records:
        record["audio_path"] = str(corpus / record["audio_path"])
    broken = tmp_path / "broken.wav"
    broken.write_bytes((corpus / "dev1.wav").read_bytes()[:3000])
    records.append({"id": "broken", "audio_path": str(broken), "text": "one", "duration": 0.5})
    manifest = tmp_path / "data.jsonl"
    manifest.write_text("".join(json.dumps(record) + "\n" for record in records))
    with pytest.raises(DataError, match="1 of 5 records cannot be used"):
        prepare_codec(CodecOptions(data=str(manifest), to=tmp_path / "codec", option=FAST))
    assert "1 truncated" in capsys.readouterr().out
    assert open_codec(str(tmp_path / "codec")).vocabulary == 16  # made all the same
