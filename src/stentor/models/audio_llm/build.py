"""Building and exporting audio language models, and all models of transformers with a class for each `model_type`
(`TransformersFamily`): weights, processor, adapters, freezing, configs."""

import json
import logging
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from stentor.errors import ConfigError
from stentor.models.audio_llm.modeling import AudioLLMModel, own_name, transformers_name
from stentor.models.audio_llm.processor import AudioLLMProcessor
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.pretrained.builder import PretrainedBuilder
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.load import load_pretrained, set_memory_options
from stentor.models.pretrained.lora import is_adapter, lora_targets
from stentor.models.pretrained.weights import (
    ADAPTER_FILE,
    SECTION_FILE,
    continue_adapters,
    read_json,
    read_weights,
    tied_copies,
    write_json,
)
from stentor.section.full_paths import full_path_of
from stentor.version import __version__

log = logging.getLogger("stentor")


class TransformersBuilder(PretrainedBuilder):
    """Models of a `TransformersFamily`. `codec` is that of models that speak, None of others."""

    def settle(self, kind: Any, settings: dict[str, Any], hf: Any, codec: Any) -> None:
        """Fill what the processor of transformers, `hf`, knows into an untrained model's config, `settings`."""
        kind.settle(settings, hf)

    def processor(self, family: TransformersFamily, kind: Any, hf: Any, config: Any, codec: Any) -> Any:
        """The processor of a model with this config, around that of transformers, `hf`, as the family says."""
        return kind(hf, config, family)

    def codec_in(self, folder: Path) -> Any:
        """The codec that lies in a folder."""
        return None

    def new(self, family: TransformersFamily, requirements: TaskRequirements) -> Bundle:
        return self.made(family)

    def made(self, family: TransformersFamily, codec: Any = None) -> Bundle:
        """The untrained model of `config` or the pretrained one of `from`."""
        return self.from_base(family, codec) if family.config is None else self.from_config(family, codec)

    def initialise(self, bundle: Bundle, folder: Path) -> dict[str, Tensor]:
        """Start from the weights of an export. Returns its adapters when the same `model.lora` continues with them;
        otherwise they are folded in. Raises ConfigError when the export is of another model."""
        family, model = bundle.family, bundle.model
        if not (folder / SECTION_FILE).is_file():
            raise ConfigError(
                f"model.init: {folder} is not an export of a run with a model of type {family.type} (it has no "
                f"{SECTION_FILE})."
            )
        before = read_json(folder / SECTION_FILE)["family"]
        weights, adapters = ({self.our_name(bundle, n): t for n, t in part.items()} for part in read_weights(folder))
        if weights:
            _check_fit(model, weights, folder)
            model.load_state_dict(weights, strict=False)  # tied copies come along
            bundle.origin.from_base = set()
        elif full_path_of(before["from"] or "") != full_path_of(family.source or ""):
            raise ConfigError(
                f"model.init: {folder} holds adapters for {before['from']}, but `model.from` is {family.source}: they "
                "must be the same."
            )
        continued = continue_adapters(bundle, adapters, folder, before["lora"])
        if adapters and not continued:
            log.info("model.init: the adapters of %s are folded into the weights.", folder)
        return continued

    def from_base(self, family: TransformersFamily, codec: Any) -> Bundle:
        """The pretrained model of `from`, without adapters."""
        # Only what is trained has to be in float32, and adapters are added afterwards.
        dtype = torch.bfloat16 if family.lora is not None and family.dtype == "bfloat16" else torch.float32
        load = {"dtype": dtype, "use_safetensors": True}

        def parts(name: str, options: dict[str, Any]) -> tuple[Any, Any, Any, Any]:
            config, kind = read_config(family, name, options)
            known = with_targets(family, kind, config.model_type)
            hf = kind.read(name, config.to_dict(), **options)
            processor = self.processor(known, kind, hf, config, codec)
            model = model_class(kind).from_pretrained(name, trust_remote_code=False, **load, **options)
            return known, config, processor, model

        known, config, processor, model = load_pretrained(family, "model", parts)
        folded = fold_shipped_adapters(model)
        bundle = Bundle(processor.model_of(model), processor, known)
        kept = set(bundle.model.state_dict()) - {own_name(name) for name in folded}
        bundle.origin = Origin(kept, vars(config).get("_commit_hash"))
        return bundle

    def from_config(self, family: TransformersFamily, codec: Any) -> Bundle:
        """An untrained model of `config`, sized for the tokenizer."""
        settings, kind = dict(family.config or {}), family.processor_class()
        model_type = settings.pop("model_type")
        part = SimpleNamespace(source=family.tokenizer, revision=None)
        hf = load_pretrained(part, "model.tokenizer", lambda name, options: kind.read(name, settings, **options))
        self.settle(kind, settings, hf, codec)
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
        family = with_targets(family, kind, model_type)
        processor = self.processor(family, kind, hf, config, codec)
        return Bundle(processor.model_of(model), processor, family)

    def open(self, family: TransformersFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        from transformers.utils import logging

        logging.disable_progress_bar()
        codec = self.codec_in(folder)
        config, kind = read_config(family, str(folder), {})
        family = with_targets(family, kind, config.model_type)
        processor = self.processor(family, kind, kind.read(str(folder), config.to_dict()), config, codec)
        if (folder / ADAPTER_FILE).is_file():
            bundle = self.from_base(family, codec)
            bundle.processor = processor
            return bundle
        model = model_class(kind).from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
        return Bundle(processor.model_of(model), processor, family)

    def apply_memory_options(self, bundle: Bundle) -> None:
        """Storage of what is not trained, and memory options."""
        family, model, fixed = bundle.family, bundle.model, bundle.processor.fixed
        for path, part in model.named_children():
            trained = any(p.requires_grad for n, p in part.named_parameters() if not is_adapter(n))
            for name, parameter in part.named_parameters():
                if not parameter.is_floating_point():  # kept in 8 or 4 bits
                    continue
                small = family.dtype == "bfloat16" and not trained and not is_adapter(name)
                small = small and not any(fnmatchcase(f"{path}.{name}", glob) for glob in fixed)
                parameter.data = parameter.data.to(torch.bfloat16 if small else torch.float32)
        for module in model.modules():  # whose statistics are no parameters, but of their dtype
            if isinstance(module, nn.BatchNorm1d):
                module.float()
        set_memory_options(bundle, [part for part in model.children() if isinstance(part, PreTrainedModel)])

    def their_name(self, bundle: Bundle, name: str) -> str:
        return transformers_name(name, bundle.processor.names)

    def our_name(self, bundle: Bundle, name: str) -> str:
        return own_name(name, bundle.processor.names)

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        config = json.loads(bundle.model.config.to_json_string())
        config |= {"architectures": [bundle.processor.architecture], "dtype": "float32"}
        write_json(folder / "config.json", config)
        bundle.processor.generation_config().save_pretrained(folder)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        section = bundle.family.model_dump(mode="json", by_alias=True)
        return {"stentor_version": __version__, "family": section, "commit": bundle.origin.commit}


class AudioLLMBuilder(TransformersBuilder):
    """Recognisers."""

    def new(self, family: TransformersFamily, requirements: TaskRequirements) -> Bundle:
        bundle = super().new(family, requirements)
        if requirements.task == "who_said_what" and not bundle.processor.turns:
            raise ConfigError(
                f"model: a {bundle.model.config.model_type} does not name speakers: use a model that does, such as "
                "microsoft/VibeVoice-ASR-HF, or the task transcribe."
            )
        return bundle

    def lora(self, bundle: Bundle) -> Any:
        model, section = bundle.model, bundle.family.lora
        words = model.language_model.get_input_embeddings()
        tied = isinstance(words, nn.Embedding) and model.lm_head.weight is words.weight
        if section is not None and tied and "lm_head" in lora_targets(model, section.targets):
            raise ConfigError(
                "model.lora.targets: lm_head shares its weights with the token embeddings in this model and can have "
                "no adapter of its own; choose layers of the language model."
            )
        return section


builder = AudioLLMBuilder()


def with_targets(family: TransformersFamily, kind: type[AudioLLMProcessor], model_type: str) -> TransformersFamily:
    """The section of a model of this kind, with the targets of its adapters where it names none."""
    lora: Any = family.lora
    if lora is None or "targets" in lora.model_fields_set:
        return family.known_as(model_type)
    return family.known_as(model_type, lora=lora.model_copy(update={"targets": list(kind.lora_targets)}))


def model_class(kind: type[AudioLLMProcessor]) -> Any:
    """transformers' class of a model."""
    import transformers

    return getattr(transformers, kind.architecture)


def _check_fit(model: AudioLLMModel, weights: dict[str, Tensor], folder: Path) -> None:
    state = {n: t for n, t in model.state_dict().items() if n not in tied_copies(model)}
    wrong = sorted(set(state) ^ set(weights)) or [n for n, t in weights.items() if t.shape != state[n].shape]
    if wrong:
        raise ConfigError(
            f"{folder}: {len(wrong)} weights do not fit this {model.config.model_type} model, for example {wrong[0]}: "
            "the sizes in the config must be those that the export was trained with."
        )


def fold_shipped_adapters(model: Any) -> set[str]:
    """Fold the adapters that a model comes with (Granite Speech 3) into its weights, to which ours are added; return
    the names of these weights."""
    if not model._hf_peft_config_loaded:
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
    if kind.architecture not in (config.architectures or [kind.architecture]):
        raise ConfigError(f"model.from: a {config.architectures[0]} {family.other_purpose}.")
    kind.inspect(config)
    return config, kind
