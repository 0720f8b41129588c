"""Sample predictions: answers of a run about held-out recordings, shown while it goes."""

import json
import threading
from collections import OrderedDict
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from stentor.data.yaml_text import read_yaml
from stentor.report.examples import UNSURE, ReportExample, compare
from stentor.studio.runs.html_fragments import render
from stentor.studio.runs.jobs import Job
from stentor.studio.runs.progress import RunProgress, progress_of
from stentor.studio.texts import say

MOST_SAMPLES = 6
"""Answers of a set that are shown."""
_MOST_RENDERED = 32


@dataclass
class _SampleSet:
    name: str
    when: str
    examples: list[ReportExample]


_rendered: OrderedDict[tuple[Path, int, int], str] = OrderedDict()
_lock = threading.Lock()


def samples(job: Job) -> str:
    """What the run answers about some held-out recordings, with what differs marked and players."""
    followed = progress_of(job.training)
    with _lock, followed.lock:
        key = (followed.folder, followed.serial, followed.answers)
        if (html := _rendered.get(key)) is None:
            html = _rendered[key] = render("samples", _sample_sets(job, followed), UNSURE)
            while len(_rendered) > _MOST_RENDERED:
                _rendered.popitem(last=False)
    return html


def _sample_sets(job: Job, followed: RunProgress) -> list[_SampleSet]:
    """The newest answers of each set."""
    shown = []
    normalizer = _normalizer(job.training)
    for (stage, name), steps in followed.samples.items():
        if stage is not None and followed.stage and stage != str(followed.stage[0]):
            continue
        last = max(steps)
        examples = [_example(job, name, row, normalizer) for row in steps[last][:MOST_SAMPLES]]
        shown.append(_SampleSet(name, say("samples_at", step=f"{last:,}"), examples))
    return shown


def _example(job: Job, name: str, row: dict[str, Any], normalizer: str) -> ReportExample:
    reference, output, record = (row.get(key) or {} for key in ("reference", "output", "record"))
    example = ReportExample(
        id=str(row.get("id")),
        seconds=float(row.get("seconds") or 0.0),
        speaker=record.get("speaker"),
        language=record.get("language") or reference.get("language"),
        errors=0,
        total=0,
    )
    reference_text, output_text = reference.get("text"), output.get("text")
    if isinstance(reference_text, str) and isinstance(output_text, str):
        example.cells = compare(reference_text, output_text, normalizer, example.language, output.get("words") or ())
        example.errors = sum(cell.kind != "equal" for cell in example.cells)
        example.total = sum(cell.reference is not None for cell in example.cells)
    else:
        example.reference = reference_text if isinstance(reference_text, str) else _plain(reference)
        example.output = output_text if isinstance(output_text, str) else _plain(output)
    spoken = (output.get("audio") or {}).get("file") if isinstance(output.get("audio"), dict) else None
    base = f"/studio/runs/{quote(job.name)}"
    if spoken:
        example.sound = f"{base}/spoken/{quote(str(spoken))}"
    elif record.get("audio_path"):
        example.sound = f"{base}/sound?set={quote(name, safe='')}&id={quote(example.id, safe='')}"
    return example


def _plain(value: Any, longest: int = 300) -> str:
    value = {k: v for k, v in value.items() if k != "audio"} if isinstance(value, dict) else value
    text = json.dumps(value, ensure_ascii=False) if value else ""
    return text if len(text) <= longest else text[:longest] + " …"


def _normalizer(folder: Path) -> str:
    """How the run's texts are made alike before they are compared."""
    from yaml import YAMLError

    try:
        text = (folder / "resolved.yaml").read_text(encoding="utf-8")
        config = read_yaml(text)
    except (OSError, YAMLError):
        return "none"
    return str((config.get("task") or {}).get("normalizer") or "none") if isinstance(config, dict) else "none"
