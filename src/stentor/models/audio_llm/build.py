"""Building an audio language model from its config: weights, processor, adapters, freezing."""

import logging
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.audio_llm import AudioLLM
from stentor.models.audio_llm.modeling import AudioLLMModel, own_name
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.peft import adapt_only, is_adapter, lora_targets
from stentor.models.pretrained import reach, set_memory_options
from stentor.models.quantize import quantize
from stentor.models.weights_io import (
    SECTION_FILE,
    continue_adapters,
    load_adapters,
    read_json,
    read_weights,
    tied_copies,
)

log = logging.getLogger("stentor")


def build(family: AudioLLM, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: weights loaded, `init` applied, adapters added, parameters frozen."""
    bundle = from_config(family) if family.config is not None else from_base(family)
    adapters = initialise(bundle, Path(family.init)) if family.init else {}
    adapt(bundle)
    if adapters:
        load_adapters(bundle.model, adapters)
    quantize(bundle.model, family.quantize)
    apply_memory_options(bundle)
    return bundle


def initialise(bundle: Bundle, folder: Path) -> dict[str, Tensor]:
    """Start from the weights of an export; before adapters are added.

    Returns the export's adapters when the same `model.lora` goes on with them; otherwise they are folded in. Raises
    ConfigError when the export is of another model.
    """
    family, model = bundle.family, bundle.model
    if not (folder / SECTION_FILE).is_file():
        raise ConfigError(
            f"model.init: {folder} is no export of a run with a {family.type} model (it has no {SECTION_FILE})."
        )
    before = read_json(folder / SECTION_FILE)["family"]
    weights, adapters = read_export(folder)
    if weights:
        _check_fit(model, weights, folder)
        model.load_state_dict(weights, strict=False)  # tied copies come along
        family._from_base = set()
    elif before["from"] != family.source:
        raise ConfigError(
            f"model.init: {folder} holds adapters for {before['from']}, but `model.from` is {family.source}: they "
            "must be the same."
        )
    continued = continue_adapters(bundle, adapters, folder, before["lora"])
    if adapters and not continued:
        log.info("model.init: the adapters of %s are folded into the weights.", folder)
    return continued


def _check_fit(model: AudioLLMModel, weights: dict[str, Tensor], folder: Path) -> None:
    state = {n: t for n, t in model.state_dict().items() if n not in tied_copies(model)}
    wrong = sorted(set(state) ^ set(weights)) or [n for n, t in weights.items() if t.shape != state[n].shape]
    if wrong:
        raise ConfigError(
            f"{folder}: {len(wrong)} weights do not fit this {model.config.model_type} model, for example {wrong[0]}: "
            "the sizes in the config must be those that the export was trained with."
        )


def read_export(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, adapters) of an export folder under our names, adapters without PEFT's prefix."""
    weights, adapters = read_weights(folder)
    return {own_name(n): t for n, t in weights.items()}, {own_name(n): t for n, t in adapters.items()}


def adapt(bundle: Bundle) -> None:
    """Freeze and add new adapters, as the family says."""
    family, model = bundle.family, bundle.model
    tied = model.lm_head.weight is model.language_model.get_input_embeddings().weight
    if family.lora is not None and tied and "lm_head" in lora_targets(model, family.lora.targets):
        raise ConfigError(
            "model.lora.targets: lm_head shares its weights with the token embeddings in this model and can have no "
            "adapter of its own; choose layers of the language model."
        )
    adapt_only(model, family.lora, family.freeze)


def classes(family: AudioLLM) -> tuple[Any, Any]:
    """transformers' classes (config, model) of a family."""
    import transformers

    model = getattr(transformers, family.architecture)
    return model.config_class, model


def from_base(family: AudioLLM) -> Bundle:
    """The pretrained model of `from`, without adapters."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    config = reach(family, "model", lambda name, options: read_config(family, name, options))
    processor = reach(family, "model", lambda name, options: family.processor_of(name, config, **options))
    # Only what is trained has to be in float32, and adapters are added afterwards.
    dtype = torch.bfloat16 if family.lora is not None and family.dtype == "bfloat16" else torch.float32
    _, kind = classes(family)
    model = reach(
        family,
        "model",
        lambda name, options: kind.from_pretrained(
            name, trust_remote_code=False, dtype=dtype, use_safetensors=True, **options
        ),
    )
    family._commit = getattr(config, "_commit_hash", None)
    bundle = Bundle(family.model_of(model, processor), processor, family)
    family._from_base = set(bundle.model.state_dict())
    return bundle


def read_config(family: AudioLLM, name: str, options: dict[str, Any]) -> Any:
    """The transformers config of a folder or Hub id. Raises ConfigError for one of another family."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    kind, _ = classes(family)
    if not isinstance(config, kind):
        raise ConfigError(
            f"model.from: {name} is a model of the type {config.model_type}, not {kind.model_type}: give a model of "
            "this type, or another `model.type`."
        )
    family.inspect(config)
    return config


def from_config(family: AudioLLM) -> Bundle:
    """An untrained model of `config`, sized for the tokenizer."""
    settings = dict(family.config or {})
    settings.pop("model_type", None)
    part = SimpleNamespace(source=family.tokenizer, revision=None)
    reach(part, "model.tokenizer", lambda name, options: family.settle(settings, name, **options))
    kind, architecture = classes(family)
    known = set(kind().to_dict())
    if unknown := sorted(set(settings) - known):
        raise ConfigError(
            f"model.config: a {kind.__name__} has no '{unknown[0]}'; it has audio_config and text_config."
        )
    try:
        config = kind(**settings)
        model = architecture(config)
    except Exception as error:  # transformers validates with errors of many kinds, all about these settings
        raise ConfigError(f"model.config: {' '.join(str(error).split())}") from error
    family.inspect(config)
    processor = reach(part, "model.tokenizer", lambda name, options: family.processor_of(name, config, **options))
    return Bundle(family.model_of(model, processor), processor, family)


def apply_memory_options(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family, model = bundle.family, bundle.model
    for part in model.children():
        trained = any(p.requires_grad for n, p in part.named_parameters() if not is_adapter(n))
        for name, parameter in part.named_parameters():
            if not parameter.is_floating_point():  # kept in 8 or 4 bits
                continue
            small = family.dtype == "bfloat16" and not trained
            small = small and not is_adapter(name) and name not in family.always_float32
            parameter.data = parameter.data.to(torch.bfloat16 if small else torch.float32)
    set_memory_options(bundle, (model.audio_tower, model.language_model))
