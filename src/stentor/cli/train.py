"""`stentor train`, `stentor quickstart`, `stentor evaluate`, `stentor export`."""

from pathlib import Path

import typer

PLUGIN = typer.Option(None, "--plugin", help="A Python file with your own sources, models, losses, callbacks.")


def register(app: typer.Typer) -> None:
    @app.command()
    def train(
        config: Path = typer.Argument(..., help="The YAML (or JSON) file of the run."),
        overrides: list[str] = typer.Argument(None, metavar="[KEY=VALUE]...", help="Overrides, such as optim.lr=3e-4."),
        plugin: list[Path] = PLUGIN,
        plan_only: bool = typer.Option(False, "--plan-only", help="Show parameters, batches and memory, and stop."),
        processes: int = typer.Option(1, "--processes", min=1, help="Processes on this machine: one for each GPU."),
        json: Path = typer.Option(None, "--json", help="With --plan-only: write the plan of each stage to this file."),
    ) -> None:
        """Train from a YAML file; the same command again goes on where it stopped."""
        from stentor.config.load import load, resolved, stage_configs
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        loaded = load(config, overrides or [])
        if plan_only:
            from stentor.commands.plan import show

            typer.echo(show(stage_configs(loaded), processes, json))
            return
        if json is not None:
            raise typer.BadParameter("it is for --plan-only: results are in RUN/results.json", param_hint="--json")
        from stentor.engine.launch import launch, launched

        if not launched(processes) and processes > 1:
            plugins = [part for path in plugin or [] for part in ("--plugin", str(path))]
            same = ["train", str(config), *(overrides or []), *plugins, "--processes", str(processes)]
            raise typer.Exit(launch(processes, same))
        from stentor.commands.train import train as run

        folder = Path(loaded.config.output) / loaded.config.name
        run(stage_configs(loaded), folder, {"config.yaml": loaded.text, "resolved.yaml": resolved(loaded.config)})

    @app.command()
    def quickstart(
        out: Path = typer.Option(Path("runs/quickstart"), "--out", help="Run folder to write."),
    ) -> None:
        """Make a spoken corpus, train a small recogniser on it, score it on unheard voices: CPU, offline, minutes."""
        from stentor.commands.quickstart import quickstart as run

        raise typer.Exit(run(out))

    @app.command()
    def evaluate(
        model: str = typer.Argument(..., help="A run folder, an export folder or a Hub id."),
        data: str = typer.Option(..., "--data", help="A manifest path, or type=...,key=value of one data source."),
        task: str = typer.Option(None, "--task", help="Task type. Default: the one the model was trained for."),
        json: Path = typer.Option(None, "--json", help="Write the scores (and predictions beside it) to this file."),
        batch_tokens: int = typer.Option(2000, "--batch-tokens", min=1, help="Most sequence positions in a batch."),
        tune: bool = typer.Option(
            False, "--tune", help="Diarization: search the thresholds with the least errors on the data and store them."
        ),
        diarizer: str = typer.Option(
            None, "--diarizer", help="A second model, that says who speaks: score text and speakers (cpWER)."
        ),
        recognizer: str = typer.Option(
            None,
            "--recognizer",
            help="Of models that speak: one that writes down their speech (WER), also of transformers.",
        ),
        embedder: str = typer.Option(
            None, "--embedder", help="Of models that speak: one that embeds voices (similarity), or cepstra (built in)."
        ),
        judge: list[str] = typer.Option(
            None, "--judge", help="Of models that speak: another judge as type=...,key=value, such as a plug-in's."
        ),
        voice: str = typer.Option(
            "auto", "--voice", help="Of models that speak: take it from a reference, an instruct, none, or auto."
        ),
        length: str = typer.Option(
            "recorded", "--length", help="Of models that speak: as long as recorded, or by the duration rule."
        ),
        generation: str = typer.Option(
            None, "--generation", help="Of models that speak: settings such as steps=16,guidance=0."
        ),
        denoise: bool = typer.Option(
            None, "--denoise/--no-denoise", help="Of models that speak: ask for clean speech after noisy references."
        ),
        normalizer: str = typer.Option(
            "whisper_basic", "--normalizer", help="Of models that speak: whisper_basic, whisper_english or none."
        ),
        audio: Path = typer.Option(None, "--audio", help="Of models that speak: write their speech to this folder."),
        plugin: list[Path] = PLUGIN,
    ) -> None:
        """Score a model on data."""
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        if tune:
            if task is not None or diarizer is not None:
                raise typer.BadParameter("it goes with neither --task nor --diarizer", param_hint="--tune")
            from stentor.commands.evaluate.tune import tune as search

            typer.echo(search(model, data, json))
            return
        if diarizer is not None:
            if task is not None:
                raise typer.BadParameter("it is for transcripts: leave out --task", param_hint="--diarizer")
            from stentor.commands.evaluate.speaker_attributed import attributed

            typer.echo(attributed(model, diarizer, data, json))
            return
        from stentor.commands.evaluate import evaluate as run
        from stentor.commands.evaluate.speech import Listening

        asked = Listening(recognizer, embedder, judge or [], voice, length, generation, denoise, normalizer, audio)
        typer.echo(run(model, data, task, json, batch_tokens, asked.check()))

    @app.command()
    def export(
        model: str = typer.Argument(..., help="A run folder, an export folder or a Hub id."),
        to: Path = typer.Option(..., "--to", help="Folder to write."),
        merge: bool = typer.Option(False, "--merge", help="Fold adapters into the weights and write them whole."),
        format: str = typer.Option(
            "hf",
            "--format",
            help="hf: safetensors and JSON in the Hub's layout. onnx: graphs. ct2: CTranslate2 (Whisper). Several with "
            "commas.",
        ),
        onnx: bool = typer.Option(False, "--onnx", help="Short for --format onnx: graphs, checked with onnxruntime."),
        quantization: str = typer.Option(
            None, "--quantization", help="Of ct2: float16, bfloat16, int8, int8_float16, int16. Default: float32."
        ),
        plugin: list[Path] = PLUGIN,
    ) -> None:
        """Write a self-contained copy of a model that others can load."""
        from stentor.config.plugins import load_plugins

        load_plugins(plugin or [])
        from stentor.commands.export import export as run

        typer.echo(run(model, to, merge, "onnx" if onnx else format, quantization))
