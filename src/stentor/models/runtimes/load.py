"""Exports for other runtimes as models: which runtime runs a folder, and the model that asks it.

Such a folder has no weights of torch. Its processor and its settings are those that the family writes: in the folder
of an ONNX export, in the folder `stentor` of one for CTranslate2, whose own config.json is another.
"""

from __future__ import annotations

import importlib
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.models.base import EXPORT_FACTS, ONNX_CONFIG, SETTINGS, Bundle
from stentor.models.encoders.streaming.chunks import KnownChunks, Streaming
from stentor.models.skeleton import without_weights

if TYPE_CHECKING:
    from stentor.models.base import Family

MODELS = {
    ("onnx", "ctc"): "stentor.models.runtimes.recognisers:OnnxCTC",
    ("ctranslate2", "ctc"): "stentor.models.runtimes.recognisers:CT2Wave",
    ("onnx", "transducer"): "stentor.models.runtimes.recognisers:OnnxTransducer",
    ("onnx", "seq2seq"): "stentor.models.runtimes.seq2seq:onnx_seq2seq",
    ("ctranslate2", "seq2seq"): "stentor.models.runtimes.ctranslate2:CT2Whisper",
}
"""Class of the model by format and kind: `(folder, facts, bundle)` makes it, where the bundle has the torch model
without weights."""
OTHERS = {"sherpa": "sherpa-onnx", "ggml": "whisper.cpp", "gguf": "CrispASR", "web": "the browser"}
"""Formats that Stentor writes and does not run, and what runs them."""
FOREIGN = (
    ("*.gguf", "a GGUF model, for CrispASR or llama.cpp"),
    ("ggml-*.bin", "a model for whisper.cpp"),
    ("*.onnx", "a folder of ONNX graphs without onnx_config.json, such as for sherpa-onnx"),
    ("model.bin", "a CTranslate2 model that Stentor did not write"),
)
"""Files of models that Stentor does not run, and what they are."""


@dataclass
class Export:
    """A folder that another runtime runs."""

    format: str
    folder: Path
    settings: Path
    """Folder of config.json and of the processor's files."""
    kind: str | None = None
    """None: the family says it."""
    facts: dict[str, Any] = field(default_factory=dict)

    def open(self, family: type[Family]) -> Bundle:
        """The model with its processor. Raises ConfigError for a damaged folder and one that no class runs."""
        if self.kind == "speech_llm":
            return family.load(self.folder)
        family_type = family.model_fields["type"].default
        row = (self.format, self.kind or family_type)
        if row not in MODELS:
            raise ConfigError(
                f"{self.folder} is an {self.format} export of the kind {row[1]}, which Stentor does not run: give "
                "the model that it was made from."
            )
        if row[1] != family_type and (family_type, row[1]) != ("transformer", "ctc"):
            raise ConfigError(
                f"{self.folder / ONNX_CONFIG} is of the kind {row[1]}, and config.json beside it of the family "
                f"{family_type}: the export is damaged. Export the model again."
            )
        from stentor.models.encoders.cache import EncoderCache

        with without_weights():
            bundle = family.load(self.settings)
        module, name = MODELS[row].split(":")
        try:
            model: Any = vars(importlib.import_module(module))[name](self.folder, self.facts, bundle).eval()
        except KeyError as error:
            raise ConfigError(
                f"{self.folder / ONNX_CONFIG} has no {error}: the export is damaged, or of another version of Stentor. "
                "Export the model again."
            ) from error
        bundle.processor.streaming = self._chunks(bundle.processor.streaming)
        opened = Bundle(model, bundle.processor, bundle.family)
        if isinstance(model, EncoderCache):
            opened.cache_encoder = model.cache_encoder
        return opened

    def _chunks(self, trained: Streaming | KnownChunks | None) -> KnownChunks | None:
        """Chunks of the graph for streams; None without one: clips are read as a whole."""
        chunk = self.facts.get("chunk")
        return KnownChunks((chunk["seconds"],), chunk["seconds"], trained.reach[1]) if chunk and trained else None


def export_in(folder: Path) -> Export | None:
    """The export for another runtime that a folder holds, None where there is none. Raises ConfigError for damaged
    facts."""
    if (folder / ONNX_CONFIG).is_file():
        from stentor.models.runtimes.graph import onnx_facts

        facts = onnx_facts(folder)
        return Export("onnx", folder, folder, str(facts.get("kind", "speech_llm")), facts)
    if (folder / SETTINGS / "config.json").is_file():
        return Export("ctranslate2", folder, folder / SETTINGS)
    return None


def refuse_foreign(path: Path) -> None:
    """Raise ConfigError for a file or a folder of a model that only other programs run, with what to give instead."""
    instead = "Give the run or the export that it was made from, or export that with --format onnx or ctranslate2."
    if path.is_dir() and (path / EXPORT_FACTS).is_file():
        if folders := [file.parent for file in sorted(path.glob(f"*/{EXPORT_FACTS}"))]:
            known = " or ".join(map(str, folders))
            raise ConfigError(f"{path} holds an export for each type of weights: give {known}.")
        try:
            format = json.loads((path / EXPORT_FACTS).read_text(encoding="utf-8"))["format"]
        except (ValueError, KeyError, TypeError):
            format = None
        if format in OTHERS:
            raise ConfigError(f"{path} is an export for {OTHERS[format]}, which Stentor does not run. {instead}")
    if not path.is_dir() or export_in(path) is None:
        names = {path.name} if path.is_file() else {p.name for p in path.glob("*")} if path.is_dir() else set()
        for pattern, what in FOREIGN if not any(name.startswith("model.safetensors") for name in names) else ():
            if any(Path(name).match(pattern) for name in names):
                raise ConfigError(f"{path} is {what}, which Stentor does not run. {instead}")


def refuse_training(path: Path) -> None:
    """Raise ConfigError for an export for another runtime: there is nothing in it to train."""
    refuse_foreign(path)
    if path.is_dir() and (export := export_in(path)) is not None:
        raise ConfigError(
            f"{path} is an {export.format} export, which cannot be trained: give the run or the export that it was "
            "made from."
        )
