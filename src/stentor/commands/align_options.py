"""Options of `stentor align`: when each word of a known text was said, in one recording or in many."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import CHANNEL, JOBS, LAG, MODEL_PLUGINS, RAY, TRANSCRIPT_FORMATS, Workers
from stentor.inference.options import LANGUAGE
from stentor.section.options import Argument, Flag, Option, verb

ONE, MANY = "one recording with its TEXT", "many recordings"


@verb("align", "stentor.commands.align:align")
@dataclass(kw_only=True)
class AlignOptions(Workers):
    """Find out when each word of known texts is said: in a recording, or without TEXT in each record of a data set."""

    model: str = Argument("Run folder, export, transducer, CTC or Whisper model (a folder or Hub id).")
    audio: str = Argument(
        "Audio file of any length, an address, or - for standard input. Without TEXT: a folder of recordings with a "
        ".lab or .txt beside each, a manifest, or type=...,key=value of one data source."
    )
    text: str | None = Argument("What is said in it: the text itself, or a text file.", None)
    format: str = Option(TRANSCRIPT_FORMATS, "json")
    out: str | None = Option("Folder for the files. Without: standard output.", output=True)
    skip_existing: bool = Flag(
        "Without TEXT: leave out records whose outputs are in the folder --out already.", ways=(MANY,)
    )
    engine: str | None = Option("aligner, transducer, ctc or whisper. Default: what the model is for.")
    language: str | None = Option(LANGUAGE)
    channel: int | None = Option(CHANNEL, min=0)
    lag: float | None = Option(LAG)
    jobs: int | None = Option(JOBS, min=1, ways=(MANY,))
    ray: str | None = Option(RAY, ways=(MANY,))
    plugin: list[Path] = Option(MODEL_PLUGINS, [], local=True)
