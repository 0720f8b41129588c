"""The folder that a published model is: an export, checked, with a card that names the repository and the licence, and
without the paths of the machine that it was trained on."""

import json
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from stentor.data.yaml_text import read_yaml
from stentor.errors import ConfigError
from stentor.inference.load import TRAINING_CONFIG, find_export
from stentor.inference.speak.voice import VOICES
from stentor.models.base import EXPORT_FACTS
from stentor.publish.card import TaskOf, base_models, on_hub, training_sources, write_card
from stentor.publish.files import link_or_copy, local_bases, read, tensors

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
FACTS = ("config.json", "training_config.json", "train_results.json", "eval_results.json", "adapter_config.json")
"""JSON files in which paths of this machine may stand."""
LicenceOf = Callable[[str, Literal["model", "dataset"]], str | None]
UNSTATED = re.compile(r"^\* No licence is stated here: .*\n", re.M)
STATED = re.compile(r"^\* This model: .*$", re.M)
NAMED = ("named", "overlap")
"""Keys of results that list records by the names of their files."""


def build(
    model: str | Path,
    to: Path,
    repo: str | None = None,
    licence: str | None = None,
    card: Path | None = None,
    export: Path | None = None,
    licence_of: LicenceOf = lambda repo, kind: None,
    task_of: TaskOf = lambda source: None,
) -> list[str]:
    """Write into `to` what is published of a run folder or an export folder; answers remarks.

    The card is that of `make_card`. `export`: another export of the same run, such as one with its adapters folded in.
    Weights are linked, not copied, where the disk allows it. Raises ConfigError for what others could not load: damaged
    weights, pickles, adapters on a base that is a folder of this machine.
    """
    source = export or _source(model)
    check(source)
    for file in sorted(p for p in source.rglob("*") if p.is_file()):
        relative = file.relative_to(source)
        if not _hidden(relative):
            _put(file, to / relative)
    voices = sorted((to / VOICES).glob("*.json"))
    for file in (*(to / name for name in FACTS), *voices):
        if file.is_file():
            _forget_paths(file)
    text = make_card(model, to, repo, licence, card, export is not None, licence_of, task_of)
    remarks = []
    if voices:
        names = ", ".join(file.stem for file in voices)
        remarks.append(f"Voices go along with the model: {names}. Publish only those whose speakers agree to it.")
    if licence is None and "\nlicense:" not in text.split("\n---", 1)[0]:
        remarks.append(
            "The card states no licence, so no one else may use the model: choose one that its data and its base "
            "allow (--license)."
        )
    return remarks


def make_card(
    model: str | Path,
    to: Path,
    repo: str | None = None,
    licence: str | None = None,
    card: Path | None = None,
    merged: bool = False,
    licence_of: LicenceOf = lambda repo, kind: None,
    task_of: TaskOf = lambda source: None,
) -> str:
    """Write README.md (and `.eval_results/` of a run) into the folder `to`; answers the card.

    The card of a run is written again from its results, that of an export folder is kept, so that it can be edited;
    `card` is taken instead of either. In all three, code names `repo` (USER/REPO). `merged`: it is about the whole
    model, whatever the run exported. `licence_of(id, kind)` answers the licences of base models and data sets where
    they are known, `task_of(source)` what a benchmark calls an evaluation set. Raises ConfigError when there is no card
    and nothing to write one from.
    """
    source = _source(model)
    config = read(source / TRAINING_CONFIG)
    readme = to / "README.md"
    results = read(Path(model) / "results.json")
    if results and (config := _resolved(Path(model)) or config):
        readme.unlink(missing_ok=True)
        write_card(to, config, results, task_of)
    if card is not None:
        _put(card, readme)
    elif not readme.is_file() and (source / "README.md").is_file():
        _put(source / "README.md", readme)
    if not readme.is_file():
        raise ConfigError(f"{source} has no README.md: publish the run folder, or give a card with --card FILE.")
    named: dict[str, dict[str, str | None]] = {
        kind: {i: licence_of(i, kind) for i in ids} for kind, ids in _hub_sources(config).items()
    }
    adapter = any(source.glob("adapter_*")) and not merged
    text = readme.read_text("utf-8")
    text = complete(text, str(config.get("name", "")), repo, licence, adapter, named, results, _has_local(config))
    readme.unlink()
    readme.write_text(text, "utf-8")
    return text


def _source(model: str | Path) -> Path:
    if not Path(model).exists():
        raise ConfigError(f"There is no folder {model}: what is published is a run folder or an export folder.")
    facts = read(Path(model) / EXPORT_FACTS)
    if facts.get("format") == "web":
        raise ConfigError(f"{model} is a page: publish it with `stentor publish demo {model} --static --to USER/NAME`.")
    return Path(model) if facts else find_export(model)


def check(export: Path) -> None:
    """Raises ConfigError for an export that others could not load, or could not load safely."""
    weights = [path for path in export.rglob("*") if _is_weights(path)]
    written = {
        path.parent for path in export.rglob(EXPORT_FACTS) if read(path).get("format") in ("ctranslate2", "ggml")
    }
    for path in export.rglob("*"):
        if path.suffix in PICKLES and not written & set(path.parents):
            raise ConfigError(
                f"{path} may be a pickle, which runs code when it is loaded: export the model with `stentor export`, "
                "save a voice of OmniVoice again with --voice and --save-voice."
            )
    if not weights:
        raise ConfigError(f"{export} holds no weights (*.safetensors): train the model until it has saved an export.")
    for path in weights:
        if path.suffix == ".safetensors":
            tensors(path)
        if path.is_symlink() and not path.resolve().is_relative_to(export.resolve()):
            raise ConfigError(f"{path} is a link that leads out of {export}: put the file itself there.")
    for index in export.glob("*.safetensors.index.json"):
        for name in sorted(set(read(index)["weight_map"].values())):
            if not (export / name).is_file():
                raise ConfigError(f"{export} lacks {name}, which {index.name} names: export the model again.")
    if local := local_bases(export):
        raise ConfigError(
            f"Part of this model is in {local[0]}, which others do not have: publish the whole model with --merge."
        )


def complete(
    text: str,
    name: str,
    repo: str | None,
    licence: str | None,
    adapter: bool,
    named: Mapping[str, Mapping[str, str | None]],
    results: Mapping[str, Any],
    local: bool = False,
) -> str:
    """A card with the repository's id in its code, the licences, what kind of child of its base it is, and the command
    that repeats the training. What its writer put there is kept."""
    from huggingface_hub import ModelCard
    from yaml import YAMLError  # the client's own reader

    try:
        card = ModelCard(text, ignore_metadata_errors=False)
    except (ValueError, YAMLError) as error:
        raise ConfigError(
            f"The card's header between the lines `---` cannot be read ({' '.join(str(error).split())[:200]}): fix it."
        ) from None
    if licence is not None:
        card.data["license"] = licence
    if card.data.get("base_model") and not card.data.get("base_model_relation"):
        card.data["base_model_relation"] = "adapter" if adapter else "finetune"
    body = card.text.lstrip("\n")
    if repo is not None and name:
        body = re.sub(rf'(stentor\.load\(|model=)"(?:{re.escape(name)}|FOLDER)"\)', rf'\1"{repo}")', body)
        body = re.sub(
            rf"^stentor (transcribe|diarize|speak) (?:{re.escape(name)}|FOLDER)(?= )",
            rf"stentor \1 {repo}",
            body,
            flags=re.M,
        )
        body = body.replace(f"Where `{name}` is this folder, or its id on the Hub:\n\n", "")
        body = body.replace("Where `FOLDER` is this folder, or its id on the Hub:\n\n", "")
    body = UNSTATED.sub("", body) if card.data.get("license") else body
    if licence is not None:
        body = STATED.sub(f"* This model: {licence}.", body)
    if "## Licence" not in body:
        body = body.rstrip() + "\n\n" + _licences(card.data.get("license"), named, local)
    if results.get("command") and "## Repeat" not in body:
        body = body.rstrip() + "\n\n" + _repeat(results["command"])
    return f"---\n{card.data.to_yaml()}\n---\n\n{body.rstrip()}\n"


def _licences(licence: str | None, named: Mapping[str, Mapping[str, str | None]], local: bool) -> str:
    lines = [f"This model: {licence}." if licence else "This model: none is stated, so that all rights are reserved."]
    for kind, noun in (("model", "Its base"), ("dataset", "Its data")):
        for repo, stated in named.get(kind, {}).items():
            lines.append(f"{noun} `{repo}`: {stated or 'see its page'}.")
    if local:
        lines.append("Data that are not on the Hub: nothing was declared.")
    return "## Licence\n\n" + "\n".join(f"* {line}" for line in lines) + "\n"


def _repeat(command: list[str]) -> str:
    """The command without the paths of the machine that ran it."""
    verb = next((i for i, word in enumerate(command) if word in ("train", "quickstart")), None)
    if verb is None:
        return ""
    words = command[verb:]
    lines = [f"It was made with `stentor {' '.join(shlex.quote(_last(w)) for w in words)}`."]
    if words[0] == "train":
        changes = [w for w in words[1:] if "=" in w and "/" not in w]
        again = " ".join(["stentor train training_config.json", *map(shlex.quote, changes)])
        lines.append(
            "Its resolved config is here; where it names local data, write your own path in its place:\n\n"
            f"```bash\n{again}\n```"
        )
    return "## Repeat it\n\n" + " ".join(lines) + "\n"


def _last(value: str) -> str:
    """A path (of this machine or a bucket) by its last part: an absolute one, also in `key=/path`, and that of a run
    file."""
    key, equal, path = value.rpartition("=")
    private = re.match(r"/|~|[A-Za-z]:[\\/]|(?:s3|gs)://", path)
    if private or (not key and re.search(r"[\\/].*\.(?:ya?ml|json)$", path)):
        return key + equal + re.split(r"[\\/]", path.rstrip("\\/"))[-1]
    return value


def _forget_paths(file: Path) -> None:
    """Rewrite a JSON file without absolute paths, and without lists of records by their file names."""

    def without(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: without(v) for k, v in value.items() if not (k in NAMED and file.name == "train_results.json")}
        if isinstance(value, list):
            return [without(v) for v in value]
        return _last(value) if isinstance(value, str) else value

    value = read(file)
    plain = without(value)
    if plain != value:
        file.unlink()  # it may be a link to the original
        file.write_text(json.dumps(plain, indent=1, ensure_ascii=False), "utf-8")


def _put(file: Path, to: Path) -> None:
    """JSON and texts are copied, since they may be changed; weights are hard links where the disk allows it."""
    to.parent.mkdir(parents=True, exist_ok=True)
    to.unlink(missing_ok=True)
    (link_or_copy if _is_weights(file) else shutil.copyfile)(file, to)


def _is_weights(file: Path) -> bool:
    return file.suffix in (".safetensors", ".onnx", ".gguf") or file.name in ("model.bin", "ggml-model.bin")


def _hidden(name: Path) -> bool:
    return any(part.startswith(".") and part != ".eval_results" for part in name.parts) or "__pycache__" in name.parts


def _resolved(run: Path) -> dict[str, Any]:
    path = run / "resolved.yaml"
    return (read_yaml(path.read_text("utf-8")) or {}) if path.is_file() else {}


def _has_local(config: Mapping[str, Any]) -> bool:
    """Whether it was trained on recordings that are no data set of the Hub."""
    if not config.get("data"):
        return False
    return any(not on_hub(s) and s.get("type") != "synth" for s in training_sources(config))


def _hub_sources(config: Mapping[str, Any]) -> dict[Literal["model", "dataset"], list[str]]:
    """Hub ids of base models and of training data."""
    if not config.get("data"):
        return {}
    datasets = {s["name"] for s in training_sources(config) if on_hub(s)}
    return {"model": base_models(config), "dataset": sorted(datasets)}
