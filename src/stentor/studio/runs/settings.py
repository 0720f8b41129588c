"""Settings: the choices of the step "Train", and the run file that they make.

The tasks and families are those of the config's registries, the catalogue holds the models that are proposed, and what
is not chosen keeps the default of the config. The run file is the whole truth: the page shows it, and what a person
changes in it counts.
"""

import copy
import functools
import math
import shlex
from dataclasses import dataclass
from typing import Any

from stentor.commands.models import run_sections
from stentor.commands.plan.suggest import EPOCHS, method_of
from stentor.config.load import load
from stentor.errors import ConfigError, StentorError
from stentor.models.base import Family
from stentor.models.catalogue import FULL, LORA, KnownModel, known_models
from stentor.sources.hub_choice import HubData
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import checked_name, name_from, read_json, read_records, same_name
from stentor.studio.projects import Projects
from stentor.studio.runs.jobs import find, has_rounds, jobs
from stentor.studio.runs.machine import has_gpu, on_disk, reachable
from stentor.studio.texts import say, texts
from stentor.tasks.base import Task

OWN = "own"
"""The choice of a model that is on no list."""
RUN = "run:"
"""Prefix of the choice of one of the person's runs; its name follows."""
SECTIONS = ("task", "model", "data", "losses", "optim", "schedule", "train", "callbacks", "stages")
_GPU = ("whisper_small", "small_transducer")
_CPU = ("whisper_tiny", "small_transducer")
LEAST_HOURS = 2.0
"""Hours below which a model that begins from nothing learns little but its own recordings."""


@dataclass(frozen=True)
class ModelChoice(KnownModel):
    """A model that can be trained: one of the catalogue, a run of the person's, or any other."""

    title: str = ""
    help: str = ""
    """One line."""

    @property
    def scratch(self) -> bool:
        """Whether it begins from nothing: neither a pretrained model nor a run."""
        return self.name not in (OWN,) and not self.name.startswith(RUN) and self.download is None


@dataclass(frozen=True)
class DatasetFacts:
    """Facts about a data set that settings depend on."""

    records: int
    """Recordings to train on, with `hours`."""
    hours: float
    speakers: tuple[int, int]
    """Speakers that are named in the training part and in the held-out one."""
    segments: bool
    """Whether records have speaker segments."""
    words: bool
    """Whether records say when each word was said."""
    held_out: int = 0
    left_out: int = 0
    """Recordings without a text, which are on neither side."""


def on_hub(data: HubData) -> DatasetFacts:
    """Assumptions about a data set on the Hub that has not been read yet: the plan finds what it has."""
    hours = float(data.train.get("first_hours", 10.0))
    return DatasetFacts(records=math.ceil(400 * hours), hours=hours, speakers=(2, 2), segments=True, words=True)


# ---------------------------------------------------------------------------------------------- what there is to choose


def tasks(facts: DatasetFacts | None = None) -> list[tuple[str, str]]:
    """(title, type) of the tasks of the registry that some family serves, those with most families first; with `facts`
    only those that the data set has what is needed for."""
    serving = {name: len(families(name)) for name in Task.choices()}
    names = [n for n in sorted(serving, key=lambda n: (-serving[n], n)) if serving[n]]
    return [(title("task", n), n) for n in names if facts is None or missing(n, facts) is None]


def missing(task: str, facts: DatasetFacts) -> str | None:
    """Missing parts of a data set for a task, as a sentence. None: nothing."""
    if task == "words" and not facts.words:
        return say("lacks_words")
    if task == "diarize" and not facts.segments and min(facts.speakers) < 2:
        return say("lacks_speakers")
    return None


def families(task: str) -> dict[str, type[Family]]:
    """The families of the registry that serve a task, by type."""
    return {name: kind for name, kind in sorted(Family.choices().items()) if task in kind.tasks}


def pretrained_families(task: str) -> list[tuple[str, str]]:
    """(title, type) of the families that begin from one pretrained model (`model.from`), as the catalogue has them."""
    order = [model.family for model in known().values()]
    names = [n for n, k in families(task).items() if any(f.alias == "from" for f in k.model_fields.values())]
    names.sort(key=lambda n: order.index(n) if n in order else len(order))
    return [(title("family", n), n) for n in names]


def title(kind: str, name: str) -> str:
    """Name of a task or family; the name itself for one that came with a plug-in."""
    key = {"task": f"task_{name}", "family": f"family_{name}"}[kind]
    return say(key) if key in texts() else name


@functools.cache
def known() -> dict[str, ModelChoice]:
    """The models of the catalogue by name, in its order."""
    choices = {}
    for name, model in known_models().items():
        described = f"model_{name}" in texts()
        title = say(f"model_{name}") if described else model.label.rpartition("/")[2]
        line = say(f"model_{name}_help") if described else _line(model)
        choices[name] = ModelChoice(**vars(model), title=title, help=line)
    return choices


def away(model: ModelChoice) -> bool:
    """Whether the weights of a model cannot be had now."""
    return model.download is not None and not on_disk(model.run["model"]) and not reachable()


def title_now(model: ModelChoice) -> str:
    """A model's title, with a mark where its weights cannot be had now."""
    return f"{model.title} {say('model_away')}" if away(model) else model.title


def _line(model: KnownModel) -> str:
    """One line on a model that texts.yaml has none on, from its facts."""
    languages = model.languages if isinstance(model.languages, int) else len(model.languages or ())
    known = [say("model_languages", count=languages)] if languages > 1 else [", ".join(model.languages or ())]
    known += [say(f"model_can_{ability}") for ability in model.can]
    licence = [say("model_licence", licence=model.licence)] if model.licence else []
    download = [say("model_download", gigabytes=f"{model.download:g}")] if model.download else []
    return " ".join([f"{', '.join(filter(None, known))}.", *licence, *download])


def models(task: str, projects: Projects) -> list[tuple[str, str]]:
    """(title, choice) of what can be trained for a task: the known models, those last that cannot be had now, the
    person's runs, and any other model."""
    rows = [(title_now(m), m.name) for m in sorted(known().values(), key=away) if task in m.tasks]
    rows += [(say("model_run", name=run.removeprefix(RUN)), run) for run in runs(task, projects)]
    if pretrained_families(task):
        rows.append((say("model_own"), OWN))
    return rows


def first(task: str) -> str:
    """The choice that a person begins with: a small pretrained model that this machine can train, one that needs no
    network where there is none."""
    candidates = [m for m in known().values() if task in m.tasks]
    preferred = [known()[n] for n in (_GPU if has_gpu() else _CPU)]
    order = [m for m in preferred if m in candidates] + candidates
    ready = [m for m in order if not away(m)]
    if not has_gpu():  # what is large is no way to begin without one
        ready = [m for m in ready if m.parameters < 0.3e9] or ready
    return ready[0].name if ready else OWN


def runs(task: str, projects: Projects) -> list[str]:
    """Choices of the person's runs whose models can be trained on for a task."""
    choices = []
    for job in jobs(projects):
        try:
            _run_model(projects, job.name, task)
        except StentorError:  # it is not finished, has another task, or was written by an older studio
            continue
        choices.append(RUN + job.name)
    return choices


def chosen(
    choice: str, task: str, projects: Projects, family: str | None = None, source: str | None = None
) -> ModelChoice:
    """The model of a choice. For `OWN`, `family` and `source` (a Hub id or a folder) say which.

    Raises ConfigError for a choice that is not there or not for this task.
    """
    if choice.startswith(RUN):
        return _run_model(projects, choice.removeprefix(RUN), task)
    if choice == OWN:
        if family not in dict(map(reversed, pretrained_families(task))):  # type: ignore[arg-type]
            raise ConfigError(say("no_family"))
        if not source or not source.strip():
            raise ConfigError(say("no_own"))
        template = next((m for m in known().values() if m.family == family and m.download is not None), None)
        run = copy.deepcopy(template.run) if template else {"model": {"type": family}}
        run["model"] |= {**(template.replaced if template else {}), "from": source.strip()}
        lora = "lora" in families(task)[str(family)].model_fields
        default = template.default if template else FULL
        methods, parameters = (LORA, FULL) if lora else (FULL,), template.parameters if template else 0.0
        return ModelChoice(
            OWN, (task,), run, parameters=parameters, default=default, methods=methods, title=source.strip()
        )
    if choice not in known() or task not in known()[choice].tasks:
        raise ConfigError(say("no_model", name=str(choice)[:80]))
    return known()[choice]


def _run_model(projects: Projects, name: str, task: str) -> ModelChoice:
    """The model of a finished run, to be trained on. Raises ConfigError."""
    job = find(projects, name)
    if not (job.folder / "export" / "config.json").is_file():
        raise ConfigError(say("run_unfinished", name=name))
    loaded = load(job.config)
    last = (loaded.stages or (loaded.config,))[-1]
    before, family = last.task.type, last.model
    model = {"type": family.type, **family.model_dump(mode="json", by_alias=True, exclude_unset=True)}
    run: dict[str, Any] = {"model": {**model, "init": str(job.folder / "export")}}
    if task == "words" and before == "transcribe" and "aligner" in type(family).model_fields:
        run["model"] |= {"aligner": {}, "lora": None, "freeze": ["encoder.*", "projector.*", "llm.*", "ctc_head.*"]}
        run |= {"optim": {"lr": 0.002}, "train": {"epochs": 20}}
    elif before != task:
        raise ConfigError(say("run_other_task", name=name, task=title("task", before)))
    settings = loaded.config.model_dump(mode="json", by_alias=True, exclude_unset=True)
    run["task"] = {}
    if before == task:
        run["task"] = last.task.model_dump(mode="json", by_alias=True, exclude_unset=True, exclude={"type"})
        run |= {"losses": settings["losses"]} if settings.get("losses") else {}
    run["data"] = {k: v for k, v in settings.get("data", {}).items() if k not in ("train", "eval", "test")}
    method = FULL if run["model"].get("lora") is None else LORA
    total = read_json(job.folder / "results.json").get("parameters", {}).get("total", 0.0)
    return ModelChoice(
        RUN + name,
        (task,),
        run,
        parameters=float(total),
        default=method,
        methods=(method,),
        title=name,
        help=say("model_run_help", name=name),
    )


# --------------------------------------------------------------------------------------------------- what becomes of it


def facts(dataset: DataSet) -> DatasetFacts:
    """Facts about a data set. Raises ConfigError where it has too little to be split."""
    parts = {name: read_records(path) for name, path in dataset.parts().items()}
    train = parts["train"]
    records_of_both = [r for records in parts.values() for r in records]
    speaker_counts = [len({r["speaker"] for r in parts[p] if r.get("speaker")}) for p in ("train", "held_out")]
    return DatasetFacts(
        records=len(train),
        hours=sum(float(r.get("duration") or 0.0) for r in train) / 3600,
        speakers=(speaker_counts[0], speaker_counts[1]),
        segments=all(r.get("segments") for r in records_of_both),
        words=sum(bool(r.get("words")) for r in train) > 1,
        held_out=len(parts["held_out"]),
        left_out=len(dataset.records()) - len(records_of_both),
    )


def start(task: str, model: ModelChoice, method: str, dataset: DataSet | HubData) -> dict[str, Any]:
    """The run as plain data. Learning rate and epochs are those that `stentor train --plan-only` suggests for the
    model, the way it is trained and the hours of the data set, where it suggests any.

    Raises ConfigError for a method that the model does not have and for data that cannot serve the task.
    """
    if method not in model.methods:
        raise ConfigError(say("no_method"))
    data_facts = on_hub(dataset) if isinstance(dataset, HubData) else facts(dataset)
    if reason := missing(task, data_facts):
        raise ConfigError(reason)
    tree = run_sections(model, task, method, data_facts.hours)
    tree["data"] = {**_sources(task, dataset, data_facts), **tree.get("data", {})}
    train = tree["train"]
    most = tree["data"].get("max_items") or 16
    steps = max(1, math.ceil(train.get("epochs", EPOCHS["full"][0][1]) * math.ceil(data_facts.records / most)))
    train.setdefault("log_every", max(1, min(20, steps // 40)))
    scratch = method_of(tree["model"]) == "scratch"
    if scratch:  # many short epochs: scoring each would take longer than training
        train.setdefault("eval_every", max(1, steps // 10))
    tree.setdefault("callbacks", [{"type": "samples", "count": 6}])
    if not scratch and not tree.get("stages"):
        tree["callbacks"].append({"type": "early_stop", "patience": 3})
    return {key: tree[key] for key in SECTIONS if key in tree}


def _sources(task: str, dataset: DataSet | HubData, data_facts: DatasetFacts) -> dict[str, Any]:
    """The sections `train` and `eval` of the data set's own division."""
    if isinstance(dataset, HubData):
        return {"train": [dataset.train], "eval": {"held_out": dataset.held_out}}
    parts = {name: {"type": "jsonl", "path": str(path)} for name, path in dataset.parts().items()}
    if task == "diarize" and not data_facts.segments:
        # Recordings of single speakers become conversations; each part has its own.
        counts = {"train": max(200, min(4000, 4 * data_facts.records)), "held_out": 40}
        voices = dict(zip(counts, data_facts.speakers, strict=True))
        parts = {
            name: {
                "type": "conversation",
                "source": parts[name],
                "speakers": list(range(2, min(3, voices[name]) + 1)),
                "seconds": 10,
                "turn": [0.3, 10.0],
                "count": count,
            }
            for name, count in counts.items()
        }
    return {"train": [parts["train"]], "eval": {"held_out": parts["held_out"]}}


def run_name(projects: Projects, dataset: str | None, choice: str, source: str | None = None) -> str:
    """A name for a run that no other has."""
    last = choice.removeprefix(RUN) if choice != OWN else (source or "model").rstrip("/").rpartition("/")[2]
    stem = name_from(f"{dataset or 'run'}-{last}".replace("_", "-"), "run")[:58]
    return free_name(projects, stem)


def free_name(projects: Projects, stem: str) -> str:
    """`stem`, or else `stem-2` and so on: the first that no run has."""
    taken = {same_name(path.name) for path in projects.runs.iterdir()}
    names = (stem if i == 1 else f"{stem[:58]}-{i}" for i in range(1, 10_000))
    return next(name for name in names if same_name(name) not in taken)


def check_name(projects: Projects, name: str) -> None:
    """Raises ConfigError for a name that no run can have, or that one has."""
    if free_name(projects, stem := checked_name(name.strip(), "run's name")) != stem:
        raise ConfigError(say("run_taken", name=stem))


def command(projects: Projects, name: str | None, yaml: str | None) -> str:
    """Command that does the same as the run file under this name."""
    verb = "improve" if has_rounds(yaml or "") else "train"
    return shlex.join(["stentor", verb, str(projects.runs / ((name or "").strip() or "run") / "run.yaml")])
