"""Contract of an exporter: it writes a model in one format, and runs what it wrote in the runtime that people use."""

from __future__ import annotations

import importlib.metadata
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

if TYPE_CHECKING:
    from stentor.data.batch import Example
    from stentor.inference.model import Model
    from stentor.models.base import Bundle


class Exporter(ABC):
    """One format for the models of some families. `stentor.export.table` names the exporters.

    What is written is run by `run` on held-out clips and compared with the model (`stentor.export.compare`) before it
    is handed over.
    """

    runtime: ClassVar[str]
    """Distribution on PyPI whose release runs the files, such as `sherpa-onnx`. The card names its version."""
    extra: ClassVar[str]
    """Extra of Stentor (`stentor[EXTRA]`) that brings what writing and running need."""
    precision: ClassVar[str] = "float32"
    """Type of the weights without quantisation."""
    quantizations: ClassVar[Mapping[str, float]] = {}
    """Quantisations that the format has beside `precision`, and the points of error rate that each may cost."""
    pieces: ClassVar[int] = 1
    """Pieces of a recording of any length that a clip for the comparison has, for programs that stitch them."""
    keeps_facts: ClassVar[bool] = True
    """Whether the folder also has the settings and results of the training. False where everybody can read it, as they
    name folders."""
    usage: ClassVar[str]
    """Section of the README in Markdown: what the files are and how they are run, without heading. `{folder}` stands
    for the folder."""

    package: Path | None = None
    """A copy of the runtime's package (`--runtime`), for formats that put it into the folder. None: downloaded."""

    def ran_in(self) -> str:
        """Runtime and version of the comparison."""
        return f"{self.runtime} {importlib.metadata.version(self.runtime)}"

    def refusal(self, bundle: Bundle) -> str | None:
        """Reason why a model of these settings has no export of this format, in a sentence; None when it has one."""
        return None

    @abstractmethod
    def write(self, model: Model, folder: Path) -> None:
        """Write everything that the runtime needs into a folder that is there, adapters folded in, with weights in
        `precision`. The model is on the CPU. Raises ConfigError naming the part that cannot be exported."""

    @abstractmethod
    def quantize(self, model: Model, float_folder: Path, folder: Path, quantization: str) -> None:
        """Write the same with weights in `quantization`, one of `quantizations`. `float_folder`: that of `write`."""

    @abstractmethod
    def run(self, folder: Path, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Outputs of the real runtime for the clips, as `Task.predict` gives them: `text` and, where the runtime has
        them, `words` (dicts of `word`, `start`, `end` in seconds) for texts, the task's own for labels, `audio`
        (float32 [samples] at the codec's rate) for speech. `model` gives processor and prompts, never answers."""

    def same_inputs(self, model: Model, examples: Sequence[Example]) -> list[dict[str, Any]] | None:
        """Outputs of the model in memory for what the runtime was given, where that is not `Task.predict` with greedy
        search, such as a stream. None: it is."""
        return None


class Converter(Exporter):
    """A format that is written from the model's tensors, whatever the type of its weights."""

    @abstractmethod
    def convert(self, model: Model, folder: Path, quantization: str | None) -> None:
        """Write the files with weights in `quantization`; None: in `precision`."""

    def write(self, model: Model, folder: Path) -> None:
        self.convert(model, folder, None)

    def quantize(self, model: Model, float_folder: Path, folder: Path, quantization: str) -> None:
        self.convert(model, folder, quantization)
