"""`stentor config ...`: check a run file, show it in full, look up keys, convert the configs of other systems."""

from pathlib import Path

import typer

PLUGIN = typer.Option([], "--plugin", help="A Python file whose classes extend Stentor. May be given several times.")


def register(app: typer.Typer) -> None:
    """Add `stentor config`."""
    config = typer.Typer(
        name="config",
        help="Check, show, look up and convert configs.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(config)

    @config.command()
    def check(
        run: Path = typer.Argument(help="The run file (YAML or JSON)."),
        overrides: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Changes, such as optim.lr=1e-4."),
        plugin: list[Path] = PLUGIN,
    ) -> None:
        """Say whether a run file is right, or everything that is wrong with it."""
        from stentor.config import load
        from stentor.config.plugins import load_plugins

        load_plugins(plugin)
        typer.echo(f"{run} is right: {load.describe(load.load(run, overrides or []))}")

    @config.command()
    def show(
        run: Path = typer.Argument(help="The run file (YAML or JSON)."),
        overrides: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Changes, such as optim.lr=1e-4."),
        plugin: list[Path] = PLUGIN,
    ) -> None:
        """Print a run file in full, with every default, its base and the changes."""
        from stentor.config import load
        from stentor.config.plugins import load_plugins

        load_plugins(plugin)
        typer.echo(load.resolved(load.load(run, overrides or []).config), nl=False)

    @config.command()
    def keys(
        prefix: str = typer.Argument("", help="Show the keys that begin with this, such as optim or data.train."),
        plugin: list[Path] = PLUGIN,
    ) -> None:
        """List keys with type, default and meaning."""
        from stentor.config import reference
        from stentor.config.plugins import load_plugins

        load_plugins(plugin)
        for line in reference.listing(prefix):
            typer.echo(line)

    @config.command()
    def schema(plugin: list[Path] = PLUGIN) -> None:
        """Print the JSON schema of a run file, for completion and checks in an editor."""
        import json

        from stentor.config import reference
        from stentor.config.plugins import load_plugins

        load_plugins(plugin)
        typer.echo(json.dumps(reference.json_schema(), indent=2, ensure_ascii=False))

    @config.command("reference")
    def reference_(
        check: Path = typer.Option(
            None, "--check", help="Only say whether this file is up to date (exit code 1 if not)."
        ),
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

    convert = typer.Typer(
        name="convert",
        help="Turn the config of another system into a run file.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    config.add_typer(convert)

    @convert.command()
    def voxlm(
        files: list[Path] = typer.Argument(help="Config files of VoxLM (YAML)."),
        to: Path = typer.Option(None, "--to", help="Write each to this folder as NAME.yaml instead of printing it."),
    ) -> None:
        """VoxLM: model, training.phase1, training.phase2, data."""
        from stentor.config.convert import convert_files
        from stentor.config.convert.voxlm import convert as convert_voxlm

        said, notes = convert_files(convert_voxlm, files, to)
        for note in notes:
            typer.echo(note, err=True)
        typer.echo(said, nl=False)

    @convert.command()
    def universal(
        files: list[Path] = typer.Argument(help="Config files of the universal training pipeline (YAML)."),
        to: Path = typer.Option(None, "--to", help="Write each to this folder as NAME.yaml instead of printing it."),
    ) -> None:
        """Universal training pipeline: model, global_config and datasets, training."""
        from stentor.config.convert import convert_files
        from stentor.config.convert.universal import convert as convert_universal

        said, notes = convert_files(convert_universal, files, to)
        for note in notes:
            typer.echo(note, err=True)
        typer.echo(said, nl=False)

    @convert.command()
    def omnivoice(
        train: Path = typer.Argument(help="OmniVoice's training config (JSON)."),
        data: Path = typer.Argument(
            None, help="Its data config (JSON). Default: the one that the training config names."
        ),
        output_dir: str = typer.Option(None, "--output-dir", help="OmniVoice's --output_dir: the run folder."),
        to: Path = typer.Option(None, "--to", help="Write it to this folder as NAME.yaml instead of printing it."),
    ) -> None:
        """OmniVoice: its training config with its data config."""
        from stentor.config.convert import convert_files
        from stentor.config.convert.omnivoice import convert as convert_omnivoice

        said, notes = convert_files(lambda file: convert_omnivoice(file, data, output_dir), [train], to)
        for note in notes:
            typer.echo(note, err=True)
        typer.echo(said, nl=False)

    @convert.command()
    def voxtral(
        commands: list[str] = typer.Argument(
            metavar="FILE_OR_COMMAND...",
            help="Shell scripts that call train.py or train_lora.py, or such a command itself, in quotes.",
        ),
        to: Path = typer.Option(None, "--to", help="Write each to this folder as NAME.yaml instead of printing it."),
    ) -> None:
        """Voxtral fine-tuning scripts: --use-lora, --train-batch-size, --dataset-jsonl, ..."""
        from stentor.config.convert import convert_files
        from stentor.config.convert.voxtral import convert as convert_voxtral

        given = [c if " " in c and not Path(c).exists() else Path(c) for c in commands]
        said, notes = convert_files(convert_voxtral, given, to)
        for note in notes:
            typer.echo(note, err=True)
        typer.echo(said, nl=False)
