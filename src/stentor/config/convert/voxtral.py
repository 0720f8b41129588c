"""Command lines of the Voxtral fine-tuning scripts (train.py, train_lora.py): a shell script, or the command itself."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

from stentor.config.convert.draft import Conversion, Converted, expanded
from stentor.config.document import Mistake, Mistakes, Node, Place, read_text, scalar
from stentor.config.explain import guess
from stentor.errors import ConfigError

_SCRIPTS = ("train.py", "train_lora.py")
_FLAGS = ("use-lora", "freeze-audio-tower", "push-dataset", "push-to-hub", "bf16", "gradient-checkpointing")
_SAME = {
    "train-batch-size": "batch-size",
    "per-device-train-batch-size": "batch-size",
    "per-device-eval-batch-size": "eval-batch-size",
    "gradient-accumulation-steps": "grad-accum",
    "num-train-epochs": "epochs",
    "lr": "learning-rate",
    "lora-rank": "lora-r",
    "model": "model-checkpoint",
    "model-id": "model-checkpoint",
    "freeze-audio": "freeze-audio-tower",
}
"""Other spellings, of forks of the scripts and of transformers' Trainer."""
_PLAIN = {
    "grad-accum": ("train.accumulate", 4),
    "learning-rate": ("optim.lr", 5e-5),
    "epochs": ("train.epochs", 3),
    "logging-steps": ("train.log_every", 10),
    "warmup-steps": ("schedule.warmup_steps", 0),
    "warmup-ratio": ("schedule.warmup_ratio", None),
    "weight-decay": ("optim.weight_decay", None),
    "max-steps": ("train.steps", None),
    "gradient-checkpointing": ("model.gradient_checkpointing", None),
}
"""Options with one counterpart, and the values that hold where they are not given."""
_IMPLIED = {
    "eval-batch-size": "sets are scored in batches of `data.max_items`, and `data.eval_batch_tokens` where it is given",
    "bf16": "`train.precision: auto` is bf16 on a GPU that has it",
    "push-dataset": "publishing is no part of a run file",
    "dataset-repo": "publishing is no part of a run file",
    "push-to-hub": "publishing is no part of a run file",
    "hub-model-id": "publishing is no part of a run file",
    "repo-name": "publishing is no part of a run file",
}
"""Options without a counterpart, and why."""
_OTHERS = (
    "{use-lora,lora-r,lora-alpha,lora-dropout,freeze-audio-tower,dataset-jsonl,dataset-name,dataset-config,train-count,"
    "eval-count,model-checkpoint,output-dir,batch-size,save-steps,trackio-space}"
)
_KNOWN = (*_PLAIN, *_IMPLIED, *expanded(_OTHERS))
_ENDS = re.compile(r"[|&;]+|[0-9]*[<>].*")
"""Where the shell's grammar ends a command."""
_ENDS_VALUES = re.compile(rf"--[A-Za-z].*|{_ENDS.pattern}", re.DOTALL)
"""Words that are not a value of the option before them."""
_SECRET = re.compile(r"token|secret|password|key|hf_\w+", re.IGNORECASE)
_POSITIONS = 2 * 375 + 256 + 16
"""Positions in the language model of an item of 60 s with as much text as the scripts keep."""

_LEARNT_OTHERWISE = (
    "What the scripts do otherwise:",
    "  * Their prompt says that the language is English, whatever is spoken. Here it is each record's `language`; the",
    "    model finds it out where there is none. For English recordings that name none: data.train.0.language: en",
    "  * They cut transcripts after 256 tokens, without a word, and learn the cut. Here longer ones are learnt whole;",
    "    those over `model.max_text_tokens` are left out, counted and named.",
    "  * They end no transcript with the end token, so that their models do not learn to stop. Here they do.",
    "  * They take recordings of any length. Here those over `data.max_seconds` are left out and counted: raise it,",
    "    and `data.batch_tokens` with it (375 positions per item for every 30 s).",
)
_OF_LORA = (
    "  * Their --freeze-audio-tower leaves the adapters in the tower trained. With `model.freeze` there are none.",
)
_OF_FULL = (
    "  * They update weights in bfloat16, which loses small updates. Here trained weights are in float32: more memory,",
    "    see `stentor train RUN.yaml --plan-only`.",
)
_UNTRACKED = (
    "",
    "The scripts always log to Trackio, and make a Space for it when they find a token. Here:",
    "  callbacks: [{type: tracking, trackio: {project: voxtral}}]",
)


class ShellWord(NamedTuple):
    """A word of a command, after quotes and variables."""

    text: str
    place: Place


def convert(script: Path | str) -> Converted:
    """A run file from a shell script with one training command, or from the command itself. Options that are not
    understood are listed in the run file and in `notes`. Raises `ConfigError` where there is no such command, and
    `Mistakes` for values that cannot be used."""
    place = Place(0, 1, str(script) if isinstance(script, Path) else "the command line")
    name, words = _command(_lines(read_text(script) if isinstance(script, Path) else script, place))
    options, unknown = _options(words, place)
    job = Conversion(options, place)
    job.notes.append(
        "transcripts are learnt with their end token, and languages and long texts are as the records have them; "
        "the run file says what the scripts do otherwise."
    )
    folder = job.take("output-dir") or Node("./voxtral-finetuned", place)
    path = PurePosixPath(str(folder.value).replace("\\", "/"))
    job.put("name", path.name or "voxtral-finetuned", folder)
    job.put("output", str(path.parent), folder)
    job.put("task", "transcribe")
    lora = _model(job, name)
    _data(job)
    job.put("optim", {"type": "adamw", "lr": 5e-5, "weight_decay": 0.0, "betas": [0.9, 0.999]})
    job.put("schedule.type", "linear")
    job.move_each(_PLAIN)  # steps take the place of epochs, as max_steps in the Trainer
    interval = job.take("save-steps") or 50
    job.put("train.eval_every", interval)
    job.put("train.save_every", interval)
    if (space := job.take("trackio-space")) is not None:
        job.put("callbacks.0.type", "tracking")
        job.put("callbacks.0.trackio.project", "voxtral-lora-finetuning" if lora else "voxtral-finetuning")
        job.put("callbacks.0.trackio.space_id", space)
    else:
        job.comments += _UNTRACKED
    job.comments += ["", *_LEARNT_OTHERWISE, *(_OF_LORA if lora else _OF_FULL)]
    for key, reason in _IMPLIED.items():
        job.comment_out(f"Without a key here: {reason}.", [(f"--{key}", job.take(key))])
    if unknown:
        job.comments += ["", "Not understood, so not in this file:", *(f"  {_shown(o)}" for o in unknown)]
        job.notes += [f"not understood: {o.name.text}{guess(o.bare, _KNOWN, 0.7)}" for o in unknown]
    return job.converted(f"Converted from a command line of {name} by `stentor config convert voxtral`.")


class Unknown(NamedTuple):
    """An option that is not understood, or a word that belongs to none (without values)."""

    name: ShellWord
    bare: str
    values: tuple[str, ...]


def _shown(option: Unknown) -> str:
    """The option as it was written, without secrets."""
    values = shlex.join(option.values)
    if not values or not _SECRET.search(f"{option.bare} {values}"):
        return f"{option.name.text} {values}".rstrip()
    return f"{option.name.text} (not shown)"


def _lines(text: str, place: Place) -> Iterator[list[ShellWord]]:
    """Yield the commands of a shell script as lists of words; continued lines are one command."""
    variables: dict[str, str] = {}
    words: list[ShellWord] = []
    for number, line in enumerate(text.splitlines(), place.line):
        line_place = Place(place.rank, number, place.source)
        goes_on = re.search(r"(?:^|\s)[\\^`]\s*$", line)
        try:
            parts = shlex.split(line[: goes_on.start()] if goes_on else line, comments=True)
        except ValueError:
            raise Mistakes([Mistake(line_place, "a quotation mark has no counterpart on its line")]) from None
        words += [ShellWord(_filled(word, variables), line_place) for word in parts]
        if goes_on:
            continue
        for word in words if all("=" in w.text for w in words) or words[0].text == "export" else ():
            name, equals, value = word.text.partition("=")
            if equals and name.isidentifier():
                variables[name] = value
        if words:
            yield words
        words = []
    if words:
        yield words


def _filled(word: str, variables: dict[str, str]) -> str:
    """A word with the variables that the script sets; `${NAME:-default}` is the default where it sets none."""

    def value(match: re.Match[str]) -> str:
        return variables.get(match[1] or match[3], match[2] if match[2] is not None else match[0])

    return re.sub(r"\$(?:\{(\w+)(?::?-([^}]*))?\}|(\w+))", value, word)


def _command(commands: Iterator[list[ShellWord]]) -> tuple[str, list[ShellWord]]:
    """The script's name and the words after it, of the one command that trains."""
    matches = []
    for words in commands:
        for i, word in enumerate(words):
            name = PurePosixPath(word.text.replace("\\", "/")).name
            if name in _SCRIPTS:
                matches.append((word, name, words[i + 1 :]))
                break
    if not matches:
        raise ConfigError(
            f"There is no command with {' or '.join(_SCRIPTS)} to convert: give a shell script that holds one, or the "
            "command itself in quotes."
        )
    if len(matches) > 1:
        raise Mistakes([Mistake(w.place, "another training command; leave one in the file") for w, *_ in matches[1:]])
    return matches[0][1:]


def _options(words: list[ShellWord], place: Place) -> tuple[Node, list[Unknown]]:
    """Values by the names of the options, and what is not understood."""
    values: dict[str, Node] = {}
    unknown: list[Unknown] = []
    mistakes: list[Mistake] = []
    remaining = list(words)
    while remaining and not _ENDS.fullmatch(remaining[0].text):
        word = remaining.pop(0)
        name, equals, value = word.text.partition("=")
        if not re.match(r"--?[A-Za-z]", name):
            unknown.append(Unknown(word, "", ()))
            continue
        bare = name.lstrip("-").replace("_", "-").lower()
        option = _SAME.get(bare, bare)
        arguments: list[str] = [value] if equals else []
        flag = option in _FLAGS
        while not equals and remaining and not _ENDS_VALUES.fullmatch(remaining[0].text):
            if (arguments and option in _KNOWN) or (flag and remaining[0].text.lower() not in ("true", "false")):
                break  # one value, and none behind a switch
            arguments.append(remaining.pop(0).text)
        if option not in _KNOWN:
            unknown.append(Unknown(ShellWord(name, word.place), bare, tuple(arguments)))
        elif flag:
            values[option] = Node(not arguments or arguments[0].lower() == "true", word.place)
        elif not arguments:
            mistakes.append(Mistake(word.place, f"{name} has no value"))
        elif "$" in arguments[0]:
            mistakes.append(Mistake(word.place, f"{name} takes its value from {arguments[0]}, which is not set there"))
        else:
            values[option] = Node(scalar(arguments[0]), word.place)
    if mistakes:
        raise Mistakes(mistakes)
    return Node(values, place), unknown


def _model(job: Conversion, script: str) -> bool:
    """The section `model`; returns whether there are adapters."""
    lora = job.take_flag("use-lora") or script == "train_lora.py"
    frozen = job.take_flag("freeze-audio-tower")
    job.put("model.type", "audio_llm")
    job.move("model-checkpoint", "model.from", "mistralai/Voxtral-Mini-3B-2507")
    if lora:
        job.put("model.lora", {"rank": 8, "alpha": 32, "dropout": 0.0})
        job.move_each({"lora-r": "rank", "lora-alpha": "alpha", "lora-dropout": "dropout"}, "model.lora.")
        targets = [f"language_model.*.{x}_proj" for x in "qkvo"]
        # The tower calls its fourth layer out_proj, so theirs has adapters on three.
        job.put("model.lora.targets", targets + ([] if frozen else [f"audio_tower.*.{x}_proj" for x in "qkv"]))
        job.put("model.dtype", "bfloat16")
    values = [(f"--lora-{key}", job.take(f"lora-{key}")) for key in ("r", "alpha", "dropout")]
    job.comment_out("LoRA is off (no --use-lora); its values:", values)
    if frozen:
        job.put("model.freeze", ["audio_tower.*"])
    return lora


def _data(job: Conversion) -> None:
    """Both sets from the front of the same records, one after the other."""
    train = job.take("train-count") or Node(100, job.place)
    count = job.take("eval-count") or Node(50, job.place)
    file, name, config = (job.take(f"dataset-{k}") for k in ("jsonl", "name", "config"))
    if file is not None:
        source: dict[str, Any] = {"type": "jsonl", "path": file}
        values = [("--dataset-name", name), ("--dataset-config", config)]
        job.comment_out("--dataset-jsonl comes before these:", values)
        job.notes.append(
            f"relative `audio_path`s in {file.value} start from its folder, those of the scripts from where they were "
            "started."
        )
    else:
        source = {"type": "hub", "name": name or "hf-audio/esb-datasets-test-only-sorted"}
        source |= {"config": config or "voxpopuli", "split": "test"}
        job.notes.append("the scripts train and score on the test split of the data set: see `split` in the run file.")
    sets = {"train.0": {"limit": train}} | ({"eval.dev": {"skip": train, "limit": count}} if count.value else {})
    for name_of_set, part in sets.items():
        for key, value in (source | part).items():
            job.put(f"data.{name_of_set}.{key}", value)
    job.put_batch("--batch-size", job.take("batch-size"), 2, _POSITIONS)
    job.put("data.max_seconds", 60.0)
    job.put("data.workers", 1)
