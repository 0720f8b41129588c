"""`stentor publish ...`: a model, a data set or a demo on the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

import typer

To = Annotated[str | None, typer.Option("--to", help="Repository on the Hub: USER/REPO. Made when there is none.")]
Private = Annotated[
    bool | None,
    typer.Option("--private/--public", help="Who can see it. Default: private; --public makes it for everybody."),
]
DryRun = Annotated[
    Path | None, typer.Option("--dry-run", help="Write everything that would be sent into this folder; send nothing.")
]
Message = Annotated[str | None, typer.Option(help="First line of the commit.")]
Licence = Annotated[
    str | None, typer.Option("--license", help="The licence, as the Hub spells it: apache-2.0, cc-by-4.0, cc0-1.0 ...")
]
Card = Annotated[
    Path | None,
    typer.Option(help="A README.md of yours instead of the one that is written."),
]


def register(app: typer.Typer) -> None:
    """Add `stentor publish`."""
    publish = typer.Typer(
        name="publish",
        help="Put a model, a data set or a demo on the Hugging Face Hub. The token comes from HF_TOKEN or the Hub's "
        "own login (`hf auth login`). After a broken connection the same command goes on.",
        no_args_is_help=True,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.add_typer(publish)

    @publish.command("model")
    def publish_model(
        model: Annotated[str, typer.Argument(help="Run folder or export folder.")],
        to: To = None,
        private: Private = None,
        dry_run: DryRun = None,
        message: Message = None,
        license: Licence = None,
        card: Card = None,
        merge: Annotated[
            bool, typer.Option("--merge", help="The whole model, with adapters folded in: it needs no base.")
        ] = False,
    ) -> None:
        """Publish a model with its card: results, usage, limits, licences and how to repeat it."""
        from stentor.commands.publish import publish_model as run

        run(model, to, private, dry_run, message, license, card, merge)

    @publish.command("dataset")
    def publish_dataset(
        data: Annotated[
            list[str], typer.Argument(help="Manifests, or SPLIT=MANIFEST such as test=test.jsonl; a folder with one.")
        ],
        to: To = None,
        private: Private = None,
        dry_run: DryRun = None,
        message: Message = None,
        license: Licence = None,
        card: Card = None,
        name: Annotated[str | None, typer.Option(help="Title of its card. Default: the repository's name.")] = None,
        flac: Annotated[
            bool, typer.Option("--flac", help="All audio as FLAC. Without: files as they are, parts of files as FLAC.")
        ] = False,
    ) -> None:
        """Publish a data set: audio and transcripts as the Hub's viewer plays them, with a data card."""
        from stentor.commands.publish import publish_dataset as run

        run(data, to, private, dry_run, message, license, card, name, flac)

    @publish.command("demo")
    def publish_demo(
        model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")],
        to: To = None,
        private: Private = None,
        dry_run: DryRun = None,
        message: Message = None,
        title: Annotated[str | None, typer.Option(help="Title of its page. Default: the model's name.")] = None,
        task: Annotated[
            str | None, typer.Option(help="transcribe, words, diarize or speak. Default: found out.")
        ] = None,
        hardware: Annotated[str, typer.Option(help="The Hub's name of the machine it is made for.")] = "cpu-basic",
        secret: Annotated[
            list[str] | None,
            typer.Option(help="Name of an environment variable that becomes a secret of the Space. May be repeated."),
        ] = None,
        card: Card = None,
    ) -> None:
        """Publish a demo of a model as a Gradio Space."""
        from stentor.commands.publish import publish_demo as run

        run(model, to, private, dry_run, message, title, task, hardware, secret or [], card)
