"""Options of verbs to begin with: `stentor doctor`, `stentor quickstart` and `stentor models`."""

from dataclasses import dataclass
from pathlib import Path

from stentor.inference.declarations import Argument, Flag, Option, verb, verb_group

MODELS = verb_group("models", "Which model for me? A table of those that are known; `show` prints the run file of one.")


@verb("doctor")
@dataclass(kw_only=True)
class DoctorOptions:
    """Check this machine: what it has, what is missing, what clashes, and how to fix it. Exit code 1 when it is
    broken."""

    json: bool = Flag("Answer as JSON.")

    def __call__(self) -> int:
        from stentor.commands.doctor.doctor import main

        return main(self.json)


@verb("quickstart", "stentor.commands.quickstart:quickstart", extra="voice")
@dataclass(kw_only=True)
class QuickstartOptions:
    """Make a spoken corpus, train a small recogniser on it, score it on unheard voices: CPU, offline, minutes."""

    overrides: list[str] = Argument("Overrides, such as train.steps=1000.", [], metavar="[KEY=VALUE]...")
    out: Path = Option("Run folder to write.", Path("runs/quickstart"))
    model: str = Option("transducer, or speech_llm.", "transducer")


@verb("", "stentor.commands.models:show_table", MODELS)
@dataclass(kw_only=True)
class ModelsOptions:
    """Filters of the table of models."""

    task: str | None = Option("Only models for this task, such as transcribe or diarize.")
    language: str | None = Option("Only models that know this language, as a code such as sv.")
    gpu: float | None = Option("Only models that can be trained on a GPU of so many GB.", min=0.0)
    can: str | None = Option("Only those that know words (times), speakers, streaming, translation.")
    json: bool = Flag("Answer as JSON.")


@verb("show", "stentor.commands.models:show_run_file", MODELS)
@dataclass(kw_only=True)
class ShowOptions:
    """Print a complete run file for a model: stentor models show openai/whisper-small > run.yaml."""

    model: str = Argument("Hub id or name, as `stentor models` lists it.")
    task: str | None = Option("Task, for a model of several. Default: its first.")
    method: str | None = Option("full (all weights) or lora (adapters). Default: what is proposed for the model.")
