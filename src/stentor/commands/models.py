"""`stentor models`: the table of known models, with the memory that training takes, and the run file of each."""

import difflib
import json
from collections.abc import Iterable
from typing import Any

from stentor.commands.begin_options import ModelsOptions, ShowOptions
from stentor.commands.plan.suggest import method_of, suggest
from stentor.config.load import load_text
from stentor.config.yaml_writer import dump
from stentor.engine.standing_memory import standing
from stentor.errors import ConfigError
from stentor.metrics.format import count, text_table
from stentor.models.catalogue import FULL, LORA, KnownModel, known_models
from stentor.tasks.base import Task
from stentor.text.languages import among, checked_language

CAN = ("words", "speakers", "streaming", "translation")
HOURS = 10.0
"""Hours of data that learning rate and epochs of a printed run file are for; `--plan-only` suggests better ones."""
HEAD = ["model", "task", "family", "size", "languages", "LoRA", "full", "licence", "can"]
ROOM = 0.8
"""Share of a GPU that may be taken before a batch is; the rest is for activations."""
DATA = {
    "language": {"type": "text", "path": "data/train.txt"},
    "diarize": {"type": "jsonl", "path": "data/train.jsonl"},
}
COMMENTS = {
    "language": "Your texts in place of data/train.txt, one a line.",
    "diarize": "Your recordings in place of data/train.jsonl: JSON lines with audio_path and segments (docs/data.md).",
    "who_said_what": "Your recordings in place of data/train.jsonl: JSON lines with audio_path and segments with text.",
    "words": "Your recordings in place of data/train.jsonl: JSON lines with audio_path, text and words (docs/data.md).",
    "": "Your recordings in place of data/train.jsonl: JSON lines with audio_path and text (docs/data.md).",
}


def run_sections(model: KnownModel, task: str, method: str, hours: float) -> dict[str, Any]:
    """The sections of a run file that trains a model for a task, without data. Learning rate and epochs are those that
    `stentor train --plan-only` suggests for so many hours, where it suggests any."""
    tree: dict[str, Any] = {"task": {"type": task}}
    for key, section in model.sections(method).items():
        tree[key] = {**tree.get(key, {}), **section} if isinstance(section, dict) else section
    train = tree.setdefault("train", {})
    if task in ("transcribe", "diarize") or not {"lr", "epochs"} & {*train, *tree.get("optim", {})}:
        kind = LORA if method == LORA else method_of(tree["model"], head=False)
        suggestion = suggest(model.recipe or model.family, kind, hours, model.parameters)
        tree.setdefault("optim", {}).setdefault("lr", suggestion.lr)
        train.setdefault("epochs", suggestion.epochs)
    return tree


def run_file(model: KnownModel, task: str, method: str) -> str:
    """A complete run file, with one comment: where the data goes."""
    tree = run_sections(model, task, method, HOURS)
    source = DATA.get(task, {"type": "jsonl", "path": "data/train.jsonl"})
    data = {"train": [source], "eval": {"dev": "held_out"}, **tree.pop("data", {})}
    callbacks = [{"type": "samples", "count": 6}, {"type": "early_stop", "patience": 3}]
    name = model.label.rpartition("/")[2].replace("_", "-")
    head = {"name": name, "task": tree.pop("task"), "model": tree.pop("model")}
    comment = f"# {COMMENTS.get(model.needs or task, COMMENTS[''])}\n"
    return dump(head) + comment + dump({"data": data, **tree, "callbacks": callbacks})


def memory(model: KnownModel, method: str) -> float | None:
    """Bytes that training takes beside what a batch adds, as the plan of its run file counts them; None where the
    number of parameters is not known."""
    if not model.parameters:
        return None
    config = load_text(run_file(model, model.tasks[0], method)).config
    trained = model.adapters if method == LORA else model.parameters - model.frozen
    frozen = model.parameters if method == LORA else model.frozen
    stored = 2 if config.plain()["model"].get("dtype") == "bfloat16" else 4
    return standing(stored * frozen + 4 * trained, trained, config.optim, config.train).total


def show_table(filters: ModelsOptions) -> None:
    """Print the models that pass all filters. Raises ConfigError for a task or an ability that there is not."""
    for option, value, known in (("task", filters.task, sorted(Task.choices())), ("can", filters.can, CAN)):
        if value is not None and value not in known:
            raise ConfigError(f"--{option} {value} is none of {', '.join(known)}.")
    checked_language(filters.language)
    models = [model for model in known_models().values() if _passes(model, filters)]
    rows = [_facts(model) for model in models]
    rows = [row for row in rows if filters.gpu is None or _fits(row, filters.gpu)]
    if filters.json:
        print(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    if not rows:
        print("No known model does all of that: leave out a filter.")
        return
    print(
        *text_table([HEAD, *map(_cells, rows)]),
        "\nLoRA, full: GiB that training takes without its batches, which stentor train run.yaml --plan-only adds.\n"
        "The run file of one: stentor models show MODEL > run.yaml",
        sep="\n",
    )


def table_rows(models: Iterable[KnownModel]) -> list[list[str]]:
    """The cells of the table below `HEAD`."""
    return [_cells(_facts(model)) for model in models]


def show_run_file(options: ShowOptions) -> None:
    """Print a run file. Raises ConfigError for a model, task or method that there is not."""
    model = find(options.model)
    task, method = options.task or model.tasks[0], options.method or model.default
    for option, value, known in (("task", task, model.tasks), ("method", method, model.methods)):
        if value not in known:
            raise ConfigError(f"--{option} {value} is not for {model.label}: it has {' and '.join(known)}.")
    print(run_file(model, task, method), end="")


def find(name: str) -> KnownModel:
    """A model by Hub id or short name. Raises ConfigError with near names."""
    models = {key.lower(): model for model in known_models().values() for key in (model.label, model.name)}
    if (model := models.get(name.lower())) is not None:
        return model
    last = {key.rpartition("/")[2]: known.label for key, known in models.items()}
    near = [last[key] for key in difflib.get_close_matches(name.lower().rpartition("/")[2], last, 3, 0.5)]
    mean = f" Did you mean {' or '.join(dict.fromkeys(near))}?" if near else ""
    raise ConfigError(
        f"There is no model '{name}' in the list of `stentor models`.{mean} Any model of a listed family trains with "
        "the run file of one of its kind and another `model.from`."
    )


def _passes(model: KnownModel, filters: ModelsOptions) -> bool:
    if filters.task is not None and filters.task not in model.tasks:
        return False
    codes = model.languages if isinstance(model.languages, tuple) else ()  # else unlisted
    if filters.language is not None and model.languages is not None and among(filters.language, codes) is None:
        return False
    return filters.can is None or filters.can in model.can


def _fits(row: dict[str, Any], gpu: float) -> bool:
    least = min((n for n in row["memory_gib"].values() if n is not None), default=0.0)
    return bool(least <= ROOM * gpu)


def _facts(model: KnownModel) -> dict[str, Any]:
    """A model as plain data for JSON."""
    needs = {method: memory(model, method) for method in model.methods}
    return {
        "model": model.label,
        "name": model.name,
        "tasks": list(model.tasks),
        "family": model.family,
        "parameters": round(model.parameters) or None,
        "languages": list(model.languages) if isinstance(model.languages, tuple) else model.languages,
        "memory_gib": {method: n and round(n / 2**30, 2) for method, n in needs.items()},
        "download_gb": model.download,
        "licence": model.licence,
        "can": list(model.can),
        "default": model.default,
    }


def _cells(row: dict[str, Any]) -> list[str]:
    languages = row["languages"]
    if isinstance(languages, list):
        languages = " ".join(languages) if len(languages) <= 3 else str(len(languages))
    scratch = row["download_gb"] is None
    need = {method: "-" if n is None else f"{n:.1f}" for method, n in row["memory_gib"].items()}
    return [
        row["model"],
        " ".join(row["tasks"]),
        row["family"],
        count(row["parameters"]) if row["parameters"] else "small" if scratch else "-",
        "any" if languages is None else str(languages),
        need.get(LORA, "-"),
        need.get(FULL, "-"),
        row["licence"] or ("yours" if scratch else "not known"),
        " ".join(row["can"]) or "-",
    ]
