"""`stentor diarize` and `stentor evaluate --tune` as a user runs them."""

import json

import numpy as np
import pytest
import soundfile

RATE = 16000
TURNS = [(0, 0.0, 4.0), (1, 4.5, 8.0), (0, 7.0, 11.0), (2, 40.0, 47.0), (1, 60.0, 64.0)]


def test_rttm_on_standard_output(diarizer, talk, run):
    code, out, err = run("diarize", diarizer(), talk("a b.wav", 66, TURNS))
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        f"SPEAKER a_b 1 {start:.3f} {end - start:.3f} <NA> <NA> speaker_{k + 1} <NA> <NA>" for k, start, end in TURNS
    ]


def test_json_on_standard_output(diarizer, talk, run):
    model, files = diarizer(), [talk("a.wav", 66, TURNS), talk("b.wav", 3, [(4, 1.0, 2.0)], rate=8000)]
    code, out, _ = run("diarize", model, *files, "--format", "json")
    assert code == 0
    first, second = map(json.loads, out.splitlines())
    assert list(first) == ["audio", "duration", "speakers", "segments", "model"]
    assert (first["audio"], first["duration"], first["model"]) == (str(files[0]), 66.0, str(model))
    assert first["speakers"] == ["speaker_1", "speaker_2", "speaker_3"]
    assert first["segments"][0] == {"speaker": "speaker_1", "start": 0.0, "end": 4.0}
    assert second["speakers"] == ["speaker_1"]


def test_files_in_a_folder(diarizer, talk, tmp_path, run):
    files = [talk("x/a.wav", 5, [(0, 1.0, 2.0)]), talk("y/a.wav", 5, [(1, 1.0, 3.0)])]
    out = tmp_path / "made" / "out"
    code, printed, _ = run("diarize", diarizer(), *files, "--out", out, "--format", "json,rttm")
    assert (code, printed) == (0, "")
    assert sorted(p.name for p in out.glob("[!.]*")) == ["x_a.json", "x_a.rttm", "y_a.json", "y_a.rttm"]
    assert (out / "y_a.rttm").read_text() == "SPEAKER y_a 1 1.000 2.000 <NA> <NA> speaker_1 <NA> <NA>\n"
    assert json.loads((out / "x_a.json").read_text())["segments"] == [{"speaker": "speaker_1", "start": 1, "end": 2}]


def test_fewer_speakers_than_asked_for_are_told(diarizer, talk, run):
    path, model = talk("a.wav", 66, TURNS), diarizer()
    code, out, err = run("diarize", model, path, "--format", "json", "--speakers", "20")
    result = json.loads(out)
    count = len(result["speakers"])
    assert code == 0 and count < 20
    assert (
        err.strip()
        == result["warning"]
        == (
            f"{path}: found {count} speakers, not 20. The model distinguishes 2 at a time, and there are no more "
            "different voices."
        )
    )
    assert run("diarize", model, path, "--speakers", "2")[2] == ""


def test_unreadable_files_are_named_and_the_others_done(diarizer, talk, tmp_path, run):
    broken, empty = tmp_path / "broken.wav", tmp_path / "empty.wav"
    broken.write_bytes(b"RIFF not a wav file")
    soundfile.write(empty, np.zeros(0), RATE)
    files = [talk("a.wav", 3, [(0, 1.0, 2.0)]), broken, tmp_path / "missing.wav", empty, talk("b.wav", 3, [(0, 0, 1)])]
    out = tmp_path / "out"
    code, _, err = run("diarize", diarizer(), *files, "--out", out)
    assert code == 3
    assert sorted(p.name for p in out.glob("[!.]*")) == ["a.rttm", "b.rttm"]
    lines = err.strip().splitlines()
    assert "broken.wav" in lines[0] and "missing.wav does not exist" in lines[1] and "empty.wav" in lines[2]
    assert "3 of 5 files could not be diarized" in lines[-1] and "the others are done" in lines[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--format", "srt"], "Unknown --format srt; known: rttm, json"),
        (["--format", "rttm,json"], "--out"),
        (["--speakers", "2", "--max-speakers", "3"], "not both"),
        (["--min-speakers", "4", "--max-speakers", "3"], "must not be above max_speakers"),
        (["--device", "tpu9"], "Unknown device"),
    ],
)
def test_wrong_usage(diarizer, talk, run, options, message):
    code, out, err = run("diarize", diarizer(), talk("a.wav", 1, []), *options)
    assert (code, out) == (2, "")
    assert message in err and len(err.strip().splitlines()) == 1


def test_a_model_of_another_task(export, talk, run):
    code, _, err = run("diarize", export(), talk("a.wav", 1, []))
    assert code == 2 and "was trained for the task transcribe, not to diarize" in err


@pytest.mark.parametrize("labels", [{"type": "powerset", "speakers": 3}, {"type": "speaker", "speakers": 2}, "overlap"])
def test_a_transformer_of_our_own(labels, talk, tmp_path, run):
    """Untrained, on its own features, through every kind of labels: that it can be read is what counts."""
    from stentor.data.rttm import read_rttm
    from stentor.models.transformer.config import Transformer
    from stentor.tasks.diarize.task import Diarize

    task = Diarize.model_validate({"type": "diarize", "chunk": 5.0, "labels": labels, "windows": {"step": 0.4}})
    family = Transformer.model_validate(
        {
            "type": "transformer",
            "encoder": {"d_model": 16, "layers": 1, "heads": 2},
            "features": {"type": "fbank", "num_mel_bins": 20, "stack": 10, "subsample": 10},
        }
    )
    bundle = family.build(task.requirements(task.losses()))
    model = tmp_path / "model"
    model.mkdir()
    family.save(bundle, dict(bundle.model.state_dict()), model)
    (model / "training_config.json").write_text(json.dumps({"task": task.model_dump(mode="json", by_alias=True)}))
    files = [talk("a.wav", 23.4, TURNS[:3]), talk("b.wav", 0.3, [(0, 0, 0.2)])]
    for file in files:  # such a model may hear somebody where there is nothing but noise
        audio, rate = soundfile.read(file)
        soundfile.write(file, audio + 1e-3 * np.random.default_rng(0).standard_normal(len(audio)), rate)
    code, _, err = run("diarize", model, *files, "--format", "json,rttm", "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    diarization = json.loads((tmp_path / "out" / "a.json").read_text())
    assert diarization["duration"] == 23.4
    assert all(0 <= s["start"] < s["end"] <= 23.4 for s in diarization["segments"])
    read = read_rttm(tmp_path / "out" / "a.rttm").get("a", [])
    assert {s["speaker"] for s in read} == set(diarization["speakers"])


# evaluate --tune ------------------------------------------------------------------------------------------------------


@pytest.fixture
def dev(tmp_path, talk):
    """A development set with faults that settings can mend: the tones have short holes that the reference has not, and
    clicks that nobody says. Returns its manifest."""
    lines = []
    for i in range(3):
        turns, segments = [], []
        for k in range(10):
            start = 5.0 * k + i
            turns += [(k % 2, start, start + 1.5), (k % 2, start + 1.7, start + 3.5), (2 + i, start + 4.2, start + 4.3)]
            segments.append({"speaker": "ab"[k % 2], "start": start, "end": start + 3.5})
        path = talk(f"dev{i}.wav", 55, turns)
        lines.append(json.dumps({"audio_path": path.name, "id": f"dev{i}", "segments": segments, "duration": 55.0}))
    manifest = tmp_path / "dev.jsonl"
    manifest.write_text("\n".join(lines) + "\n")
    return manifest


@pytest.mark.long
def test_tune_finds_settings_and_stores_them(diarizer, dev, tmp_path, run):
    model = diarizer(windows={"batch": 8})
    before = json.loads((model / "training_config.json").read_text())
    code, out, err = run("evaluate", model, "--data", dev, "--tune", "--json", tmp_path / "tuned.json")
    assert (code, err) == (0, "")
    figures = json.loads((tmp_path / "tuned.json").read_text())
    first, last = figures["before"]["der"]["value"], figures["after"]["der"]["value"]
    assert first > 0.05 and last < 0.01
    assert out.startswith("3 records  der 5.90 % -> ")
    stored = json.loads((model / "training_config.json").read_text())
    assert stored["task"]["windows"] == figures["windows"]
    assert stored["task"]["windows"]["batch"] == 8  # what is not searched stays
    assert {k: v for k, v in stored.items() if k != "task"} == {k: v for k, v in before.items() if k != "task"}
    assert not list(model.glob(".*.part"))
    # What follows uses them.
    run("evaluate", model, "--data", dev, "--json", tmp_path / "again.json")
    again = json.loads((tmp_path / "again.json").read_text())
    assert again["eval"]["der"]["value"] == pytest.approx(last, abs=1e-9)
    code, out, _ = run("diarize", model, tmp_path / "dev0.wav")
    assert len(out.splitlines()) == 10
    # Tuning again finds nothing better.
    code, out, _ = run("evaluate", model, "--data", dev, "--tune")
    assert code == 0 and "no other settings are better" in out
    assert json.loads((model / "training_config.json").read_text()) == stored


def test_tune_finds_the_clustering_threshold(diarizer, tmp_path, talk, run):
    """With a threshold that no two voices reach, whoever is alone in a window is the same speaker."""
    turns = [(k % 3, 15.0 * k, 15.0 * k + 4) for k in range(9)]
    path = talk("far.wav", 135, turns)
    segments = [{"speaker": str(k), "start": a, "end": b} for k, a, b in turns]
    manifest = tmp_path / "far.jsonl"
    manifest.write_text(json.dumps({"audio_path": path.name, "segments": segments, "duration": 135.0}) + "\n")
    model = diarizer(windows={"cluster_threshold": 2.5})
    assert len(set(run("diarize", model, path)[1].split()[7::10])) == 1
    code, out, _ = run("evaluate", model, "--data", manifest, "--tune")
    assert code == 0 and "cluster_threshold 2.5 -> " in out
    assert len(set(run("diarize", model, path)[1].split()[7::10])) == 3


def test_tune_refusals(diarizer, export, dev, tmp_path, run):
    assert "stores what it finds in the model's folder" in run("evaluate", "owner/model", "--data", dev, "--tune")[2]
    code, _, err = run("evaluate", export(tmp_path / "asr"), "--data", dev, "--tune")
    assert code == 2 and "trained for the task transcribe" in err
    checkpoint = tmp_path / "run" / "checkpoints" / "step-000010"
    diarizer(checkpoint / "export")
    (checkpoint / "meta.json").write_text("{}")
    (checkpoint.parent / "latest").write_text("step-000010\n")
    code, _, err = run("evaluate", tmp_path / "run", "--data", dev, "--tune")
    assert code == 2 and "is not finished" in err and "stentor export" in err
    code, _, err = run("evaluate", tmp_path / "run", "--data", dev, "--tune", "--task", "diarize")
    assert code == 2 and "--tune" in err


@pytest.mark.parametrize("task", ["transcribe", "language"])
def test_a_model_is_not_scored_on_a_task_that_only_its_family_serves(
    diarizer, tones, talk, tmp_path, run, monkeypatch, task
):
    monkeypatch.setattr(tones, "tasks", ("diarize", task))
    talk("a.wav", 3, [(0, 1.0, 2.0)])
    (tmp_path / "text.jsonl").write_text(json.dumps({"id": "a", "audio_path": "a.wav", "text": "hello"}) + "\n")
    code, _, err = run("evaluate", diarizer(), "--data", tmp_path / "text.jsonl", "--task", task)
    assert code == 2 and f"is a model for diarize; it cannot be scored on task {task}" in err
