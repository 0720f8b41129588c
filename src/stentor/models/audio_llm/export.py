"""Export folders of audio language models, in the layout of plain transformers and PEFT.

config.json                  the transformers config, with its own `model_type`
model.safetensors            all weights (sharded above 5 GB), or
adapter_model.safetensors    LoRA adapters on an untouched `from`, with adapter_config.json, as PEFT reads them
tokenizer and processor files, generation_config.json
stentor.json                 the family section and the commit of the base
"""

import json
from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from stentor.models.audio_llm.build import (
    adapt,
    apply_memory_options,
    from_base,
    model_class,
    processor_of,
    read_config,
    read_export,
)
from stentor.models.audio_llm.modeling import transformers_name
from stentor.models.base import Bundle, Family
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.lora import ADAPTER, base_name, is_adapter
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import (
    ADAPTER_FILE,
    SECTION_FILE,
    cpu_state,
    exported_names,
    fold,
    fold_state,
    put_adapters,
    read_json,
    standalone,
    tensor_names,
    tied_copies,
    write_adapters,
    write_json,
    write_weights,
)


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export is made of; see `Family.exported_tensor_names`."""
    return exported_names(bundle.model, bundle.family._from_base if left_to_base(bundle) else set())


def left_to_base(bundle: Bundle) -> bool:
    """Whether the adapters alone are exported: all other weights are as `from` has them."""
    plain = {base_name(n) for n in tensor_names(bundle.model) if not is_adapter(n)}
    return bundle.family.lora is not None and plain <= bundle.family._from_base


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export. `state` has our names; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    if left_to_base(bundle):
        config = bundle.model.peft_config[ADAPTER]
        config.base_model_name_or_path, config.revision = bundle.family.source, bundle.family._commit
        write_adapters(bundle.model, state, folder, lambda name: transformers_name(name, bundle.processor.names))
    else:
        tied = tied_copies(bundle.model)
        weights = fold_state(bundle.model, state)
        names = bundle.processor.names
        write_weights({transformers_name(n, names): t for n, t in weights.items() if n not in tied}, folder)
    bundle.processor.save(folder)
    _write_configs(bundle, folder)


def _write_configs(bundle: Bundle, folder: Path) -> None:
    from stentor import __version__

    family = bundle.family
    config = json.loads(bundle.model.config.to_json_string())
    config |= {"architectures": [bundle.processor.architecture], "dtype": "float32"}
    write_json(folder / "config.json", config)
    bundle.processor.generation_config().save_pretrained(folder)
    facts = {
        "stentor_version": __version__,
        "family": family.model_dump(mode="json", by_alias=True),
        "commit": family._commit,
    }
    write_json(folder / SECTION_FILE, facts)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write an export that needs nothing else: adapters folded in."""
    save(Bundle(bundle.model, bundle.processor, standalone(bundle.family)), cpu_state(bundle.model), folder)


def load(family_class: type[TransformersFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder, or of any folder of transformers with a model of this family; see
    `Family.load`."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    family, commit = family_class.model_validate({"from": str(folder)}), None
    if (folder / SECTION_FILE).is_file():
        facts = read_json(folder / SECTION_FILE)
        # Of the base class, which knows the names that older exports have for this family.
        family, commit = cast(TransformersFamily, Family.model_validate(facts["family"])), facts["commit"]
    family.restore(folder)
    config, kind = read_config(family, str(folder), {})
    processor = processor_of(family, kind, kind.read(str(folder), config.to_dict()), config)
    if (folder / ADAPTER_FILE).is_file():
        if commit and not Path(family.source or "").is_dir():
            family.revision = commit
        bundle = from_base(family)
        bundle.processor = processor
        _put_adapters(bundle, folder, trainable)
    else:
        model = model_class(kind).from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
        bundle = Bundle(processor.model_of(model), processor, family)
        if trainable:
            adapt(bundle)  # new adapters: those of the export are folded in
            quantize(bundle.model, family.quantize)
    if not trainable:
        bundle.model.requires_grad_(False)
    apply_memory_options(bundle)
    bundle.model.train(trainable)
    return bundle


def _put_adapters(bundle: Bundle, folder: Path, trainable: bool) -> None:
    """The adapters of an export onto the base: folded in, but for training and where the base is kept in bfloat16,
    which would round away much of what was learnt."""
    family = bundle.family
    _, adapters = read_export(bundle, folder)
    if trainable or family.dtype == "bfloat16":
        bundle.model.requires_grad_(False)
        put_adapters(bundle.model, adapters, family.lora)
        if trainable:
            quantize(bundle.model, family.quantize)
    else:
        fold(bundle, adapters, folder)
