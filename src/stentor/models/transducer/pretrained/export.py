"""Export folders of transformers' transducers: what its AutoModelForTDT, AutoModelForRNNT and AutoProcessor load by
themselves, and stentor.json with what only Stentor knows, such as how confidences are calibrated. With LoRA on an
untouched `from`, PEFT's files in the place of the weights, and the family section and the commit of the base in
stentor.json. What was trained beside adapters, such as the predictor, is with them (PEFT's `modules_to_save`)."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stentor.models.base import Bundle
from stentor.models.ctc.export import PREFIX, write_facts
from stentor.models.ctc.export import save as save_recogniser
from stentor.models.pretrained.load import set_memory_options
from stentor.models.pretrained.lora import ADAPTER, freeze_parameters, is_adapter
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import SECTION_FILE, cpu_state, read_json, standalone, write_adapters, write_json
from stentor.models.transducer.config import TransducerFamily
from stentor.models.transducer.pretrained.build import add_trained, assemble, holds_adapters, section_of


def trained_modules(recogniser: Any) -> list[str]:
    """Paths of the modules with parameters that are trained and no adapters."""
    trained = (n for n, p in recogniser.named_parameters() if p.requires_grad and not is_adapter(n))
    return sorted({name.rpartition(".")[0] for name in trained})


def left_to_base(bundle: Bundle) -> bool:
    """Whether adapters and what is trained beside them are exported: all other weights are as `from` has them.
    An encoder that is trained without adapters has parameters beside modules, which PEFT cannot keep."""
    encoder = any(path.startswith("encoder.") for path in trained_modules(bundle.model.recogniser))
    return bundle.family.lora is not None and bool(bundle.family._from_base) and not encoder


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export is made of; see `Family.exported_tensor_names`."""
    names = set(bundle.model.state_dict())
    if not left_to_base(bundle):
        return names
    modules = {PREFIX + path for path in trained_modules(bundle.model.recogniser)}
    return {n for n in names if not n.startswith(PREFIX) or is_adapter(n) or n.rpartition(".")[0] in modules}


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write a folder that transformers alone reads, of adapters PEFT; see `Family.save`."""
    weights = {n: t for n, t in state.items() if n.startswith(PREFIX)}
    facts: dict[str, Any] = {n: t.tolist() for n, t in state.items() if n not in weights}
    if left_to_base(bundle):
        family, recogniser = bundle.family, bundle.model.recogniser
        settings = recogniser.peft_config[ADAPTER]
        settings.base_model_name_or_path, settings.revision = family.source, family._commit or family.revision
        recogniser.config.save_pretrained(folder)
        recogniser.generation_config.save_pretrained(folder)
        plain = {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
        write_adapters(recogniser, plain, folder, trained_modules=trained_modules(recogniser))
        write_facts(bundle, folder)
        facts |= {"family": family.model_dump(mode="json", by_alias=True), "commit": family._commit}
    else:
        save_recogniser(bundle, weights, folder)
    if streaming := bundle.family.streaming:
        facts["streaming"] = streaming.model_dump(mode="json")
    write_json(folder / SECTION_FILE, facts)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write an export that needs nothing else: adapters folded in."""
    save(Bundle(bundle.model, bundle.processor, standalone(bundle.family)), cpu_state(bundle.model), folder)


def load(family_class: type[TransducerFamily], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of a folder of transformers, or of adapters; see `Family.load`."""
    apart = trainable and holds_adapters(folder)
    facts = read_json(folder / SECTION_FILE) if (folder / SECTION_FILE).is_file() else {}
    plain = {"type": "transducer", "from": str(folder), "streaming": facts.get("streaming")}
    family = section_of(folder) if apart else family_class.model_validate(plain)
    bundle = assemble(family, lambda: (), "model")
    buffers = bundle.model.state_dict().keys() & facts.keys()
    bundle.model.load_state_dict({name: torch.tensor(facts[name]) for name in buffers}, strict=False)
    recogniser = bundle.model.recogniser
    bundle.model.requires_grad_(trainable)
    if trainable:
        freeze_parameters(recogniser, family.freeze)
    if apart:
        add_trained(bundle, folder, apart=True)
        quantize(recogniser, family.quantize)
    set_memory_options(bundle, (recogniser.encoder,))
    bundle.model.train(trainable)
    return bundle
