"""`stentor diarize`: who spoke when, in audio files of any length."""

from dataclasses import dataclass
from pathlib import Path

from stentor.cli import app
from stentor.cli.options import (
    AUDIO_FILES,
    CHANNEL,
    DEVICE,
    GPUS_PER_WORKER,
    RAY,
    WORKERS,
    Argument,
    Flag,
    Option,
    verb,
)


@verb(app, "diarize", "stentor.commands.diarize:diarize_files")
@dataclass
class DiarizeOptions:
    """Say who speaks when in audio files, as RTTM or JSON."""

    model: str = Argument("Run folder, export folder or Hub id.")
    audio: list[str] = Argument(AUDIO_FILES)
    format: str = Option("rttm or json; both with a comma, or all, together with --out.", "rttm")
    out: str | None = Option("Folder for the files (made when missing). Without: standard output.", output=True)
    skip_existing: bool = Flag("Leave out files whose outputs are in the folder --out already.")
    speakers: int | None = Option("Number of speakers in each file, if known.", min=1)
    min_speakers: int | None = Option("Least number of speakers in each file.", min=1)
    max_speakers: int | None = Option("Greatest number of speakers in a file.", min=1)
    channel: int | None = Option(CHANNEL, min=0)
    device: str = Option(DEVICE, "auto")
    ray: str | None = Option(RAY)
    jobs: int | None = Option(WORKERS, min=1)
    gpus_per_worker: float | None = Option(GPUS_PER_WORKER, min=0.0)
    plugin: list[Path] = Option("A Python file with your own model family or labels.", [])
