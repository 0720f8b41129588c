"""`stentor models`: which model to begin with, and the run file of each."""

from dataclasses import dataclass

import typer

from stentor.cli import verb_group
from stentor.cli.options import Argument, Option, verb

models = verb_group("models", "Which model for me? A table of those that are known; `show` prints the run file of one.")


@dataclass
class Filters:
    """What the models of the table must do."""

    task: str | None = None
    language: str | None = None
    gpu: float | None = None
    can: str | None = None


@models.callback(invoke_without_command=True, no_args_is_help=False)
def table(
    context: typer.Context,
    task: str | None = typer.Option(None, help="Only models for this task, such as transcribe or diarize."),
    language: str | None = typer.Option(None, help="Only models that know this language, as a code such as sv."),
    gpu: float | None = typer.Option(None, min=0.0, help="Only models that can be trained on a GPU of so many GB."),
    can: str | None = typer.Option(None, help="Only those that know words (times), speakers, streaming, translation."),
    json: bool = typer.Option(False, "--json", help="Answer as JSON."),
) -> None:
    if context.invoked_subcommand is None:
        from stentor.commands.models import show_table

        show_table(Filters(task, language, gpu, can), json)


@verb(models, "show", "stentor.commands.models:show_run_file")
@dataclass
class ShowOptions:
    """Print a complete run file for a model: stentor models show openai/whisper-small > run.yaml."""

    model: str = Argument("Hub id or name, as `stentor models` lists it.")
    task: str | None = Option("Task, for a model of several. Default: its first.")
    method: str | None = Option("full (all weights) or lora (adapters). Default: what is proposed for the model.")
