"""Export folders of the family `seq2seq`; see `stentor.models.pretrained.export`."""

import copy
from pathlib import Path
from typing import Any

from stentor.models.base import Bundle
from stentor.models.pretrained.export import PretrainedExporter
from stentor.models.pretrained.load import set_memory_options
from stentor.models.pretrained.weights import ADAPTER_FILE
from stentor.models.seq2seq.build import class_of, of_folder, pretrained
from stentor.models.seq2seq.config import Seq2Seq


class Seq2SeqExporter(PretrainedExporter):
    """Exports with the configs of transformers' model, which ours has the parts of."""

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


exporter = Seq2SeqExporter()
exported_tensor_names, save, save_merged = exporter.exported_tensor_names, exporter.save, exporter.save_merged
load = exporter.load
