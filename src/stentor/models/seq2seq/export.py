"""Export folders: the files of transformers and PEFT, and `stentor.json` with the family's section.

config.json, generation_config.json, model.safetensors     the whole model, as transformers writes it
adapter_config.json, adapter_model.safetensors             in place of the weights: LoRA on an untouched `from`, which
                                                           PEFT's AutoPeftModel loads together with its base
tokenizer.json, processor_config.json ...                  the processor
"""

import copy
from pathlib import Path

from torch import Tensor

from stentor.models.base import Bundle
from stentor.models.pretrained.load import set_memory_options
from stentor.models.pretrained.lora import ADAPTER, adapt_only, base_name
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import (
    ADAPTER_FILE,
    SECTION_FILE,
    exported_names,
    fold_state,
    merged_state,
    standalone,
    tied_copies,
    write_adapters,
    write_json,
    write_weights,
)
from stentor.models.seq2seq.build import class_of, plain, section_of, with_adapters
from stentor.models.seq2seq.config import Seq2Seq


def left_to_base(family: Seq2Seq) -> bool:
    """Whether the adapters alone are exported: their base can be had as it is."""
    return family.lora is not None and family.source is not None and family.init is None


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export is made of; see `Family.exported_tensor_names`."""
    in_base = {base_name(name) for name in bundle.model.state_dict()} if left_to_base(bundle.family) else set()
    return exported_names(bundle.model, in_base)


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    family = bundle.family
    if left_to_base(family):
        settings = bundle.model.peft_config[ADAPTER]
        settings.base_model_name_or_path, settings.revision = family.source, family.revision
        base = class_of(bundle.model.config)
        settings.auto_mapping = {"base_model_class": base.__name__, "parent_library": base.__module__}
        write_adapters(bundle.model, state, folder)
    else:
        _write_weights(bundle, fold_state(bundle.model, state), folder)
    _write_facts(bundle, family, folder)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write the whole model, adapters folded in."""
    folder.mkdir(parents=True, exist_ok=True)
    _write_weights(bundle, merged_state(bundle), folder)
    _write_facts(bundle, standalone(bundle.family), folder)


def _write_weights(bundle: Bundle, weights: dict[str, Tensor], folder: Path) -> None:
    tied = tied_copies(bundle.model)
    write_weights({name: tensor for name, tensor in weights.items() if name not in tied}, folder)


def _write_facts(bundle: Bundle, family: Seq2Seq, folder: Path) -> None:
    config = copy.deepcopy(bundle.model.config)
    config.architectures, config.dtype = [class_of(config).__name__], "float32"
    config.save_pretrained(folder)
    generation = copy.deepcopy(bundle.model.generation_config)
    generation.forced_decoder_ids = None  # the old way to give language and task; transformers refuses both at once
    generation.save_pretrained(folder)
    bundle.processor.save(folder)
    write_json(folder / SECTION_FILE, {"family": family.model_dump(mode="json", by_alias=True)})


def load(family_class: type[Seq2Seq], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export or of any model folder; see `Family.load`. Without `trainable` adapters are folded."""
    family = section_of(folder)
    if not trainable:
        bundle = plain(family, folder)
        bundle.model.requires_grad_(False)
        bundle.model.eval()
        return bundle
    if (folder / ADAPTER_FILE).exists():
        bundle = with_adapters(family, folder)
    else:
        bundle = plain(family, folder)
        adapt_only(bundle.model, family.lora, family.freeze)
    quantize(bundle.model, family.quantize)
    set_memory_options(bundle, [bundle.model.model])
    return bundle
