"""Stages of `stentor prepare segments` that need a diarizer, and the exact parts of others."""

import json
from itertools import pairwise

import numpy as np
import pytest

from stentor.cli import main
from stentor.errors import AudioError
from stentor.inference.recording import DecodedRecording
from stentor.inference.segments.hallucinations import repeats
from stentor.inference.segments.speakers import joined, stretches
from stentor.inference.vad import open_detector


def test_segments_of_one_speaker_each_without_overlap(diarizer, talk, tmp_path):
    """Two people over 40 s, more than one window of the model; they speak at once from 8 to 10 s."""
    turns = [(0, 0.5, 6), (1, 6, 10), (0, 8, 14), (1, 15, 20), (0, 20, 20.6), (1, 20.6, 26), (0, 30, 38)]
    folder = tmp_path / "talks"
    talk("talks/two.wav", 40, turns)
    stages = ["--stage", "vad,silence=0.8,seconds=[0.5,30]", "--stage", f"speakers,model={diarizer()},pause=0.4"]
    out = tmp_path / "out"
    assert main(["prepare", "segments", str(folder), "--to", str(out), "--device", "cpu", *stages]) == 0
    kept, rejects = (
        [json.loads(line) for line in (out / f"{n}.jsonl").read_text().splitlines()] for n in ("manifest", "rejects")
    )
    names: dict[str, set[int]] = {}
    for record in kept:
        start, end = record["start"], record["start"] + record["duration"]
        who = {v for v, a, b in turns if min(end, b) - max(start, a) > 0.25}
        assert len(who) == 1, record
        names.setdefault(record["speaker"], set()).update(who)
    assert sorted(map(tuple, names.values())) == [(0,), (1,)], "a name stands for one person through the recording"
    assert all(name.startswith("two.wav/") for name in names)
    overlap = [(r["start"], r["start"] + r["duration"]) for r in rejects if r["reason"] == "overlap"]
    assert len(overlap) == 1 and overlap[0] == pytest.approx((8, 10), abs=0.2)
    short = [r for r in rejects if r["stage"] == "speakers" and r["reason"] == "too_short"]
    assert len(short) == 1 and short[0]["start"] == pytest.approx(20, abs=0.2) and short[0]["threshold"] == 1.0
    spans = sorted((r["start"], r["start"] + r["duration"]) for r in (*kept, *rejects))
    assert spans[0][0] == 0 and spans[-1][1] == pytest.approx(40)
    assert all(b[0] == pytest.approx(a[1], abs=0.0011) for a, b in pairwise(spans)), "nothing twice, nothing lost"


def test_a_model_that_tells_no_speakers_apart_is_refused(diarizer, talk, tmp_path, capsys):
    model = diarizer()
    (model / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}, "train": {}}))
    talk("talks/one.wav", 5, [(0, 1, 4)])
    to = str(tmp_path / "out")
    assert main(["prepare", "segments", str(tmp_path / "talks"), "--to", to, "--stage", f"speakers,model={model}"]) == 2
    assert "was trained for the task transcribe" in capsys.readouterr().err


def test_stretches_and_short_pauses():
    turns = [
        {"speaker": "A", "start": 1.0, "end": 3.0},
        {"speaker": "A", "start": 3.3, "end": 5.0},
        {"speaker": "B", "start": 4.5, "end": 6.0},
        {"speaker": "B", "start": 9.0, "end": 12.0},
    ]
    a, b, both, nobody = frozenset("A"), frozenset("B"), frozenset("AB"), frozenset()
    cut = stretches(turns, 0.8, 10.0)
    assert cut == [
        (0.8, 1.0, nobody),
        (1.0, 3.0, a),
        (3.0, 3.3, nobody),
        (3.3, 4.5, a),
        (4.5, 5.0, both),
        (5.0, 6.0, b),
        (6.0, 9.0, nobody),
        (9.0, 10.0, b),
    ]
    assert joined(cut, 0.5) == [(0.8, 4.5, a), (4.5, 5.0, both), (5.0, 6.0, b), (6.0, 9.0, nobody), (9.0, 10.0, b)]
    assert joined(stretches([], 0, 1), 2.0) == [(0, 1, nobody)]


@pytest.mark.parametrize(
    ("text", "times"),
    [
        ("", 1),
        ("one", 1),
        ("no no no no", 4),
        ("a b a b a b c", 3),
        ("a b c a b", 1),
        ("x y z x y z", 2),
        ("a b b a", 2),
    ],
)
def test_repeats(text, times):
    assert repeats(text.split()) == times


def test_a_decoded_recording_is_the_same_at_any_rate_and_in_parts(talk):
    path = talk("a.wav", 130, [(0, 1, 129)], rate=8000)
    recording = DecodedRecording.of_file(str(path), "a")
    assert recording.seconds == 130 and recording.rate == 8000 and recording.at(8000) is recording
    other = recording.at(16000)
    assert other is recording.at(16000) and len(np.concatenate(list(other.blocks()))) == 130 * 16000
    assert np.array_equal(np.concatenate(list(other.blocks()))[320000:320100], other.read(320000, 320100))
    part = DecodedRecording.of_file(str(path), "a", 60.0, 5.0)
    assert np.array_equal(part.read(0, 40000), recording.read(480000, 520000))
    assert open_detector().activity(part.blocks(), 8000).samples == 40000
    with pytest.raises(AudioError, match="no samples"):
        DecodedRecording([], 8000, "nothing")
