"""Judges of published evaluations with random weights: tensors by upstream's names, and a tiny Paraformer."""

import json
from pathlib import Path

import numpy as np
import torch

LAYOUTS = json.loads(Path(__file__).with_suffix(".json").read_text("utf-8"))


def random_weights(kind: str) -> dict[str, torch.Tensor]:
    """Tensors by upstream's names, drawn in alphabetical order."""
    rng = np.random.default_rng(0)
    weights = {}
    for name, shape in sorted(LAYOUTS[kind].items()):
        value = rng.standard_normal(shape).astype(np.float32)
        if name.endswith("running_var"):
            value = 0.5 + np.abs(value)
        elif len(shape) > 1:
            value = 1.5 * value / np.sqrt(np.prod(shape[1:]))
        else:
            value = 0.3 * value + name.endswith("weight")
        weights[name] = torch.from_numpy(np.asarray(value, np.float32))
    return weights


def tiny_paraformer(folder: Path) -> Path:
    """A folder as sherpa-onnx reads it, of a network with Paraformer's inputs and outputs that hears 你好 in all."""
    import onnx
    from onnx import parser

    tokens = ["<blank>", "<s>", "</s>", "你", "好", "<unk>"]
    (folder / "tokens.txt").write_text("".join(f"{t} {i}\n" for i, t in enumerate(tokens)), encoding="utf-8")
    model = parser.parse_model(
        """<ir_version: 9, opset_import: ["": 13]>
        paraformer (float[N, T, 560] speech, int32[N] speech_lengths) => (float[N, 2, 6] logits, int32[N] token_num)
        <float[1, 2, 6] one = {0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0}, int64[2] rest = {2, 6}, int32[1] two = {2}>
        {
            batch = Shape(speech_lengths)
            shape = Concat<axis = 0>(batch, rest)
            logits = Expand(one, shape)
            token_num = Expand(two, batch)
        }"""
    )
    facts = {"vocab_size": len(tokens), "lfr_window_size": 7, "lfr_window_shift": 6, "model_type": "paraformer"}
    facts |= {"neg_mean": ",".join(["0"] * 560), "inv_stddev": ",".join(["1"] * 560)}
    onnx.helper.set_model_props(model, {key: str(value) for key, value in facts.items()})
    onnx.save(model, folder / "model.onnx")
    return folder
