"""Instance logs of streams: what omnisteval makes of them, computed anew from the events."""

import json
from statistics import mean

import numpy as np
import pytest

from stentor.commands.evaluate.streamed import write_instances
from stentor.data.batch import Prediction
from stentor.metrics.stream import StreamedRecording


@pytest.fixture
def log(tmp_path):
    """Twenty recordings of random words and times."""
    rng = np.random.default_rng(0)
    recordings, predictions = [], []
    for i in range(20):
        seconds, count = float(rng.uniform(2, 9)), int(rng.integers(1, 12))
        times = np.sort(rng.uniform(0.3, seconds, count)).round(3).tolist()
        times[-1] = seconds if i % 3 == 0 else times[-1]  # some words come at the end
        events = [{"type": "partial", "text": "w", "time": 0.1, "done": 0.1}]
        events += [{"type": "word", "word": f"w{k}", "time": t, "done": t + 0.25} for k, t in enumerate(times)]
        events.append({"type": "end_of_speech", "time": seconds, "done": seconds})
        recordings.append(StreamedRecording([], events, seconds, 0.1))
        text = " ".join(f"w{k}" for k in range(count + int(rng.integers(0, 3))))
        predictions.append(Prediction(f"r{i}", {"text": text}, {}))
    path = tmp_path / "f.0.32.instances.jsonl"
    write_instances(path, predictions, recordings)
    return path, predictions, recordings


def times(recording, key):
    return [1000 * event[key] for event in recording.events if event["type"] == "word"]


def lagging(recording, reference, key, most=float("inf")):
    """Length-adaptive average lagging, ms: how far each word is behind an even pace through the recording. Words from
    `most` on are not counted."""
    emitted = times(recording, key)
    pace = 1000 * recording.seconds / max(len(emitted), len(reference.split()))
    lags = [t - k * pace for k, t in enumerate(emitted) if t < most]
    return mean(lags) if lags else None


def test_the_log_has_the_times_of_words(log):
    path, predictions, recordings = log
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for row, prediction, recording in zip(rows, predictions, recordings, strict=True):
        assert (row["source"], row["reference"]) == (prediction.id, prediction.reference["text"])
        assert len(row["prediction"].split()) == len(row["delays"]) == len(row["elapsed"])
        assert row["delays"] == pytest.approx(times(recording, "time"), abs=0.06)
        assert row["elapsed"] == pytest.approx(times(recording, "done"), abs=0.06)


def test_a_word_with_a_space_is_two_of_the_log(tmp_path):
    event = {"type": "word", "word": "New York", "time": 1.0, "done": 1.5}
    write_instances(tmp_path / "log", [Prediction("a", {"text": "x"}, {})], [StreamedRecording([], [event], 2.0, 0.1)])
    row = json.loads((tmp_path / "log").read_text())
    assert (row["prediction"], row["delays"], row["elapsed"]) == ("New York", [1000.0] * 2, [1500.0] * 2)


def test_omnisteval_reads_it(log):
    io = pytest.importorskip("omnisteval.io")
    from omnisteval.scoring import evaluate_instances

    path, predictions, recordings = log
    instances = io.load_shortform_instances(str(path), None, "delays", "elapsed")
    long, *_ = evaluate_instances(instances, compute_quality=False, is_longform=True)
    short, *_ = evaluate_instances(instances, compute_quality=False, is_longform=False)
    pairs = [(recording, p.reference["text"]) for recording, p in zip(recordings, predictions, strict=True)]
    for name, key in (("", "time"), ("ca_", "done")):
        assert long[f"{name}long_yaal"] == pytest.approx(mean(lagging(r, text, key) for r, text in pairs), abs=0.1)
        simultaneous = [lagging(r, text, key, 1000 * r.seconds) for r, text in pairs]
        assert short[f"{name}yaal"] == pytest.approx(mean(x for x in simultaneous if x is not None), abs=0.1)
        assert short[f"{name}ap"] == pytest.approx(
            mean(sum(times(r, key)) / (1000 * r.seconds * len(text.split())) for r, text in pairs), abs=1e-3
        )
