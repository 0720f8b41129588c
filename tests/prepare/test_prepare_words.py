"""`stentor prepare words`, as a user calls it."""

import json
from pathlib import Path

import numpy as np
import pytest
import soundfile

from stentor.commands.prepare.words import prepare_words
from stentor.commands.prepare_options import WordsOptions
from stentor.errors import DataError


def manifest(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def summary(path: Path) -> dict:
    return json.loads(path.with_suffix(".summary.json").read_text())


@pytest.fixture
def timed(ctc_model):
    """Times the words of records by the tiny model, or as the options say."""

    def run(data, to: Path, **options) -> None:
        prepare_words(WordsOptions(data=str(data), to=to, device="cpu", **{"model": str(ctc_model)} | options))

    return run


def written(folder: Path, records: list[dict]) -> Path:
    """A manifest of these records."""
    path = folder / "data.jsonl"
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


def placed(corpus: Path, name: str) -> list[dict]:
    """The records of a manifest of the corpus, which a manifest in any folder may hold."""
    return [r | {"audio_path": str(corpus / r["audio_path"])} for r in manifest(corpus / name)]


def test_every_record_gets_the_words_of_its_text(corpus, timed, tmp_path, capsys):
    to = tmp_path / "out" / "train.words.jsonl"
    timed(corpus / "train.jsonl", to)
    before, after = manifest(corpus / "train.jsonl"), manifest(to)
    assert [r["id"] for r in after] == [r["id"] for r in before], "in the order of the data"
    for record in after:
        assert [w["word"] for w in record["words"]] == record["text"].split()
        times = [t for w in record["words"] for t in (w["start"], w["end"])]
        assert times == sorted(times) and times[0] >= 0 and times[-1] <= record["duration"]
    facts = summary(to)
    assert (facts["records"], facts["kept"], facts["dropped"]) == (16, 16, {})
    assert facts["settings"]["engine"] == "ctc"
    assert sorted(p.name for p in to.parent.iterdir()) == ["train.words.jsonl", "train.words.summary.json"]
    words = sum(len(r["words"]) for r in after)
    assert capsys.readouterr().out.startswith(f"kept        16  {words} words, 0.00 hours\n")
    # The manifest can be trained on.
    from stentor.config.load import parse_source
    from stentor.tasks.words import Words

    assert [Words().drop_reason(cut) for cut in parse_source(str(to)).cuts()] == [None] * 16


def test_a_complete_manifest_is_left_alone_until_the_data_change(corpus, timed, tmp_path, capsys):
    to, records = tmp_path / "a.jsonl", placed(corpus, "dev.jsonl")
    timed(written(tmp_path, records), to)
    before = to.stat().st_mtime_ns
    capsys.readouterr()
    timed(tmp_path / "data.jsonl", to)
    assert capsys.readouterr().out == f"{to} is complete; delete it to make it again.\n"
    assert to.stat().st_mtime_ns == before
    records[1]["text"] = "six six"
    timed(written(tmp_path, records), to)
    assert [w["word"] for w in manifest(to)[1]["words"]] == ["six", "six"]


def test_what_cannot_be_used_is_dropped_with_its_reason(corpus, timed, tmp_path, capsys):
    from stentor.audio.io import write

    write(tmp_path / "short.wav", 0.1 * np.ones(3200, np.float32), 16000)
    write(tmp_path / "click.wav", 0.1 * np.ones(160, np.float32), 16000)
    good, to = placed(corpus, "train.jsonl"), tmp_path / "a.jsonl"
    records = [
        *good,
        good[0] | {"id": "empty", "text": " "},
        good[1] | {"id": "dash", "text": "– !"},
        {"id": "short", "audio_path": "short.wav", "text": "one two three four five six"},
        {"id": "click", "audio_path": "click.wav", "text": "one two three four"},
        good[2] | {"id": "unknown", "text": "日本 ж"},
    ]
    timed(written(tmp_path, records), to)
    facts = summary(to)
    assert {k: v["count"] for k, v in facts["dropped"].items()} == {"too_long_text": 2, "empty_text": 1, "no_words": 1}
    assert facts["dropped"]["too_long_text"]["first"] == [
        "short (0.20 s): one two three four five six",
        "click (0.01 s): one two three four",
    ]
    assert [w["word"] for w in manifest(to)[-1]["words"]] == ["日", "本", "ж"], "any sound will do"
    out = capsys.readouterr().out
    assert "dropped: too_long_text         2  more text than the audio can hold" in out


def test_max_wer_drops_what_the_model_hears_otherwise(corpus, timed, tmp_path):
    """The model of the tests hears nothing that makes sense: every record differs."""
    to = tmp_path / "a.jsonl"
    with pytest.raises(DataError, match="No record got word times"):
        timed(corpus / "dev.jsonl", to, max_wer=0.3)
    dropped = summary(to)["dropped"]
    assert dropped["wer"]["count"] == 4
    assert dropped["wer"]["first"][0].startswith("dev0: WER 100%: one / heard: ")


@pytest.fixture
def unlikely(monkeypatch):
    """An engine that finds every text unlikely, and hears each as it is but for `one`; `six` it cannot place."""
    from stentor.inference.align.base import Aligned, Word

    class Doubtful:
        rate = 16000

        def align(self, clips, transcribe=False):
            texts = [(clip.text, "nothing" if clip.text == "one" else clip.text) for clip in clips]
            times = [[] if text == "six" else [Word(w, 0.0, 0.1, 0.0) for w in text.split()] for text, _ in texts]
            found = zip(times, texts, strict=True)
            return [Aligned(w, heard if transcribe else None, 9.8125, "mismatch") for w, (_, heard) in found]

    monkeypatch.setattr("stentor.commands.prepare.words.open_aligner", lambda *arguments: Doubtful())


def test_an_unlikely_text_is_kept_with_a_warning_and_the_users_limit_decides(corpus, timed, unlikely, tmp_path, capsys):
    records = [r | {"text": text} for r, text in zip(placed(corpus, "dev.jsonl"), ("one", "two", "six", "four five"))]
    limited, to = tmp_path / "limited.jsonl", tmp_path / "all.jsonl"
    timed(written(tmp_path, records), limited, max_wer=0.5)
    assert {k: v["count"] for k, v in summary(limited)["dropped"].items()} == {"wer": 1, "mismatch": 1}
    kept = manifest(limited)
    assert [r["text"] for r in kept] == ["two", "four five"]
    facts = [{key: r[key] for key in r if key.startswith("alignment_")} for r in kept]
    assert facts == [{"alignment_cost": 9.8125, "alignment_wer": 0.0, "alignment_warning": "mismatch"}] * 2
    assert summary(limited)["warnings"]["mismatch"]["count"] == 2
    printed = capsys.readouterr()
    assert "warned: mismatch          2  kept: the model finds the text unlikely" in printed.out
    assert "the text of 2 of 2 kept records unlikely" in printed.err and "--max-wer" not in printed.err
    # Without a limit, only what has no times at all is dropped, and the warning names the option.
    timed(tmp_path / "data.jsonl", to)
    assert [r["text"] for r in manifest(to)] == ["one", "two", "four five"]
    assert "give --max-wer 0.3" in capsys.readouterr().err
    from stentor.config.load import parse_source

    assert list(parse_source(f"{to},exclude={{alignment_warning: mismatch}}").cuts()) == []


def test_what_an_earlier_pass_found_is_not_kept(corpus, timed, tmp_path):
    old = {"alignment_cost": 9.0, "alignment_wer": 1.0, "alignment_warning": "mismatch"}
    timed(written(tmp_path, [r | old for r in placed(corpus, "dev.jsonl")]), tmp_path / "a.jsonl")
    for record in manifest(tmp_path / "a.jsonl"):
        assert record["alignment_cost"] != 9.0 and not {"alignment_wer", "alignment_warning"} & record.keys()


def test_broken_audio_ends_in_exit_code_3_after_the_rest_is_done(corpus, ctc_model, tmp_path, attempt):
    good = [r | {"duration": soundfile.info(r["audio_path"]).duration} for r in placed(corpus, "dev.jsonl")]
    (tmp_path / "broken.wav").write_bytes(b"RIFF no audio")
    data = written(tmp_path, [*good, {"id": "broken", "audio_path": "broken.wav", "text": "one", "duration": 1.0}])
    to = tmp_path / "a.jsonl"
    code, told = attempt("prepare", "words", data, "--to", to, "--model", ctc_model, "--device", "cpu")
    assert code == 3
    assert "1 of 5 records cannot be used. The first are:\n  broken: " in told
    assert len(manifest(to)) == 4


def test_the_built_in_voice_knows_its_words_exactly(tmp_path, here):
    to = tmp_path / "spoken.jsonl"
    spec = "type=synth,texts=[one two, three],voices=[en-us],silence=[0.1, 0.2]"
    here("prepare", "words", spec, "--to", to, "--engine", "voice")
    from stentor.config.load import parse_source
    from stentor.data.cut import words_of
    from stentor.data.load_audio import load_audio

    cuts = list(parse_source(spec).cuts())
    records = manifest(to)
    assert [r["words"] for r in records] == [words_of(cut) for cut in cuts]
    # The audio became files, so that the manifest stands alone.
    again = list(parse_source(str(to)).cuts())
    for before, after in zip(cuts, again, strict=True):
        assert np.abs(load_audio(before) - load_audio(after)).max() < 1e-4


def test_only_the_built_in_voice_is_asked_for_its_words(corpus, tmp_path):
    with pytest.raises(DataError, match="No record got word times"):
        prepare_words(WordsOptions(data=str(corpus / "dev.jsonl"), to=tmp_path / "a.jsonl", engine="voice"))
    assert summary(tmp_path / "a.jsonl")["dropped"]["not_voice"]["count"] == 4
