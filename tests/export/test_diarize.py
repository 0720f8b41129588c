"""Diarizers as ONNX graphs and for sherpa-onnx: `diarize.py` gives the segments of Stentor."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

import stentor
from alone import alone
from stentor.audio.io import write
from stentor.cli import main
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.onnx import diarize as graphs
from stentor.export.onnx.frontend import frontend
from stentor.export.program import load_program, program, write_program
from stentor.export.sherpa.diarize import speaker_sets
from stentor.models.base import Family
from stentor.tasks.base import Task

torch.set_num_threads(1)
RATE = 16000
SPEAKER, SETS = {"type": "speaker", "speakers": 3}, {"type": "powerset", "speakers": 3}


def recording(seconds, seed=0):
    """Three voices, of other pitches and formants, that take turns, overlap and pause; with noise."""
    rng, size = np.random.default_rng(seed), round(seconds * RATE)
    time, audio = np.arange(size) / RATE, 0.002 * rng.standard_normal(size)
    for pitch, formant in ((110, 500), (170, 1200), (260, 2500)):
        tones = [
            np.sin(2 * np.pi * pitch * k * time) * np.exp(-(((pitch * k - formant) / 600) ** 2)) for k in range(1, 25)
        ]
        talk = np.repeat(rng.random(round(seconds * 2) + 1) < 0.4, RATE // 2)[:size]
        audio += 0.1 * np.sum(tones, 0) * talk * (1 + 0.3 * rng.standard_normal(size))
    audio[size // 3 : size // 3 + RATE] = 0
    return audio.astype(np.float32)


def diarizer(folder, labels, windows, **keys):
    """An untrained model that is sure of what it says, as an export."""
    task = Task.model_validate({"type": "diarize", "labels": labels, "chunk": 2, "windows": windows})
    section = {"shared": {"d_model": 16, "layers": 1, "heads": 2}, "features": {"stack": 5, "subsample": 5}} | keys
    family = Family.model_validate({"type": "transformer", **section})
    torch.manual_seed(0)
    terms = task.losses() | ({"voices": None} if "embedding" in keys else {})
    needs = task.requirements({name: loss for name, loss in terms.items() if loss is not None})
    needs.scores = ("embeddings", "logits") if "embedding" in keys else ("logits",)
    bundle = family.build(needs)
    torch.nn.init.normal_(bundle.model.frame_head.weight)
    family.save(bundle, bundle.model.state_dict(), folder)
    settings = {"type": "diarize", "labels": labels, "chunk": 2, "windows": windows}
    training = {"task": settings, "data": {"eval": {}}, "train": {"precision": "fp32"}}
    (folder / "training_config.json").write_text(json.dumps(training))
    return stentor.load(folder, "cpu")


def untraced(model, folder):
    """The program with modules in place of the graphs."""
    bundle, task = model.bundle, graphs.frame_task(model)
    write_program(folder, "diarize", graphs.PROGRAM, parts=("audio",))
    names = ["logits", "frames", "scores"] + ["log_probs"] * (task.labels.type == "powerset") + ["embeddings"]
    seconds = bundle.processor.frame_seconds / task.windows.upsample
    voices = (
        graphs.EmbeddingsGraph(task.windows.upsample) if bundle.family.embedding else graphs.SpectraGraph(RATE, seconds)
    )
    wanted = "embeddings" if bundle.family.embedding else "audio"
    modules = {
        "features": lambda audio: dict(zip(("features", "lengths"), frontend(bundle.processor)(audio))),
        "diarizer": lambda **x: dict(
            zip(names, graphs.DiarizerGraph(bundle.model, task.labels, task.windows.upsample)(**x))
        ),
        "voices": lambda **x: {"voices": voices(x[wanted], x["active"])},
    }

    def run(name, **inputs):
        with torch.no_grad():
            outputs = modules[name](**{key: torch.from_numpy(value) for key, value in inputs.items()})
        return {key: value.numpy() for key, value in outputs.items()}

    found = load_program(folder, graphs.PROGRAM).Diarizer.__new__(load_program(folder, graphs.PROGRAM).Diarizer)
    facts = graphs.program_facts(bundle.processor, task, bundle.family.embedding)
    found.rate, found.seconds, found.labels, found.facts = RATE, facts["frame_seconds"], facts["labels"], facts
    found.sets = np.array(facts["labels"]["sets"], bool) if facts["labels"]["sets"] else None
    found.run = run
    return found


@pytest.mark.parametrize(
    ("labels", "windows", "keys"),
    [
        (SETS, {"change_cost": 1.5, "upsample": 2, "min_on": 0.2, "min_off": 0.3}, {"embedding": 8}),
        (SETS, {"threshold": 0.6, "offset": 0.4, "median": 3, "max_speakers": 2}, {}),
        (
            SPEAKER,
            {"step": 0.5, "window": 3},
            {"embedding": 8, "features": {"stack": 4, "subsample": 4, "normalize": "meanvar"}},
        ),
        (SPEAKER, {"cluster_threshold": 0.3, "upsample": 3}, {}),
        ({"type": "ego", "speakers": 2}, {"min_speakers": 3}, {}),
        ({"type": "binary"}, {"median": 5, "threshold": 0.4}, {}),
    ],
)
def test_segments_are_those_of_stentor(labels, windows, keys, tmp_path):
    model = diarizer(tmp_path / "model", labels, windows, **keys)
    found = untraced(model, tmp_path)
    counts = set()
    for number, seconds in enumerate((41.23, 9.0, 2.0, 1.1, 0.01)):
        audio = recording(seconds, number)
        [expected] = model.task.predict(model.bundle, [Example("a", audio)])
        assert found.diarize(audio) == expected["segments"], seconds
        counts.add(len({s["speaker"] for s in expected["segments"]}))
    assert max(counts) >= (1 if labels["type"] == "binary" else 2)
    assert found.diarize(np.zeros(5 * RATE, np.float32)) == []


def test_the_program_is_short():
    assert len(program("diarize", ("audio",)).splitlines()) <= 250


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clustering": "vbx"}, "vbx` runs in Stentor alone"),
        ({"embedding": {"from": "x"}}, "another model for the voices"),
    ],
)
def test_what_only_stentor_runs_is_refused(change, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        graphs.frame_task(diarizer(tmp_path, SETS, change))


def test_sets_are_those_of_pyannote():
    labels = Task.model_validate({"type": "diarize", "labels": SETS}).labels
    assert speaker_sets(labels) == labels.table.astype(int).tolist()
    assert len(speaker_sets(Task.model_validate({"type": "diarize", "labels": SPEAKER}).labels)) == 7


@pytest.mark.slow
def test_exports_run_in_onnxruntime_and_sherpa(tmp_path, capsys):
    """By the command line, with the comparison, int8, and the program where Stentor and torch cannot be imported."""
    for package in ("onnx", "onnxruntime", "sherpa_onnx"):
        pytest.importorskip(package)
    model = diarizer(tmp_path / "model", SETS, {"upsample": 2, "change_cost": 1.0}, embedding=8)
    options = ["--format", "onnx,sherpa", "--quantization", "float32,int8", "--allow-difference"]
    assert main(["export", str(tmp_path / "model"), "--to", str(tmp_path / "to"), *options]) == 0
    assert "16 clips" in capsys.readouterr().out
    for name in ("onnx", "sherpa"):
        rows = json.loads((tmp_path / "to" / name / "export.json").read_text())["rows"]
        assert [row["name"] for row in rows] == ["Stentor (torch)", "float32", "int8"]
        assert abs(rows[1]["score"] - rows[0]["score"]) < 0.005 and rows[2]["megabytes"] < rows[1]["megabytes"]
    audio = recording(15)
    write(tmp_path / "talk.wav", audio, RATE)
    printed = alone(tmp_path / "to" / "onnx" / "float32" / "diarize.py", tmp_path / "talk.wav")
    result = model.diarize(Path(tmp_path / "talk.wav"))
    assert printed == result.rttm() and result.segments
