"""Speaker diarization, drawn in the report."""

import json

import numpy as np
import pytest
from page import Page

from stentor.metrics.diarization import DiarizedRecording, errors, scores
from stentor.report.report import write_report
from stentor.report.sounds import SoundBudget
from stentor.report.svg import clock
from stentor.report.timeline import KINDS, LINE, compare, draw, timelines


def segment(speaker, start, end):
    return {"speaker": speaker, "start": round(float(start), 3), "end": round(float(end), 3)}


def row(name, reference, output, seconds, uem=None, **record):
    expected = {"segments": reference, "uem": uem, "duration": seconds}
    return {"id": name, "reference": expected, "output": {"segments": output}, "seconds": seconds, "record": record}


def conversation(rng, speakers, seconds):
    return [
        segment(f"{speakers}{rng.integers(4)}", start, start + rng.uniform(0.1, 4))
        for start in np.sort(rng.uniform(0, seconds - 4, 25))
    ]


REFERENCE = [segment("ann", 0, 4), segment("ben", 3, 6)]


@pytest.mark.parametrize("seed", range(8))
def test_errors_are_those_that_are_scored(seed):
    """Overlaps, self-overlaps, a UEM and other numbers of speakers: the sums are pyannote's."""
    rng = np.random.default_rng(seed)
    reference, output = conversation(rng, "r", 40.0), conversation(rng, "h", 40.0)
    output += [{**s, "speaker": "h" + s["speaker"][1:]} for s in reference[:12]]  # or nothing would be right
    uem = None if seed % 2 else [[2.5, 20.0], [19.0, 33.3]]
    comparison = compare(reference, output, uem, 40.0)
    (theirs,) = errors([DiarizedRecording("a", reference, output, uem, 40.0)])
    mine = [comparison.seconds(kind) for kind in KINDS] + [comparison.total]
    assert mine == pytest.approx([theirs.miss, theirs.false_alarm, theirs.confusion, theirs.total], abs=1e-6)
    halves = [comparison.seconds("missed", 0, 17.7), comparison.seconds("missed", 17.7, 40)]
    assert sum(halves) == pytest.approx(theirs.miss, abs=1e-6)


def test_speakers_are_matched_by_what_they_share():
    output = [segment("x", 3, 6), segment("y", 0, 3.5), segment("z", 5, 5.2)]
    assert compare(REFERENCE, output, None, 10.0).pairs == {"x": "ben", "y": "ann"}


def test_nobody_at_all():
    errors = compare([], [], None, 5.0)
    assert errors.errors() == errors.total == 0
    drawing = draw(row("quiet", [], [], 5.0), errors)
    assert drawing.der == "0.00 %" and drawing.right and drawing.lines[0].lanes == []
    assert compare([], [segment("x", 1, 2)], None, 5.0).seconds("false alarm") == pytest.approx(1)


def test_a_lane_for_each_speaker_and_a_row_for_each_error():
    output = [segment("x", 3, 6), segment("y", 0, 3), segment("y", 8, 9), segment("z", 8.5, 9)]
    answer = row("talk", REFERENCE, output, 10.0, [[0, 8.5]])
    drawing = draw(answer, compare(REFERENCE, output, [[0, 8.5]], 10.0))
    (line,) = drawing.lines
    assert [(lane.name, lane.output_name) for lane in line.lanes] == [("ann", "y"), ("ben", "x"), ("", "z")]
    assert [lane.colour for lane in line.lanes] == [1, 2, 0]
    places = [
        [(b.left, b.left + b.width) for b in side] for lane in line.lanes for side in (lane.reference, lane.output)
    ]
    assert places == [[(0, 400)], [(0, 300), (800, 900)], [(300, 600)], [(300, 600)], [], [(850, 900)]]
    errors = {kind: [(b.start, b.end) for b in bars] for kind, bars in line.errors}
    assert errors == {"missed": [(3, 4)], "false alarm": [(8, 8.5)], "confused": []}
    assert line.overlap == "M300.0 0h100.0V1000h-100.0z"
    assert [(b.start, b.end) for b in line.unscored] == [(8.5, 10)]
    assert drawing.parts == "missed 1.0 s, false alarm 0.5 s of 7.0 s of speech"
    assert drawing.der == "21.43 %" and drawing.speakers == "2 speakers, 3 heard" and not drawing.right
    assert [t.label for t in line.ticks] == [str(i) for i in range(11)]


def test_long_recordings_are_drawn_where_most_is_wrong():
    seconds = 10 * LINE
    reference = [segment("ann", i * 10, i * 10 + 5) for i in range(round(seconds / 10))]
    output = [s for s in reference if not 125 < s["start"] < 135 and s["start"] < 400 and s["start"] != 250]
    drawing = draw(row("long", reference, output, seconds), compare(reference, output, None, seconds))
    assert [line.begin for line in drawing.lines] == [360, 420, 480, 540]
    assert drawing.partly == "4 of 10 parts are drawn, those with most that is wrong"
    for line in drawing.lines:
        assert line.end - line.begin == pytest.approx(LINE)
        assert all(b.left >= 0 and b.left + b.width <= 1000 for lane in line.lanes for b in lane.reference)
    assert [t.label for t in drawing.lines[1].ticks][:3] == ["7:00", "7:05", "7:10"]
    full = draw(row("all", reference[:9], [], 90.0), compare(reference[:9], [], None, 90.0))
    assert [(line.begin, line.end) for line in full.lines] == [(0, 45), (45, 90)] and full.partly == ""


def test_times_as_people_write_them():
    assert [clock(7), clock(7.5, 0.5), clock(67), clock(3723)] == ["7", "7.5", "1:07", "1:02:03"]


EVIL = '<script>alert("boo")</script>'


@pytest.fixture
def run(tmp_path):
    """A run folder: the worst recording is the second."""
    from stentor.audio.io import write

    write(tmp_path / "a.wav", 0.1 * np.sin(np.arange(96000, dtype=np.float32)), 16000)
    rows = [
        row("right", REFERENCE, REFERENCE, 6.0),
        row("wrong", [*REFERENCE, segment(EVIL, 1, 2)], [segment("x", 0, 2)], 6.0, audio_path=str(tmp_path / "a.wav")),
        row("long", REFERENCE, [segment("x", 0, 4)], 300.0, audio_path=str(tmp_path / "a.wav")),
    ]
    spoken = [
        DiarizedRecording(r["id"], r["reference"]["segments"], r["output"]["segments"], None, r["seconds"])
        for r in rows
    ]
    results = {metric: score.as_dict() for metric, score in scores(spoken).items()}
    folder = tmp_path / "run"
    (folder / "predictions").mkdir(parents=True)
    (folder / "predictions" / "dev.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    (folder / "results.json").write_text(json.dumps({"eval": {"dev": results}, "data": {"used": 1, "dropped": {}}}))
    (folder / "resolved.yaml").write_text("name: fake\ntask: {type: diarize}\n")
    return folder, rows, results


def test_the_report_shows_the_worst_first(run):
    folder, _, results = run
    html = write_report(folder).read_text()
    page = Page(html)
    text = " ".join(" ".join(page.text).split())
    order = [text.rindex(f" {name} ") for name in ("wrong", "long", "right")]
    assert order == sorted(order)
    assert "Speaker diarization" in text and "3 recordings with 22 s of speech, 1 without any error" in text
    details = results["der"]["details"]
    assert f"missed {100 * details['miss_rate']:.1f} %, false alarm 0.0 %" in text
    assert "no collar, overlap scored" in text
    assert "Examples and errors" not in text  # those are of texts
    assert EVIL not in html and any("alert" in t for t in page.text)
    assert len(page.all("audio")) == 1  # none for a long recording, none where there is no file
    assert [a["data-start"] for a in page.all("rect")][:1] == ["0.000"]


def test_a_run_that_writes_has_no_timelines(run_folder):
    assert "Speaker diarization" not in write_report(run_folder).read_text()


def test_only_so_many_are_drawn(run):
    _, rows, results = run
    view = timelines("dev", results, rows, SoundBudget(0), most=2)
    assert [d.id for d in view.drawings] == ["wrong", "long"] and view.more == 1
    assert not any(d.sound for d in view.drawings)
    assert view.groups == [
        (n, part["items"], f"{100 * part['value']:.2f} %")
        for n, part in results["der"]["details"]["by_speakers"].items()
    ]
    assert len(view.groups) == 2
