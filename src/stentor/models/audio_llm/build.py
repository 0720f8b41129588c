"""Building an audio language model from its config: weights, processor, adapters, freezing."""

import logging
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from stentor.errors import ConfigError
from stentor.models.audio_llm.modeling import AudioLLMModel, own_name
from stentor.models.audio_llm.processor import AudioLLMProcessor
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.load import reach, set_memory_options
from stentor.models.pretrained.lora import adapt_only, is_adapter, lora_targets
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import (
    SECTION_FILE,
    continue_adapters,
    load_adapters,
    read_json,
    read_weights,
    tied_copies,
)

log = logging.getLogger("stentor")


def build(family: TransformersFamily, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: weights loaded, `init` applied, adapters added, parameters frozen."""
    bundle = from_config(family) if family.config is not None else from_base(family)
    if requirements.task == "who_said_what" and not bundle.processor.turns:
        raise ConfigError(
            f"model: a {bundle.model.config.model_type} says not who speaks: take a model that does, such as "
            "microsoft/VibeVoice-ASR-HF, or the task transcribe."
        )
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
            f"model.init: {folder} is no export of a run with a model of type {family.type} (it has no {SECTION_FILE})."
        )
    before = read_json(folder / SECTION_FILE)["family"]
    weights, adapters = read_export(bundle, folder)
    if weights:
        _check_fit(model, weights, folder)
        model.load_state_dict(weights, strict=False)  # tied copies come along
        bundle.origin.from_base = set()
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


def read_export(bundle: Bundle, folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, adapters) of an export folder under our names, adapters without PEFT's prefix."""
    weights, adapters = read_weights(folder)
    names = bundle.processor.names
    return {own_name(n, names): t for n, t in weights.items()}, {own_name(n, names): t for n, t in adapters.items()}


def adapt(bundle: Bundle) -> None:
    """Freeze and add new adapters, as the family says."""
    family, model = bundle.family, bundle.model
    words = model.language_model.get_input_embeddings() if hasattr(model, "language_model") else None
    tied = words is not None and model.lm_head.weight is getattr(words, "weight", None)
    if family.lora is not None and tied and "lm_head" in lora_targets(model, family.lora.targets):
        raise ConfigError(
            "model.lora.targets: lm_head shares its weights with the token embeddings in this model and can have no "
            "adapter of its own; choose layers of the language model."
        )
    adapt_only(model, family.lora, family.freeze)


def model_class(kind: type[AudioLLMProcessor]) -> Any:
    """transformers' class of a model."""
    import transformers

    return getattr(transformers, kind.architecture)


def processor_of(family: TransformersFamily, kind: type[AudioLLMProcessor], hf: Any, config: Any) -> AudioLLMProcessor:
    """The processor of a model with this config, around that of transformers, `hf`, as the family says."""
    lora: Any = family.lora
    if lora is not None and "targets" not in lora.model_fields_set:
        lora.targets = list(kind.lora_targets)
    return kind(hf, config, family)


def from_base(family: TransformersFamily) -> Bundle:
    """The pretrained model of `from`, without adapters."""
    # Only what is trained has to be in float32, and adapters are added afterwards.
    dtype = torch.bfloat16 if family.lora is not None and family.dtype == "bfloat16" else torch.float32
    load = {"dtype": dtype, "use_safetensors": True}

    def parts(name: str, options: dict[str, Any]) -> tuple[Any, AudioLLMProcessor, Any]:
        config, kind = read_config(family, name, options)
        processor = processor_of(family, kind, kind.read(name, config.to_dict(), **options), config)
        return config, processor, model_class(kind).from_pretrained(name, trust_remote_code=False, **load, **options)

    config, processor, model = reach(family, "model", parts)
    folded = fold_shipped_adapters(model)
    bundle = Bundle(processor.model_of(model), processor, family)
    kept = set(bundle.model.state_dict()) - {own_name(name) for name in folded}
    bundle.origin = Origin(kept, getattr(config, "_commit_hash", None))
    return bundle


def fold_shipped_adapters(model: Any) -> set[str]:
    """Fold the adapters that a model comes with (Granite Speech 3) into its weights, which ours go on top of; the names
    of these weights."""
    if not getattr(model, "_hf_peft_config_loaded", False):
        return set()
    from peft.tuners.lora import LoraLayer

    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, LoraLayer)}
    for name, layer in layers.items():
        layer.merge()
        model.set_submodule(name, layer.get_base_layer())
    model.requires_grad_(True)  # all but the adapters was frozen
    model._hf_peft_config_loaded = model.config.has_lora_adapter = False
    del model.peft_config
    return {f"{name}.weight" for name in layers}


def read_config(family: TransformersFamily, name: str, options: dict[str, Any]) -> tuple[Any, type[AudioLLMProcessor]]:
    """The transformers config of a folder or Hub id, and the class of its processor. Raises ConfigError for a model
    that is none of the family's."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(name, trust_remote_code=False, **options)
    kinds = family.kinds()
    if config.model_type not in kinds:
        raise ConfigError(
            f"model.from: {name} is a model of the type {config.model_type}, {family.unknown(config.model_type)}"
        )
    kind = kinds[config.model_type]
    family._model_type = config.model_type
    if kind.architecture not in (config.architectures or [kind.architecture]):
        raise ConfigError(f"model.from: a {config.architectures[0]} {family.other_purpose}.")
    kind.inspect(config)
    return config, kind


def from_config(family: TransformersFamily) -> Bundle:
    """An untrained model of `config`, sized for the tokenizer."""
    settings, kind = dict(family.config or {}), family.processor_class()
    assert kind is not None
    settings.pop("model_type")
    part = SimpleNamespace(source=family.tokenizer, revision=None)
    hf = reach(part, "model.tokenizer", lambda name, options: kind.read(name, settings, **options))
    family.settle(settings, hf)
    architecture = model_class(kind)
    config_class = architecture.config_class
    known = set(config_class().to_dict())
    if unknown := sorted(set(settings) - known):
        parts = ", ".join(sorted(name for name in known if name.endswith("_config")))
        raise ConfigError(f"model.config: a {config_class.__name__} has no '{unknown[0]}'; it has {parts}.")
    try:
        config = config_class(**settings)
        model = architecture(config)
    except Exception as error:  # transformers validates with errors of many kinds, all about these settings
        raise ConfigError(f"model.config: {' '.join(str(error).split())}") from error
    kind.inspect(config)
    processor = processor_of(family, kind, hf, config)
    return Bundle(processor.model_of(model), processor, family)


def apply_memory_options(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family, model, fixed = bundle.family, bundle.model, bundle.processor.fixed
    for path, part in model.named_children():
        trained = any(p.requires_grad for n, p in part.named_parameters() if not is_adapter(n))
        for name, parameter in part.named_parameters():
            if not parameter.is_floating_point():  # kept in 8 or 4 bits
                continue
            small = family.dtype == "bfloat16" and not trained
            small = small and not is_adapter(name) and not any(fnmatchcase(f"{path}.{name}", glob) for glob in fixed)
            parameter.data = parameter.data.to(torch.bfloat16 if small else torch.float32)
    for module in model.modules():  # whose statistics are no parameters, but of their dtype
        if isinstance(module, torch.nn.BatchNorm1d):
            module.float()
    set_memory_options(bundle, [part for part in model.children() if isinstance(part, PreTrainedModel)])
