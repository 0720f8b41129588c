"""Export folders of audio language models and of models that speak; see `stentor.models.pretrained.export`."""

import json
from pathlib import Path
from typing import Any

import torch

from stentor.models.audio_llm.build import apply_memory_options, from_base, model_class, processor_of, read_config
from stentor.models.audio_llm.modeling import own_name, transformers_name
from stentor.models.base import Bundle
from stentor.models.pretrained.export import PretrainedExporter
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.weights import ADAPTER_FILE, write_json
from stentor.version import __version__


class TransformersExporter(PretrainedExporter):
    """Exports of models of which a class for each `model_type` says how they work."""

    def open(self, family: TransformersFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        from transformers.utils import logging

        logging.disable_progress_bar()
        family.restore(folder)
        config, kind = read_config(family, str(folder), {})
        processor = processor_of(family, kind, kind.read(str(folder), config.to_dict()), config)
        if (folder / ADAPTER_FILE).is_file():
            bundle = from_base(family)
            bundle.processor = processor
            return bundle
        model = model_class(kind).from_pretrained(folder, trust_remote_code=False, dtype=torch.float32)
        return Bundle(processor.model_of(model), processor, family)

    def apply_memory_options(self, bundle: Bundle) -> None:
        apply_memory_options(bundle)

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


exporter = TransformersExporter()
exported_tensor_names, save, save_merged = exporter.exported_tensor_names, exporter.save, exporter.save_merged
load = exporter.load
