"""From a path to a model."""

import json

import numpy as np
import pytest

import stentor
from stentor.errors import AudioError, ConfigError
from stentor.inference.load import find_export, load, pick_device


def test_three_lines_of_python(export, tone):
    model = stentor.load(export())
    transcript = model.transcribe(tone("a.wav", (2, -10)), language="en")
    assert transcript["text"] == "level 10"
    assert transcript["duration"] == 2.0
    assert transcript["model"].endswith("model")
    (segment,) = transcript["segments"]
    assert (segment["text"], segment["log_prob"]) == ("level 10", -0.1)
    assert (segment["start"], segment["end"]) == pytest.approx((0, 2), abs=0.1)
    assert transcript.words is None


def swelling() -> np.ndarray:
    """A second of a tone of -20 dB at 44.1 kHz that swells and fades as syllables do."""
    time = np.arange(44100) / 44100
    return 0.1 * np.sin(2 * np.pi * 300 * time) * (0.55 - 0.45 * np.cos(2 * np.pi * 4 * time))


def test_arrays(export):
    model = load(export())
    audio = swelling()
    assert model.transcribe(audio, rate=44100)["text"] == "level 20"
    for stereo in (np.stack([audio, audio]), np.stack([audio, audio], axis=1)):  # torchaudio's and soundfile's
        transcript = model.transcribe(stereo, rate=44100)
        assert (transcript["text"], transcript["duration"]) == ("level 20", pytest.approx(1.0))
    with pytest.raises(ConfigError, match="needs `rate`"):
        model.transcribe(audio)
    with pytest.raises(AudioError, match=r"\[0\]"):
        model.transcribe(np.zeros(0), rate=16000)
    with pytest.raises(AudioError, match="NaN"):
        model.transcribe(np.full(100, np.nan), rate=16000)


def test_the_task_is_the_one_it_was_trained_with(export, tmp_path):
    folder = export()
    (folder / "training_config.json").write_text(
        json.dumps({"task": {"type": "transcribe", "normalizer": "none", "checks": {"on": False}}})
    )
    assert load(folder).task.checks.on is False
    (folder / "training_config.json").unlink()
    assert load(folder).task.checks.on is True


def test_word_times_in_three_lines_of_python(export, tone):
    model = stentor.load(export(task="words"))
    audio, rate = swelling(), 44100
    transcript = model.transcribe(audio, rate)
    assert transcript.text == transcript["text"] == "level 20"
    assert transcript.words == [
        {"word": "level", "start": 0.1, "end": 0.4, "confidence": pytest.approx(1, abs=1e-3)},
        {"word": "20", "start": 0.5, "end": 1.0, "confidence": pytest.approx(1, abs=1e-3)},
    ]
    assert transcript.segments[0]["text"] == "level 20"
    assert json.loads(json.dumps(transcript)) == transcript
    without = model.transcribe(tone("a.wav", (2, -10)), words=False)
    assert without.words is None and "words" not in without


def test_a_model_that_was_not_trained_for_word_times_says_what_to_do(export, tone):
    with pytest.raises(ConfigError, match=r"no word times: it was trained for the task transcribe.*type: words"):
        load(export()).transcribe(tone("a.wav", (1, -10)), words=True)


def test_places_where_an_export_is_found(export, tmp_path):
    run = tmp_path / "run"
    checkpoints = run / "checkpoints"
    for step in (1, 2):
        export(checkpoints / f"step-{step:06d}" / "export")
    (checkpoints / "latest").write_text("step-000002\n")
    assert find_export(run) == checkpoints / "step-000002" / "export"
    (checkpoints / "best").write_text("step-000001\n")
    assert find_export(run) == checkpoints / "step-000001" / "export"
    (checkpoints / "best").write_text("step-000009\n")  # deleted since
    assert find_export(str(run)) == checkpoints / "step-000002" / "export"
    final = export(run / "export")
    assert find_export(run) == find_export(final) == final
    assert find_export(checkpoints / "step-000001") == checkpoints / "step-000001" / "export"


def test_where_there_is_none(tmp_path):
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(ConfigError, match="neither a run folder nor an export folder"):
        find_export(empty)
    (empty / "checkpoints").mkdir()
    with pytest.raises(ConfigError, match="not saved a checkpoint yet"):
        find_export(empty)
    (tmp_path / "a.wav").write_bytes(b"x")
    with pytest.raises(ConfigError, match="is a file"):
        find_export(tmp_path / "a.wav")
    with pytest.raises(ConfigError, match="no such folder, and not a Hub id"):
        find_export(tmp_path / "nothing")


def test_hub_ids(export, tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    folder = export()
    asked = []

    def answer(name, **options):
        asked.append((name, options["ignore_patterns"]))
        return str(folder)

    def offline(name, **options):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", answer)
    assert find_export("someone/model") == folder
    assert asked[0][0] == "someone/model" and "*.bin" in asked[0][1] and "*.pkl" in asked[0][1]
    monkeypatch.setattr(huggingface_hub, "snapshot_download", offline)
    with pytest.raises(ConfigError, match=r"no folder someone/model here, and the Hugging Face Hub cannot be reached"):
        find_export("someone/model")


def test_what_is_no_model_of_ours(export):
    folder = export()
    (folder / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(
        ConfigError, match=r"model_type 'bert', which no known model family loads. Known families: .*test_meter"
    ):
        load(folder)
    (folder / "config.json").write_text("{")
    with pytest.raises(ConfigError, match="cannot be read as JSON"):
        load(folder)
    (folder / "config.json").write_text("[]")
    with pytest.raises(ConfigError, match="no JSON object"):
        load(folder)


def test_devices():
    import torch

    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")
    with pytest.raises(ConfigError, match="Unknown device gpu"):
        pick_device("gpu")
    with pytest.raises(ConfigError, match="no device cuda:99"):
        pick_device("cuda:99")
