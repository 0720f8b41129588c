"""Export folders of transformers' transducers: what its AutoModelForTDT, AutoModelForRNNT and AutoProcessor load by
themselves, and stentor.json with what only Stentor knows, such as how confidences are calibrated. With LoRA on an
untouched `from`, PEFT's files in the place of the weights, and the family section and the commit of the base in
stentor.json. What was trained beside adapters, such as the predictor, is with them (PEFT's `modules_to_save`)."""

from pathlib import Path
from typing import Any

import torch

from stentor.models.base import Bundle
from stentor.models.ctc.export import RecogniserExporter
from stentor.models.pretrained.load import set_memory_options
from stentor.models.pretrained.lora import is_adapter
from stentor.models.transducer.config import TransducerFamily
from stentor.models.transducer.pretrained.build import assemble


class TransducerExporter(RecogniserExporter):
    """Exports with what our model has beside transformers' `recogniser` in stentor.json."""

    def open(self, family: TransducerFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        bundle = assemble(family, lambda: (), "model")
        buffers = bundle.model.state_dict().keys() & facts.keys()
        bundle.model.load_state_dict({name: torch.tensor(facts[name]) for name in buffers}, strict=False)
        return bundle

    def apply_memory_options(self, bundle: Bundle) -> None:
        set_memory_options(bundle, (bundle.model.recogniser.encoder,))

    def trained_modules(self, model: Any) -> set[str]:
        trained = (n for n, p in model.named_parameters() if p.requires_grad and not is_adapter(n))
        return {name.rpartition(".")[0] for name in trained}

    def left_to_base(self, bundle: Bundle) -> bool:
        """See `PretrainedExporter.left_to_base`. An encoder that is trained without adapters has parameters beside
        modules, which PEFT cannot keep."""
        trained = self.trained_modules(bundle.model.recogniser)
        return super().left_to_base(bundle) and not any(path.startswith("encoder.") for path in trained)

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        bundle.model.recogniser.generation_config.save_pretrained(folder)
        super().write_configs(bundle, folder)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        section = bundle.family.model_dump(mode="json", by_alias=True)
        of_base = {"family": section, "commit": bundle.origin.commit} if to_base else {}
        return of_base | super().facts(bundle, to_base)


exporter = TransducerExporter()
exported_tensor_names, save, save_merged = exporter.exported_tensor_names, exporter.save, exporter.save_merged
load = exporter.load
