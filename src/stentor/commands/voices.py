"""`stentor voices`: a table of saved voices."""

import json
import sys
from pathlib import Path

from stentor.commands.speak_options import VoicesOptions
from stentor.data.storage import is_remote, name_of
from stentor.errors import ConfigError, DataError
from stentor.inference.load import find_export
from stentor.inference.speak.voice import VOICES, describe_voice, voice_names
from stentor.metrics.format import text_table
from stentor.pipeline.file_progress import check_failed

HEAD = ("voice", "seconds", "language", "codec", "text")
LONGEST_TEXT = 60
"""Characters of a text that the table shows."""


def list_voices(options: VoicesOptions) -> None:
    """Print the voices of a model or a folder. Raises ConfigError when there is neither, and DataError at the end when
    some are damaged, which are named on standard error."""
    folder = _folder(options.folder)
    voices, failed = [], []
    names = voice_names(folder)
    for name in names:
        try:
            voices.append(describe_voice(folder / name))
        except (ConfigError, DataError) as error:
            failed.append(name)
            print(f"stentor: {error}", file=sys.stderr)
    if options.as_json:
        print(json.dumps(voices, indent=1, ensure_ascii=False))
    elif not names:
        if is_remote(options.folder):
            print(f"There are no voices in {name_of(options.folder)}.")
            return
        print(f"There are no voices in {folder}: stentor speak MODEL --reference WAV --save-voice {folder / 'NAME'}")
    elif voices:
        rows = [HEAD]
        for voice in voices:
            text = " ".join(voice["text"].split())
            short = text if len(text) <= LONGEST_TEXT else f"{text[: LONGEST_TEXT - 3]}..."
            rows.append((voice["name"], f"{voice['seconds']:.1f}", voice["language"] or "-", voice["codec"], short))
        print(*text_table(rows), sep="\n")
    check_failed(failed, len(names), "voices cannot be read")


def _folder(name: str) -> Path:
    """The folder with the voices: that of a model, or the folder itself."""
    try:
        return find_export(name) / VOICES
    except ConfigError:
        if Path(name).is_dir():
            return Path(name)
        raise
