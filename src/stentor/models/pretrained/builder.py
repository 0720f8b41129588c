"""Models that transformers has as one class: built from a section, saved and loaded. Export folders are what it and
PEFT load by themselves, and `stentor.json`.

config.json, generation_config.json                        as transformers writes them
model.safetensors                                          the whole model, sharded above 5 GB, or
adapter_config.json, adapter_model.safetensors             in its place: LoRA adapters on an untouched `from`, and the
                                                           modules trained with them (PEFT's `modules_to_save`)
tokenizer.json, processor_config.json ...                  the processor
stentor.json                                               what only Stentor knows, such as the family's section

`state` and `names` below are those of the part of our model that is transformers' (`PretrainedBuilder.inside`).
"""

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.base import Bundle, TaskRequirements
from stentor.models.pretrained.lora import ADAPTER, adapt, adapt_only, base_name, freeze_parameters, is_adapter
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import (
    ADAPTER_FILE,
    SECTION_FILE,
    add_trained,
    cpu_state,
    exported_names,
    fold_state,
    load_adapters,
    read_section,
    read_weights,
    standalone,
    tensor_names,
    tied_copies,
    write_adapters,
    write_json,
    write_weights,
)


class PretrainedBuilder(ABC):
    """Building, saving and loading for one family. A subclass says how its models are made and what is written next to
    their weights; `build`, `save`, `save_merged`, `load` and `exported_tensor_names` are what `Family` calls."""

    inside: str = ""
    """Attribute of our model that is transformers' model. Empty: our model has the weights itself."""

    # What a family says

    @abstractmethod
    def new(self, family: Any, requirements: TaskRequirements) -> Bundle:
        """The model of a section, without adapters and freezing. Raises ConfigError, also for unknown loss terms."""

    def initialise(self, bundle: Bundle, folder: Path) -> dict[str, Tensor]:
        """Start from the weights of the export `init`, where `new` did not. Returns the adapters that continue."""
        return {}

    @abstractmethod
    def open(self, family: Any, folder: Path, facts: dict[str, Any]) -> Bundle:
        """The model of a folder of whole weights or, for a folder of adapters, their base; `facts`: its stentor.json.
        Without adapters and freezing."""

    def lora(self, bundle: Bundle) -> Any:
        """The section of adapters, for transformers' model. Raises ConfigError for layers that can have none."""
        return bundle.family.lora

    @abstractmethod
    def apply_memory_options(self, bundle: Bundle) -> object:
        """Memory options, after adapters and freezing."""

    @abstractmethod
    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        """Write config.json and generation_config.json. The processor has written its files, or `write_whole` did."""

    @abstractmethod
    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        """The content of stentor.json for a bundle; `to_base`: for a folder of adapters."""

    def write_whole(self, bundle: Bundle, weights: dict[str, Tensor], folder: Path) -> None:
        """Write all weights, adapters folded in."""
        tied = tied_copies(bundle.model)
        write_weights({self.their_name(bundle, n): t for n, t in weights.items() if n not in tied}, folder)

    def base_class(self, bundle: Bundle) -> type | None:
        """transformers' class of the base of adapters, where PEFT needs to be given it."""
        return None

    def trained_modules(self, model: Any) -> Collection[str]:
        """Paths of the modules that are trained in full and exported with adapters."""
        return ()

    def their_name(self, bundle: Bundle, name: str) -> str:
        """transformers' name of a tensor."""
        return name

    def our_name(self, bundle: Bundle, name: str) -> str:
        """Our name of a tensor of transformers."""
        return name

    # What follows from it

    def build(self, family: Any, requirements: TaskRequirements) -> Bundle:
        """A model ready to train: weights loaded, `init` applied, adapters added, parameters frozen."""
        bundle = self.new(family, requirements)
        adapters = self.initialise(bundle, Path(family.init)) if family.init else {}
        model = self._adapt(bundle)
        if adapters:
            load_adapters(model, adapters)
        quantize(model, family.quantize)
        self.apply_memory_options(bundle)
        return bundle

    def _adapt(self, bundle: Bundle) -> nn.Module:
        """Freeze and add new adapters, as the family says; transformers' model."""
        inner, family = self._inner(bundle), bundle.family
        add = adapt_only if family.adapters_alone else adapt
        add(inner.model, self.lora(inner), family.freeze)
        return inner.model  # type: ignore[no-any-return]

    def left_to_base(self, bundle: Bundle) -> bool:
        """Whether only adapters and `trained_modules` are exported: all other weights are as `from` has them."""
        model, trained = self._inner(bundle).model, self.trained_modules(self._inner(bundle).model)
        rest = {n for n in tensor_names(model) if not is_adapter(n) and n.rpartition(".")[0] not in trained}
        return bundle.family.lora is not None and {base_name(n) for n in rest} <= bundle.origin.from_base

    def exported_tensor_names(self, bundle: Bundle) -> set[str]:
        """Names of the tensors that an export is made of; see `Family.exported_tensor_names`."""
        if not self.left_to_base(bundle):
            return exported_names(bundle.model)
        trained = {self._prefix + path for path in self.trained_modules(self._inner(bundle).model)}
        names = set(bundle.model.state_dict())
        ours = {n for n in names if not n.startswith(self._prefix)}
        return ours | {n for n in names if is_adapter(n) or n.rpartition(".")[0] in trained}

    def save(self, bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
        """Write an export. `state` has our model's names; see `Family.save`."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = {n.removeprefix(self._prefix): t for n, t in state.items() if n.startswith(self._prefix)}
        ours = {n: t.tolist() for n, t in state.items() if not n.startswith(self._prefix)}
        to_base, model = self.left_to_base(bundle), self._inner(bundle).model
        if to_base:
            self._write_adapters(bundle, model, weights, folder)
        else:
            self.write_whole(bundle, fold_state(model, weights), folder)
        self._write_rest(bundle, folder, ours | self.facts(bundle, to_base))

    def _write_rest(self, bundle: Bundle, folder: Path, facts: dict[str, Any]) -> None:
        bundle.processor.save(folder)
        self.write_configs(bundle, folder)
        if facts:
            write_json(folder / SECTION_FILE, facts)

    def save_configs(self, bundle: Bundle, folder: Path) -> None:
        """Write all of a whole export but its weights into a folder that is there, beside graphs in another format."""
        whole = dataclasses.replace(bundle, family=standalone(bundle.family))
        ours = {n: t.tolist() for n, t in cpu_state(bundle.model).items() if not n.startswith(self._prefix)}
        self._write_rest(whole, folder, ours | self.facts(whole, False))

    def _write_adapters(self, bundle: Bundle, model: Any, weights: dict[str, Tensor], folder: Path) -> None:
        settings = model.peft_config[ADAPTER]
        settings.base_model_name_or_path = bundle.family.source
        settings.revision = bundle.origin.commit or bundle.family.revision
        if base := self.base_class(bundle):
            settings.auto_mapping = {"base_model_class": base.__name__, "parent_library": base.__module__}
        trained = sorted(self.trained_modules(model))
        write_adapters(model, weights, folder, lambda name: self.their_name(bundle, name), trained)

    def save_merged(self, bundle: Bundle, folder: Path) -> None:
        """Write an export that needs nothing else: adapters folded in."""
        whole = dataclasses.replace(bundle, family=standalone(bundle.family))
        self.save(whole, cpu_state(bundle.model), folder)

    def load(self, family_class: type[Any], folder: Path, trainable: bool = False) -> Bundle:
        """The bundle of an export, or of any folder of transformers with a model of this family; see `Family.load`.
        Adapters are folded in but for training, and where the base is kept in bfloat16, which would round away much of
        what was learnt."""
        family, facts = read_section(family_class, folder)
        bundle = self.open(family, folder, facts)
        inner = self._inner(bundle)
        model: nn.Module = inner.model
        if (folder / ADAPTER_FILE).is_file():
            if trainable:
                freeze_parameters(model, family.freeze)
            if family.adapters_alone:
                model.requires_grad_(False)
            tensors = {self.our_name(bundle, n): t for n, t in read_weights(folder)[1].items()}
            small = any(parameter.dtype == torch.bfloat16 for parameter in model.parameters())
            add_trained(inner, tensors, folder, apart=trainable or small)
        elif trainable:  # new adapters: those of the export are folded in
            self._adapt(bundle)
        if trainable:
            quantize(model, family.quantize)
        else:
            bundle.model.requires_grad_(False)
        self.apply_memory_options(bundle)
        bundle.model.train(trainable)
        return bundle

    @property
    def _prefix(self) -> str:
        return f"{self.inside}." if self.inside else ""

    def _inner(self, bundle: Bundle) -> Bundle:
        """The bundle with transformers' model as its model."""
        return dataclasses.replace(bundle, model=bundle.model.get_submodule(self.inside))
