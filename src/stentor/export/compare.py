"""Comparison of an export in its runtime with the model in memory, and the table that goes into its card."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.export.exporter import Exporter
from stentor.export.probe import CLIPS, FULL, Different, ModelOutputs, Probe, built_in, conversations, records
from stentor.inference.model import Model
from stentor.metrics.format import is_rate, label
from stentor.models.base import EXPORT_FACTS
from stentor.models.pretrained.weights import write_json
from stentor.tasks.diarize.task import Diarize
from stentor.tasks.transcribe import Transcribe
from stentor.version import __version__

LIMIT = 0.2
"""Points of error rate by which an export in float may be worse than the model."""
WORDS = 200
"""Words that the clips have together where there are so many, so that one word is half a point at most."""
MOST = 48
"""Most clips that are taken for that."""
TIMES = 0.1
"""Seconds by which a word's start may differ in the mean."""


@dataclass
class Row:
    """One line of the table: the model, or an export of it in one quantisation."""

    name: str
    score: float
    """The main metric on the clips."""
    megabytes: float | None
    """Size of the files."""
    rtf: float
    """Seconds of computing per second of audio, on this machine's CPU; an export's loading is counted."""
    differ: int = 0
    """Clips whose text, or segments, are others than the model's."""
    times_ms: tuple[float, float] | None = None
    """Difference of word starts to the model's in ms, mean and largest; None without times."""


@dataclass
class Comparison:
    """Rows of one export, its clips and where it ran."""

    format: str
    runtime: str
    metric: str
    clips: int
    built_in: int
    """Number of clips that are the built-in voice, where the run's own data do not suffice."""
    rows: list[Row] = field(default_factory=list)

    def inputs(self) -> str:
        """Names of the clips that it was compared on."""
        voice = f" ({self.built_in} of them the built-in voice)" if self.built_in else ""
        return f"{self.clips} clips that it was not trained on{voice}"

    def summary(self) -> str:
        """In a sentence without a point."""
        model, *exports = self.rows
        figures = ", ".join(f"{row.name} {self._figure(row.score)}" for row in exports)
        times = [f"word starts {r.times_ms[0]:.0f} ms apart in the mean" for r in exports[:1] if r.times_ms]
        return (
            f"checked in {self.runtime} on {self.clips} clips: {label(self.metric)} {figures}, "
            f"{self._figure(model.score)} in Stentor" + "".join(f"; {t}" for t in times)
        )

    def _figure(self, value: float) -> str:
        return f"{value:.2%}" if is_rate(self.metric) else f"{value:.4g}"

    def markdown(self) -> str:
        """The table."""
        lines = [
            f"| | {label(self.metric)} | clips that differ | word starts (mean, largest) | size | real-time factor |"
        ]
        lines.append("|---|---|---|---|---|---|")
        for row in self.rows:
            times = "" if row.times_ms is None else "{:.0f}, {:.0f} ms".format(*row.times_ms)
            size = "" if row.megabytes is None else f"{row.megabytes:.1f} MB"
            lines.append(
                f"| {row.name} | {self._figure(row.score)} | {row.differ} of {self.clips} | {times} | {size} | "
                f"{row.rtf:.3f} |"
            )
        return "\n".join(lines)

    def as_dict(self) -> dict[str, Any]:
        """For `export.json`."""
        return asdict(self)


class Reference:
    """The clips of a model, and what it answers in memory."""

    def __init__(self, model: Model, exporter: Exporter, format: str):
        self.model, self.exporter = model, exporter
        texts = isinstance(model.task, Transcribe)
        examples, references = records(model, MOST if texts else CLIPS, math.inf, exporter.pieces)
        spoken = 0
        if isinstance(model.task, Diarize) and len(examples) < CLIPS:
            voices, turns = conversations(model.task, model.bundle, CLIPS - len(examples), exporter.pieces)
            examples, references, spoken = [*examples, *voices], [*references, *turns], len(voices)
        if texts and len(examples) < CLIPS:
            voice = built_in(model.bundle, MOST if not examples else CLIPS - len(examples))
            examples, spoken = [*examples, *voice], len(voice)
        if texts:
            examples, references = enough(examples), []
            spoken = min(spoken, len(examples))
        self.probe = Probe(model.task, examples, {}, references)
        if not examples:
            raise ConfigError("There are no clips to compare the export on: the run's evaluation data are gone.")
        started = time.perf_counter()
        outputs = exporter.same_inputs(model, examples)
        self.outputs = ModelOutputs(self.probe.run(model.bundle).outputs if outputs is None else outputs)
        seconds = time.perf_counter() - started
        self.comparison = Comparison(format, exporter.ran_in(), self.probe.metric, len(examples), spoken)
        size = sum(p.numel() * p.element_size() for p in model.bundle.model.parameters()) / 1e6
        score = self.probe.score(self.outputs)
        self.comparison.rows.append(Row("Stentor (torch)", score, size, seconds / self._seconds))

    @property
    def _seconds(self) -> float:
        rate = self.model.bundle.processor.sample_rate
        return max(1e-9, sum(len(e.audio) for e in self.probe.examples if e.audio is not None) / rate)

    def check(self, folder: Path, quantization: str | None, allow: bool) -> None:
        """Run an export in its runtime and add its row. Raises `Different` over the limit, unless `allow` is set."""
        examples = self.probe.examples
        started = time.perf_counter()
        outputs = ModelOutputs(self.exporter.run(folder, self.model, examples))
        seconds = time.perf_counter() - started
        score = self.probe.score(outputs)
        pairs = list(zip(self.outputs.outputs, outputs.outputs, strict=True))
        row = Row(quantization or self.exporter.precision, score, size_of(folder), seconds / self._seconds)
        row.differ = sum(any(a.get(key) != b.get(key) for key in ("text", "segments")) for a, b in pairs)
        row.times_ms = _word_starts(pairs)
        before = self.comparison.rows[0].score
        self.comparison.rows.append(row)
        limit = LIMIT if quantization is None else self.exporter.quantizations[quantization]
        many = quantization is None and self.probe.texts and row.differ > FULL.share * len(examples)
        if (many or not 100 * (score - before) <= limit) and not allow:
            wrong = [(e, a, b) for e, (a, b) in zip(examples, pairs) if a.get("text") != b.get("text")][:1]
            shown = "".join(f"; for example {e.id}: {b['text']!r} and not {a['text']!r}" for e, a, b in wrong)
            share = ", and an eighth of the texts may differ" if quantization is None else ""
            raise Different(
                f"the {label(self.probe.metric)} of {row.name} in {self.comparison.runtime} is {score:.2%} and not "
                f"{before:.2%}, and {row.differ} of {len(examples)} clips differ; {limit:g} points are "
                f"allowed{share}{shown}"
            )
        if row.times_ms is not None and row.times_ms[0] > 1000 * TIMES and not allow:
            raise Different(
                f"its words begin {row.times_ms[0]:.0f} ms from those of the model in the mean ({len(examples)} clips)"
            )


def enough(examples: Sequence[Example]) -> list[Example]:
    """Clips in even steps: at least `CLIPS`, and so many that they have `WORDS` words; all where there are fewer."""
    words = sum(len((e.text or "").split()) for e in examples)
    count = min(len(examples), max(CLIPS, math.ceil(WORDS * len(examples) / max(1, words))))
    return [examples[i * len(examples) // count] for i in range(count)]


def size_of(folder: Path) -> float:
    """Megabytes of a folder's files."""
    return sum(p.stat().st_size for p in folder.rglob("*") if p.is_file()) / 1e6


def _word_starts(pairs: Sequence[tuple[dict[str, Any], dict[str, Any]]]) -> tuple[float, float] | None:
    """Mean and largest difference of the words' starts in ms, where both have the same words."""
    differences = [
        1000 * abs(a["start"] - b["start"])
        for one, other in pairs
        if len(one.get("words") or []) == len(other.get("words") or [])
        for a, b in zip(one.get("words") or [], other.get("words") or [])
        if "start" in a and "start" in b
    ]
    return (sum(differences) / len(differences), max(differences)) if differences else None


def add_usage(folder: Path, exporter: Exporter, comparison: Comparison) -> None:
    """Put the section into the folder's README.md (which is written where there is none) in the place of "How to use",
    which is about the files of the model, and `export.json`, which each folder of a quantisation has as well."""
    path = folder / "README.md"
    title = f"## Export for {exporter.runtime}"
    before = path.read_text(encoding="utf-8").split(f"\n{title}\n")[0].rstrip() if path.exists() else "# An export"
    before = re.sub(r"\n## How to use\n.*?(?=\n## |\Z)", "", before, flags=re.DOTALL)
    kinds = [row.name for row in comparison.rows if (folder / row.name).is_dir()]
    several = f"There is a folder for each type of weights ({', '.join(kinds)}): choose one and go into it.\n\n"
    choose = several if kinds else ""
    text = (
        f"{before}\n\n{title}\n\n{choose}{exporter.usage.replace('{folder}', '.').strip()}\n\n"
        f"Compared with the model in {comparison.runtime} on {comparison.inputs()}, one at a time on a CPU:\n\n"
        f"{comparison.markdown()}\n"
    )
    path.write_text(text, encoding="utf-8")
    facts = {"stentor_version": __version__, **comparison.as_dict()}
    for place in (folder, *(folder / kind for kind in kinds)):
        write_json(place / EXPORT_FACTS, facts)
