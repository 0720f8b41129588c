"""Export folders of the family `ctc`: what transformers' AutoModelForCTC and AutoProcessor load by themselves."""

from pathlib import Path
from typing import Any

from torch import Tensor

from stentor.data.atomic_write import follow_umask
from stentor.models.base import Bundle
from stentor.models.ctc.build import apply_memory_options, assemble
from stentor.models.ctc.config import CTCFamily
from stentor.models.pretrained.export import PretrainedExporter
from stentor.models.pretrained.weights import read_json, write_json


class RecogniserExporter(PretrainedExporter):
    """Exports of models that are a `recogniser` of transformers with settings that training did without."""

    inside = "recogniser"

    def write_whole(self, bundle: Bundle, weights: dict[str, Tensor], folder: Path) -> None:
        bundle.model.recogniser.save_pretrained(folder, state_dict=weights, max_shard_size="5GB")
        follow_umask(*folder.glob("model*.safetensors"))

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        """Write the config.json with the settings that training did without."""
        file = folder / "config.json"
        bundle.model.recogniser.config.save_pretrained(folder)
        config = read_json(file)
        config.get("encoder_config", config).update(bundle.model.before)
        write_json(file, config)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        streaming = bundle.family.streaming
        return {} if streaming is None else {"streaming": streaming.model_dump(mode="json")}


class CTCExporter(RecogniserExporter):
    """LoRA adapters are always folded in: beside them the head is trained, mostly with an alphabet of its own, so that
    a folder of adapters would fit no base as it is, and encoders of this kind are small enough (95 M to 1.1 B
    parameters) for everybody to load the export by itself."""

    def open(self, family: CTCFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        return assemble(family, "own", lambda: (), "model")

    def apply_memory_options(self, bundle: Bundle) -> None:
        apply_memory_options(bundle)


exporter = CTCExporter()
exported_tensor_names, save, save_merged = exporter.exported_tensor_names, exporter.save, exporter.save_merged
load = exporter.load
