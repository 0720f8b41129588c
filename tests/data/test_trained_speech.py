"""What training clips are like is measured, and clips are given in the same way afterwards."""

from types import SimpleNamespace

import numpy as np
import pytest

from stentor.audio.synth import RATE, say
from stentor.data.batch import Example
from stentor.data.trained_speech import TrainedSpeech, with_room
from stentor.sources.base import Source

SPEECH = say("turn on the kitchen light", voice="en-us+f3").audio_at(RATE)


def trained(**source) -> TrainedSpeech:
    speech = TrainedSpeech()
    speech.measure(list(Source.model_validate({"type": "synth", "texts": "digits", "count": 40, **source}).cuts()))
    return speech


def processor(max_seconds: float | None = None, room: float | None = 0.2) -> SimpleNamespace:
    return SimpleNamespace(trained_speech=TrainedSpeech(room), sample_rate=RATE, max_seconds=max_seconds)


def test_room_is_what_the_clips_have():
    tight, roomy, wide = (trained(silence=silence) for silence in (None, [0.1, 0.3], [0.4, 0.4]))
    assert tight.room is None and 0.15 < roomy.room < 0.3 < 0.4 < wide.room <= 0.5
    assert roomy.longest == pytest.approx(tight.longest + 0.4, abs=0.2) and roomy.pause == pytest.approx(tight.pause)


def test_room_is_heard_where_no_word_times_are_known(tmp_path):
    import json

    from stentor.audio.io import write

    silence = np.zeros(RATE * 3 // 10, np.float32)
    write(tmp_path / "a.wav", np.concatenate([silence, SPEECH, silence]), RATE)
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_path": "a.wav", "text": "turn on"}))
    speech = TrainedSpeech()
    speech.measure(list(Source.model_validate({"type": "jsonl", "path": str(tmp_path / "m.jsonl")}).cuts()))
    assert speech.room == pytest.approx(0.3, abs=0.12) and speech.pause is None and speech.pause_limit is None


def test_long_pauses_are_heard_where_no_word_times_are_known(monkeypatch):
    pause = np.zeros(3 * RATE, np.float32)
    monkeypatch.setattr("stentor.data.trained_speech.load_audio", lambda cut: np.concatenate([SPEECH, pause, SPEECH]))
    speech = TrainedSpeech()
    speech.measure([SimpleNamespace(duration=9.0, custom={}, supervisions=[])])
    assert speech.pause == pytest.approx(3.0, abs=0.3) and speech.pause_limit == speech.pause


def test_clips_are_filled_up_and_times_can_be_taken_back():
    heard = processor()
    (example,), (earlier,) = with_room(heard.trained_speech, heard, [Example("a", SPEECH)])
    start = round(earlier * RATE)
    assert earlier > 0.1 and np.array_equal(example.audio[start : start + len(SPEECH) // 2], SPEECH[: len(SPEECH) // 2])


@pytest.mark.parametrize("options", [{"room": None}, {"max_seconds": len(SPEECH) / RATE}])
def test_clips_stay_as_they_are(options):
    """Of models that know no room, and where the clip would get too long for the model."""
    heard = processor(**options)
    (example,), earlier = with_room(heard.trained_speech, heard, [Example("a", SPEECH)])
    assert example.audio is SPEECH and earlier == [0.0]


def test_windows_are_no_longer_than_clips_and_hold_no_longer_pauses():
    speech = TrainedSpeech(room=0.2, longest=7.0, pause=0.6)
    assert speech.window_seconds(30.0) == pytest.approx(6.6) and speech.pause_limit == 0.6
    assert TrainedSpeech(room=0.2, longest=60.0, pause=9.0).pause_limit == 9.0
    assert TrainedSpeech(pause=1.0).pause_limit is None and TrainedSpeech(pause=3.0).pause_limit == 3.0
    assert TrainedSpeech().window_seconds(30.0) == 30.0 and TrainedSpeech().pause_limit is None


def test_a_pretrained_model_keeps_the_long_pauses_of_its_training(tmp_path, here):
    """A wav2vec2 of transformers records nothing in its own files: the export's training_config.json does."""
    import json

    from stentor.audio.io import write
    from stentor.inference.load import load
    from stentor.inference.recording import ArrayRecording
    from wave_ctc import save_ctc

    audio = np.concatenate([SPEECH, np.zeros(3 * RATE, np.float32), SPEECH])
    write(tmp_path / "a.wav", audio, RATE)
    (tmp_path / "m.jsonl").write_text(json.dumps({"audio_path": "a.wav", "text": "on on"}) + "\n")
    (tmp_path / "base").mkdir()
    save_ctc(tmp_path / "base", ["<pad>", "<s>", "</s>", "<unk>", "|", *"NO"], 1.0)
    data = {"train": [{"type": "jsonl", "path": str(tmp_path / "m.jsonl")}], "workers": 0}
    (tmp_path / "run.yaml").write_text(
        json.dumps(
            {
                "task": {"type": "transcribe"},
                "model": {"type": "ctc", "from": str(tmp_path / "base")},
                "data": data,
                "losses": {"ctc": {"type": "ctc"}},
                "train": {"steps": 1, "device": "cpu"},
                "output": str(tmp_path / "runs"),
            }
        )
    )
    here("train", tmp_path / "run.yaml")
    (run,) = (tmp_path / "runs").iterdir()
    here("train", tmp_path / "run.yaml", "train.steps=2")  # what it has noted is no setting that has changed
    for folder, windows in ((run, 1), (tmp_path / "base", 2)):
        recording = ArrayRecording(audio, RATE, RATE, "talk")
        assert len(load(folder, "cpu").transcriber().plan(recording).windows) == windows
