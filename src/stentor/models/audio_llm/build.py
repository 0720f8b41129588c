"""Building an audio language model from its config: weights, processor, adapters, freezing."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from stentor.errors import ConfigError
from stentor.models.audio_llm import AudioLLM
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.peft import adapt_only, is_adapter, lora_targets
from stentor.models.pretrained import reach
from stentor.models.quantize import quantize
from stentor.models.weights_io import load_adapters


def build(family: AudioLLM, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: weights loaded, `init` applied, adapters added, parameters frozen."""
    from stentor.models.audio_llm.export import initialise

    bundle = from_config(family) if family.config is not None else from_base(family)
    adapters = initialise(bundle, Path(family.init)) if family.init else {}
    adapt(bundle)
    if adapters:
        load_adapters(bundle.model, adapters)
    quantize(bundle.model, family.quantize)
    finish(bundle)
    return bundle


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
        family, "model", lambda name, options: kind.from_pretrained(name, dtype=dtype, use_safetensors=True, **options)
    )
    family._commit = getattr(config, "_commit_hash", None)
    bundle = Bundle(family.model_of(model, processor), processor, family)
    family._from_base = set(bundle.model.state_dict())
    return bundle


def read_config(family: AudioLLM, name: str, options: dict[str, Any]) -> Any:
    """The transformers config of a folder or Hub id. Raises ConfigError for one of another family."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, **options)
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
    kind, whole = classes(family)
    known = set(kind().to_dict())
    if unknown := sorted(set(settings) - known):
        raise ConfigError(
            f"model.config: a {kind.__name__} has no '{unknown[0]}'; it has audio_config and text_config."
        )
    try:
        config = kind(**settings)
        model = whole(config)
    except Exception as error:  # transformers validates with errors of many kinds, all about these settings
        raise ConfigError(f"model.config: {' '.join(str(error).split())}") from error
    family.inspect(config)
    processor = reach(part, "model.tokenizer", lambda name, options: family.processor_of(name, config, **options))
    return Bundle(family.model_of(model, processor), processor, family)


def finish(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family, model = bundle.family, bundle.model
    for part in model.children():
        plain = {n: p for n, p in part.named_parameters() if not is_adapter(n)}
        trained = any(p.requires_grad for p in plain.values())
        for own, parameter in part.named_parameters():
            if not parameter.is_floating_point():  # kept in 8 or 4 bits
                continue
            small = family.dtype == "bfloat16" and not trained and own in plain and own not in family.always_float32
            parameter.data = parameter.data.to(torch.bfloat16 if small else torch.float32)
    if family.gradient_checkpointing:
        for part in (model.audio_tower, model.language_model):
            part.gradient_checkpointing_enable({"use_reentrant": False})
    layers = {*(model.audio_tower._no_split_modules or ()), *(model.language_model._no_split_modules or ())}
    family._wrap_layers = tuple(sorted(layers & {type(module).__name__ for module in model.modules()}))
    model.train()
