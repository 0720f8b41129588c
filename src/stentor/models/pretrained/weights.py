"""Model folders: weights and adapters under the file names of transformers and PEFT, and the family's section."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Callable, Iterable, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.atomic_write import follow_umask
from stentor.errors import ConfigError
from stentor.models.base import Bundle, Family
from stentor.models.pretrained.lora import ADAPTER, Lora, base_name, inject, is_adapter
from stentor.models.pretrained.quantize import dequantized

if TYPE_CHECKING:
    from torch import Tensor, nn

log = logging.getLogger("stentor")

PEFT_PREFIX = "base_model.model."
ADAPTER_FILE = "adapter_model.safetensors"
SECTION_FILE = "stentor.json"
"""Holds the family's section next to a config.json of transformers."""


def read_json(path: Path) -> Any:
    """The value of a JSON file."""
    return json.loads(path.read_text(encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as a JSON file, indented, letters as they are."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def export_folder(name: str) -> Path:
    """The folder of the key `model.init`. Raises ConfigError when it is no export."""
    folder = Path(name)
    if not (folder / "config.json").exists():
        inside = folder / "export"
        hint = f"; did you mean {inside}?" if (inside / "config.json").exists() else "."
        raise ConfigError(f"model.init: {folder} is not an export folder (it has no config.json){hint}")
    return folder


def read_section(family_class: type[Any], folder: Path) -> tuple[Any, dict[str, Any]]:
    """The family's section of an export, and all that its stentor.json holds. Adapters have the commit of their base in
    it as `revision`. Of a folder without a section: one that loads it."""
    facts = read_json(folder / SECTION_FILE) if (folder / SECTION_FILE).is_file() else {}
    if "family" not in facts:
        streaming = {"streaming": facts["streaming"]} if "streaming" in facts else {}
        return family_class.model_validate({"from": str(folder), **streaming}), facts
    # Of the base class, which knows the names that older exports have for a family.
    family: Any = Family.model_validate(facts["family"])
    if (folder / ADAPTER_FILE).is_file() and facts.get("commit") and not Path(family.source or "").is_dir():
        family.revision = facts["commit"]
    return family, facts


def standalone(family: Any) -> Any:
    """The section of an export that needs nothing else: without adapters, freezing and what it was started from."""
    update: dict[str, Any] = {"lora": None, "quantize": None, "freeze": [], "init": None}
    return family.model_copy(update={key: value for key, value in update.items() if key in type(family).model_fields})


def cpu_state(model: nn.Module) -> dict[str, Tensor]:
    """All tensors of a model, on the CPU."""
    return {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}


def exported_names(model: nn.Module, in_base: set[str] = frozenset()) -> set[str]:  # type: ignore[assignment]
    """Names of the tensors that an export holds: adapters, and all weights that are neither another name of one before
    them nor `in_base` (under the names of a model without adapters)."""
    skip = tied_copies(model) | in_base
    return {name for name in model.state_dict() if is_adapter(name) or base_name(name) not in skip}


def load_by_name(
    model: nn.Module,
    weights: dict[str, Tensor],
    folder: Path,
    same: str,
    in_base: set[str] = frozenset(),  # type: ignore[assignment]
) -> None:
    """Start a model from the weights of an earlier export, by name.

    Weights that only one side has are named in the log; those `in_base` need not be in the export. Raises ConfigError
    without any weights, and where a weight has another shape, saying that `model` must describe the `same`.
    """
    if not weights:
        raise ConfigError(f"model.init: {folder} holds no model.safetensors; give an export folder of a run.")
    state = model.state_dict()
    for name, tensor in weights.items():
        if name in state and state[name].shape != tensor.shape:
            raise ConfigError(
                f"model.init: {name} is {list(tensor.shape)} in {folder} and {list(state[name].shape)} here; `model` "
                f"must describe the {same}."
            )
    missing = sorted(set(state) - set(weights) - tied_copies(model) - in_base)
    unexpected = sorted(set(weights) - set(state))
    if missing:
        log.warning("model.init: %d weights are not in %s, newly initialised: %s", len(missing), folder, _some(missing))
    if unexpected:
        log.warning("model.init: %d weights of %s are not used here: %s", len(unexpected), folder, _some(unexpected))
    model.load_state_dict({n: t for n, t in weights.items() if n in state}, strict=False)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")


def continue_adapters(bundle: Bundle, adapters: dict[str, Tensor], folder: Path, lora: Any) -> dict[str, Tensor]:
    """The adapters of an earlier export where the same section `lora` continues with them; otherwise they are folded
    into the plain weights of the model, and none are returned."""
    section = bundle.family.lora
    if not adapters or (section is not None and section.model_dump() == lora):
        return adapters
    fold(bundle, adapters, folder)
    return {}


def write_weights(weights: dict[str, Tensor], folder: Path) -> None:
    """Write model.safetensors, sharded above 5 GB."""
    from huggingface_hub import save_torch_state_dict

    contiguous = {name: tensor.contiguous() for name, tensor in weights.items()}
    save_torch_state_dict(contiguous, folder, max_shard_size="5GB", metadata={"format": "pt"})
    follow_umask(*folder.glob("model*.safetensors"))


def write_adapters(
    model: nn.Module,
    state: dict[str, Tensor],
    folder: Path,
    rename: Callable[[str], str] = str,
    trained_modules: Sequence[str] = (),
) -> None:
    """Write the adapters among the tensors of a model, and its adapter_config.json, as PEFT reads them; `rename` gives
    the names that its modules have in the class that PEFT will load. `trained_modules` are trained themselves and
    written with the adapters (PEFT's `modules_to_save`)."""
    from safetensors.torch import save_file

    adapters = {
        PEFT_PREFIX + rename(n.replace(f".{ADAPTER}.", ".")): t.contiguous()
        for n, t in state.items()
        if is_adapter(n) or n.rpartition(".")[0] in trained_modules
    }
    save_file(adapters, folder / ADAPTER_FILE, metadata={"format": "pt"})
    follow_umask(folder / ADAPTER_FILE)
    config: Any = copy(model.peft_config[ADAPTER])  # type: ignore[index,union-attr]
    # Of the tensors themselves: PEFT shortens a long list of its own to endings of names.
    modules = {name.removeprefix(PEFT_PREFIX).partition(".lora_A.")[0] for name in adapters if ".lora_A." in name}
    config.target_modules = modules
    config.modules_to_save = list(trained_modules) or None
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
    check_weights((weights | adapters).items(), str(folder))
    return weights, adapters


def weight_names(folder: Path) -> set[str]:
    """Names of the weights of an export folder, without adapters."""
    from safetensors import safe_open

    names: set[str] = set()
    for file in folder.glob("model*.safetensors"):
        with safe_open(file, "pt") as tensors:
            names |= set(tensors.keys())
    return names


def check_weights(weights: Iterable[tuple[str, Tensor]], origin: str) -> None:
    """Raises ConfigError for the first of the named weights that holds NaN or infinite values."""
    for name, tensor in weights:
        if not tensor.is_floating_point() or tensor.is_meta or not tensor.numel():
            continue
        if not all(math.isfinite(bound) for bound in tensor.detach().aminmax()):
            raise ConfigError(
                f"{origin}: the weight {name} holds NaN or infinite values: the model is damaged, or its training went "
                "wrong. Take an earlier checkpoint, or get it again."
            )


def load_adapters(model: nn.Module, adapters: dict[str, Tensor]) -> None:
    """Put adapter weights (names of `read_weights`) into a model that has these adapters."""
    named = {
        n.replace(".lora_A.", f".lora_A.{ADAPTER}.").replace(".lora_B.", f".lora_B.{ADAPTER}."): t
        for n, t in adapters.items()
    }
    parameters = {name: parameter for name, parameter in model.named_parameters() if is_adapter(name)}
    if set(parameters) != set(named):
        raise ConfigError(
            f"the adapters of the export ({len(named)} tensors) are not those that `model.lora` asks for "
            f"({len(parameters)})."
        )
    for name, parameter in parameters.items():  # made like their base, which may be in bfloat16 and would round them
        parameter.data = parameter.data.to(named[name].dtype)
    model.load_state_dict(named, strict=False)


def put_adapters(model: nn.Module, adapters: dict[str, Tensor], lora: Lora | None) -> None:
    """Give a model the adapters of an export, as `lora` says, on the modules that have them there."""
    inject(model, lora or Lora(), sorted({name.partition(".lora_")[0] for name in adapters if is_adapter(name)}))
    load_adapters(model, adapters)


def fold(bundle: Bundle, adapters: dict[str, Tensor], folder: Path) -> None:
    """Add adapter weights of an export to the plain weights of a model without adapters."""
    import torch

    settings = read_json(folder / "adapter_config.json")
    scale = settings["lora_alpha"] / settings["r"]
    for name, a in adapters.items():
        if ".lora_A." not in name:
            continue
        target = name.replace(".lora_A.weight", ".weight")
        parameter = bundle.model.get_parameter(target)
        delta = scale * (adapters[name.replace(".lora_A.", ".lora_B.")].float() @ a.float())
        with torch.no_grad():
            parameter.copy_(parameter.float() + delta.to(parameter.device))  # rounded once
        bundle.origin.from_base.discard(target)


def add_trained(bundle: Bundle, tensors: dict[str, Tensor], folder: Path, apart: bool) -> None:
    """Give a base what an export of adapters holds: the modules that were trained whole, and the adapters, `apart` or
    folded in. `tensors` has the names of `bundle.model`, adapters those of `read_weights`."""
    bundle.model.load_state_dict({n: t for n, t in tensors.items() if not is_adapter(n)}, strict=False)
    adapters = {n: t for n, t in tensors.items() if is_adapter(n)}
    if apart:
        put_adapters(bundle.model, adapters, bundle.family.lora)
    else:
        fold(bundle, adapters, folder)


def merged_state(bundle: Bundle) -> dict[str, Tensor]:
    """All tensors of the model on the CPU under the names of a model without adapters, adapters folded in."""
    return fold_state(bundle.model, cpu_state(bundle.model))


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


def tensor_names(model: nn.Module) -> set[str]:
    """The names of `model.state_dict()`, which would put the shards of a model aside that another thread trains."""
    names = {name for name, _ in model.named_parameters(remove_duplicate=False)}
    for path, module in model.named_modules():
        persistent = module._buffers.keys() - module._non_persistent_buffers_set
        names |= {f"{path}.{name}".lstrip(".") for name in persistent if module._buffers[name] is not None}
    return names


def tied_copies(model: nn.Module) -> set[str]:
    """Names of tensors that are another name of a parameter listed before."""
    first = {name for name, _ in model.named_parameters()}
    return {name for name, _ in model.named_parameters(remove_duplicate=False)} - first
