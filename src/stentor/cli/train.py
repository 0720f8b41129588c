"""`stentor train`, `stentor quickstart`, `stentor evaluate`, `stentor export`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import app
from stentor.cli.options import (
    GPUS_PER_WORKER,
    RAY,
    REQUIRED,
    WORKERS,
    Argument,
    Flag,
    Option,
    command_line,
    takes_options,
)

FINISHED_MODEL = "A run folder, an export folder or a Hub id."
PLUGINS = "A Python file with your own sources, models, losses, callbacks."


@dataclass
class TrainOptions:
    config: Path = Argument("The YAML (or JSON) file of the run.")
    overrides: list[str] = Argument("Overrides, such as optim.lr=3e-4.", [], metavar="[KEY=VALUE]...")
    plugin: list[Path] = Option(PLUGINS, [])
    plan_only: bool = Flag("Show parameters, batches and memory, and stop.")
    processes: int = Option("Processes on this machine: one for each GPU.", 1, min=1)
    json: Path | None = Option("With --plan-only: write the plan of each stage to this file.", output=True)


@dataclass
class EvaluateOptions:
    data: str = Option("A manifest or evaluation list, or type=...,key=value of one data source.", "")
    model: str | None = Argument(f"{FINISHED_MODEL} None with --audio-from.", None)
    task: str | None = Option("Task type. Default: the one the model was trained for.")
    scoring: str | None = Option("Of transcripts: open_asr, normalised and counted as the Open ASR Leaderboard does.")
    board: str | None = Option(
        "In the place of --data: a board of the Open ASR Leaderboard (english, multilingual, long_form), or sets of it "
        "as BOARD:SET,SET."
    )
    copies: Path | None = Option("With --board: folder with copies of its data sets, as COPIES/OWNER/NAME.")
    limit: int | None = Option("With --board: only the first so many recordings of each set, for a trial.", min=1)
    json: Path | None = Option("Write the scores (and predictions beside it) to this file.", output=True)
    batch_tokens: int = Option("Most sequence positions in a batch.", 2000, min=1)
    tune: bool = Flag("Diarization: search the thresholds with the least errors on the data and store them.")
    diarizer: str | None = Option("A second model, that says who speaks: score text and speakers (cpWER).")
    stream: str | None = Option("Score answers while one speaks, at this delay in seconds or several: 0.16,0.32,1.28.")
    report: Path | None = Option("With --stream: the run whose report shows the figures. Default: MODEL, if it is one.")
    recognizer: str | None = Option(
        "Of models that speak: one that writes down their speech (WER), also of transformers."
    )
    embedder: str | None = Option("Of models that speak: one that embeds voices (similarity), or cepstra (built in).")
    judge: list[str] = Option("Of models that speak: another judge as type=...,key=value, such as a plug-in's.", [])
    voice: str = Option("Of models that speak: take it from a reference, an instruct, none, or auto.", "auto")
    length: str = Option(
        "Of models that speak: as long as recorded, by the rule, or auto (the rule for evaluation lists).", "auto"
    )
    generation: str | None = Option("Of models that speak: settings such as steps=16,guidance=0.")
    denoise: bool | None = Option(
        "Of models that speak: ask for clean speech after noisy references.", None, "--denoise/--no-denoise"
    )
    normalizer: str = Option(
        "Of speech: whisper_basic, whisper_english, none, seed_tts, librispeech_pc, minimax, fleurs, or auto: that of "
        "the evaluation list.",
        "auto",
    )
    audio: Path | None = Option("Of models that speak: write their speech to this folder.", output=True)
    audio_from: Path | None = Option("Without a MODEL: score the speech in this folder, files ID.wav.")
    processes: int = Option("Processes on this machine: one for each GPU.", 1, min=1)
    ray: str | None = Option(RAY)
    jobs: int | None = Option(WORKERS, min=1)
    gpus_per_worker: float | None = Option(GPUS_PER_WORKER, min=0.0)
    plugin: list[Path] = Option(PLUGINS, [])


@dataclass
class ExportOptions:
    model: str = Argument(FINISHED_MODEL)
    to: Path = Option("Folder to write.", REQUIRED, output=True)
    merge: bool = Flag("Fold adapters into the weights and write them whole.")
    format: str = Option(
        "hf: safetensors and JSON in the Hub's layout. onnx: graphs. ct2: CTranslate2 (Whisper). Several with commas.",
        "hf",
    )
    onnx: bool = Flag("Short for --format onnx: graphs, checked with onnxruntime.")
    quantization: str | None = Option(
        "Of onnx: int8, float16. Of ct2: float16, bfloat16, int8, int8_float16, int16. Default: float32."
    )
    plugin: list[Path] = Option(PLUGINS, [])


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
    if loaded.config.improve is not None:
        raise ConfigError(
            f"{options.config} has a section `improve`: `stentor improve {options.config}` trains it in rounds, and "
            "with improve.rounds=0 the supervised model alone."
        )
    from stentor.engine.launch import launch, launched

    if not launched(options.processes):
        prepare_run(steps, options.plugin)
    elif pending(steps):
        raise ConfigError(f"The launcher comes too early: `stentor prepare run {options.config}` first, once.")
    if not launched(options.processes) and options.processes > 1:
        raise typer.Exit(launch(options.processes, ["train", *command_line(options)]))
    from stentor.commands.remote_run import local_run
    from stentor.commands.train import train
    from stentor.data.storage import as_path

    run_folder = as_path(loaded.config.output) / loaded.config.name
    with located(loaded.root), local_run(run_folder) as folder:
        train(stage_configs(loaded), folder, {"config.yaml": loaded.text, "resolved.yaml": resolved(loaded.config)})


@app.command()
def quickstart(
    out: Annotated[str, typer.Option("--out", help="Run folder to write.", metavar="PATH")] = "runs/quickstart",
    model: Annotated[str, typer.Option("--model", help="transducer, or speech_llm.")] = "transducer",
) -> None:
    """Make a spoken corpus, train a small recogniser on it, score it on unheard voices: CPU, offline, minutes."""
    from stentor.commands.quickstart import quickstart
    from stentor.data.storage import as_path

    raise typer.Exit(quickstart(as_path(out), model))


@app.command()
@takes_options
def evaluate(options: EvaluateOptions) -> None:
    """Score a model on data."""
    _check_evaluate(options)
    if options.board is not None:
        from stentor.commands.evaluate.board import evaluate_board

        typer.echo(evaluate_board(options))
    elif options.tune:
        from stentor.commands.evaluate.tune import tune

        typer.echo(tune(str(options.model), options.data, options.json))
    elif options.stream is not None:
        from stentor.commands.evaluate.streamed import evaluate_streams

        typer.echo(evaluate_streams(options))
    elif options.diarizer is not None:
        from stentor.commands.evaluate.speaker_attributed import attributed

        typer.echo(attributed(str(options.model), options.diarizer, options.data, options.json))
    else:
        from stentor.engine.launch import launch, launched

        if not launched(options.processes) and options.processes > 1:
            raise typer.Exit(launch(options.processes, ["evaluate", *command_line(options)]))
        from stentor.commands.evaluate import evaluate

        typer.echo(evaluate(options))


def _check_evaluate(options: EvaluateOptions) -> None:
    """Options that do not go together. Raises BadParameter."""
    ways = {"--board": options.board, "--tune": options.tune or None, "--stream": options.stream}
    ways["--diarizer"] = options.diarizer
    way = next((flag for flag, value in ways.items() if value is not None), None)
    misfits = [
        ("--data", not options.data and options.board is None, "give the data"),
        ("MODEL", options.model is None and (way or options.scoring) is not None, "give the model"),
        ("--report", options.report is not None and options.stream is None, "it is for --stream"),
        ("--copies", options.copies is not None and options.board is None, "it is for --board"),
        ("--limit", options.limit is not None and options.board is None, "it is for --board"),
        ("--scoring", options.scoring is not None and way is not None, f"it does not go with {way}"),
        (
            "--ray",
            options.ray is not None and (options.model is None or way is not None or options.processes > 1),
            "it goes with none of --board, --tune, --diarizer, --stream and --processes",
        ),
        (
            "--tune",
            options.tune and any(v is not None for v in (options.task, options.diarizer, options.stream)),
            "it goes with none of --task, --diarizer and --stream",
        ),
        ("--diarizer", way == "--diarizer" and options.task is not None, "it is for transcripts: leave out --task"),
    ]
    for hint, wrong, message in misfits:
        if wrong:
            raise typer.BadParameter(message, param_hint=hint)


@app.command()
@takes_options
def export(options: ExportOptions) -> None:
    """Write a self-contained copy of a model that others can load."""
    from stentor.commands.export.export import export

    formats = "onnx" if options.onnx else options.format
    typer.echo(export(options.model, options.to, options.merge, formats, options.quantization))
