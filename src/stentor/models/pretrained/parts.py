"""Export folders of models that are made of parts: saving, loading, merging adapters.

config.json                  the family section, the transformers configs of the parts, where the bases came from
model.safetensors            every weight that is not still as a base has it (sharded above 5 GB)
adapter_model.safetensors    LoRA adapters and adapter_config.json, as PEFT reads them
tokenizer.json ...           the processor
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.models.pretrained.lora import base_name, freeze_parameters, is_adapter
from stentor.models.pretrained.quantize import dequantized, quantize
from stentor.models.pretrained.weights import (
    continue_adapters,
    exported_names,
    fold,
    load_by_name,
    merged_state,
    put_adapters,
    read_json,
    read_weights,
    standalone,
    tied_copies,
    write_adapters,
    write_json,
    write_weights,
)
from stentor.version import __version__


def initialise(bundle: Bundle, folder: Path) -> dict[str, Tensor]:
    """Start from the weights of an export, by name; before adapters are added.

    Returns the export's adapters when the same `model.lora` continues with them; otherwise they are folded in. Weights
    that only one side has are named in the log. Raises ConfigError when a weight has another shape.
    """
    weights, adapters = read_weights(folder)
    load_by_name(bundle.model, weights, folder, "same parts", bundle.origin.from_base)
    bundle.origin.from_base -= set(weights)
    return continue_adapters(bundle, adapters, folder, read_json(folder / "config.json")["family"]["lora"])


PARTS = ("encoder", "llm")
"""Parts of a model that transformers has configs of."""


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export holds; see `Family.exported_tensor_names`."""
    return exported_names(bundle.model, left_to_base(bundle))


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export. `state` has the model's full names; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    model = bundle.model
    skip = tied_copies(model) | left_to_base(bundle)
    state = dequantized(model, state)
    weights = {base_name(n): t for n, t in state.items() if not is_adapter(n) and base_name(n) not in skip}
    write_weights(weights, folder)
    if any(map(is_adapter, state)):
        write_adapters(model, state, folder)
    bundle.processor.save(folder)
    write_config(bundle, folder)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write an export that needs nothing else: adapters folded in, frozen base weights included."""
    whole = Bundle(bundle.model, bundle.processor, standalone(bundle.family), bundle.cache_encoder)
    save(whole, merged_state(bundle), folder)


def left_to_base(bundle: Bundle) -> set[str]:
    """Names of frozen weights that the bases have. A part that is trained for the most part is written whole, so that
    the export does not need its base for a few tensors such as Whisper's fixed positions."""
    names: set[str] = set()
    from_base = bundle.origin.from_base
    parameters = {base_name(n): p for n, p in bundle.model.named_parameters() if not is_adapter(n)}
    for part in PARTS:
        of_part = {n: p for n, p in parameters.items() if n.startswith(f"{part}.")}
        frozen = sum(p.numel() for n, p in of_part.items() if n in from_base and not p.requires_grad)
        if frozen * 2 >= sum(p.numel() for p in of_part.values()):
            names |= {n for n in from_base if n.startswith(f"{part}.")}
    return names - {n for n, p in parameters.items() if p.requires_grad}


def write_config(bundle: Bundle, folder: Path) -> None:
    family = bundle.family
    parts = {name: getattr(bundle.model, name).config for name in PARTS if hasattr(bundle.model, name)}
    bases = {
        name: {"from": getattr(family, name).source, "commit": vars(config).get("_commit_hash")}
        for name, config in parts.items()
        if getattr(family, name).source is not None
    }
    facts = {
        "model_type": family.type,
        "stentor_version": __version__,
        "family": family.model_dump(mode="json", by_alias=True),
        "bases": bases,
        "ctc_alphabet": bundle.processor.ctc.units if bundle.processor.ctc else None,
        **{f"{name}_config": json.loads(config.to_json_string(use_diff=False)) for name, config in parts.items()},
    }
    write_json(folder / "config.json", facts)


def load_parts(
    family_class: type[Any],
    folder: Path,
    processor_class: Any,
    assemble: Callable[..., Bundle],
    apply_memory_options: Callable[[Bundle], None],
    trainable: bool,
) -> Bundle:
    """The bundle of an export folder that `save` wrote: `assemble` takes the section, the processor, the config of each
    of the `PARTS` that the model has, and the names of the weights that are loaded into it."""
    from transformers import AutoConfig

    facts = read_json(folder / "config.json")
    family = family_class.model_validate(facts["family"])
    for name, base in facts["bases"].items():
        part = getattr(family, name)
        if base["commit"] and not Path(part.source).is_dir():
            part.revision = base["commit"]
    processor = processor_class.load(folder)
    weights, adapters = read_weights(folder)
    configs = [AutoConfig.for_model(**facts[f"{name}_config"]) for name in PARTS if f"{name}_config" in facts]
    bundle = assemble(family, processor, *configs, loaded=set(weights))
    model = bundle.model
    missing = set(model.state_dict()) - set(weights) - tied_copies(model) - bundle.origin.from_base
    if not weights and next(model.parameters()).is_meta:  # another runtime has them
        missing = set()
    unexpected = set(weights) - set(model.state_dict())
    if missing or unexpected:
        raise ConfigError(
            f"{folder}: the weights do not fit config.json ({len(missing)} missing, {len(unexpected)} unexpected, for "
            f"example {sorted(missing | unexpected)[0]}); the export is damaged or was edited."
        )
    model.load_state_dict(weights, strict=False)
    bundle.origin.from_base -= set(weights)
    if trainable:
        freeze_parameters(model, family.freeze)
    if adapters and trainable:
        put_adapters(model, adapters, family.lora)
        quantize(model, family.quantize)
    elif adapters:
        fold(bundle, adapters, folder)
    if not trainable:
        model.requires_grad_(False)
    apply_memory_options(bundle)
    model.train(trainable)
    return bundle
