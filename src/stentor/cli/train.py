"""`stentor train`, `stentor quickstart`, `stentor evaluate`, `stentor export`."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import takes_options

Plugins = Annotated[list[Path], typer.Option(help="A Python file with your own sources, models, losses, callbacks.")]
FinishedModel = Annotated[str, typer.Argument(help="A run folder, an export folder or a Hub id.")]


@dataclass
class TrainOptions:
    config: Annotated[Path, typer.Argument(help="The YAML (or JSON) file of the run.")]
    overrides: Annotated[
        list[str], typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as optim.lr=3e-4.")
    ] = field(default_factory=list)
    plugin: Plugins = field(default_factory=list)
    plan_only: Annotated[bool, typer.Option("--plan-only", help="Show parameters, batches and memory, and stop.")] = (
        False
    )
    processes: Annotated[int, typer.Option(min=1, help="Processes on this machine: one for each GPU.")] = 1
    json: Annotated[Path | None, typer.Option(help="With --plan-only: write the plan of each stage to this file.")] = (
        None
    )


@dataclass
class EvaluateOptions:
    model: FinishedModel
    data: Annotated[str, typer.Option(help="A manifest path, or type=...,key=value of one data source.")]
    task: Annotated[str | None, typer.Option(help="Task type. Default: the one the model was trained for.")] = None
    json: Annotated[Path | None, typer.Option(help="Write the scores (and predictions beside it) to this file.")] = None
    batch_tokens: Annotated[int, typer.Option(min=1, help="Most sequence positions in a batch.")] = 2000
    tune: Annotated[
        bool,
        typer.Option(
            "--tune", help="Diarization: search the thresholds with the least errors on the data and store them."
        ),
    ] = False
    diarizer: Annotated[
        str | None, typer.Option(help="A second model, that says who speaks: score text and speakers (cpWER).")
    ] = None
    recognizer: Annotated[
        str | None,
        typer.Option(help="Of models that speak: one that writes down their speech (WER), also of transformers."),
    ] = None
    embedder: Annotated[
        str | None,
        typer.Option(help="Of models that speak: one that embeds voices (similarity), or cepstra (built in)."),
    ] = None
    judge: Annotated[
        list[str], typer.Option(help="Of models that speak: another judge as type=...,key=value, such as a plug-in's.")
    ] = field(default_factory=list)
    voice: Annotated[
        str, typer.Option(help="Of models that speak: take it from a reference, an instruct, none, or auto.")
    ] = "auto"
    length: Annotated[str, typer.Option(help="Of models that speak: as long as recorded, or by the duration rule.")] = (
        "recorded"
    )
    generation: Annotated[
        str | None, typer.Option(help="Of models that speak: settings such as steps=16,guidance=0.")
    ] = None
    denoise: Annotated[
        bool | None,
        typer.Option(
            "--denoise/--no-denoise", help="Of models that speak: ask for clean speech after noisy references."
        ),
    ] = None
    normalizer: Annotated[str, typer.Option(help="Of models that speak: whisper_basic, whisper_english or none.")] = (
        "whisper_basic"
    )
    audio: Annotated[Path | None, typer.Option(help="Of models that speak: write their speech to this folder.")] = None
    plugin: Plugins = field(default_factory=list)


@dataclass
class ExportOptions:
    model: FinishedModel
    to: Annotated[Path, typer.Option(help="Folder to write.")]
    merge: Annotated[bool, typer.Option("--merge", help="Fold adapters into the weights and write them whole.")] = False
    format: Annotated[
        str,
        typer.Option(
            help="hf: safetensors and JSON in the Hub's layout. onnx: graphs. ct2: CTranslate2 (Whisper). Several with "
            "commas."
        ),
    ] = "hf"
    onnx: Annotated[bool, typer.Option("--onnx", help="Short for --format onnx: graphs, checked with onnxruntime.")] = (
        False
    )
    quantization: Annotated[
        str | None,
        typer.Option(
            help="Of onnx: int8, float16. Of ct2: float16, bfloat16, int8, int8_float16, int16. Default: float32."
        ),
    ] = None
    plugin: Plugins = field(default_factory=list)


@app.command()
@takes_options
def train(options: TrainOptions) -> None:
    """Train from a YAML file; the same command again goes on where it stopped."""
    from stentor.commands.prepare.run import listing, pending, prepare_run
    from stentor.config.load import load, resolved, stage_configs
    from stentor.config.missing_data import located
    from stentor.errors import ConfigError

    loaded = load(options.config, options.overrides)
    steps = loaded.config.prepare
    if options.plan_only:
        for line in listing(steps):
            typer.echo(line)
        if pending(steps):
            rest = f"The plan comes from what is prepared: `stentor prepare run {options.config}` first."
            if options.json is not None:
                raise ConfigError(rest)
            typer.echo(rest)
            return
        from stentor.commands.plan.plan import show

        with located(loaded.root):
            typer.echo(show(stage_configs(loaded), options.processes, options.json))
        return
    if options.json is not None:
        raise typer.BadParameter("it is for --plan-only: results are in RUN/results.json", param_hint="--json")
    from stentor.engine.launch import launch, launched

    if not launched(options.processes):
        prepare_run(steps, options.plugin)
    elif pending(steps):
        raise ConfigError(f"The launcher comes too early: `stentor prepare run {options.config}` first, once.")
    if not launched(options.processes) and options.processes > 1:
        plugins = [part for path in options.plugin for part in ("--plugin", str(path))]
        arguments = [str(options.config), *options.overrides, *plugins, "--processes", str(options.processes)]
        raise typer.Exit(launch(options.processes, ["train", *arguments]))
    from stentor.commands.train import train

    folder = Path(loaded.config.output) / loaded.config.name
    with located(loaded.root):
        train(stage_configs(loaded), folder, {"config.yaml": loaded.text, "resolved.yaml": resolved(loaded.config)})


@app.command()
def quickstart(
    out: Annotated[Path, typer.Option("--out", help="Run folder to write.")] = Path("runs/quickstart"),
) -> None:
    """Make a spoken corpus, train a small recogniser on it, score it on unheard voices: CPU, offline, minutes."""
    from stentor.commands.quickstart import quickstart

    raise typer.Exit(quickstart(out))


@app.command()
@takes_options
def evaluate(options: EvaluateOptions) -> None:
    """Score a model on data."""
    if options.tune:
        if options.task is not None or options.diarizer is not None:
            raise typer.BadParameter("it goes with neither --task nor --diarizer", param_hint="--tune")
        from stentor.commands.evaluate.tune import tune

        typer.echo(tune(options.model, options.data, options.json))
    elif options.diarizer is not None:
        if options.task is not None:
            raise typer.BadParameter("it is for transcripts: leave out --task", param_hint="--diarizer")
        from stentor.commands.evaluate.speaker_attributed import attributed

        typer.echo(attributed(options.model, options.diarizer, options.data, options.json))
    else:
        from stentor.commands.evaluate import evaluate

        typer.echo(evaluate(options))


@app.command()
@takes_options
def export(options: ExportOptions) -> None:
    """Write a self-contained copy of a model that others can load."""
    from stentor.commands.export import export

    formats = "onnx" if options.onnx else options.format
    typer.echo(export(options.model, options.to, options.merge, formats, options.quantization))
