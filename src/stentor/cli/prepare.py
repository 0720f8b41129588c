"""`stentor prepare ...`: make data ready for training, and look at it."""

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add `stentor prepare`."""
    prepare = typer.Typer(
        name="prepare",
        help="Make data ready for training, and look at it.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(prepare)

    @prepare.command("corpus")
    def prepare_corpus(
        name: Annotated[str, typer.Argument(help="Name of the lhotse recipe, such as librispeech or commonvoice.")],
        to: Annotated[Path, typer.Option("--to", help="Folder for the manifests: one PART.jsonl for each part.")],
        source: Annotated[Path | None, typer.Option("--from", help="Folder of the corpus as it was unpacked.")] = None,
        split: Annotated[str | None, typer.Option(help="Only this part, such as dev-clean. Default: all.")] = None,
        download: Annotated[
            bool, typer.Option("--download", help="Download what is missing (into TO/download).")
        ] = False,
        recordings: Annotated[
            bool, typer.Option("--recordings", help="Whole recordings with segments, for diarization.")
        ] = False,
        option: Annotated[
            list[str] | None, typer.Option(help="KEY=VALUE for the recipe. May be given several times.")
        ] = None,
    ) -> None:
        """Write manifests of a known corpus, on disk or downloaded."""
        from stentor.prepare import prepare_corpus as run

        run(name, source, to, split, download, not recordings, option or [])

    @prepare.command("check")
    def prepare_check(
        data: Annotated[list[str], typer.Argument(help="Manifest paths, or type=...,key=value. Several are compared.")],
        model: Annotated[str | None, typer.Option(help="Compare the texts with this model's tokenizer.")] = None,
        to: Annotated[Path, typer.Option(help="Folder for check.html and check.json.")] = Path("data-check"),
        jobs: Annotated[
            int | None, typer.Option(min=1, help="Processes that decode audio. Default: all cores.")
        ] = None,
        plugin: Annotated[
            list[Path] | None, typer.Option(help="A Python file whose classes extend Stentor. May be repeated.")
        ] = None,
    ) -> None:
        """Decode and inspect all records; write a page with what there is and what looks wrong."""
        from stentor.config.plugins import load_plugins
        from stentor.prepare import check_data as run

        load_plugins(plugin or [])
        run(data, model, to, jobs)

    @prepare.command("words")
    def prepare_words(
        data: Annotated[str, typer.Argument(help="A manifest path, or type=...,key=value: records with texts.")],
        to: Annotated[Path, typer.Option("--to", help="The manifest to write (.jsonl), with `words`.")],
        engine: Annotated[
            str | None,
            typer.Option(help="aligner, ctc, whisper or voice (the built-in voice). Default: what the model is for."),
        ] = None,
        model: Annotated[
            str | None, typer.Option(help="Run folder, export, CTC or Whisper model (a folder or Hub id).")
        ] = None,
        jobs: Annotated[int, typer.Option(min=1, help="Processes, of one thread each when more than one.")] = 1,
        max_wer: Annotated[
            float | None,
            typer.Option(min=0.0, help="Drop records whose free transcription has a higher word error rate (0.3)."),
        ] = None,
        device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:N or mps.")] = "auto",
        lag: Annotated[
            float | None, typer.Option(help="Seconds that a Whisper model's attention is late, taken off its times.")
        ] = None,
        plugin: Annotated[
            list[Path] | None, typer.Option(help="A Python file whose classes extend Stentor. May be repeated.")
        ] = None,
    ) -> None:
        """Find out when each word of a transcribed corpus was said. The same command goes on after a kill."""
        from stentor.config.plugins import load_plugins
        from stentor.prepare_words import Request
        from stentor.prepare_words import prepare_words as run

        load_plugins(plugin or [])
        run(Request(data, to, engine, model, jobs, max_wer, device, tuple(plugin or []), lag))
