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
    from onnx import TensorProto, helper

    tokens = ["<blank>", "<s>", "</s>", "你", "好", "<unk>"]
    (folder / "tokens.txt").write_text("".join(f"{t} {i}\n" for i, t in enumerate(tokens)), encoding="utf-8")
    logits = np.eye(len(tokens), dtype=np.float32)[[3, 4]]
    constants = {
        "one": helper.make_tensor("one", TensorProto.FLOAT, [1, 2, len(tokens)], logits.ravel()),
        "rest": helper.make_tensor("rest", TensorProto.INT64, [2], [2, len(tokens)]),
        "two": helper.make_tensor("two", TensorProto.INT32, [1], [2]),
    }
    nodes = [
        helper.make_node("Shape", ["speech_lengths"], ["batch"]),
        helper.make_node("Concat", ["batch", "rest"], ["shape"], axis=0),
        helper.make_node("Expand", ["one", "shape"], ["logits"]),
        helper.make_node("Expand", ["two", "batch"], ["token_num"]),
    ]
    graph = helper.make_graph(
        nodes,
        "paraformer",
        [
            helper.make_tensor_value_info("speech", TensorProto.FLOAT, ["N", "T", 560]),
            helper.make_tensor_value_info("speech_lengths", TensorProto.INT32, ["N"]),
        ],
        [
            helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["N", 2, len(tokens)]),
            helper.make_tensor_value_info("token_num", TensorProto.INT32, ["N"]),
        ],
        list(constants.values()),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=9)
    facts = {"vocab_size": len(tokens), "lfr_window_size": 7, "lfr_window_shift": 6, "model_type": "paraformer"}
    facts |= {"neg_mean": ",".join(["0"] * 560), "inv_stddev": ",".join(["1"] * 560)}
    helper.set_model_props(model, {key: str(value) for key, value in facts.items()})
    onnx.save(model, folder / "model.onnx")
    return folder
