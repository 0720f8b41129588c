"""Options of `stentor diarize`: who spoke when, in audio files of any length."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import AudioFiles
from stentor.inference.options import SpeakerCount
from stentor.section.options import Option, verb


@verb("diarize", "stentor.commands.diarize:diarize_files")
@dataclass(kw_only=True)
class DiarizeOptions(SpeakerCount, AudioFiles):
    """Say who speaks when in audio files, as RTTM or JSON."""

    format: str = Option("rttm or json; both with a comma, or all, together with --out.", "rttm")
    plugin: list[Path] = Option("A Python file with your own model family or labels.", [], local=True)
