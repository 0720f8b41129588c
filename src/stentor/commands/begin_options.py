"""Options of verbs to begin with: `stentor doctor`, `stentor quickstart` and `stentor models`."""

from dataclasses import dataclass
from pathlib import Path

from stentor.inference.declarations import Argument, Flag, Option, verb, verb_group

MODELS = verb_group("models", "Choose a model: a table of known models; `show` prints the run file of one.")


@verb("doctor")
@dataclass(kw_only=True)
class DoctorOptions:
    """Check this machine: what it has, what is missing, what clashes, and how to fix it. Exit code 1 when it is
    broken."""

    json: bool = Flag("Print JSON.")

    def __call__(self) -> int:
        from stentor.commands.doctor.doctor import main

        return main(self.json)


@verb("quickstart", "stentor.commands.quickstart:quickstart")
@dataclass(kw_only=True)
class QuickstartOptions:
    """Train a small recogniser on the built-in voice and score it on held-out voices: offline, on a CPU, in minutes."""

    overrides: list[str] = Argument("Overrides, such as train.steps=1000.", [], metavar="[KEY=VALUE]...")
    out: Path = Option("Run folder to write.", Path("runs/quickstart"))
    model: str = Option("Model to train: transducer or speech_llm.", "transducer")


@verb("", "stentor.commands.models:show_table", MODELS)
@dataclass(kw_only=True)
class ModelsOptions:
    """Filters of the table of models."""

    task: str | None = Option("Only models for this task, such as transcribe or diarize.")
    language: str | None = Option("Only models that know this language, as a code such as sv.")
    gpu: float | None = Option("Only models that train on a GPU with this many GB of memory.", min=0.0)
    can: str | None = Option("Only models with this ability: words (word times), speakers, streaming or translation.")
    json: bool = Flag("Print JSON.")


@verb("show", "stentor.commands.models:show_run_file", MODELS)
@dataclass(kw_only=True)
class ShowOptions:
    """Print a complete run file for a model: stentor models show openai/whisper-small > run.yaml."""

    model: str = Argument("Hub id or name, as `stentor models` lists it.")
    task: str | None = Option("Task, for a model with several. Default: its first.")
    method: str | None = Option("full (all weights) or lora (adapters). Default: the recommendation for the model.")
