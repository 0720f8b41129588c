"""Command lines of the Voxtral fine-tuning scripts (train.py, train_lora.py and others): a shell script, or the command
itself, or a Python, YAML or JSON file with the settings."""

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stentor.config.convert.draft import Conversion, Converted, tables
from stentor.config.convert.shell import Command, Options, Unknown, Vocabulary, Word, read_options, script_calls
from stentor.config.convert.voxtral_files import file_options, script_options
from stentor.config.convert.voxtral_publish import SCRIPTS, publish_line, published
from stentor.config.document import Mistake, Mistakes, Node, Place, read_text
from stentor.errors import ConfigError
from stentor.section.explain import guess


def _reversed(lists: Mapping[str, Sequence[str]]) -> dict[str, str]:
    return {theirs: ours for ours, names in lists.items() for theirs in names}


_SCRIPTS = ("train.py", "train_lora.py")
_FLAGS = tables("voxtral")
"""The options: keys of a run file, or why there is none."""
_LEFT_OUT: dict[str, list[str]] = {
    reason: keys.split() for kind in ("not_needed", "not_possible") for reason, keys in _FLAGS[kind].items()
}
OPTIONS = Vocabulary(
    frozenset([*_FLAGS["plain"], *_FLAGS["converted"].split(), *(key for keys in _LEFT_OUT.values() for key in keys)]),
    frozenset(_FLAGS["switches"].split()),
    frozenset(key for keys in _LEFT_OUT.values() for key in keys),
    frozenset(_FLAGS["lists"].split()),
    _reversed(_FLAGS["same"]),
)
_SETTINGS: dict[str, str] = _FLAGS["settings"]
_READERS = dict.fromkeys((".yaml", ".yml", ".json"), (file_options, _FLAGS["files"]))
_READERS[".py"] = (script_options, _FLAGS["calls"])
_LAUNCHER = Vocabulary(frozenset(_FLAGS["launcher"]), same=_reversed(_FLAGS["launcher"]))
_SCHEDULES, _OPTIMIZERS = _reversed(_FLAGS["schedules"]), _reversed(_FLAGS["optimizers"])
_STRATEGIES = {name: name for name in ("no", "steps", "epoch", "best")}
_TRACKERS = ("tensorboard", "trackio", "wandb")
_POSITIONS = 2 * 375 + 256 + 16
"""Positions in the language model of an item of 60 s with as much text as the scripts keep."""
_OF_TRAINER = (
    "is a checkpoint of transformers' Trainer: the optimizer in it belongs to other parameters (in bfloat16, in their "
    "order), so training cannot resume from it. Its weights alone: give a folder with the whole model (adapters "
    "merged) and the files of the processor as --model-checkpoint."
)


def convert(script: Path | str) -> Converted:
    """A run file from a shell script with one training command, from the command itself, or from a file of options; and
    commands of Stentor for the others of the scripts. Options that are not understood are listed in the run file and in
    `notes`. Raises `ConfigError` where there is no such command, and `Mistakes` for values that cannot be used."""
    place = Place(0, 1, str(script) if isinstance(script, Path) else "the command line")
    if isinstance(script, Path) and script.suffix in _READERS:
        named = script.name in _SETTINGS
        return _of_file(_settings(Command(script.name, [], [], place), script) if named else script, place)
    text = read_text(script) if isinstance(script, Path) else script
    calls = list(script_calls(text, place, (*_SCRIPTS, *_SETTINGS, *SCRIPTS)))
    trainings = [call for call in calls if call.script not in SCRIPTS]
    if not calls:
        raise ConfigError(
            f"There is no command with {', '.join((*_SCRIPTS, *SCRIPTS, *_SETTINGS))} to convert: give a shell script "
            "that holds one, the command itself in quotes, or a Python, YAML or JSON file with its settings."
        )
    if len(trainings) > 1:
        again = "another training command; leave one in the file"
        raise Mistakes([Mistake(call.place, again) for call in trainings[1:]])
    others = [call for call in calls if call.script in SCRIPTS]
    for call in trainings:
        if call.script in _SETTINGS:
            return _of_file(_settings(call, script), place, others, call.launcher)
        return _converted(call, read_options(call.words, OPTIONS), others)
    commands, notes = published(others, "RUN")
    return Converted("", "", tuple(notes), commands=tuple(commands))


def _settings(call: Command, script: Path | str) -> Path:
    """The file that a script takes its settings from. Raises `ConfigError` where it is not here."""
    name = next((w.text for w in call.words if not w.text.startswith("-")), _SETTINGS[call.script])
    folder = script.parent if isinstance(script, Path) else Path()
    for place in (Path(), folder, folder / "..", folder / "../.."):
        if (place / name).is_file():
            return place / name
    raise ConfigError(
        f"{call.script} trains with the settings in {name}, which is not here: run this in the folder of the scripts, "
        "or convert that file, `stentor config convert voxtral FILE`."
    )


def _of_file(path: Path, place: Place, others: Sequence[Command] = (), launcher: Sequence[Word] = ()) -> Converted:
    read, table = _READERS[path.suffix]
    options = read(path, OPTIONS, table)
    lora = any(key.startswith("lora-") for key in options.values) and "use-lora" not in options.values
    return _converted(Command(_SCRIPTS[lora], [*launcher], [], place), options, others)


def _converted(command: Command, options: Options, others: Sequence[Command]) -> Converted:
    job = Conversion(Node(options.values, command.place))
    job.mistakes += options.mistakes
    for key in OPTIONS.switches & {*options.values}:
        if not isinstance(options.values[key].value, bool):
            job.take_flag(key)
    job.notes.append(
        "transcripts are learnt with their end token, and languages and long texts are as the records have them; "
        "the run file says what the scripts do otherwise."
    )
    folder = job.take("output-dir") or Node("./voxtral-finetuned", command.place)
    if (name := job.take("exp-name")) is not None:
        parent = job.take("exp-dir")
        folder = Node(f"{parent.value if parent else '.'}/{name.value}", name.place)
    path = PurePosixPath(str(folder.value).replace("\\", "/"))
    job.put("name", path.name or "voxtral-finetuned", folder)
    job.put("output", str(path.parent), folder)
    job.put("task", "transcribe")
    lora = _model(job, command.script)
    _data(job)
    _optimizer(job)
    job.move_each(_FLAGS["plain"])
    _length(job)
    _steering(job)
    _tracking(job, "voxtral-lora-finetuning" if lora else "voxtral-finetuning")
    defaults = [f"  * {text}" for key, text in _FLAGS["defaults"].items() if job.made(key) in (None, "auto")]
    job.comments += ["", *_remarks("always"), *defaults, *_remarks("lora" if lora else "full")]
    _launch(job, command.launcher)
    _publish(job, path, others)
    _leave_out(job, options.others)
    return job.converted(f"Converted from a command line of {command.script} by `stentor config convert voxtral`.")


def _remarks(kind: str) -> list[str]:
    return str(_FLAGS["remarks"][kind]).splitlines()


def _model(job: Conversion, script: str) -> bool:
    """The section `model`; returns whether there are adapters."""
    lora = job.take_flag("use-lora") or script == "train_lora.py"
    frozen = job.take_flag("freeze-audio-tower")
    job.put("model.type", "audio_llm")
    job.move("model-checkpoint", "model.from", "mistralai/Voxtral-Mini-3B-2507")
    if lora:
        job.put("model.lora", {"rank": 8, "alpha": 32, "dropout": 0.0})
        job.move_each({"lora-r": "rank", "lora-alpha": "alpha", "lora-dropout": "dropout"}, "model.lora.")
        named = job.take("lora-target-modules")
        layers = named.plain() if named else ["q_proj", "k_proj", "v_proj", "o_proj"]
        # The tower calls its fourth layer out_proj, so theirs has adapters on three.
        tower = [] if frozen else [x for x in layers if x in ("q_proj", "k_proj", "v_proj")]
        targets = [f"language_model.*.{x}" for x in layers] + [f"audio_tower.*.{x}" for x in tower]
        job.put("model.lora.targets", targets, named)
        job.put("model.dtype", "bfloat16")
    values = [(f"--lora-{key}", job.take(f"lora-{key}")) for key in ("r", "alpha", "dropout")]
    job.comment_out("LoRA is off (no --use-lora); its values:", values)
    job.put("model.freeze", ["audio_tower.*"] if frozen else None)
    four, eight = job.take_flag("load-in-4bit"), job.take_flag("load-in-8bit")
    job.put("model.quantize", "4bit" if four else "8bit" if eight else None)
    return lora


def _data(job: Conversion) -> None:
    """Both sets from the front of the same records, one after the other."""
    train, count = job.take("train-count") or Node(100, job.place), job.take("eval-count") or Node(50, job.place)
    file, name, config, split = (job.take(f"dataset-{k}") for k in ("jsonl", "name", "config", "split"))
    scored, tested, audio = (job.take(k) for k in ("eval-jsonl", "test-jsonl", "audio-folder"))
    known = _FLAGS["data_sets"].get(name.value) if name is not None else None
    both: dict[str, Any] = {}
    limit, rest = ({}, {}) if scored or known or train.value is None else ({"limit": train}, {"skip": train})
    if file is not None:
        both |= {"type": "jsonl", "path": file, "audio_folder": audio or (None if scored else ".")}
        both["columns"] = {"text": "text_norm"} if job.take_flag("normalize") else None
        values = [("--dataset-name", name), ("--dataset-config", config)]
        job.comment_out("--dataset-jsonl comes before these:", values)
        if both["audio_folder"] == ".":
            job.notes.append(
                f"relative `audio_path`s in {file.value} start from the working directory, as in the scripts "
                "(`audio_folder: .`)."
            )
    elif known is None:
        both |= {"type": "hub", "name": name or "hf-audio/esb-datasets-test-only-sorted"}
        both |= {"config": config or (None if name and split else "voxpopuli"), "split": split or "test"}
        if split is None or split.value == "test":
            job.notes.append(
                "the scripts train and score on the test split of the data set: see `split` in the run file."
            )
    both["language"] = job.take("language")
    source, scoring = ({"type": "hub", **known[k], **both} if known else both for k in ("train", "eval"))
    strategy = job.values.get("eval-strategy")
    job.put_each("data.train.0", source | limit)
    if count.value and (strategy is None or strategy.value != "no"):
        more = {"path": scored} if scored else {} if known else rest | {"limit": count}
        job.put_each("data.eval.dev", scoring | more)
    if tested is not None:
        job.put_each("data.test.test", both | {"path": tested})
    job.put_batch("batch-size", 2, _POSITIONS)
    job.put("data.max_seconds", 60.0)


def _optimizer(job: Conversion) -> None:
    """The sections `optim` and `schedule`, and the loss."""
    kind = job.chosen("optim", _OPTIMIZERS, "adamw")
    betas = [job.take("adam-beta1") or 0.9, job.take("adam-beta2") or 0.999]
    job.put("optim", {"type": kind, "lr": 5e-5, "weight_decay": 0.0, "betas": betas})
    if kind in ("sgd", "rmsprop"):
        job.put("optim.momentum", 0.0)
    if (smoothing := job.take("label-smoothing-factor")) is not None:
        job.put("losses.text", {"type": "cross_entropy", "label_smoothing": smoothing})
    without_warmup = (node := job.values.get("lr-scheduler-type")) is not None and node.value == "constant"
    shape = job.chosen("lr-scheduler-type", _SCHEDULES, "linear")
    job.put("schedule.type", shape)
    if shape == "plateau":
        job.put("schedule.patience", 10)
    ratio, steps = (None, None) if without_warmup else (job.take("warmup-ratio"), job.take("warmup-steps"))
    if steps is not None and isinstance(steps.value, float) and 0 < steps.value < 1:
        ratio, steps = steps, None  # as in transformers 5
    if ratio is not None and not (steps is not None and steps.value):
        job.put("schedule.warmup_ratio", ratio)
    else:
        job.put("schedule.warmup_steps", steps or 0)


def _length(job: Conversion) -> None:
    """Length, precision, device and clipping of the training."""
    steps, clip, bf16, fp16 = map(job.take, ("max-steps", "max-grad-norm", "bf16", "fp16"))
    if steps is not None and not (isinstance(steps.value, int) and steps.value <= 0):  # -1: as many as the epochs have
        job.put("train.steps", steps)
    if clip is not None:
        job.put("train.clip", clip if clip.value else Node(None, clip.place))
    chosen = "auto" if bf16 is None else "bf16" if bf16.value else "fp32"
    job.put("train.precision", "fp16" if fp16 is not None and fp16.value else chosen)
    if job.take_flag("use-cpu"):
        job.put("train.device", "cpu")
    sharded = [f"--{key}" for key in ("fsdp", "deepspeed") if (node := job.take(key)) is not None and node.value]
    if sharded:
        job.put("train.shard", True)
        job.notes.append(f"{' and '.join(sharded)}: `train.shard` (FSDP2) divides weights, gradients and optimizer.")


def _steering(job: Conversion) -> None:
    """When the model is scored and saved, which weights are kept, and when training stops early."""
    interval = job.take("save-steps") or Node(50, job.place)
    every = job.take("eval-steps") or interval
    scoring, saving = (job.chosen(f"{key}-strategy", _STRATEGIES, "steps") for key in ("eval", "save"))
    job.put("train.eval_every", every if scoring == "steps" else None)
    job.put("train.save_every", interval if saving == "steps" else None)
    if saving in ("no", "best"):
        job.notes.append(f"--save-strategy {saving}: a checkpoint is written at each evaluation, to resume from.")
    if (best := job.take("load-best-model-at-end")) is not None:
        job.put("train.use", "best" if best.value else "last", best)
    metric, patience = job.take("metric-for-best-model"), job.take("early-stopping-patience")
    watched = metric and Node(f"dev/{str(metric.value).removeprefix('eval_')}", metric.place)
    if job.made("data.eval") and patience is not None:
        threshold = job.take("early-stopping-threshold")
        job.put_callback("early_stop", {"metric": watched, "patience": patience, "min_delta": threshold})
    elif watched is not None:
        job.put("train.best_metric", watched)


def _tracking(job: Conversion, project: str) -> None:
    report, space, name = map(job.take, ("report-to", "trackio-space", "project"))
    if report is None and space is None:
        job.comments += ["", *_remarks("untracked")]
        return
    reports = report.plain() if report is not None else []
    reports = {str(w).lower() for w in (reports if isinstance(reports, list) else [reports])} - {"none", ""}
    trackers = {*reports, *_TRACKERS} - {"all"} if "all" in reports else reports
    if others := sorted(trackers - {*_TRACKERS}):
        job.notes.append(f"--report-to {' '.join(others)}: trackers here are {', '.join(_TRACKERS)}; it is left out.")
    settings: dict[str, Any] = {"tensorboard": True} if "tensorboard" in trackers else {}
    if "wandb" in trackers:
        settings["wandb.project"] = name or project
    if "trackio" in trackers or space is not None:
        settings |= {"trackio.project": name or project, "trackio.space_id": space}
    if settings:
        job.put_callback("tracking", settings)


def _launch(job: Conversion, launcher: list[Word]) -> None:
    """The command that trains, with as many processes as theirs."""
    options = read_options(launcher, _LAUNCHER)
    job.mistakes += options.mistakes
    texts = [word.text for word in launcher]
    words = [*(text for text in texts if text.startswith("CUDA_VISIBLE_DEVICES=")), "stentor", "train", "RUN.yaml"]
    count, nodes = options.values.pop("processes", None), options.values.pop("nodes", None)
    if count is not None and count.value != 1:
        words += ["--processes", str(count.value) if isinstance(count.value, int) else "N"]
    if (count is None and "launch" in texts) or words[-1] == "N":
        job.notes.append("the launcher takes every GPU of the machine: write their number as `--processes N`.")
    if nodes is not None and nodes.value != 1:
        job.notes.append("several machines: `torchrun ... -m stentor train RUN.yaml` on each (docs/multi_gpu.md).")
    unused = [(f"--{key}", node) for key, node in options.values.items()]
    unused += [(u.name, Node(" ".join(u.values), job.place)) for u in options.others if u.name.startswith("--")]
    job.comment_out("Of the launcher; `stentor train` finds out by itself how its processes reach each other:", unused)
    if (start := job.take("resume-from-checkpoint")) is not None and start.value not in (False, "", "false", "none"):
        text = str(start.value)
        if text.lower() == "true":
            job.notes.append("--resume-from-checkpoint: the same command again resumes.")
        elif re.fullmatch(r"checkpoint-\d+", PurePosixPath(text).name) or (Path(text) / "trainer_state.json").exists():
            job.notes.append(f"--resume-from-checkpoint: {text} {_OF_TRAINER}")
        else:
            words += ["--resume-from", text]
    job.commands.append(shlex.join(words))


def _publish(job: Conversion, run: PurePosixPath, others: Sequence[Command]) -> None:
    """The commands that publish, of options and of the other scripts."""
    repo, manifest = job.take("hub-model-id") or job.take("repo-name"), job.made("data.train.0.path")
    if job.take_flag("push-to-hub"):
        private = job.take("hub-private-repo")
        visible = [] if private is None else ["--private" if private.value else "--public"]
        job.commands.append(publish_line("model", str(run), str(repo.value) if repo else run.name, *visible))
    if job.take_flag("push-dataset") and manifest is not None:
        data = job.take("dataset-repo")
        name = "voxtral-dataset" if data is None else str(data.value)
        job.commands.append(publish_line("dataset", f"{manifest},audio_folder=.", name))
    commands, notes = published(others, str(run))
    job.commands += commands
    job.notes += notes
    job.comments += ["", "Commands:", *(f"  {line}" for line in job.commands)]


def _leave_out(job: Conversion, unknown: Sequence[Unknown]) -> None:
    """Comments and notes for what has no key in the run file."""
    for reason, keys in _LEFT_OUT.items():
        options = [(f"--{key}", node) for key in keys if (node := job.take(key)) is not None]
        job.comment_out(f"Without a key here: {reason}.", options)
        named = [key for key, node in options if node.value not in (False, 0, "none")]
        if named and reason in _FLAGS["not_possible"]:
            job.notes.append(f"not possible here: {', '.join(named)}: {reason}.")
    rest = [(f"--{key}", job.take(key)) for key in list(job.values)]
    job.comment_out("Without an effect in this command:", rest)
    if unknown:
        job.comments += ["", "Not understood, so not in this file:", *(f"  {option}" for option in unknown)]
        job.notes += [f"not understood: {option.name}{guess(option.bare, OPTIONS.known, 0.7)}" for option in unknown]
