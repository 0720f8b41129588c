import json
import re

import numpy as np
import pytest
import soundfile

from stentor.cli import main
from stentor.commands.prepare.check import model_texts
from stentor.data.outliers import CheckedRecord, unspaced
from stentor.data.signal_stats import measure_audio
from stentor.dataloading.dataset_report import check, histogram, summary
from stentor.report.check import render
from stentor.sources.base import Source

RATE = 16000


def speech(seconds=2.0, seed=0, level=0.1):
    """Noise in syllables: wide band, with pauses shorter than half a second."""
    time = np.arange(round(seconds * RATE)) / RATE
    noise = np.random.default_rng(seed).standard_normal(len(time))
    return (level * noise * (np.sin(2 * np.pi * 2 * time) > -0.8)).clip(-0.99, 0.99)


@pytest.fixture
def data(tmp_path):
    """A manifest writer: `data(record, ...)`, each with `audio` samples (and `rate`), answers the manifest's path."""

    def write(*records, name="data.jsonl"):
        lines = []
        for i, record in enumerate(records):
            record = {"id": f"r{i}", "text": "one two three", **record}
            if "audio" in record:
                record["audio_path"] = f"{name}-{i}.wav"
                samples, rate = record.pop("audio"), record.pop("rate", RATE)
                soundfile.write(tmp_path / record["audio_path"], samples, rate, subtype="FLOAT")
            lines.append(json.dumps(record))
        (tmp_path / name).write_text("\n".join(lines))
        return tmp_path / name

    return write


def report(*paths, **options):
    return check({p.name: Source.model_validate({"type": "jsonl", "path": str(p)}) for p in paths}, **options)


def outliers(path, **options):
    return {f.kind: [r["id"] for r in f.records] for f in report(path, **options).findings}


def test_clean_data_has_no_findings(data):
    path = data(*({"audio": speech(seed=i), "speaker": f"s{i % 2}", "language": "en"} for i in range(4)))
    clean = report(path)
    assert clean.findings == [] and clean.unusable_share == 0
    assert clean.totals["records"] == 4 and clean.totals["hours"] == pytest.approx(8 / 3600)
    assert [(s["name"], s["records"]) for s in clean.speakers] == [("s0", 2), ("s1", 2)]
    assert "nothing suspicious" in render(clean)


def test_suspicious_pairs(data):
    path = data(
        {"audio": speech(20, 1), "text": "only three words"},
        {"audio": speech(5, 2), "text": "word " * 60},
        {"audio": speech(2, 3), "text": "  "},
        {"audio": speech(2, 4)},
        {"audio": speech(2, 5), "text": "今日はいい天気ですね"},
        {"audio": speech(1, 6), "text": "今日はいい天気ですねと彼は言った"},
        {"audio": speech(1, 7), "text": "seven"},
        {"audio": speech(2, 8), "text": "<p>three&nbsp;<b>four</b></p>"},
        {"audio": speech(2, 9), "text": "R&D is a < b > c <unclear>"},
    )
    found = {"too_slow": ["r0"], "too_fast": ["r5", "r1"], "no_text": ["r2"], "markup": ["r7"]}
    assert outliers(path) == found


def test_sound_problems(data):
    quiet, clipped = speech(seed=1, level=0.001), np.clip(speech(seed=2) * 40, -1, 1)
    padded = np.concatenate([np.zeros(3 * RATE), speech(seed=3)])
    low = np.fft.irfft(np.fft.rfft(speech(seed=4)) * (np.arange(RATE + 1) < 6000))
    narrow_file = {"audio": speech(seed=5)[::2], "rate": 8000}
    path = data({"audio": quiet}, {"audio": clipped}, {"audio": padded}, {"audio": low}, narrow_file)
    assert outliers(path) == {"quiet": ["r0"], "clipped": ["r1"], "silence": ["r2"], "narrow": ["r3"]}


def test_measures_are_right():
    sine = 0.5 * np.sin(2 * np.pi * 440 * np.arange(RATE) / RATE)
    sound = measure_audio(np.concatenate([np.zeros(RATE // 2), sine, np.zeros(RATE)]), RATE)
    assert sound.level == pytest.approx(20 * np.log10(0.5 / np.sqrt(2)), abs=0.1)
    assert (sound.lead, sound.trail) == pytest.approx((0.5, 1.0), abs=0.03)
    assert sound.silence == pytest.approx(0.6, abs=0.02) and sound.seconds == 2.5 and sound.high < -60


def test_times_and_twins(data):
    words = [{"word": w, "start": i, "end": i + 0.9} for i, w in enumerate(["one", "two", "three"])]
    path = data(
        {"audio": speech(2.0, 1), "words": words},
        {"audio": speech(4.0, 2), "words": [words[0], {**words[1], "start": 0.5}, words[2]]},
        {"audio": speech(4.0, 3), "words": words[:2]},
        {"audio": speech(4.0, 4), "words": words},
        {"audio": speech(2.0, 5), "duration": 2.1},
        {"audio": speech(2.0, 5)},
    )
    assert outliers(path) == {"word_times": ["r0", "r1", "r2"], "same_audio": ["r5"]}


def test_unusable_records_are_decoded_to_be_found(data):
    path = data(
        {"audio": speech()},
        {"audio": np.full(RATE, np.nan)},
        {"audio": np.zeros(RATE)},
        {"audio_path": "nowhere.wav", "duration": 1.0},
    )
    broken = report(path)
    assert broken.totals["reasons"] == {"not_finite": 1, "silent": 1, "missing": 1} and broken.unusable_share == 0.75
    assert broken.totals["hours"] == pytest.approx(2 / 3600)
    assert {f.kind: f.count for f in broken.findings} == {"unusable": 3}


def test_processes_answer_the_same(data, tmp_path):
    path = data(*({"audio": speech(0.3, seed=i), "text": "one"} for i in range(40)))
    for jobs in ("1", "2"):
        assert main(["prepare", "check", str(path), "--to", str(tmp_path / jobs), "--jobs", jobs]) == 0
    assert (tmp_path / "1" / "check.json").read_bytes() == (tmp_path / "2" / "check.json").read_bytes()


def test_sets_are_compared(data):
    train = data(
        {"audio": speech(seed=1), "speaker": "ann"}, {"audio": speech(seed=2), "speaker": "ben"}, name="a.jsonl"
    )
    test = data(
        {"id": "t0", "audio": speech(seed=2), "speaker": "ben", "text": "else"},
        {"id": "t1", "audio": speech(seed=3), "speaker": "cy"},
        name="b.jsonl",
    )
    both = report(train, test)
    of = {"ids": [2, 2], "recordings": [2, 2], "speakers": [2, 2], "texts": [1, 2]}
    shared = {"ids": 0, "recordings": 1, "speakers": 1, "texts": 1}
    assert both.overlap == [{"sets": ["a.jsonl", "b.jsonl"], **shared, "of": of}]
    assert "a.jsonl and b.jsonl share 1 recording (of 2 and 2), 1 speaker (of 2 and 2), 1 text (of 1 and 2)" in summary(
        both
    )


def test_speakers_of_conversations_are_counted_apart(data):
    segments = [{"speaker": "A", "start": 0.0, "end": 1.5}, {"speaker": "B", "start": 1.0, "end": 2.0}]
    talk = report(data({"audio": speech(2.0), "text": None, "segments": segments}))
    assert [(s["name"], round(s["hours"] * 3600, 3)) for s in talk.speakers] == [("A", 1.5), ("B", 1.0)]
    assert talk.totals["speakers"] == 2


@pytest.fixture
def letters_model(tmp_path):
    """Folders of tokenizers alone: of letters, and of bytes."""
    from stentor.models.text.tokenizers import bpe, characters

    for name, tokenizer in (("letters", characters(["abc def"])), ("bytes", bpe(["abc def"], 300))):
        tokenizer.save_pretrained(tmp_path / name)
    return lambda name: model_texts(str(tmp_path / name))


def test_characters_outside_the_tokenizer(data, letters_model):
    path = data({"audio": speech(seed=1), "text": "a bad cafe\u0301"}, {"audio": speech(seed=2), "text": "fed"})
    strange = report(path, model=letters_model("letters"))
    (finding,) = strange.findings
    assert finding.kind == "outside" and finding.records[0]["detail"] == "e\u0301"
    (entry,) = [c for c in strange.characters if c["outside"]]
    assert entry["name"] == "combining acute accent" and entry["example"] == "r0" and entry["code"] == "U+0301"
    assert outliers(path, model=letters_model("bytes")) == {}
    assert "combining acute accent" in render(strange)


def test_histogram_holds_every_value():
    values = [*np.random.default_rng(0).gamma(2.0, 3.0, 5000), 900.0]
    bars = histogram(values)
    assert sum(bars["counts"]) + bars["below"] + bars["above"] == 5001
    assert bars["above"] >= 1 and 15 <= len(bars["counts"]) <= 40
    edges = bars["start"] + bars["step"] * np.arange(len(bars["counts"]) + 1)
    expected, _ = np.histogram(values, edges)
    assert np.abs(expected - bars["counts"]).max() <= 1
    assert sum(histogram([3.0])["counts"]) == 1 and sum(histogram([2.0, 2.0])["counts"]) == 2


def test_rates_of_scripts_without_spaces():
    assert unspaced("今日はいい") and unspaced("สวัสดีครับ") and not unspaced("안녕 하세요") and not unspaced("hello")
    assert CheckedRecord("a", "s", text="今日は、いい", declared=2.0).rate == 2.5
    assert CheckedRecord("a", "s", text="so it is", declared=2.0).rate == 1.5


def test_command_writes_page_and_json_and_answers_the_exit_code(data, tmp_path, capsys):
    good = {"audio": speech(), "text": "one two three"}
    path = data(good, {"audio": speech(20.0, 1), "text": "<script>alert(1)</script> one two"})
    assert main(["prepare", "check", str(path), "--to", str(tmp_path / "out"), "--jobs", "1"]) == 0
    out = capsys.readouterr().out
    assert "2 records" in out and "1 x fewer words than expected" in out
    page = (tmp_path / "out" / "check.html").read_text()
    assert "<script" not in page and "&lt;script&gt;alert" in page
    assert page.count("<audio ") == 1 and "data:audio/" in page
    assert not re.search(r'(?:src|href)="(?!data:|#)', page)
    saved = json.loads((tmp_path / "out" / "check.json").read_text())
    assert saved["findings"][0]["records"][0]["id"] == "r1" and saved["unusable_share"] == 0

    path = data(good, {"audio_path": "gone.wav", "duration": 1.0})
    assert main(["prepare", "check", str(path), "--to", str(tmp_path / "out")]) == 3
    error = capsys.readouterr().err
    assert "1 of 2 records cannot be used (50.0%)" in error and "gone.wav does not exist" in error
    assert json.loads((tmp_path / "out" / "check.json").read_text())["totals"]["unusable"] == 1


def test_generated_speech_can_be_checked_too(tmp_path, capsys):
    spec = "type=synth,texts=[one two],voices=[en+m1]"
    assert main(["prepare", "check", spec, "--to", str(tmp_path)]) == 0
    assert "1 record, 0.00 hours, 1 speaker, 1 language" in capsys.readouterr().out
