"""Building and exporting encoder-decoder recognisers; exports have the configs of transformers' model."""

import copy
import importlib
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import transformers
from torch import Tensor, nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.pretrained.builder import PretrainedBuilder
from stentor.models.pretrained.load import load_pretrained, part_config, set_memory_options
from stentor.models.pretrained.weights import ADAPTER_FILE, export_folder, fold, read_section, read_weights
from stentor.models.seq2seq.config import MODELS, Seq2Seq


class Seq2SeqBundle(Bundle):
    """A bundle whose parts are the encoder and the decoder."""

    def parts(self) -> dict[str, nn.Module]:
        return {"encoder": self.model.model.encoder, "decoder": self.model.model.decoder}


def module_of(model_type: str, where: str) -> Any:
    """The module of a model. Raises ConfigError for one that is not of this family."""
    MODELS.of(model_type, f"{where} a {model_type} model, which the family seq2seq has not; give {{known}}.")
    return importlib.import_module(f"{__package__}.{model_type}")


def class_of(config: Any) -> Any:
    """transformers' class of a model with this config."""
    return transformers.AutoModelForSpeechSeq2Seq._model_mapping[type(config)]


def pretrained(family: Seq2Seq) -> Bundle:
    """Model, tokenizer, extractor and generation config of `from`. Raises ConfigError when they cannot be had."""
    part = SimpleNamespace(source=family.source, revision=family.revision, config=None)
    config = part_config(part, "model")
    processor = module_of(config.model_type, f"model.from: {family.source} is").Processor

    def load(name: str, options: dict[str, Any]) -> tuple[Any, Any, Any]:
        model = class_of(config).from_pretrained(
            name,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            **options,
        )
        with suppress(OSError):  # older folders have none: transformers made one from the config
            model.generation_config = transformers.GenerationConfig.from_pretrained(
                name, trust_remote_code=False, **options
            )
        parts = [
            kind and getattr(transformers, kind).from_pretrained(name, trust_remote_code=False, **options)
            for kind in (processor.tokenizer_class, processor.extractor_class)
        ]
        return model, *parts

    bundle = assemble(family, *load_pretrained(part, "model", load))
    bundle.origin = Origin(set(bundle.model.state_dict()))
    return bundle


def fresh(family: Seq2Seq) -> Bundle:
    """An untrained model of `config` with a tokenizer of bytes."""
    asked = family.config or {}
    kind = module_of(asked["model_type"], "model.config.model_type is").Processor
    tokenizer = kind.fresh_tokenizer()
    ids = kind.fresh_settings(tokenizer)
    if clash := sorted(set(ids) & set(asked)):
        raise ConfigError(f"model.config.{clash[0]} comes from the tokenizer: leave it out.")
    config = part_config(SimpleNamespace(source=None, revision=None, config={**ids, **asked}), "model")
    kind.complete(config)
    model = class_of(config)._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    model.generation_config = transformers.GenerationConfig(**kind.fresh_generation(tokenizer, config))
    return assemble(family, model, tokenizer, kind.fresh_extractor(config))


def assemble(family: Seq2Seq, pretrained: Any, tokenizer: Any, extractor: Any) -> Bundle:
    """The bundle of transformers' model, tokenizer and feature extractor. Raises ConfigError for keys that only other
    models have."""
    config = pretrained.config
    family = family.known_as(config.model_type)
    for key in sorted({key for facts in MODELS.values() for key in facts.keys} - family.facts().keys):
        if getattr(family, key) != type(family).model_fields[key].default:
            raise ConfigError(f"model.{key}: {family.facts().title} does not have it: leave it out.")
    module = module_of(config.model_type, "the model is")
    processor = module.Processor(tokenizer, extractor, config, pretrained.generation_config.to_dict(), family)
    return Seq2SeqBundle(module.Model(pretrained, processor), processor, family)


def of_folder(family: Seq2Seq, folder: Path) -> Bundle:
    """The model of an export, or of any model folder, its adapters folded in."""
    if (folder / ADAPTER_FILE).exists():
        bundle = pretrained(family)
        fold(bundle, read_weights(folder)[1], folder)
        return bundle
    bundle = pretrained(family.model_copy(update={"source": str(folder), "revision": None}))
    bundle.family, bundle.origin = family.known_as(bundle.model.config.model_type), Origin()
    return bundle


class Seq2SeqBuilder(PretrainedBuilder):
    """Our model has the parts of transformers' model itself."""

    def new(self, family: Seq2Seq, requirements: TaskRequirements) -> Bundle:
        bundle = pretrained(family) if family.source is not None else fresh(family)
        if other := sorted(set(requirements.terms) - {"text"}):
            title = bundle.family.facts().title
            raise ConfigError(f"losses.{other[0]}: {title} has no such output; it is trained only with `text`.")
        return bundle

    def initialise(self, bundle: Bundle, folder: Path) -> dict[str, Tensor]:
        """Start from the weights of an export or of any model folder."""
        before = of_folder(read_section(Seq2Seq, export_folder(str(folder)))[0], folder)
        state, weights = bundle.model.state_dict(), before.model.state_dict()
        for name, tensor in state.items():
            if name not in weights or weights[name].shape != tensor.shape:
                shape = list(weights[name].shape) if name in weights else "missing"
                raise ConfigError(
                    f"model.init: {name} is {shape} in {folder} and {list(tensor.shape)} here; `model` must describe "
                    f"the same {bundle.family.facts().title}."
                )
        bundle.model.load_state_dict({name: weights[name] for name in state})
        bundle.origin = Origin()
        return {}

    def open(self, family: Seq2Seq, folder: Path, facts: dict[str, Any]) -> Bundle:
        return pretrained(family) if (folder / ADAPTER_FILE).is_file() else of_folder(family, folder)

    def apply_memory_options(self, bundle: Bundle) -> None:
        set_memory_options(bundle, [bundle.model.model])

    def base_class(self, bundle: Bundle) -> type:
        base: type = class_of(bundle.model.config)
        return base

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        config = copy.deepcopy(bundle.model.config)
        config.architectures, config.dtype = [class_of(config).__name__], "float32"
        config.save_pretrained(folder)
        generation = copy.deepcopy(bundle.model.generation_config)
        generation.forced_decoder_ids = None  # the old way to give language and task; transformers refuses both at once
        generation.save_pretrained(folder)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        return {"family": bundle.family.model_dump(mode="json", by_alias=True)}


builder = Seq2SeqBuilder()
