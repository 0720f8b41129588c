"""ONNX graphs of an export: compared with the model on the same clips, and quantized: weights in 8 bits with integer
arithmetic, or in float16."""

import json
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.commands.export.probe import COARSE, HALF, Agreement, ModelOutputs
from stentor.commands.export.verify import probe_model
from stentor.data.batch import Example
from stentor.errors import ConfigError, StentorError
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.models.base import ONNX_CONFIG, ONNX_INLINE
from stentor.tasks.transcribe import Transcribe
from stentor.tasks.words import Words

ROUNDING = 0.001
"""Seconds that times are rounded to."""
LOG_PROB = 0.01
"""Most that the mean log-probability of an answer's tokens may differ by. Float32 in another order differs by 1e-4."""
SURE = 0.02
"""Most that a word's probabilities may differ by."""
KINDS = ("int8", "float16")
SMALL = 1024
"""Values of a tensor up to which it stays as it is: biases, norms, constants."""
PLEASE_REPORT = "Nothing was written. Please report this with the versions that `stentor doctor` prints."


def compare(model: Model, exported: Model, examples: Sequence[Example]) -> Agreement:
    """Decode the clips with both, without fallbacks. Raises StentorError unless texts are the same, word times at most
    one point of the aligner's grid apart, and probabilities equal up to rounding.

    Where nothing is recognised (a model that has hardly been trained), the times of the clips' own texts are compared.
    """
    bundle, other = model.bundle, exported.bundle
    seconds = sum(len(e.audio) for e in examples if e.audio is not None) / bundle.processor.sample_rate
    summary = f"{len(examples)} clips ({seconds:.0f} s): the same text"
    task: Any = model.for_transcription()
    aligner = bundle.model.aligner
    if aligner is not None and not isinstance(task, Words):
        task = Words()
    outputs, onnx_outputs = (task.predict(b, examples, checked=False) for b in (bundle, other))
    for example, output, onnx in zip(examples, outputs, onnx_outputs, strict=True):
        for key, noun in (("text", "text"), ("ctc", "text of the CTC head")):
            if output.get(key) != onnx.get(key):
                raise StentorError(
                    f"The ONNX export is wrong: the {noun} of {example.id} is {onnx.get(key)!r} with onnxruntime and "
                    f"{output.get(key)!r} with torch. {PLEASE_REPORT}"
                )
        if not abs(output["log_prob"] - onnx["log_prob"]) <= LOG_PROB:
            raise StentorError(
                f"The ONNX export is wrong: the tokens of {example.id} have the mean log-probability "
                f"{onnx['log_prob']:.3f} with onnxruntime and {output['log_prob']:.3f} with torch. {PLEASE_REPORT}"
            )
    if aligner is None:
        return Agreement(summary)
    words, onnx_words = ([o["words"] for o in rows] for rows in (outputs, onnx_outputs))
    if not any(words):
        words, onnx_words = ([w or [] for w in task.align(b, examples)] for b in (bundle, other))
    differences = [
        _time_difference(word, onnx, example, aligner.step)
        for example, row, onnx_row in zip(examples, words, onnx_words, strict=True)
        for word, onnx in zip(row, onnx_row, strict=True)
    ]
    if differences:
        largest = 1000 * max(differences)
        summary += f", {len(differences)} words with times at most {largest:.0f} ms apart"
    return Agreement(summary)


def compare_quantized(model: Model, folder: Path, kind: str) -> Agreement:
    """Decode up to 16 clips with a model and with its quantized graphs. Raises `Different` where that changes more than
    coarser weights explain; the answer has the word error rates of both and is written into `onnx_config.json`."""
    reference = probe_model(model)
    assert reference is not None  # a recogniser can always be given the built-in voice
    probe, original = reference
    exported = load(folder, "cpu").bundle
    outputs = ModelOutputs(Transcribe.predict(model.for_transcription(), exported, probe.examples, checked=False))
    agreement = probe.compare(original, outputs, COARSE if kind == "int8" else HALF)
    facts = json.loads((folder / ONNX_CONFIG).read_text(encoding="utf-8")) | {"quantized": agreement.as_dict()}
    (folder / ONNX_CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return agreement


def _time_difference(word: dict[str, Any], onnx: dict[str, Any], example: Example, step: float) -> float:
    """Seconds between the times of a word. Raises StentorError for more than one step of the aligner's grid."""
    difference = max(abs(word[edge] - onnx[edge]) for edge in ("start", "end"))
    unsure = max(abs(a - b) for a, b in zip(word["signs"], onnx["signs"]))
    if not (difference <= step + ROUNDING and unsure <= SURE):
        raise StentorError(
            f"The ONNX export is wrong: in {example.id} the word {word['word']!r} lies at {onnx['start']:.3f} "
            f"to {onnx['end']:.3f} s with onnxruntime and at {word['start']:.3f} to {word['end']:.3f} s with "
            f"torch (one frame is {step:g} s, their probabilities differ by {unsure:.3f}). {PLEASE_REPORT}"
        )
    return difference


def check_kind(kind: str) -> None:
    """Raises ConfigError for a kind of quantization that ONNX exports have not."""
    if kind not in KINDS:
        raise ConfigError(f"--quantization {kind} is not for ONNX graphs; they know {' and '.join(KINDS)}.")


def quantize(folder: Path, kind: str) -> None:
    """Rewrite the graphs of an ONNX export, and its `onnx_config.json`.

    `int8`: matrix products of weights in 8 bits for each output channel with activations that are quantized as they
    come (onnxruntime's dynamic quantization), and embeddings in 8 bits. `float16`: weights are stored in float16 and
    computed with in float32, half the size at the speed of float32.
    """
    import onnx

    facts = json.loads((folder / ONNX_CONFIG).read_text(encoding="utf-8"))
    for graph in facts["graphs"].values():
        path = folder / graph["file"]
        model = onnx.load(path)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
        if kind == "int8":
            _to_int8(model, path)
        else:
            _to_float16(model, path)
    facts["quantization"] = kind
    (folder / ONNX_CONFIG).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")


def _to_int8(model: Any, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        # The quantizer turns such a weight over where it is; one that is the embedding too must be another tensor.
        if node.op_type == "Gemm" and node.input[1] in weights:
            copy = model.graph.initializer.add()
            copy.CopyFrom(weights[node.input[1]])
            copy.name = node.input[1] = f"{node.name}.weight"
    del model.graph.value_info[:]  # shapes that the quantizer infers again
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # a remark that asks for another program to be run before
    try:
        quantize_dynamic(
            model, path, per_channel=True, weight_type=QuantType.QInt8, use_external_data_format=size > 4 * ONNX_INLINE
        )
    finally:
        logger.setLevel(level)


def _to_float16(model: Any, path: Path) -> None:
    import numpy as np
    import onnx

    graph, casts, size = model.graph, [], 0
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if tensor.data_type == onnx.TensorProto.FLOAT and array.size > SMALL:
            name, stored = tensor.name, f"{tensor.name}.float16"
            largest = np.finfo(np.float16).max
            tensor.CopyFrom(onnx.numpy_helper.from_array(array.clip(-largest, largest).astype(np.float16), stored))
            casts.append(onnx.helper.make_node("Cast", [stored], [name], to=onnx.TensorProto.FLOAT))
        size += array.nbytes // 2
    nodes = [*casts, *graph.node]
    del graph.node[:]
    graph.node.extend(nodes)
    external = size > ONNX_INLINE
    onnx.save(model, path, save_as_external_data=external, location=f"{path.name}.data" if external else None)
