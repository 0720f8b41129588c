"""Contract of exporters that write ONNX graphs: once in float32, from which quantised folders are made."""

from __future__ import annotations

import shutil
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from stentor.export.exporter import Exporter
from stentor.export.onnx.quantize import KINDS, quantize
from stentor.export.onnx.trace import OPSET
from stentor.export.program import load_program
from stentor.models.base import ONNX_CONFIG, ONNX_FORMAT
from stentor.models.pretrained.weights import write_json
from stentor.version import __version__

if TYPE_CHECKING:
    from stentor.data.batch import Example
    from stentor.inference.model import Model


def usage_of(command: str, more: str, does: str = "features, decoding, word times, windows for long recordings") -> str:
    """`Exporter.usage` of a folder with a program that runs its graphs."""
    return f"""\
These are ONNX graphs for onnxruntime. `{command.split()[1]}` runs them without Stentor and torch: {does}.

```bash
pip install numpy onnxruntime tokenizers soundfile
{command}
```

`onnx_config.json` names the graphs and their outputs, and holds the settings that the program reads.

{more}"""


class GraphExporter(Exporter):
    """Graphs for onnxruntime or another runtime that reads them, with the files beside them."""

    runtime = "onnxruntime"
    extra = "onnx"
    quantizations = KINDS
    exact: ClassVar[Sequence[str]] = ("features.onnx", "voices.onnx", "codec_*.onnx")
    """Patterns of graphs that keep float32: features and voices would not be those of training, and a codec is mostly
    convolutions, whose errors are heard."""

    def write(self, model: Model, folder: Path) -> None:
        model.bundle.model.float().eval()
        self.write_graphs(model, folder)

    @abstractmethod
    def write_graphs(self, model: Model, folder: Path) -> None:
        """Write the graphs and what belongs to them. The model is in float32 and does not train."""

    def quantize(self, model: Model, float_folder: Path, folder: Path, quantization: str) -> None:
        graphs = [path.relative_to(float_folder) for path in sorted(float_folder.rglob("*.onnx"))]
        graphs = [path for path in graphs if not any(path.match(pattern) for pattern in self.exact)]
        rewritten = [f"{path.name}{end}" for path in graphs for end in ("", ".data")]
        shutil.copytree(float_folder, folder, ignore=lambda _, names: set(rewritten) & set(names), dirs_exist_ok=True)
        for path in graphs:
            quantize(float_folder / path, folder / path, quantization)


def write_facts(folder: Path, kind: str, graphs: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Write onnx_config.json: versions, the kind of program, and by name the file and outputs of each graph."""
    versions = {"format": ONNX_FORMAT, "stentor_version": __version__, "torch_version": torch.__version__}
    write_json(folder / ONNX_CONFIG, {**versions, "opset": OPSET, "kind": kind, "graphs": graphs, **facts})


def run_program(
    folder: Path, examples: Sequence[Example], asked: Callable[[Example], dict[str, Any]] = lambda example: {}
) -> list[dict[str, Any]]:
    """Texts and words of clips by the program of a folder. `asked`: options of `recognise` for a clip."""
    recognizer = load_program(folder).Recognizer(folder)
    return [dict(zip(("text", "words"), recognizer.recognise(e.audio, **asked(e)))) for e in examples]
