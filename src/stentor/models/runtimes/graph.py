"""Graphs that onnxruntime runs, with tensors of torch on both sides, and the facts of the folder that they lie in."""

from __future__ import annotations

import json
import weakref
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import ConfigError, require
from stentor.models.base import ONNX_CONFIG, ONNX_FORMAT
from stentor.version import refuse_newer

SMALL = 4 * 2**20
"""Bytes of a graph up to which more than one thread costs more time than it saves."""
_sessions: weakref.WeakValueDictionary[tuple[Any, ...], Any] = weakref.WeakValueDictionary()
"""Sessions in use, by file: workers on one CPU share the weights, and calls may come from several threads."""


def onnx_facts(folder: Path) -> dict[str, Any]:
    """The facts of an ONNX export. Raises ConfigError for a damaged file and one of a newer Stentor."""
    path = folder / ONNX_CONFIG
    try:
        facts: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        graphs = facts["graphs"].items()
        assert all(isinstance(graph["file"], str) for _, graph in graphs)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, AssertionError) as error:
        raise ConfigError(
            f"{path} cannot be read as the facts of an ONNX export ({type(error).__name__}: {error}): export the model "
            "again."
        ) from error
    refuse_newer(path, facts, ONNX_FORMAT, "format", ", or export the model again")
    return facts


def graphs_of(folder: Path, facts: dict[str, Any], *names: str) -> list[Graph]:
    """The graphs of these names. Raises ConfigError for one that the folder does not have."""
    if missing := [name for name in names if name not in facts["graphs"]]:
        raise ConfigError(
            f"{folder / ONNX_CONFIG} names no graph {missing[0]}: the export is damaged, or of another kind of model. "
            "Export the model again."
        )
    return [Graph(folder / facts["graphs"][name]["file"]) for name in names]


class Graph:
    """One ONNX file: tensors in by name, tensors out in the order of the graph or by name."""

    def __init__(self, path: Path):
        require("onnx", f"{path.parent} (an ONNX export)", "onnxruntime")
        if not path.is_file():
            raise ConfigError(f"{path} is missing: copy the whole folder, or export the model again.")
        status = path.stat()
        key = (path.resolve(), status.st_mtime_ns, status.st_size, torch.get_num_threads())
        self.session = _sessions.get(key) or _session(path, status.st_size)
        _sessions[key] = self.session
        self.inputs = {node.name: node for node in self.session.get_inputs()}
        self.outputs = [node.name for node in self.session.get_outputs()]

    def __call__(self, **tensors: Tensor) -> list[Tensor]:
        # The exporter leaves out what a graph has no use for.
        arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items() if name in self.inputs}
        return [torch.from_numpy(array) for array in self.session.run(None, arrays)]

    def named(self, **tensors: Tensor) -> dict[str, Tensor]:
        """The outputs by name."""
        return dict(zip(self.outputs, self(**tensors), strict=True))


def _session(path: Path, size: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # errors; warnings are about nodes that it removes
    options.intra_op_num_threads = 1 if size < SMALL else torch.get_num_threads()
    # Threads that wait by turning hold the cores that torch and other sessions need.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class of their own
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} is damaged ({reason}): copy the folder again, or export the model again.") from error


class OnCPU(nn.Module):
    """Part of a model whose weights another runtime has: it stays on the CPU in float32."""

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        return self


def place() -> nn.Parameter:
    """A parameter of no values, for such a model: callers look at parameters for the model's device."""
    return nn.Parameter(torch.empty(0), requires_grad=False)
