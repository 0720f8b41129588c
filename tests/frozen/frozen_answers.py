"""What frozen exports and runs answer, by the public interface; make.py notes it, the tests compare it."""

import contextlib
import hashlib
import io
import json
import math
import platform
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import soundfile
import torch
from safetensors.torch import load_file

import stentor
from stentor.cli import build, main
from stentor.config.reference import keys as described_keys
from stentor.sources.base import Source

RATE = 16000
CLIPS = ("data/one.flac", "data/three.flac")
RECORDS = {"type": "jsonl", "path": "data/clips.jsonl"}
TEXTS = {"type": "text", "path": "data/texts.txt"}
SAMPLES = 12
"""Numbers of an array that are kept, for machines that compute a little differently; its hash stands for all."""
ROW = re.compile(r"step|epoch|loss|lr|grad_norm|padding|(train|eval)/.*")
"""What is kept of a run's metrics: no times and no memory."""


def machine() -> dict[str, str]:
    """What decides about the last bits of a float32 result."""
    cpus, facts = Path("/proc/cpuinfo"), {}
    if cpus.is_file():
        for line in cpus.read_text().splitlines():
            name, _, value = line.partition(":")
            facts.setdefault(name.strip(), value.strip())
    names = [facts[name] for name in ("model name", "cpu family", "model", "stepping") if name in facts]
    return {
        "cpu": " ".join(names) or platform.processor(),
        "kernels": torch.backends.cpu.get_cpu_capability(),
        "torch": torch.__version__,
    }


def command(*arguments: object) -> str:
    """What a command writes to standard output; it must end well."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(a) for a in arguments])
    assert not code, f"stentor {' '.join(map(str, arguments))}: exit {code}\n{err.getvalue()}"
    return out.getvalue()


def array(values: np.ndarray | torch.Tensor) -> dict[str, Any]:
    """An array's shape, hash and some of its numbers."""
    values = torch.as_tensor(values).detach().contiguous()
    some = values.flatten()[:: max(1, -(-values.numel() // SAMPLES))]
    digest = hashlib.sha256(values.view(torch.uint8).numpy().tobytes() if values.ndim else b"").hexdigest()
    return {"shape": list(values.shape), "sha256": digest[:16], "some": [finite(value) for value in some.tolist()]}


def finite(value: float) -> float | str:
    """A number as JSON has it."""
    return value if math.isfinite(value) else str(value)


def arrays(tree: Any, name: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """The arrays in nested mappings and sequences, by their path."""
    if isinstance(tree, torch.Tensor):
        yield name, array(tree)
    elif isinstance(tree, dict):
        for key, value in tree.items():
            yield from arrays(value, f"{name}.{key}" if name else str(key))
    elif isinstance(tree, (list, tuple)):
        for index, value in enumerate(tree):
            yield from arrays(value, f"{name}.{index}")


def outputs(model: stentor.load) -> dict[str, Any]:
    """What the model computes for the losses of two records: logits, frame logits, scores of an aligner."""
    bundle, task = model.bundle, model.task
    source = Source.model_validate(RECORDS if task.audio else TEXTS)
    examples = []
    for cut, _ in zip(source.cuts(), range(2)):
        audio = None
        if task.audio:
            audio = cut.resample(bundle.processor.sample_rate).load_audio()[0].astype(np.float32)
        examples.append(task.example(cut, audio, np.random.default_rng(0)))
    batch = task.collate(examples, bundle.processor, False)
    with torch.no_grad():
        computed = bundle.model(**batch.inputs)
    return dict(arrays({term: value for term, value in computed.items() if term != "weights"}))  # `weights` are its own


def evaluated(export: str, source: str) -> dict[str, Any]:
    """Scores of the command, and its answers."""
    with tempfile.TemporaryDirectory() as folder:
        command("evaluate", export, "--data", source, "--json", Path(folder, "scores.json"))
        scores = json.loads(Path(folder, "scores.json").read_text())["eval"]
        lines = Path(folder, "scores.predictions.jsonl").read_text().splitlines()
    answers = {line["id"]: line["output"] for line in map(json.loads, lines)}
    return {"scores": {name: score["value"] for name, score in scores.items()}, "answers": answers}


def transcripts(model: Any, **options: Any) -> list[dict[str, Any]]:
    done = model.transcribe_many(CLIPS, keep_failed=True, tokens=True, **options)
    return [{k: v for k, v in transcript.items() if k != "model"} for transcript in done]


def streamed(model: Any) -> list[Any]:
    """Events of a stream that is fed tenths of a second."""
    audio, _ = soundfile.read(CLIPS[1], dtype="float32")
    stream = model.stream(RATE)
    events = [event for i in range(0, len(audio), RATE // 10) for event in stream.feed(audio[i : i + RATE // 10])]
    return [plain(event) for event in [*events, *stream.finish()]]


def plain(value: Any) -> Any:
    """As JSON has it."""
    return json.loads(json.dumps(value, default=vars))


def spoken(model: Any) -> dict[str, Any]:
    speech = model.speak("one two", seed=3)
    return {"rate": speech.rate, "codes": array(speech.codes), "audio": array(speech.audio)}


def of(export: str, streams: bool = False, beams: bool = False, language: str | None = None) -> dict[str, Any]:
    """All that an export is asked."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = stentor.load(export, "cpu")
    answers: dict[str, Any] = {"outputs": outputs(model)}
    kind = model.task.type
    if kind in ("transcribe", "words"):
        answers["transcripts"] = transcripts(model, language=language)
        if beams:
            answers["beams"] = transcripts(model, language=language, beams=3)
        if streams:
            answers["stream"] = streamed(model)
    if kind == "diarize":
        answers["speakers"] = [plain(model.diarize(clip)) for clip in CLIPS]
    if kind == "speak":
        answers["speech"] = spoken(model)
    else:
        answers["evaluated"] = evaluated(export, "data/clips.jsonl" if model.task.audio else "data/texts.txt")
    return plain(answers)


def of_run(run: Path, after: int) -> dict[str, Any]:
    """What a run measured after a step, and what it exported."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    kept = [{k: v for k, v in row.items() if ROW.fullmatch(k)} for row in lines if row["step"] > after]
    files = sorted((run / "export").glob("*.safetensors"))
    return {"rows": kept, "weights": {f.name: dict(arrays(load_file(f))) for f in files}}


def options() -> dict[str, Any]:
    """Every option of every verb."""
    return dict(sorted(_options(build(), ())))


def _options(group: Any, path: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    for name, inner in getattr(group, "commands", {}).items():
        yield from _options(inner, (*path, name))
    yield " ".join(("stentor", *path)), {p.name: _option(p) for p in group.params if p.name != "help"}


def _option(parameter: Any) -> dict[str, Any]:
    annotation = parameter.type_descriptor.annotation
    default = parameter.default
    return {
        "flags": [*parameter.opts, *parameter.secondary_opts],
        "default": str(default) if isinstance(default, Path) else plain(default),
        "type": annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation),
        "min": parameter.min,
        "max": parameter.max,
        "required": parameter.required,
        "help": parameter.help,
    }


def keys() -> dict[str, dict[str, str]]:
    """Defaults of the keys of each section of a run file, by the section's place."""
    sections: dict[str, dict[str, str]] = {}
    for key, _, default, _ in described_keys():
        section, _, name = key.rpartition(".")
        sections.setdefault(section, {})[name] = default
    return sections


def grouped(sections: dict[str, dict[str, str]]) -> list[dict[str, Any]]:
    """Sections that are equal, such as the sources of `data.train` and `data.eval`, are written once."""
    groups: dict[str, dict[str, Any]] = {}
    for section, entries in sections.items():
        groups.setdefault(json.dumps(entries), {"sections": [], "keys": entries})["sections"].append(section)
    return list(groups.values())


def dump(path: Path, answers: Any) -> None:
    """Write JSON, with the innermost lists and mappings on one line each."""
    text = json.dumps(answers, indent=1, ensure_ascii=False)
    for inside in (r"[^\[\]{}]", r"(?:[^\[\]{}]|\[[^\[\]{}\n]*\]|{[^\[\]{}\n]*})"):
        text = re.sub(rf"[\[{{]{inside}*[\]}}]", lambda part: re.sub(r"\n *", " ", part[0]), text)
    path.write_text(text + "\n")
