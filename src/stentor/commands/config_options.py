"""`stentor config ...`: check a run file, show it in full, look up keys, convert the configs of other systems. The
options of these verbs do what they ask for."""

from dataclasses import dataclass
from pathlib import Path

from stentor.errors import without_secrets
from stentor.inference.declarations import Argument, Option, refuse_unused, verb, verb_group

CONFIG = verb_group("config", "Check, show, look up and convert configs.")
CONVERT = verb_group("config convert", "Turn the config of another system into a run file.")
PLUGINS = "A Python file whose classes extend Stentor. May be repeated."
TO = "Write each to this folder as NAME.yaml instead of printing it."


@dataclass(kw_only=True)
class RunFileOptions:
    """A run file with changes."""

    run: Path = Argument("The run file (YAML or JSON).")
    overrides: list[str] = Argument("Changes, such as optim.lr=1e-4.", [], metavar="[KEY=VALUE]...")
    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("check", group=CONFIG)
@dataclass(kw_only=True)
class CheckOptions(RunFileOptions):
    """Check a run file and report all mistakes at once."""

    def __call__(self) -> None:
        from stentor.commands.prepare.run import listing
        from stentor.config import checks, load

        loaded = load.load(self.run, self.overrides)
        unchecked = [
            f"Layers and sizes of the model are not checked: {line}"
            for line in checks.require(load.stage_configs(loaded), loaded.roots)
        ]
        lines = [f"{self.run} is right: {load.describe(loaded)}", *unchecked, *listing(loaded.config.prepare)]
        print("\n  ".join(lines))


@verb("show", group=CONFIG)
@dataclass(kw_only=True)
class ShowOptions(RunFileOptions):
    """Print a run file with every default, its base and the overrides applied."""

    def __call__(self) -> None:
        from stentor.config import load

        print(without_secrets(load.resolved(load.load(self.run, self.overrides).config)), end="")


@verb("keys", group=CONFIG)
@dataclass(kw_only=True)
class KeysOptions:
    """List keys with type, default and meaning."""

    prefix: str = Argument("Show the keys that begin with this, such as optim or data.train.", "")
    plugin: list[Path] = Option(PLUGINS, [], local=True)

    def __call__(self) -> None:
        from stentor.config import reference

        for line in reference.listing(self.prefix):
            print(line)


@verb("schema", group=CONFIG)
@dataclass(kw_only=True)
class SchemaOptions:
    """Print the JSON schema of a run file, for completion and checks in an editor."""

    plugin: list[Path] = Option(PLUGINS, [], local=True)

    def __call__(self) -> None:
        import json

        from stentor.config import reference

        print(json.dumps(reference.json_schema(), indent=2, ensure_ascii=False))


@verb("reference", group=CONFIG)
@dataclass(kw_only=True)
class ReferenceOptions:
    """Write the reference of all keys as Markdown."""

    check: Path | None = Option("Check whether this file is up to date (exit code 1 if not).")
    to: Path = Option("Where to write it.", Path("docs/reference.md"), ways=("writing",))

    def __call__(self) -> None:
        from stentor.config import reference

        refuse_unused(self, "writing" if self.check is None else "--check")
        if self.check is None:
            reference.write(self.to)
            print(f"Wrote {self.to}.")
        else:
            reference.require_fresh(self.check)
            print(f"{self.check} is up to date.")


@verb("voxlm", group=CONVERT)
@dataclass(kw_only=True)
class VoxLMOptions:
    """VoxLM: model, training.phase1, training.phase2, data."""

    files: list[Path] = Argument("Config files of VoxLM (YAML).")
    to: Path | None = Option(TO)
    instruction: str | None = Option("VoxLM's --instruction, which the model is trained with.")

    def __call__(self) -> None:
        from stentor.config.convert.draft import convert_files
        from stentor.config.convert.voxlm import convert

        convert_files(lambda path: convert(path, self.instruction), self.files, self.to)


@verb("universal", group=CONVERT)
@dataclass(kw_only=True)
class UniversalOptions:
    """Universal training pipeline: model, global_config and datasets, training."""

    files: list[Path] = Argument("Config files of the universal training pipeline (YAML).")
    to: Path | None = Option(TO)

    def __call__(self) -> None:
        from stentor.config.convert.draft import convert_files
        from stentor.config.convert.universal import convert

        convert_files(convert, self.files, self.to)


@verb("omnivoice", group=CONVERT)
@dataclass(kw_only=True)
class OmniVoiceOptions:
    """OmniVoice: its training config with its data config."""

    train: Path = Argument("OmniVoice's training config (JSON).")
    data: Path | None = Argument("Its data config (JSON). Default: the one that the training config names.", None)
    output_dir: str | None = Option("OmniVoice's --output_dir: the run folder.")
    to: Path | None = Option("Write it to this folder as NAME.yaml instead of printing it.")

    def __call__(self) -> None:
        from stentor.config.convert.draft import convert_files
        from stentor.config.convert.omnivoice import convert

        convert_files(lambda file: convert(file, self.data, self.output_dir), [self.train], self.to)


@verb("voxtral", group=CONVERT)
@dataclass(kw_only=True)
class VoxtralOptions:
    """Voxtral fine-tuning scripts: --use-lora, --train-batch-size, --dataset-jsonl, ..."""

    commands: list[str] = Argument(
        "Shell scripts that call train.py, train_lora.py or the scripts that publish; such a command itself, in "
        "quotes; or Python, YAML or JSON files with the settings.",
        metavar="FILE_OR_COMMAND...",
    )
    to: Path | None = Option(TO)

    def __call__(self) -> None:
        from stentor.config.convert.draft import convert_files
        from stentor.config.convert.voxtral import convert

        commands = [c if " " in c and not Path(c).exists() else Path(c) for c in self.commands]
        convert_files(convert, commands, self.to)
