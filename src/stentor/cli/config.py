"""`stentor config ...`: check a run file, show it in full, look up keys, convert the configs of other systems."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from stentor.cli import verb_group
from stentor.cli.options import Argument, Option, takes_options
from stentor.errors import without_secrets

config = verb_group("config", "Check, show, look up and convert configs.")
convert = verb_group("convert", "Turn the config of another system into a run file.", config)
PLUGINS = "A Python file whose classes extend Stentor. May be given several times."
TO = "Write each to this folder as NAME.yaml instead of printing it."


@dataclass
class RunFileOptions:
    run: Path = Argument("The run file (YAML or JSON).")
    overrides: list[str] = Argument("Changes, such as optim.lr=1e-4.", [], metavar="[KEY=VALUE]...")
    plugin: list[Path] = Option(PLUGINS, [])


@dataclass
class KeysOptions:
    prefix: str = Argument("Show the keys that begin with this, such as optim or data.train.", "")
    plugin: list[Path] = Option(PLUGINS, [])


@dataclass
class SchemaOptions:
    plugin: list[Path] = Option(PLUGINS, [])


@config.command()
@takes_options
def check(options: RunFileOptions) -> None:
    """Say whether a run file is right, or everything that is wrong with it."""
    from stentor.commands.prepare.run import listing
    from stentor.config import load

    loaded = load.load(options.run, options.overrides)
    typer.echo("\n  ".join([f"{options.run} is right: {load.describe(loaded)}", *listing(loaded.config.prepare)]))


@config.command()
@takes_options
def show(options: RunFileOptions) -> None:
    """Print a run file in full, with every default, its base and the changes."""
    from stentor.config import load

    typer.echo(without_secrets(load.resolved(load.load(options.run, options.overrides).config)), nl=False)


@config.command()
@takes_options
def keys(options: KeysOptions) -> None:
    """List keys with type, default and meaning."""
    from stentor.config import reference

    for line in reference.listing(options.prefix):
        typer.echo(line)


@config.command()
@takes_options
def schema(options: SchemaOptions) -> None:
    """Print the JSON schema of a run file, for completion and checks in an editor."""
    import json

    from stentor.config import reference

    typer.echo(json.dumps(reference.json_schema(), indent=2, ensure_ascii=False))


@config.command("reference")
def write_reference(
    check: Path = typer.Option(None, "--check", help="Only say whether this file is up to date (exit code 1 if not)."),
    to: Path = typer.Option(Path("docs/reference.md"), "--to", help="Where to write it."),
) -> None:
    """Write docs/reference.md from the schema."""
    from stentor.config import reference

    if check is None:
        reference.write(to)
        typer.echo(f"Wrote {to}.")
    else:
        reference.require_fresh(check)
        typer.echo(f"{check} is up to date.")


def _convert_files(converter: Callable[[Any], Any], files: Sequence[Path | str], to: Path | None) -> None:
    from stentor.config.convert.draft import convert_files

    text, notes = convert_files(converter, files, to)
    for note in notes:
        typer.echo(without_secrets(note), err=True)
    typer.echo(without_secrets(text), nl=False)


@dataclass
class VoxLMOptions:
    files: list[Path] = Argument("Config files of VoxLM (YAML).")
    to: Path | None = Option(TO)
    instruction: str | None = Option("VoxLM's --instruction, which the model is trained with.")


@convert.command()
@takes_options
def voxlm(options: VoxLMOptions) -> None:
    """VoxLM: model, training.phase1, training.phase2, data."""
    from stentor.config.convert.voxlm import convert

    _convert_files(lambda path: convert(path, options.instruction), options.files, options.to)


@dataclass
class UniversalOptions:
    files: list[Path] = Argument("Config files of the universal training pipeline (YAML).")
    to: Path | None = Option(TO)


@convert.command()
@takes_options
def universal(options: UniversalOptions) -> None:
    """Universal training pipeline: model, global_config and datasets, training."""
    from stentor.config.convert.universal import convert

    _convert_files(convert, options.files, options.to)


@dataclass
class OmniVoiceOptions:
    train: Path = Argument("OmniVoice's training config (JSON).")
    data: Path | None = Argument("Its data config (JSON). Default: the one that the training config names.", None)
    output_dir: str | None = Option("OmniVoice's --output_dir: the run folder.")
    to: Path | None = Option("Write it to this folder as NAME.yaml instead of printing it.")


@convert.command()
@takes_options
def omnivoice(options: OmniVoiceOptions) -> None:
    """OmniVoice: its training config with its data config."""
    from stentor.config.convert.omnivoice import convert

    _convert_files(lambda file: convert(file, options.data, options.output_dir), [options.train], options.to)


@dataclass
class VoxtralOptions:
    commands: list[str] = Argument(
        "Shell scripts that call train.py or train_lora.py, or such a command itself, in quotes.",
        metavar="FILE_OR_COMMAND...",
    )
    to: Path | None = Option(TO)


@convert.command()
@takes_options
def voxtral(options: VoxtralOptions) -> None:
    """Voxtral fine-tuning scripts: --use-lora, --train-batch-size, --dataset-jsonl, ..."""
    from stentor.config.convert.voxtral import convert

    commands = [c if " " in c and not Path(c).exists() else Path(c) for c in options.commands]
    _convert_files(convert, commands, options.to)
