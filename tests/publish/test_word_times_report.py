"""Word times in the report: histogram, drawn examples with their sound, spectrograms."""

import base64
import hashlib
import io
import json
import re
import struct
import zlib

import numpy as np
import pytest
from page import Page

from stentor.metrics.word_match import match
from stentor.metrics.word_time import score
from stentor.report import word_times as view
from stentor.report.report import write_report
from stentor.report.sounds import SoundBudget
from stentor.report.spectrogram import ROWS, png, spectrogram

EVIL = "<script>alert(1)</script>"
TEXT = "one two three"


@pytest.fixture(scope="module")
def spoken():
    """Three words of the built-in voice and their times."""
    from stentor.audio.synth import say

    speech = say(TEXT)
    return speech.words, speech.seconds


def moved(words, *shifts):
    """The words with starts and ends moved by milliseconds."""
    return [
        {"word": w["word"], "start": w["start"] + a / 1000, "end": w["end"] + b / 1000, "confidence": 0.9}
        for w, (a, b) in zip(words, shifts, strict=True)
    ]


def row(name, words, outputs, seconds):
    return {
        "id": name,
        "reference": {"text": TEXT, "language": "en", "words": words},
        "seconds": seconds,
        "output": {"text": " ".join(w["word"] for w in outputs), "words": outputs},
        "record": {"id": name, "voice": {"text": TEXT}, "speaker": "ann"},
    }


@pytest.fixture
def timed_run(run_folder, spoken):
    """A finished run of the task `words` with one evaluation set."""
    words, seconds = spoken
    shifts = [((0, 0), (3, -7), (12, 0))] * 4 + [((0, 0), (0, 80), (90, 8))] + [((1, 1), (2, 2), (3, 3))] * 3
    rows = [row(f"u{i}", words, moved(words, *s), seconds) for i, s in enumerate(shifts)]
    rows[7]["output"]["words"][1]["word"] = EVIL
    timed = score(
        [r["reference"]["words"] for r in rows], [r["output"]["words"] for r in rows], ids=[r["id"] for r in rows]
    )
    for path in (run_folder / "predictions").iterdir():
        path.unlink()
    (run_folder / "predictions" / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    results = json.loads((run_folder / "results.json").read_text())
    results["eval"] = {"dev": {k: s.as_dict() for k, s in timed.items()} | {"wer": results["eval"]["dev"]["wer"]}}
    (run_folder / "results.json").write_text(json.dumps(results))
    return run_folder


def test_the_page_has_figures_histogram_and_drawn_examples(timed_run):
    html = write_report(timed_run).read_text()
    results = json.loads((timed_run / "results.json").read_text())["eval"]["dev"]
    assert f"{results['word_time_mean_ms']['value']:.1f} ms" in html and "mean boundary error" in html
    assert 'aria-label="Histogram of signed errors from' in html
    assert html.count('<article class="card drawn">') == 8 and html.count("data:image/png") == 8
    times = html.index('id="word-times"')
    assert html.index(">u4<", times) < html.index("Drawn at random", times)  # the worst item comes first
    assert "2 of 6 boundaries more than 50 ms off" in html
    assert "two: 0." in html and "end +80 ms, confidence 0.90" in html
    assert EVIL not in html and "&lt;script&gt;alert(1)" in html
    for sound in re.findall(r'src="data:audio/wav;base64,([^"]+)', html):
        assert base64.b64decode(sound)[:4] == b"RIFF"


def test_the_page_is_whole_and_loads_nothing(timed_run):
    html = write_report(timed_run).read_text()
    page = Page(html)
    assert len(page.all("img")) == 8 and len(page.all("script")) == 2
    for tag, attributes in page.elements:
        assert not [a for a in attributes if a.startswith("on")]
        for key in ("src", "href", "srcset", "data"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert not re.search(r"url\(|@import|https?://", html)
    code = html[html.rindex("<script>") + 8 : html.rindex("</script>")]
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html and "img-src data:" in html


def test_a_run_of_another_task_has_no_such_section(run_folder):
    assert 'id="word-times"' not in write_report(run_folder).read_text()


def test_nothing_matched_is_still_a_page(timed_run):
    path = timed_run / "predictions" / "dev.jsonl"
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for r in rows:
        r["output"] = {"text": "", "words": []}
    path.write_text("".join(json.dumps(r) + "\n" for r in rows))
    results = json.loads((timed_run / "results.json").read_text())
    results["eval"]["dev"] |= {
        k: s.as_dict() for k, s in score([r["reference"]["words"] for r in rows], [[] for _ in rows]).items()
    }
    (timed_run / "results.json").write_text(json.dumps(results))
    html = write_report(timed_run).read_text()
    assert "0 boundaries of 0 matched words" in html and "card drawn" not in html


def test_the_budget_of_pictures_and_sound_is_kept(timed_run, monkeypatch):
    monkeypatch.setattr("stentor.report.report.SoundBudget", lambda: SoundBudget(200_000))
    html = write_report(timed_run).read_text()
    drawn = re.findall(r'src="data:(?:image/png|audio/wav);base64,([^"]+)', html)
    assert 2 <= len(drawn) < 16 and sum(len(base64.b64decode(d)) for d in drawn) <= 200_000
    assert html.count('<article class="card drawn">') == 8  # without a picture the words are drawn all the same


def test_words_stand_where_they_were_said():
    words = [{"word": w, "start": i + 0.1, "end": i + 0.6} for i, w in enumerate("abcdefghij")]
    outputs = moved(words, *[(0, 0)] * 8, (20, -30), (400, 0))
    outputs[1]["word"] = "x"
    budget = SoundBudget(1000)
    drawn = view.draw({**row("r", words, outputs, 10.0), "record": {}}, match(words, outputs), True, budget)
    assert (drawn.begin, drawn.end, drawn.complete, drawn.picture, budget.left) == (4.0, 10.0, False, "", 1000)
    assert [b.text for b in drawn.references] == list("efghij")
    first = drawn.references[0]
    assert (first.left, first.width) == (pytest.approx(1000 * 0.1 / 6), pytest.approx(1000 * 0.5 / 6))
    assert [b.kind for b in drawn.outputs] == ["near"] * 5 + ["far"]
    assert "start +20 ms, end -30 ms" in drawn.outputs[4].title
    assert drawn.verdict == "1 of 18 boundaries more than 50 ms off, 1 word not found"
    start = view.draw({**row("r", words, outputs, 10.0), "record": {}}, match(words, outputs), False, SoundBudget(0))
    assert (start.begin, [b.kind for b in start.outputs][:3]) == (0.0, ["near", "other", "near"])
    assert drawn.reference_lines.startswith("M16.7 0V500") and drawn.output_lines.startswith("M16.7 500V1000")
    assert [t.label for t in drawn.ticks][:2] == ["4.0", "4.5"] and drawn.ticks[-1].at == pytest.approx(100)


def test_the_histogram_counts_every_error():
    histogram = view.histogram([7.0] * 38 + [7.0, 60.0], [-12.0] * 38 + [-400.0, -12.0])
    assert [t.label for t in histogram.xticks] == ["−20", "−10", "0", "+10", "+20"]
    # 39 starts at 7 to 8 ms, 39 ends at -12 to -11 ms, of a top of 40: bars 975 high; 40 bins in 1000 units.
    assert re.findall(r"M([\d.]+) 1000v-([\d.]+)", histogram.starts) == [("676.5", "975.0")]
    assert re.findall(r"M([\d.]+) 1000v-([\d.]+)", histogram.ends) == [("213.0", "975.0")]
    assert histogram.outside == "starts beyond ±20 ms: 1, ends: 1"
    assert histogram.bias == "starts are 7.0 ms late in the median; ends are 12.0 ms early in the median"
    wide = view.histogram([i * 3.0 for i in range(-20, 21)], [])
    assert (wide.xticks[-1].label, wide.outside) == ("+100", "") and wide.starts.count("M") == 25
    assert view.histogram([900.0], []).starts == ""


def test_confidence_of_right_and_wrong_words():
    words = [{"word": w, "start": i, "end": i + 0.5} for i, w in enumerate("abcd")]
    outputs = [{**w, "confidence": c} for w, c in zip(words, (0.95, 0.95, 0.55, 0.55), strict=True)]
    outputs[3]["word"] = "x"
    chart = view.calibration(score([words], [outputs])["ece"].as_dict())
    assert re.findall(r"M(\d+) 1000v-([\d.]+)", chart.bars) == [("506", "500.0"), ("906", "1000.0")]
    assert chart.dots == "M550.0 500.0h0M950.0 0.0h0" and chart.ece == "5.00 %"


def test_a_tone_is_dark_where_it_is():
    rate = 16000
    time = np.arange(rate) / rate
    audio = np.where((time > 0.5) & (time < 0.75), np.sin(2 * np.pi * 1000 * time), 0).astype(np.float32)
    grey = spectrogram(audio, rate)
    assert grey.shape == (ROWS, 200) and grey.dtype == np.uint8
    mel = [1127 * np.log1p(f / 700) for f in (60, 1000, 7600)]
    place = ROWS - 1 - round((ROWS - 1) * (mel[1] - mel[0]) / (mel[2] - mel[0]))
    dark = grey < 30
    assert abs(int(np.argmin(grey[:, 125])) - place) <= 1
    assert dark[:, 103:148].any(0).all() and not dark[:, :95].any() and not dark[:, 155:].any()
    assert dark[:, 105:145].sum(0).max() < ROWS / 4
    assert (spectrogram(np.zeros(0, np.float32), rate).shape) == (ROWS, 1)


def test_png_holds_the_shades():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4) * 20
    file = io.BytesIO(png(grey))
    assert file.read(8) == b"\x89PNG\r\n\x1a\n"
    chunks = {}
    while head := file.read(8):
        length, kind = struct.unpack(">I4s", head)
        chunks[kind] = file.read(length)
        assert struct.unpack(">I", file.read(4))[0] == zlib.crc32(kind + chunks[kind])
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (4, 3, 8, 0, 0, 0, 0)
    lines = np.frombuffer(zlib.decompress(chunks[b"IDAT"]), np.uint8).reshape(3, 5)
    assert (lines[:, 0] == 0).all() and (lines[:, 1:] == grey).all() and chunks[b"IEND"] == b""
