"""Tracing of a module into an ONNX graph by torch's exporter."""

import logging
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from stentor.errors import ConfigError
from stentor.models.base import ONNX_INLINE

OPSET = 18


def trace(
    graph: nn.Module,
    inputs: Mapping[str, Any],
    axes: Mapping[str, Any],
    outputs: Sequence[str],
    path: Path,
    part: str,
    names: Sequence[str] | None = None,
) -> None:
    """Write `graph(**inputs)` as a graph with inputs and `outputs` of these names.

    `inputs`: examples, tensors or lists of tensors, which `names` names one by one; no
    free size may be 0 or 1 or the same as another that is free of it, which the exporter would take for constants.
    `axes`: free axes of each input, for a list a list. `part`: noun for messages. Raises ConfigError, naming the part,
    when torch cannot export it.
    """

    def free(axes: Any) -> Any:
        return [free(a) for a in axes] if isinstance(axes, list) else dict.fromkeys(axes, Dim.DYNAMIC)

    size = sum(p.numel() * 4 for p in graph.parameters())
    graph.eval()
    try:
        with torch.no_grad(), without_remarks("torch.onnx", "torch.export", "onnxscript", "onnx_ir"):
            program: Any = torch.onnx.export(
                graph,
                kwargs=dict(inputs),
                dynamo=True,
                dynamic_shapes={n: free(a) for n, a in axes.items()},
                input_names=list(names or inputs),
                output_names=list(outputs),
                opset_version=OPSET,
                verbose=False,
            )
            program.save(path, external_data=size > ONNX_INLINE)
    except Exception as error:  # the exporter's errors are of many kinds
        reason = " ".join(str(error.__cause__ or error).split())
        raise ConfigError(
            f"The {part} cannot be exported to ONNX: torch {torch.__version__} does not trace it ({reason[:300]}). "
            "Export it as safetensors (--format hf), or take another kind of this part."
        ) from error


def bias(seen: Tensor) -> Tensor:
    """Bias of scores of attention: 0 where a key is `seen`, else the lowest number."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill(~seen, torch.finfo(torch.float32).min)


def cached_states(model: nn.Module, embeds: Tensor, seen: Tensor, places: Tensor, cache: Any) -> Tensor:
    """Last states of a language model of transformers for embeddings [B, L, width] at `places` behind `cache`. What is
    `seen` [B or 1, 1, L, keys] is spelled out, as the masks of transformers depend on lengths and cannot be traced."""
    given = {"attention_mask": bias(seen), "position_ids": places, "past_key_values": cache, "use_cache": True}
    return model(inputs_embeds=embeds, **given).last_hidden_state  # type: ignore[no-any-return]


def add_metadata(path: Path, facts: Mapping[str, Any]) -> None:
    """Write facts into a graph, where runtimes such as sherpa-onnx read them."""
    import onnx

    model = onnx.load(path, load_external_data=False)
    onnx.helper.set_model_props(model, {name: str(value) for name, value in facts.items()})
    onnx.save(model, path)


@contextmanager
def without_remarks(*names: str) -> Iterator[None]:
    """Without what these loggers remark on the insides of exporters and quantizers, which no user can act on."""
    loggers = [logging.getLogger(name) for name in names]
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)
