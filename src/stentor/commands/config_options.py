"""`stentor config ...`: check a run file, show it in full, look up keys, convert the configs of other systems. Declares
the options of these verbs, and does what they ask for."""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stentor.errors import without_secrets
from stentor.section.options import Argument, Option, refuse_unused, verb, verb_group

CONFIG = verb_group("config", "Check, show, look up and convert configs.")
CONVERT = verb_group("config convert", "Turn the config of another system into a run file.")
PLUGINS = "A Python file whose classes extend Stentor. May be given several times."
TO = "Write each to this folder as NAME.yaml instead of printing it."


@dataclass(kw_only=True)
class RunFileOptions:
    """A run file with changes."""

    run: Path = Argument("The run file (YAML or JSON).")
    overrides: list[str] = Argument("Changes, such as optim.lr=1e-4.", [], metavar="[KEY=VALUE]...")
    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("check", "stentor.commands.config_options:check", CONFIG)
@dataclass(kw_only=True)
class CheckOptions(RunFileOptions):
    """Say whether a run file is right, or everything that is wrong with it."""


@verb("show", "stentor.commands.config_options:show", CONFIG)
@dataclass(kw_only=True)
class ShowOptions(RunFileOptions):
    """Print a run file in full, with every default, its base and the changes."""


@verb("keys", "stentor.commands.config_options:keys", CONFIG)
@dataclass(kw_only=True)
class KeysOptions:
    """List keys with type, default and meaning."""

    prefix: str = Argument("Show the keys that begin with this, such as optim or data.train.", "")
    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("schema", "stentor.commands.config_options:schema", CONFIG)
@dataclass(kw_only=True)
class SchemaOptions:
    """Print the JSON schema of a run file, for completion and checks in an editor."""

    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("reference", "stentor.commands.config_options:write_reference", CONFIG)
@dataclass(kw_only=True)
class ReferenceOptions:
    """Write docs/reference.md from the schema."""

    check: Path | None = Option("Only say whether this file is up to date (exit code 1 if not).")
    to: Path = Option("Where to write it.", Path("docs/reference.md"), ways=("writing",))


@verb("voxlm", "stentor.commands.config_options:convert_voxlm", CONVERT)
@dataclass(kw_only=True)
class VoxLMOptions:
    """VoxLM: model, training.phase1, training.phase2, data."""

    files: list[Path] = Argument("Config files of VoxLM (YAML).")
    to: Path | None = Option(TO)
    instruction: str | None = Option("VoxLM's --instruction, which the model is trained with.")


@verb("universal", "stentor.commands.config_options:convert_universal", CONVERT)
@dataclass(kw_only=True)
class UniversalOptions:
    """Universal training pipeline: model, global_config and datasets, training."""

    files: list[Path] = Argument("Config files of the universal training pipeline (YAML).")
    to: Path | None = Option(TO)


@verb("omnivoice", "stentor.commands.config_options:convert_omnivoice", CONVERT)
@dataclass(kw_only=True)
class OmniVoiceOptions:
    """OmniVoice: its training config with its data config."""

    train: Path = Argument("OmniVoice's training config (JSON).")
    data: Path | None = Argument("Its data config (JSON). Default: the one that the training config names.", None)
    output_dir: str | None = Option("OmniVoice's --output_dir: the run folder.")
    to: Path | None = Option("Write it to this folder as NAME.yaml instead of printing it.")


@verb("voxtral", "stentor.commands.config_options:convert_voxtral", CONVERT)
@dataclass(kw_only=True)
class VoxtralOptions:
    """Voxtral fine-tuning scripts: --use-lora, --train-batch-size, --dataset-jsonl, ..."""

    commands: list[str] = Argument(
        "Shell scripts that call train.py or train_lora.py, or such a command itself, in quotes.",
        metavar="FILE_OR_COMMAND...",
    )
    to: Path | None = Option(TO)


def check(options: CheckOptions) -> None:
    """Print what a run file does, or raise ConfigError with all that is wrong."""
    from stentor.commands.prepare.run import listing
    from stentor.config import load

    loaded = load.load(options.run, options.overrides)
    print("\n  ".join([f"{options.run} is right: {load.describe(loaded)}", *listing(loaded.config.prepare)]))


def show(options: ShowOptions) -> None:
    """Print the resolved run file."""
    from stentor.config import load

    print(without_secrets(load.resolved(load.load(options.run, options.overrides).config)), end="")


def keys(options: KeysOptions) -> None:
    """Print a line for each key."""
    from stentor.config import reference

    for line in reference.listing(options.prefix):
        print(line)


def schema(options: SchemaOptions) -> None:
    """Print the schema."""
    import json

    from stentor.config import reference

    print(json.dumps(reference.json_schema(), indent=2, ensure_ascii=False))


def write_reference(options: ReferenceOptions) -> None:
    """Write the page, or raise StentorError where the one to check is old."""
    from stentor.config import reference

    refuse_unused(options, "writing" if options.check is None else "--check")
    if options.check is None:
        reference.write(options.to)
        print(f"Wrote {options.to}.")
    else:
        reference.require_fresh(options.check)
        print(f"{options.check} is up to date.")


def convert_voxlm(options: VoxLMOptions) -> None:
    """Convert configs of VoxLM."""
    from stentor.config.convert.voxlm import convert

    _convert_files(lambda path: convert(path, options.instruction), options.files, options.to)


def convert_universal(options: UniversalOptions) -> None:
    """Convert configs of the universal training pipeline."""
    from stentor.config.convert.universal import convert

    _convert_files(convert, options.files, options.to)


def convert_omnivoice(options: OmniVoiceOptions) -> None:
    """Convert the configs of OmniVoice."""
    from stentor.config.convert.omnivoice import convert

    _convert_files(lambda file: convert(file, options.data, options.output_dir), [options.train], options.to)


def convert_voxtral(options: VoxtralOptions) -> None:
    """Convert commands of the Voxtral scripts."""
    from stentor.config.convert.voxtral import convert

    commands = [c if " " in c and not Path(c).exists() else Path(c) for c in options.commands]
    _convert_files(convert, commands, options.to)


def _convert_files(converter: Callable[[Any], Any], files: Sequence[Path | str], to: Path | None) -> None:
    from stentor.config.convert import convert_files

    text, notes = convert_files(converter, files, to)
    for note in notes:
        print(without_secrets(note), file=sys.stderr)
    print(without_secrets(text), end="")
