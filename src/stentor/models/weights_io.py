"""Weights and adapters in model folders, under the file names of transformers and PEFT."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.file_modes import follow_umask
from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.peft import ADAPTER, base_name, inject, is_adapter
from stentor.models.quantize import dequantized

if TYPE_CHECKING:
    from torch import Tensor, nn

PEFT_PREFIX = "base_model.model."
ADAPTER_FILE = "adapter_model.safetensors"


def write_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Write model.safetensors, sharded above 5 GB."""
    from huggingface_hub import save_torch_state_dict

    whole = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_torch_state_dict(whole, folder, max_shard_size="5GB", metadata={"format": "pt"})
    follow_umask(*folder.glob("model*.safetensors"))


def write_adapters(
    model: nn.Module,
    state: dict[str, Tensor],
    folder: Path,
    rename: Callable[[str], str] = str,
    whole: Sequence[str] = (),
) -> None:
    """Write the adapters among the tensors of a model, and its adapter_config.json, as PEFT reads them; `rename` gives
    the names that its modules have in the class that PEFT will load. Modules in `whole` are trained themselves and
    written beside the adapters (PEFT's `modules_to_save`)."""
    from safetensors.torch import save_file

    adapters = {
        PEFT_PREFIX + rename(n.replace(f".{ADAPTER}.", ".")): t.contiguous()
        for n, t in state.items()
        if is_adapter(n) or n.rpartition(".")[0] in whole
    }
    save_file(adapters, folder / ADAPTER_FILE, metadata={"format": "pt"})
    follow_umask(folder / ADAPTER_FILE)
    config = model.peft_config[ADAPTER]  # type: ignore[index,union-attr]
    config.modules_to_save = list(whole) or None
    config.save_pretrained(folder)


def read_weights(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, adapters) of an export folder; adapters under PEFT's names without its prefix."""
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        weights.update(load_file(file))
    adapters = {}
    if (folder / ADAPTER_FILE).exists():
        adapters = {n.removeprefix(PEFT_PREFIX): t for n, t in load_file(folder / ADAPTER_FILE).items()}
    return weights, adapters


def load_adapters(model: nn.Module, adapters: dict[str, Tensor]) -> None:
    """Put adapter weights (names of `read_weights`) into a model that has these adapters."""
    named = {
        n.replace(".lora_A.", f".lora_A.{ADAPTER}.").replace(".lora_B.", f".lora_B.{ADAPTER}."): t
        for n, t in adapters.items()
    }
    own = {name: parameter for name, parameter in model.named_parameters() if is_adapter(name)}
    if set(own) != set(named):
        raise ConfigError(
            f"the adapters of the export ({len(named)} tensors) are not those that `model.lora` asks for ({len(own)})."
        )
    for name, parameter in own.items():  # made like their base, which may be in bfloat16 and would round them
        parameter.data = parameter.data.to(named[name].dtype)
    model.load_state_dict(named, strict=False)


def put_adapters(model: nn.Module, adapters: dict[str, Tensor], lora: Any, folder: Path) -> None:
    """Give a model the adapters of an export, as `lora` says, on the modules that have them there."""
    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    inject(model, lora, sorted(settings["target_modules"]))
    load_adapters(model, adapters)


def fold(bundle: Bundle, adapters: dict[str, Tensor], folder: Path) -> None:
    """Add adapter weights of an export to the plain weights of a model without adapters."""
    import torch

    settings = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    scale = settings["lora_alpha"] / settings["r"]
    for name, a in adapters.items():
        if ".lora_A." not in name:
            continue
        target = name.replace(".lora_A.weight", ".weight")
        parameter = bundle.model.get_parameter(target)
        delta = scale * (adapters[name.replace(".lora_A.", ".lora_B.")].float() @ a.float())
        with torch.no_grad():
            parameter.copy_(parameter.float() + delta.to(parameter.device))  # rounded once
        bundle.family._from_base.discard(target)


def merged_state(bundle: Bundle) -> dict[str, Tensor]:
    """All tensors of the model on the CPU under the names of a model without adapters, adapters folded in."""
    return fold_state(bundle.model, {n: t.detach().cpu() for n, t in bundle.model.state_dict().items()})


def fold_state(model: nn.Module, state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of a model under the names it has without adapters, the adapters among them folded in."""
    from peft.tuners.lora import LoraLayer

    folded = {base_name(n): t for n, t in dequantized(model, state).items() if not is_adapter(n)}
    for name, layer in model.named_modules():
        if isinstance(layer, LoraLayer):
            weight = folded[f"{name}.weight"]
            a, b = (state[f"{name}.lora_{part}.{ADAPTER}.weight"].float() for part in "AB")
            delta = layer.scaling[ADAPTER] * (b @ a)
            folded[f"{name}.weight"] = (weight.float() + delta.to(weight.device)).to(weight.dtype)
    return folded


def tied_copies(model: nn.Module) -> set[str]:
    """Names of tensors that are another name of a parameter listed before."""
    first = {name for name, _ in model.named_parameters()}
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
