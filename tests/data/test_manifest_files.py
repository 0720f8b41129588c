import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.cli import main
from stentor.data.cut import record_from_cut
from stentor.data.load_audio import load_audio
from stentor.dataloading.manifest import write_manifest
from stentor.sources.base import Source


def source(**config):
    return Source.model_validate(config)


@pytest.fixture
def librispeech(tmp_path):
    for split, speaker in (("dev-clean", "84"), ("test-clean", "61")):
        chapter = tmp_path / "data" / "LibriSpeech" / split / speaker / "70968"
        chapter.mkdir(parents=True)
        lines = []
        for i in range(3):
            name = f"{speaker}-70968-000{i}"
            soundfile.write(chapter / f"{name}.flac", 0.1 * np.sin(np.arange(16000) / 9), 16000)
            lines.append(f"{name} HELLO THERE\n")
        (chapter / f"{speaker}-70968.trans.txt").write_text("".join(lines))
    return tmp_path / "data"


def test_all_splits_become_manifests_that_load(librispeech, tmp_path, capsys):
    to = tmp_path / "manifests"
    arguments = ["prepare", "corpus", "librispeech", "--from", str(librispeech), "--to", str(to)]
    assert main([*arguments, "--option", "normalize_text=lower"]) == 0
    assert sorted(p.name for p in to.iterdir()) == ["dev-clean.jsonl", "test-clean.jsonl"]
    assert f"{to / 'dev-clean.jsonl'}: 3 records, 0.00 hours" in capsys.readouterr().out
    first, *_ = source(type="jsonl", path=str(to / "test-clean.jsonl")).cuts()
    record = record_from_cut(first)
    assert (record["id"], record["text"], record["speaker"]) == ("61-70968-0000", "hello there", "61")
    assert Path(record["audio_path"]).is_file() and record["duration"] == 1.0
    assert main([*arguments, "--split", "dev-clean"]) == 0
    assert "HELLO" in (to / "dev-clean.jsonl").read_text() and "hello" in (to / "test-clean.jsonl").read_text()


def test_paths_below_the_manifest_are_relative(librispeech):
    corpus = source(type="corpus", name="librispeech", split="dev-clean", **{"from": str(librispeech)})
    written = write_manifest(corpus.cuts(), librispeech / "dev.jsonl")
    assert (written.records, written.unusable) == (3, [])
    record = json.loads((librispeech / "dev.jsonl").read_text().splitlines()[0])
    assert record["audio_path"] == "LibriSpeech/dev-clean/84/70968/84-70968-0000.flac"
    moved = librispeech.rename(librispeech.parent / "moved")
    assert len(list(source(type="jsonl", path=str(moved / "dev.jsonl")).cuts())) == 3


def test_too_many_unusable_records_are_refused_after_writing(librispeech, tmp_path, capsys):
    (librispeech / "LibriSpeech" / "dev-clean" / "84" / "70968" / "84-70968-0001.flac").unlink()
    arguments = ["prepare", "corpus", "librispeech", "--from", str(librispeech), "--to", str(tmp_path / "out")]
    assert main(arguments) == 3
    out, error = capsys.readouterr()
    assert "dev-clean.jsonl: 2 records, 0.00 hours, 1 unusable" in out
    assert "1 of 3 in dev-clean" in error and "84-70968-0001 (any ending)" in error


def test_wrong_use_is_explained(librispeech, tmp_path, capsys):
    def error(*arguments):
        code = main(["prepare", "corpus", *arguments, "--to", str(tmp_path / "out")])
        return code, capsys.readouterr().err

    assert error("librispeech")[0] == 2
    code, message = error("librispech", "--from", str(librispeech))
    assert code == 2 and "did you mean librispeech or" in message
    code, message = error("librispeech", "--from", str(librispeech), "--option", "normalize_text")
    assert code == 2 and "write KEY=VALUE" in message
    code, message = error("librispeech", "--from", str(librispeech / "LibriSpeech" / "dev-clean"))
    assert code == 3 and "the LibriSpeech folder is missing" in message
    code, message = error("librispeech", "--from", str(librispeech), "--split", "dev-other")
    assert code == 3 and "it has: dev-clean, test-clean" in message


def test_audio_that_is_no_file_is_written_beside_the_manifest(tmp_path):
    (spoken,) = source(type="synth", texts=["one"], voices=["en"]).cuts()
    written = write_manifest([spoken], tmp_path / "a.jsonl")
    assert (written.records, written.mixed, written.unusable) == (1, 1, [])
    (record,) = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    assert record["audio_path"].startswith("audio/") and "start" not in record
    (read,) = source(type="jsonl", path=str(tmp_path / "a.jsonl")).cuts()
    np.testing.assert_allclose(load_audio(read), load_audio(spoken), atol=1e-4)
