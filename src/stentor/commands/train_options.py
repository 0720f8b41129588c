"""Options of verbs that make a model: `stentor train`, `improve`, `import` and `export`; what comes before training."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import FINISHED_MODEL, PARTS_PLUGINS
from stentor.errors import ConfigError
from stentor.inference.declarations import REQUIRED, Argument, Flag, Option, command_line, verb, verb_group

IMPORT = verb_group("import", "Import trained models of other systems.")


@verb("train")
@dataclass(kw_only=True)
class TrainOptions:
    """Train from a YAML file. Run the same command again to resume."""

    config: Path = Argument("The YAML (or JSON) file of the run.")
    overrides: list[str] = Argument("Overrides, such as optim.lr=3e-4.", [], metavar="[KEY=VALUE]...")
    plugin: list[Path] = Option(PARTS_PLUGINS, [], local=True)
    resume_from: Path | None = Option(
        "Checkpoint of another run (RUN/checkpoints/step-000400, or RUN for its newest) to start a new run from, with "
        "its weights, optimizer, schedule and position in the data.",
        local=True,
    )
    plan_only: bool = Flag("Show parameters, batches and memory, and stop.")
    processes: int = Option("Processes on this machine: one for each GPU.", 1, min=1)
    json: Path | None = Option(
        "With --plan-only: write the plan of each stage to this file.", output=True, needs="plan_only"
    )

    def __call__(self) -> int | None:
        """Plan or train a run file, by as many processes as asked for. Raises ConfigError, and what is raised in it."""
        from stentor.commands.prepare.run import listing, pending, prepare_run
        from stentor.config.checks import require
        from stentor.config.load import in_its_folder, load, run_texts, stage_configs
        from stentor.config.missing_data import located

        loaded = load(self.config, in_its_folder(self.config, self.overrides))
        require(stage_configs(loaded), loaded.roots)
        steps = loaded.config.prepare
        if self.plan_only:
            for line in listing(steps):
                print(line)
            if pending(steps):
                rest = f"The plan comes from what is prepared: `stentor prepare run {self.config}` first."
                if self.json is not None:
                    raise ConfigError(rest)
                print(rest)
                return None
            from stentor.commands.plan.plan import show

            if self.resume_from is not None:
                from stentor.commands.run_start import find_checkpoint

                print(f"Training starts from {find_checkpoint(self.resume_from)}, whose steps are included.")
            with located(loaded.root):
                print(show(stage_configs(loaded), self.processes, self.json))
            return None
        if loaded.config.improve is not None:
            raise ConfigError(
                f"{self.config} has a section `improve`: `stentor improve {self.config}` trains it in rounds, and "
                "with improve.rounds=0 the supervised model alone."
            )
        from stentor.engine.launch import launch, launched

        if not launched(self.processes):
            with located(loaded.root, "prepare"):
                prepare_run(steps, self.plugin)
        elif pending(steps):
            raise ConfigError(f"The launcher comes too early: `stentor prepare run {self.config}` first, once.")
        if not launched(self.processes) and self.processes > 1:
            return launch(self.processes, ["train", *command_line(self)])
        from stentor.commands.remote_run import local_run
        from stentor.commands.train import train as train_stages
        from stentor.config.smaller_batches import advised
        from stentor.data.storage import as_path

        run_folder = as_path(loaded.config.output) / loaded.config.name
        with located(loaded.root), advised(loaded), local_run(run_folder) as folder:
            train_stages(stage_configs(loaded), folder, run_texts(loaded), resume_from=self.resume_from)
        return None


@verb("improve", "stentor.commands.improve.command:improve")
@dataclass(kw_only=True)
class ImproveOptions:
    """Train in rounds, each on labels that the best model made and on synthetic speech, as the section `improve:` of a
    run file says. Run the same command again to resume."""

    config: Path = Argument("The YAML (or JSON) file of the run.")
    overrides: list[str] = Argument("Overrides, such as improve.rounds=3.", [], metavar="[KEY=VALUE]...")
    more: int = Option("Number of additional rounds, whatever `rounds` and `patience` say.", 0, min=0)
    processes: int = Option("Processes of each training on this machine: one for each GPU.", 1, min=1)
    plugin: list[Path] = Option(PARTS_PLUGINS, [], local=True)


@verb("voxlm", "stentor.commands.export:import_voxlm", group=IMPORT)
@dataclass(kw_only=True)
class ImportVoxLMOptions:
    """Import a trained VoxLM model as an export, with the same function. Its word times are not imported."""

    checkpoint: Path = Argument("VoxLM's model.pt, best.pt or best_phase2.pt, or the folder of a published model.")
    to: Path = Option("Folder to write.", REQUIRED, output=True)


@verb("export", "stentor.commands.export:export_model")
@dataclass(kw_only=True)
class ExportOptions:
    """Export a self-contained copy of a model, compared with the model in the runtime that it is for."""

    model: str = Argument(FINISHED_MODEL)
    to: Path = Option("Folder to write.", REQUIRED, output=True)
    merge: bool = Flag("Fold adapters into the weights (for --format hf; other formats always do).")
    format: str = Option(
        "hf, onnx, sherpa (sherpa-onnx), ctranslate2, ggml (whisper.cpp), gguf (CrispASR), web (a page). Several with "
        "commas.",
        "hf",
    )
    onnx: bool = Flag("Short for --format onnx.")
    quantization: str | None = Option(
        "Weights: int8, float16 and others that the format has; several with commas. Default: float32."
    )
    runtime: Path | None = Option(
        "For --format web: the npm package onnxruntime-web (.tgz or an unpacked folder), without a network. "
        "Default: downloaded once.",
        local=True,
    )
    judge: str | None = Option(
        "Recogniser (folder or Hub id) that hears the speech of a model that speaks and of its export."
    )
    allow_difference: bool = Flag("Hand the export over though it differs from the model by more than the limit.")
    plugin: list[Path] = Option(PARTS_PLUGINS, [], local=True)
