"""CTC models as ONNX graphs and for sherpa-onnx, in the real runtimes."""

import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs stentor[onnx]")

import tiny_ctc  # noqa: E402
from tiny_families import shake  # noqa: E402

import stentor  # noqa: E402
from alone import alone  # noqa: E402
from stentor.audio.io import write  # noqa: E402
from stentor.audio.synth import say  # noqa: E402
from stentor.cli import main  # noqa: E402
from stentor.export.onnx.ctc import CTCGraph, units  # noqa: E402
from stentor.models.base import Family, TaskRequirements  # noqa: E402

OWN = {
    "type": "transformer",
    "shared": {"d_model": 32, "layers": 1, "heads": 2, "dropout": 0.0},
    "features": {"stack": 4, "subsample": 4, "num_mel_bins": 40},
}


def own(**keys):
    torch.manual_seed(0)
    family = Family.model_validate({**OWN, **keys})
    bundle = family.build(TaskRequirements("transcribe", ("ctc",), lambda: iter(tiny_ctc.TEXTS)))
    bundle.model.eval()
    return bundle


def exported(bundle, folder, *options):
    """The folder of a model with shaken weights, and its export."""
    shake(bundle, 0.15)
    bundle.family.save_merged(bundle, folder / "model")
    facts = {"task": {"type": "transcribe", "checks": {"on": False}}, "data": {"eval": {}}}
    (folder / "model" / "training_config.json").write_text(json.dumps(facts))
    assert main(["export", str(folder / "model"), "--to", str(folder / "to"), *options]) == 0
    return folder / "model", folder / "to"


def rows(folder):
    """Rows of the table of an export by name."""
    return {row["name"]: row for row in json.loads((folder / "export.json").read_text())["rows"]}


def same_as_stentor(model, folder, tmp_path):
    """Whether the program gives words and segments that Stentor gives for a recording of several windows."""
    clips = [say(text).audio for text in ("three seven nine", "one")]
    audio = torch.cat([torch.from_numpy(c) for c in (clips[0], 0 * clips[0], 0 * clips[0], clips[1])]).numpy()
    write(tmp_path / "speech.wav", audio, 16000)
    printed = [alone(folder / "transcribe.py", tmp_path / "speech.wav", *extra) for extra in ([], ["--words"])]
    lines = [[line.split(maxsplit=3) for line in each.splitlines()] for each in printed]
    segments = stentor.load(model, "cpu").transcribe(tmp_path / "speech.wav").segments
    assert [line[3] for line in lines[0]] == [s["text"] for s in segments] and segments
    assert " ".join(line[3] for line in lines[1]).split() == " ".join(s["text"] for s in segments).split()
    starts = [float(line[1]) for line in lines[1]]
    assert starts == sorted(starts) and len((folder / "transcribe.py").read_text().splitlines()) <= 250


@pytest.mark.slow
def test_raw_audio_in_both_runtimes(tmp_path):
    """In sherpa-onnx in its class for raw audio; and with weights in 8 bits."""
    pytest.importorskip("sherpa_onnx")
    options = ["--format", "onnx,sherpa", "--quantization", "float32,int8", "--allow-difference"]
    model, to = exported(tiny_ctc.build("wav2vec2"), tmp_path, *options)
    for name in ("onnx", "sherpa"):
        row = rows(to / name)["float32"]
        assert row["differ"] == 0 and row["times_ms"][1] <= 1 and "int8" in rows(to / name)
    assert "from_omnilingual_asr_ctc" in (to / "sherpa" / "README.md").read_text()
    same_as_stentor(model, to / "onnx" / "float32", tmp_path)


@pytest.mark.slow
def test_onnx_asr_reads_models_with_parakeets_features(tmp_path):
    onnx_asr = pytest.importorskip("onnx_asr")
    config = {**tiny_ctc.CONFIGS["parakeet"]}
    config["encoder_config"] = {**config["encoder_config"], "num_mel_bins": 80}
    model, folder = exported(tiny_ctc.build(config=config), tmp_path, "--format", "onnx")
    assert rows(folder)["float32"]["differ"] == 0
    clip = say("three seven nine").audio
    theirs = onnx_asr.load_model("nemo-conformer-ctc", folder).recognize(clip)
    assert theirs == stentor.load(model, "cpu").transcribe(clip, 16000).text != ""


@pytest.mark.slow
def test_parakeets_features_are_in_the_graph_for_sherpa_onnx(tmp_path):
    """It brings audio to one loudness, and what that changes is in the table."""
    pytest.importorskip("sherpa_onnx")
    _, folder = exported(tiny_ctc.build("parakeet"), tmp_path, "--format", "sherpa", "--allow-difference")
    assert "from_omnilingual_asr_ctc" in (folder / "README.md").read_text()
    assert rows(folder)["float32"]["rtf"] > 0


@pytest.mark.parametrize("kind", ["wav2vec2", "parakeet"])
def test_what_writes_nothing_counts_as_blank(kind):
    """The text of the likeliest classes is that of the model, and words are separated by spaces."""
    bundle = shake(tiny_ctc.build(kind), 0.3)
    inputs = bundle.processor.collate(tiny_ctc.examples(), labels=False).inputs
    with torch.no_grad():
        scores, frames = CTCGraph(bundle, 2)(inputs["features"], inputs["lengths"])
        answers = bundle.model.generate(inputs, [])
    written = units(bundle)
    for path, count, answer in zip(scores.argmax(-1).tolist(), frames.tolist(), answers):
        classes = [c for before, c in zip([None, *path], path[:count]) if c != before]
        assert "".join(written[c] for c in classes).strip() == bundle.processor.decode(answer.ids).strip()


@pytest.mark.parametrize(
    ("features", "message"),
    [({"subsample": 3}, "frames of 0.04 s"), ({"frame_length": 0.032, "subsample": 4}, "another frame_length")],
)
def test_what_sherpa_onnx_cannot_do_is_a_sentence(features, message, tmp_path, capsys):
    pytest.importorskip("sherpa_onnx")
    bundle = own(features=features)
    bundle.family.save_merged(bundle, tmp_path / "model")
    assert main(["export", str(tmp_path / "model"), "--to", str(tmp_path / "to"), "--format", "sherpa"]) == 2
    assert message in capsys.readouterr().err and not (tmp_path / "to").exists()
