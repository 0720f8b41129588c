"""`stentor publish ...`: a model, a data set or a demo on the Hugging Face Hub."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import verb_group
from stentor.cli.options import takes_options

publish = verb_group(
    "publish",
    "Put a model, a data set or a demo on the Hugging Face Hub. The token comes from HF_TOKEN or the Hub's own login "
    "(`hf auth login`). After a broken connection the same command goes on.",
)
Card = Annotated[Path | None, typer.Option(help="A README.md of yours instead of the one that is written.")]


@dataclass(kw_only=True)
class PublishOptions:
    """Shared by the three verbs."""

    to: Annotated[
        str | None, typer.Option("--to", help="Repository on the Hub: USER/REPO. Made when there is none.")
    ] = None
    private: Annotated[
        bool | None,
        typer.Option("--private/--public", help="Who can see it. Default: private; --public makes it for everybody."),
    ] = None
    dry_run: Annotated[
        Path | None,
        typer.Option("--dry-run", help="Write everything that would be sent into this folder; send nothing."),
    ] = None
    message: Annotated[str | None, typer.Option(help="First line of the commit.")] = None


@dataclass(kw_only=True)
class LicensedOptions(PublishOptions):
    """Shared by models and data sets."""

    license: Annotated[
        str | None,
        typer.Option("--license", help="The licence, as the Hub spells it: apache-2.0, cc-by-4.0, cc0-1.0 ..."),
    ] = None
    card: Card = None


@dataclass(kw_only=True)
class PublishModelOptions(LicensedOptions):
    model: Annotated[str, typer.Argument(help="Run folder or export folder.")]
    merge: Annotated[
        bool, typer.Option("--merge", help="The whole model, with adapters folded in: it needs no base.")
    ] = False


@dataclass(kw_only=True)
class PublishDatasetOptions(LicensedOptions):
    data: Annotated[
        list[str], typer.Argument(help="Manifests, or SPLIT=MANIFEST such as test=test.jsonl; a folder with one.")
    ]
    name: Annotated[str | None, typer.Option(help="Title of its card. Default: the repository's name.")] = None
    flac: Annotated[
        bool, typer.Option("--flac", help="All audio as FLAC. Without: files as they are, parts of files as FLAC.")
    ] = False


@dataclass(kw_only=True)
class PublishDemoOptions(PublishOptions):
    model: Annotated[str, typer.Argument(help="Run folder, export folder or Hub id.")]
    title: Annotated[str | None, typer.Option(help="Title of its page. Default: the model's name.")] = None
    task: Annotated[str | None, typer.Option(help="transcribe, words, diarize or speak. Default: found out.")] = None
    hardware: Annotated[str, typer.Option(help="The Hub's name of the machine it is made for.")] = "cpu-basic"
    secret: Annotated[
        list[str],
        typer.Option(help="Name of an environment variable that becomes a secret of the Space. May be repeated."),
    ] = field(default_factory=list)
    card: Card = None


@publish.command("model")
@takes_options
def publish_model(options: PublishModelOptions) -> None:
    """Publish a model with its card: results, usage, limits, licences and how to repeat it."""
    from stentor.commands.publish import publish_model

    publish_model(options)


@publish.command("dataset")
@takes_options
def publish_dataset(options: PublishDatasetOptions) -> None:
    """Publish a data set: audio and transcripts as the Hub's viewer plays them, with a data card."""
    from stentor.commands.publish import publish_dataset

    publish_dataset(options)


@publish.command("demo")
@takes_options
def publish_demo(options: PublishDemoOptions) -> None:
    """Publish a demo of a model as a Gradio Space."""
    from stentor.commands.publish import publish_demo

    publish_demo(options)
