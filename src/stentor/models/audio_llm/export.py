"""Export folders of audio language models, in the layout of plain transformers and PEFT.

config.json                  the transformers config, with its own `model_type`
model.safetensors            all weights (sharded above 5 GB), or
adapter_model.safetensors    LoRA adapters on an untouched `from`, with adapter_config.json, as PEFT reads them
tokenizer and processor files, generation_config.json
stentor.json                 the family section and the commit of the base
"""

from __future__ import annotations

import json
import logging
from pathlib import Path

import torch
from torch import Tensor

from stentor.errors import ConfigError
from stentor.models.audio_llm import AudioLLM, AudioLLMLora
from stentor.models.audio_llm.build import adapt, classes, finish, from_base
from stentor.models.audio_llm.modeling import AudioLLMModel
from stentor.models.base import Bundle
from stentor.models.peft import ADAPTER, base_name, is_adapter
from stentor.models.quantize import quantize
from stentor.models.weights_io import (
    ADAPTER_FILE,
    fold,
    fold_state,
    put_adapters,
    read_weights,
    tied_copies,
    write_adapters,
    write_weights,
)

log = logging.getLogger("stentor")

FACTS = "stentor.json"
_INNER = "model."  # transformers has all parts but the output layer below `model.`


def theirs(name: str) -> str:
    """transformers' name of a tensor of ours."""
    return name if name.startswith("lm_head.") else _INNER + name


def ours(name: str) -> str:
    """Our name of a tensor of transformers'."""
    return name.removeprefix(_INNER)


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export is made of; see `Family.exported_tensor_names`."""
    names = {n for n in bundle.model.state_dict() if is_adapter(n) or not left_to_base(bundle)}
    return names - tied_copies(bundle.model)


def left_to_base(bundle: Bundle) -> bool:
    """Whether the adapters alone are exported: all other weights are as `from` has them."""
    plain = {base_name(n) for n in bundle.model.state_dict() if not is_adapter(n)}
    return bundle.family.lora is not None and plain <= bundle.family._from_base


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export. `state` has our names; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    if left_to_base(bundle):
        config = bundle.model.peft_config[ADAPTER]
        config.base_model_name_or_path, config.revision = bundle.family.source, bundle.family._commit
        write_adapters(bundle.model, state, folder, theirs)
    else:
        tied = tied_copies(bundle.model)
        weights = fold_state(bundle.model, state)
        write_weights({theirs(n): t for n, t in weights.items() if n not in tied}, folder)
    bundle.processor.save(folder)
    _write_configs(bundle, folder)


def _write_configs(bundle: Bundle, folder: Path) -> None:
    from stentor import __version__

    family = bundle.family
    config = json.loads(bundle.model.config.to_json_string())
    config |= {"architectures": [family.architecture], "dtype": "float32"}
    (folder / "config.json").write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    bundle.processor.generation_config().save_pretrained(folder)
    facts = {
        "stentor_version": __version__,
        "family": family.model_dump(mode="json", by_alias=True),
        "commit": family._commit,
    }
    (folder / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write an export that needs nothing else: adapters folded in."""
    family = bundle.family.model_copy(update={"lora": None, "quantize": None, "freeze": [], "init": None})
    state = {name: tensor.detach().cpu() for name, tensor in bundle.model.state_dict().items()}
    save(Bundle(bundle.model, bundle.processor, family), state, folder)


def load(family_class: type[AudioLLM], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder, or of any folder of transformers with a model of this family; see
    `Family.load`."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    family, commit = family_class.model_validate({"from": str(folder)}), None
    if (folder / FACTS).is_file():
        facts = json.loads((folder / FACTS).read_text(encoding="utf-8"))
        family, commit = family_class.model_validate(facts["family"]), facts["commit"]
    settings, whole = classes(family)
    config = settings.from_pretrained(folder)
    family.inspect(config)
    processor = family.processor_of(str(folder), config)
    if (folder / ADAPTER_FILE).is_file():
        if commit and not Path(family.source or "").is_dir():
            family.revision = commit
        bundle = from_base(family)
        bundle.processor = processor
        _put_adapters(bundle, folder, trainable)
    else:
        model = whole.from_pretrained(folder, dtype=torch.float32)
        bundle = Bundle(family.model_of(model, processor), processor, family)
        if trainable:
            adapt(bundle)  # new adapters: those of the export are folded in
            quantize(bundle.model, family.quantize)
    if not trainable:
        bundle.model.requires_grad_(False)
    finish(bundle)
    bundle.model.train(trainable)
    return bundle


def _put_adapters(bundle: Bundle, folder: Path, trainable: bool) -> None:
    """The adapters of an export onto the base: folded in, but for training and where the base is kept in bfloat16,
    which would round away much of what was learnt."""
    family = bundle.family
    _, adapters = read(folder)
    if trainable or family.dtype == "bfloat16":
        bundle.model.requires_grad_(False)
        put_adapters(bundle.model, adapters, family.lora or AudioLLMLora(), folder)
        if trainable:
            quantize(bundle.model, family.quantize)
    else:
        fold(bundle, adapters, folder)


def read(folder: Path) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """(weights, adapters) of an export folder under our names, adapters without PEFT's prefix."""
    weights, adapters = read_weights(folder)
    return {ours(n): t for n, t in weights.items()}, {ours(n): t for n, t in adapters.items()}


def _fits(model: AudioLLMModel, weights: dict[str, Tensor], folder: Path) -> None:
    own = {n: t for n, t in model.state_dict().items() if n not in tied_copies(model)}
    wrong = sorted(set(own) ^ set(weights)) or [n for n, t in weights.items() if t.shape != own[n].shape]
    if wrong:
        raise ConfigError(
            f"{folder}: {len(wrong)} weights do not fit this {model.config.model_type} model, for example {wrong[0]}: "
            "the sizes in the config must be those that the export was trained with."
        )


def initialise(bundle: Bundle, folder: Path) -> dict[str, Tensor]:
    """Start from the weights of an export; before adapters are added.

    Returns the export's adapters when the same `model.lora` goes on with them; otherwise they are folded in. Raises
    ConfigError when the export is of another model.
    """
    family, model = bundle.family, bundle.model
    if not (folder / FACTS).is_file():
        raise ConfigError(f"model.init: {folder} is no export of a run with a {family.type} model (it has no {FACTS}).")
    before = json.loads((folder / FACTS).read_text(encoding="utf-8"))["family"]
    weights, adapters = read(folder)
    if weights:
        _fits(model, weights, folder)
        model.load_state_dict(weights, strict=False)  # tied copies come along
        family._from_base = set()
    elif before["from"] != family.source:
        raise ConfigError(
            f"model.init: {folder} holds adapters for {before['from']}, but `model.from` is {family.source}: they "
            "must be the same."
        )
    if not adapters:
        return {}
    if family.lora is not None and family.lora.model_dump() == before["lora"]:
        return adapters
    log.info("model.init: the adapters of %s are folded into the weights.", folder)
    fold(bundle, adapters, folder)
    return {}
