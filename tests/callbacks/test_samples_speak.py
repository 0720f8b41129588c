"""Answers that are speech, kept for the ear: as files in the run folder and in the trackers, each time anew."""

import json

import numpy as np
import pytest
import soundfile

from stentor.callbacks.samples import Samples, file_name
from stentor.callbacks.tracking import Tracking
from stentor.data.audio_base64 import encode_audio
from stentor.data.batch import Prediction
from stentor.engine.run_logger import RunLogger

RATE = 8000


def sound(level):
    return encode_audio(np.full(800, level, np.float32), RATE)


def spoken(name, level):
    return Prediction(name, {"text": "hello"}, {"audio": sound(level), "codec": sound(0.5), "seconds": 0.1}, 0.1)


def rows(trainer):
    return [json.loads(line) for line in (trainer.folder / "samples.jsonl").read_text().splitlines()]


def test_each_evaluation_has_its_files_and_the_codec_once(trainer):
    samples = Samples()
    samples.on_start(trainer)
    for trainer.step, level in ((5, 0.1), (10, 0.2)):
        samples.on_evaluate(trainer, "dev", {}, [spoken("a/b c", level)])
    first, second = rows(trainer)
    assert first["output"]["codec"] == second["output"]["codec"] and first["output"]["seconds"] == 0.1
    for row, level in ((first, 0.1), (second, 0.2)):
        assert row["output"]["audio"]["file"].startswith(f"samples/step-{row['step']:06d}/dev/a_b_c-")
        waveform, rate = soundfile.read(trainer.folder / row["output"]["audio"]["file"])
        assert rate == RATE and waveform == pytest.approx(level, abs=1e-3)


def test_steps_that_are_taken_back_leave_no_files(trainer):
    samples = Samples()
    for trainer.step in (5, 10):
        samples.on_evaluate(trainer, "dev", {}, [spoken("a", 0.1)])
    trainer.step = 5
    samples.on_start(trainer)
    assert sorted(p.name for p in (trainer.folder / "samples").iterdir()) == ["codec", "step-000005"]
    assert [r["step"] for r in rows(trainer)] == [5]


def test_each_stage_has_its_folder(trainer):
    trainer.step = 5
    for stage in ("1", "2"):
        trainer.logger = RunLogger(trainer.folder, True, stage)
        Samples().on_evaluate(trainer, "dev", {}, [spoken("a", 0.1)])
        trainer.logger.close()
    files = [r["output"]["audio"]["file"] for r in rows(trainer)]
    assert files == [f"samples/stage-{stage}/step-000005/dev/a.wav" for stage in (1, 2)]


def test_answers_in_words_write_no_files(trainer):
    Samples().on_evaluate(trainer, "dev", {}, [Prediction("a", {"text": "a"}, {"text": "b"})])
    assert not (trainer.folder / "samples").exists() and rows(trainer)[0]["output"] == {"text": "b"}


def test_trackers_hear_each_evaluation(trainer):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracking, samples = Tracking(tensorboard=True), Samples()
    tracking.on_start(trainer)
    for trainer.step in (5, 10):
        samples.on_evaluate(trainer, "dev", {}, [spoken("a", 0.1)])
    tracking.on_end(trainer, None)
    events = EventAccumulator(str(trainer.folder / "tensorboard"), size_guidance={"audio": 0})
    events.Reload()
    assert [(s.step, s.sample_rate) for s in events.Audio("spoken/dev/a")] == [(5, 8000.0), (10, 8000.0)]
    table = events.Tensors("samples/dev/text_summary")[-1].tensor_proto.string_val[0].decode()
    assert "hello" in table and "flac" not in table and not trainer.messages


def test_names_of_files_are_plain_and_each_its_own():
    assert file_name("dev-1.2_x") == "dev-1.2_x"
    odd = ["a/b", "a b", "a:b", "../a", "x" * 300, "日本語", ""]
    names = [file_name(name) for name in odd]
    assert len(set(names)) == len(odd)
    assert all(n and len(n) < 100 and "/" not in n and not n.startswith(".") for n in names)
