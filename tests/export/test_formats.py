"""One tiny model of each kind as ONNX graphs and for sherpa-onnx: written once, run in the real runtime, and quantised
from the same folder. The command, sixteen clips and other models of a kind are in the slow tests of the kind."""

import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parents[1]
sys.path[:0] = [str(Path(__file__).parent), *(str(TESTS / part) for part in ("models", "inference"))]
for package in ("onnx", "onnxscript", "onnxruntime"):
    pytest.importorskip(package, reason="needs stentor[onnx]")

import test_ctc  # noqa: E402
import test_diarize  # noqa: E402
import test_transducer  # noqa: E402
from recognisers import save  # noqa: E402
from speaking import make_model  # noqa: E402
from tiny_families import shake  # noqa: E402
from tiny_seq2seq import talking  # noqa: E402
from tiny_transducers import OWN_ENCODER  # noqa: E402

from stentor.audio.synth import say  # noqa: E402
from stentor.data.batch import Example  # noqa: E402
from stentor.export.onnx import exporter as graphs  # noqa: E402
from stentor.export.speech import spoken  # noqa: E402
from stentor.export.table import exporter_of  # noqa: E402
from stentor.inference.load import load  # noqa: E402

pytestmark = pytest.mark.long
ONE_LAYER = {**OWN_ENCODER, "num_mel_bins": 80, "num_hidden_layers": 1}
KINDS = {
    "ctc": lambda folder: save(shake(test_ctc.own(), 0.15), folder),
    "seq2seq": lambda folder: talking("whisper", folder),
    "transducer": lambda folder: save(test_transducer.own(ONE_LAYER), folder),
    "diarize": lambda folder: test_diarize.diarizer(folder, test_diarize.SETS, {}, embedding=8).folder,
    "omnivoice": make_model,
}
SLOW = [("omnivoice", "onnx"), ("diarize", "onnx")]


def examples(kind):
    if kind == "diarize":
        return [Example(str(seconds), test_diarize.recording(seconds)) for seconds in (9.0, 2.0)]
    if kind == "omnivoice":
        return [Example("a", text="one two", extra={"instruct": None, "seed": 1, "voice": None})]
    return [Example(text, say(text).audio, text, "en") for text in test_transducer.SAID[:2]]


ROWS = [("ctc", "onnx"), ("ctc", "sherpa"), ("transducer", "onnx"), ("transducer", "sherpa"), ("seq2seq", "onnx")]
ROWS += [pytest.param(*row, marks=pytest.mark.slow) for row in SLOW]


@pytest.mark.parametrize(("kind", "format"), ROWS)
def test_the_runtime_gives_what_the_model_gives(kind, format, tmp_path, monkeypatch):
    folder = tmp_path / "model"
    folder.mkdir()
    loaded = load(KINDS[kind](folder), "cpu")
    exporter, clips = exporter_of(format, loaded.bundle), examples(kind)
    pytest.importorskip(exporter.runtime.replace("-", "_"))
    whole, small = tmp_path / "float32", tmp_path / "int8"
    whole.mkdir()
    exporter.write(loaded, whole)
    theirs = exporter.run(whole, loaded, clips)
    if kind == "omnivoice":
        assert all((spoken(loaded, clip)["codes"] == out["codes"]).all() for clip, out in zip(clips, theirs))
    elif (kind, format) == ("transducer", "sherpa"):  # which computes its own features
        assert [out["text"] for out in theirs] == test_transducer.texts_of_files(
            loaded.bundle, [c.audio for c in clips]
        )
    else:
        ours = exporter.same_inputs(loaded, clips) or loaded.task.predict(loaded.bundle, clips)
        same_outputs(ours, theirs)
    monkeypatch.setattr(torch.onnx, "export", None)  # nothing is traced again
    exporter.quantize(loaded, whole, small, "int8")
    assert exporter.run(small, loaded, clips)
    sizes = [sum(path.stat().st_size for path in folder.rglob("*.onnx")) for folder in (whole, small)]
    assert sizes[1] < sizes[0] and {p.name for p in small.iterdir()} == {p.name for p in whole.iterdir()}


def same_outputs(ours, theirs):
    for a, b in zip(ours, theirs, strict=True):
        assert a.get("text") == b.get("text") and a.get("segments") == b.get("segments")
        assert a.get("text") or a["segments"]
        starts = ([w["start"] for w in output.get("words", ())] for output in (a, b))
        assert next(starts) == pytest.approx(next(starts), abs=0.002)


def test_metadata_outlive_quantisation(tmp_path):
    """sherpa-onnx reads them in every copy."""
    import onnx

    from stentor.export.onnx.trace import add_metadata

    weight = onnx.numpy_helper.from_array(torch.randn(64, 64).numpy(), "weight")
    ends = [onnx.helper.make_tensor_value_info(name, 1, [1, 64]) for name in "xy"]
    graph = onnx.helper.make_graph([onnx.helper.make_node("MatMul", ["x", "weight"], ["y"])], "g", *zip(ends), [weight])
    onnx.save(onnx.helper.make_model(graph), tmp_path / "a.onnx")
    add_metadata(tmp_path / "a.onnx", {"vocab_size": 3})
    for kind in graphs.KINDS:
        graphs.quantize(tmp_path / "a.onnx", tmp_path / f"{kind}.onnx", kind)
        found = onnx.load(tmp_path / f"{kind}.onnx")
        assert {"vocab_size": "3"}.items() <= {prop.key: prop.value for prop in found.metadata_props}.items()
