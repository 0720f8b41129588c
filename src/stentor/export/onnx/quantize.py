"""Quantisation of ONNX graphs: weights in 8 bits with integer arithmetic, or stored in float16."""

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from stentor.models.base import ONNX_INLINE

KINDS = {"int8": 1.0, "float16": 0.2}
"""Kinds, and the points of error rate that each may cost."""
SMALL = 1024
"""Values of a tensor up to which it stays as it is: biases, norms, constants."""


def quantize(files: Sequence[Path], kind: str) -> None:
    """Rewrite graphs in place.

    `int8`: matrix products of weights in 8 bits for each output channel with activations that are quantized as they
    come (onnxruntime's dynamic quantization), and embeddings in 8 bits. `float16`: weights are stored in float16 and
    computed with in float32, half the size at the speed of float32.
    """
    import onnx

    for path in files:
        model = onnx.load(path)
        path.with_name(f"{path.name}.data").unlink(missing_ok=True)
        if kind == "int8":
            _to_int8(model, path)
        else:
            _to_float16(model, path)


def _to_int8(model: Any, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        # The quantizer turns such a weight over where it is; one that is the embedding too must be another tensor.
        if node.op_type == "Gemm" and node.input[1] in weights:
            copy = model.graph.initializer.add()
            copy.CopyFrom(weights[node.input[1]])
            copy.name = node.input[1] = f"{node.name}.weight"
    # Features would not be those of training.
    features = [n.name for n in model.graph.node if any(i.startswith("features.") for i in n.input)]
    del model.graph.value_info[:]  # shapes that the quantizer infers again
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    logger = logging.getLogger()
    level = logger.level
    logger.setLevel(logging.ERROR)  # a remark that asks for another program to be run before
    try:
        quantize_dynamic(
            model,
            path,
            per_channel=True,
            weight_type=QuantType.QInt8,
            nodes_to_exclude=features,
            use_external_data_format=size > 4 * ONNX_INLINE,
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
