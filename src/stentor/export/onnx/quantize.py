"""Quantisation of ONNX graphs: weights in 8 or 4 bits, or stored in float16."""

from pathlib import Path
from typing import Any

from stentor.export.onnx.trace import without_remarks
from stentor.models.base import ONNX_INLINE

KINDS = {"int8": 1.0, "float16": 0.2, "int4": 2.0}
"""Kinds, and the points of error rate that each may cost."""
SMALL = 1024
"""Values of a tensor up to which it stays as it is: biases, norms, constants."""


def quantize(path: Path, to: Path, kind: str) -> None:
    """Write the graph of `path` as `to`, with its metadata.

    `int8`: matrix products of weights in 8 bits for each output channel with activations that are quantized as they
    come (onnxruntime's dynamic quantization), and embeddings in 8 bits. `float16`: weights are stored in float16 and
    computed with in float32, half the size at the speed of float32. `int4`: matrix products of weights in 4 bits, in
    blocks of 32 with a scale, with activations in float32 (onnxruntime's MatMulNBits), and the rest as in `float16`.
    """
    import onnx

    {"int8": _to_int8, "float16": _to_float16, "int4": _to_int4}[kind](onnx.load(path), to)


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
    external = sum(len(tensor.raw_data) for tensor in model.graph.initializer) > 4 * ONNX_INLINE
    options = {"per_channel": True, "weight_type": QuantType.QInt8, "nodes_to_exclude": _features(model)}
    with without_remarks("root"):
        quantize_dynamic(model, path, **options, use_external_data_format=external)


def _to_int4(model: Any, path: Path) -> None:
    from onnxruntime.quantization.matmul_nbits_quantizer import MatMulNBitsQuantizer

    with without_remarks("root"):
        quantizer = MatMulNBitsQuantizer(model, block_size=32, is_symmetric=True, nodes_to_exclude=_features(model))
        quantizer.process()
    _to_float16(quantizer.model.model, path)


def _features(model: Any) -> list[str]:
    """Nodes that compute features, which would not be those of training."""
    return [n.name for n in model.graph.node if any(i.startswith("features.") for i in n.input)]


def _to_float16(model: Any, path: Path) -> None:
    import numpy as np
    import onnx

    graph, casts, size = model.graph, [], 0
    packed = {name for node in graph.node if node.op_type == "MatMulNBits" for name in node.input}
    for tensor in graph.initializer:
        array = onnx.numpy_helper.to_array(tensor)
        if tensor.data_type == onnx.TensorProto.FLOAT and array.size > SMALL and tensor.name not in packed:
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
