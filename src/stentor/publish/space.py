"""A demo of a model as a folder for the Hugging Face Hub's Spaces: a Gradio page of its task that serves the model.

app.py, demo.py      the page and what all pages share, from templates/space
space.json           which model is served, its limits and texts: nothing is written into the code
requirements.txt     the versions that are installed here
README.md            the Space's header and a description
stentor/             this package: the code that serves is the code that trained
model/               the export, where it is not on the Hub

The page needs no package of Debian's (no packages.txt): soundfile and PyAV bring their libraries along.
"""

import json
import platform
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Any

from stentor.errors import ConfigError, require
from stentor.inference.load import CONFIG, HUB_ID, TRAINING_CONFIG, find_export
from stentor.publish.card import PIPELINES, base_models, languages, plain
from stentor.publish.files import local_bases, read
from stentor.version import EXPORT_KEYS

TEMPLATES = Path(__file__).parent / "templates" / "space"
PACKAGE = Path(__file__).parents[1]
TASKS = {
    "transcribe": ("Record or upload speech and read what was said.", "🎙️"),
    "words": ("Record or upload speech and see when every word was said.", "⏱️"),
    "diarize": ("Record or upload a conversation and see who speaks when.", "👥"),
    "speak": ("Write a text and hear it, in the voice of a recording or of a description.", "🔊"),
}
"""Per task the sentence under the title, and the Space's emoji."""
PACKAGES = (
    "accelerate",
    "av",
    "gradio",
    "huggingface_hub",
    "jinja2",
    "langcodes",
    "lhotse",
    "numpy",
    "peft",
    "pydantic",
    "pyyaml",
    "rapidfuzz",
    "regex",
    "safetensors",
    "scipy",
    "soundfile",
    "soxr",
    "tokenizers",
    "torch",
    "transformers",
    "urllib3",
)
"""Packages that serving imports. No more: packages that the Hub adds to a Space pin others of their own."""
OF_FAMILY = {"voxtral": ("mistral-common[audio]",)}
"""Further packages of models, by the `model_type` of their config.json."""
SPACE_EXTRAS = ("", "mcp", "oauth")
"""The Hub installs `gradio[mcp,oauth]` into every Gradio Space."""
CPU_WHEELS = "--extra-index-url https://download.pytorch.org/whl/cpu"
KEPT = (*EXPORT_KEYS, "name", "task", "model", "train")
"""Keys of training_config.json that a copied model keeps; the others name folders of this machine."""


def build(
    model: str | Path,
    to: Path,
    title: str | None = None,
    task: str | None = None,
    hardware: str = "cpu-basic",
    max_seconds: int = 300,
    max_megabytes: int = 50,
    max_characters: int = 1000,
) -> Path:
    """Write the folder of a demo Space into `to`, which must be new or empty, and answer it.

    `model`: a run or export folder, which is copied beside the page, or a Hub id, which the Space downloads at its
    start (a private one with the Space's secret HF_TOKEN). Adapters are served as whole models are; their base must be
    on the Hub. `task`: that of the model, looked up where it is not given. `hardware`: the Hub's name of the machine
    that is suggested; on `cpu-...` torch comes without CUDA. Limits: seconds and megabytes of a recording, characters
    of a text. Raises ConfigError for a model that a Space could not serve, and when the folder cannot be written.
    """
    to = Path(to)
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"{to} is not empty: choose another folder, so that nothing is overwritten.")
    plan = _planned(model, title, task, max_seconds, max_megabytes, max_characters)
    try:
        to.mkdir(parents=True, exist_ok=True)
        shutil.copy(TEMPLATES / f"{plan.facts['task']}.py", to / "app.py")
        shutil.copy(TEMPLATES / "demo.py", to / "demo.py")
        (to / "space.json").write_text(json.dumps(plan.facts, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        (to / "requirements.txt").write_text(requirements(plan.family, hardware), encoding="utf-8")
        (to / "README.md").write_text(_readme(plan.facts, hardware), encoding="utf-8")
        shutil.copytree(PACKAGE, to / "stentor", ignore=shutil.ignore_patterns("__pycache__", "studio", "*.pyc"))
        if plan.export is not None:
            _copy(plan.export, to / "model", plan.training)
    except OSError as error:
        raise ConfigError(f"{error.filename or to} cannot be written: {error.strerror or error}.") from error
    return to


def static_readme(name: str, title: str, training: Mapping[str, Any], usage: str) -> str:
    """README.md of a static Space with the page of the model `name`; `usage`: how the page was compared."""
    here = Path(name).exists() or not HUB_ID.fullmatch(name)
    section = training.get("model") or {}
    named = [*([] if here else [name]), *(base_models({"model": section}) if section else [])]
    header = _header(title, "transcribe", named, sdk="static", app_file="index.html")
    return f"{header}\n\n# {plain(title)}\n\n{TASKS['transcribe'][0]}\n\n{usage}\n"


def build_page(model: str | Path, to: Path, title: str | None = None, task: str | None = None) -> Path:
    """Write the page of a demo that runs on this machine into the folder `to`, and answer its program; the model stays
    where it is. Limits are high, as there are no other users. Raises ConfigError as `build` does, and without
    Gradio."""
    require("studio", "A demo", "gradio")
    plan = _planned(model, title, task, 3600, 1000, 20_000, here=True)
    if plan.export is not None:
        plan.facts["model"] = str(plan.export.resolve())
    for name in (f"{plan.facts['task']}.py", "demo.py"):
        shutil.copy(TEMPLATES / name, to / name)
    (to / "space.json").write_text(json.dumps(plan.facts), encoding="utf-8")
    return to / f"{plan.facts['task']}.py"


def card(
    model: str | Path, title: str | None = None, task: str | None = None, hardware: str = "cpu-basic", **limits: Any
) -> str:
    """The README.md that `build` would write with the same arguments. Raises ConfigError as it does."""
    return _readme(_planned(model, title, task, **limits).facts, hardware)


@dataclass
class _Plan:
    """A Space before it is written."""

    facts: dict[str, Any]
    """Content of space.json."""
    family: str
    """`model_type` of its config.json, or the `type` of its section; "" where neither is known."""
    export: Path | None
    """The folder to copy; None for a model that is on the Hub."""
    training: dict[str, Any]


def _planned(
    model: str | Path,
    title: str | None,
    task: str | None,
    max_seconds: int = 300,
    max_megabytes: int = 50,
    max_characters: int = 1000,
    here: bool = False,
) -> _Plan:
    """`here`: for this machine, where folders of it are at hand."""
    name = str(model)
    local = Path(model).exists() or not HUB_ID.fullmatch(name)
    if local:
        export: Path | None = find_export(model)
        training, config = (read(export / file) for file in (TRAINING_CONFIG, CONFIG))  # type: ignore[operator]
        if not here and (bases_here := local_bases(export)):  # type: ignore[arg-type]
            raise ConfigError(
                f"{export} needs its base model {bases_here[0]}, a folder that a Space has not: make it whole with "
                "`stentor export MODEL --to FOLDER --merge` and give that folder."
            )
    else:
        export = None
        training, config = _of_hub(name, task)
    task = task or training.get("task", {}).get("type", "transcribe")
    if task not in TASKS:
        raise ConfigError(f"There is no demo for the task {task!r}; there is one for {', '.join(TASKS)}.")
    section = training.get("model") or {}
    bases = base_models({"model": section}) if section else []
    named_by = (training.get("task") or {}).get("instruct_from")
    facts = {
        "model": "model" if local else name,
        "local": local,
        "hub": bases if local else [name, *(b for b in bases if b != name)],
        "task": task,
        "title": title or training.get("name") or name.rstrip("/").split("/")[-1],
        "description": TASKS[task][0],
        "languages": languages(training, {"eval": {}}) if "data" in training else [],
        "instruct": f"A {named_by} of the training data." if named_by else "Such as: female, low pitch.",
        "limits": {"seconds": max_seconds, "megabytes": max_megabytes, "characters": max_characters},
    }
    family = config.get("model_type") or section.get("type", "")
    return _Plan(facts, family, export, training)


def requirements(family: str, hardware: str) -> str:
    """requirements.txt: every package that serving imports, at the version that is installed here.

    One that Gradio's extras on Spaces refuse gets the range that they accept: otherwise the Space would not build.
    Raises ConfigError when a package is missing here.
    """
    from packaging.utils import canonicalize_name
    from packaging.version import Version

    allowed = _space_ranges()
    lines = [CPU_WHEELS] if hardware.startswith("cpu") else []
    for package in sorted({*PACKAGES, *OF_FAMILY.get(family, ())}):
        bare = package.partition("[")[0]
        try:
            installed = Version(version(bare)).public  # without +cpu and the like
        except PackageNotFoundError:
            raise ConfigError(f"A demo needs {bare}, which is not installed: pip install '{package}'.") from None
        accepted = allowed.get(canonicalize_name(bare))
        fits = accepted is None or accepted.contains(installed, prereleases=True)
        lines.append(f"{package}=={installed}" if fits else f"{package}{accepted}")
    return "\n".join(lines) + "\n"


def _space_ranges() -> dict[str, Any]:
    """Versions that `gradio[mcp,oauth]` accepts, as a packaging.SpecifierSet by package."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    require("studio", "A demo", "gradio")
    lines = requires("gradio") or []
    ranges: dict[str, Any] = {}
    for needed in map(Requirement, lines):
        if needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in SPACE_EXTRAS):
            name = canonicalize_name(needed.name)
            ranges[name] = ranges[name] & needed.specifier if name in ranges else needed.specifier
    return ranges


def _readme(facts: Mapping[str, Any], hardware: str) -> str:
    """README.md with the header that the Hub reads."""
    header = _header(
        facts["title"],
        facts["task"],
        facts["hub"],
        sdk="gradio",
        sdk_version=version("gradio"),
        python_version=".".join(platform.python_version_tuple()[:2]),
        app_file="app.py",
        suggested_hardware=hardware,
    )
    served = (
        "the model in `model/`" if facts["local"] else f"[`{facts['model']}`](https://huggingface.co/{facts['model']})"
    )
    limits = facts["limits"]
    parts = [
        header,
        f"# {plain(facts['title'])}",
        f"{facts['description']} {PIPELINES[facts['task']][1]} with {served}, trained and served with Stentor.",
        f"Recordings may have {limits['seconds']} s and {limits['megabytes']} MB, texts {limits['characters']} "
        "characters; limits and texts are in `space.json`. Recordings and answers are deleted after an hour.",
        "To run it elsewhere: `pip install -r requirements.txt`, then `python app.py`.",
    ]
    if facts["hub"]:
        names = " or ".join(f"`{name}`" for name in facts["hub"])
        parts.append(
            f"If {names} is private, it is read with the token in the Space's secret `HF_TOKEN` (settings, variables "
            "and secrets): give it one that may only read. No file holds a token."
        )
    return "\n\n".join(parts) + "\n"


def _header(title: str, task: str, models: list[str], **settings: Any) -> str:
    """The header of README.md that the Hub reads."""
    from huggingface_hub import SpaceCardData

    tags = ["stentor", "speech", task]
    look: dict[str, Any] = {"emoji": TASKS[task][1], "colorFrom": "blue", "colorTo": "indigo", "pinned": False}
    return f"---\n{SpaceCardData(title=title, models=models or None, tags=tags, **look, **settings).to_yaml()}\n---"


def _copy(export: Path, to: Path, training: dict[str, Any]) -> None:
    """The files of the export; of its training config only what serving reads."""
    shutil.copytree(export, to, ignore=shutil.ignore_patterns("README.md", "*_results.json", ".eval_results", ".cache"))
    if training:
        settings = {key: training[key] for key in KEPT if key in training}
        (to / TRAINING_CONFIG).write_text(json.dumps(settings, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _of_hub(model: str, task: str | None) -> tuple[dict[str, Any], dict[str, Any]]:
    """The training config and config.json of a Hub model; nothing where it has none, or where the Hub is out of reach
    and the task is given."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import (
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RemoteEntryNotFoundError,
        RepositoryNotFoundError,
    )

    configs: list[dict[str, Any]] = []
    for file in (TRAINING_CONFIG, CONFIG):
        try:
            configs.append(read(Path(hf_hub_download(model, file))))
        except RepositoryNotFoundError as error:
            raise ConfigError(
                f"There is no model {model} on the Hugging Face Hub that you may read (private ones need `hf auth "
                "login`)."
            ) from error
        except RemoteEntryNotFoundError:
            configs.append({})
        except (LocalEntryNotFoundError, HfHubHTTPError) as error:  # out of reach, and not in the cache
            if task is None:
                raise ConfigError(
                    f"The Hugging Face Hub cannot be reached to look up the task of {model}: check the connection, or "
                    "name the task (--task)."
                ) from error
            return {}, {}  # to ask again would take as long again
    return configs[0], configs[1]
