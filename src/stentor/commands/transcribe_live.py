"""`stentor transcribe --stream`: words as they are said, of standard input or of a file."""

from __future__ import annotations

import json
import shutil
import sys
import wave
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from stentor.errors import AudioError, ConfigError
from stentor.inference.inputs import STDIN, label, open_recording

if TYPE_CHECKING:
    from stentor.cli.transcribe import TranscribeOptions

READ = 0.02
"""Seconds of audio that are read at a time."""
SCALE = {1: 2.0**7, 2: 2.0**15, 4: 2.0**31}
"""Of whole-number samples, by their bytes."""


def transcribe_live(options: TranscribeOptions) -> None:
    """Write words as they are known. Raises ConfigError for options that do not go together, and AudioError."""
    if len(options.audio) != 1 or options.format not in ("txt", "json") or options.out is not None:
        raise ConfigError(
            "--stream is for one recording, as --format txt or json on standard output: `arecord -f S16_LE -r 16000 | "
            "stentor transcribe runs/x - --stream`."
        )
    from stentor.inference.load import load

    model = load(options.model, options.device)
    diarizer = load(options.diarizer, options.device) if options.diarizer is not None else None
    (name,) = options.audio
    if name == STDIN:
        rate, blocks = read_standard_input(sys.stdin.buffer, options.rate or model.bundle.processor.sample_rate)
    else:
        rate = model.bundle.processor.sample_rate
        blocks = open_recording(name, rate, channel=options.channel).blocks()
    stream = model.stream(rate, options.language, options.delay, diarizer=diarizer)
    shown, any_audio = LiveLine(options.format == "json"), False
    for block in blocks:
        any_audio = True
        shown.show(stream.feed(block))
    if not any_audio:
        raise AudioError(f"{label(name)} is empty: there is no audio to transcribe.", "empty")
    shown.show(stream.finish())
    shown.close()


def read_standard_input(file: BinaryIO, rate: int) -> tuple[int, Iterator[np.ndarray]]:
    """The rate, and float32 [samples] as they come: of a WAV, or of bare 16-bit samples of one channel at `rate`."""
    if file.peek(4)[:4] != b"RIFF":  # type: ignore[attr-defined]
        return rate, _blocks(file.read1, 2, 1, round(rate * READ))  # type: ignore[attr-defined]
    try:
        header = wave.open(file)  # noqa: SIM115  # it lasts as long as the audio
    except (wave.Error, EOFError) as error:
        raise AudioError(f"Standard input is no WAV of whole numbers ({error}).", "unreadable") from None
    if header.getsampwidth() not in SCALE:
        raise AudioError(f"Standard input: samples of {8 * header.getsampwidth()} bits; 16 are read.", "unreadable")
    size = header.getsampwidth() * header.getnchannels()
    frames = round(header.getframerate() * READ)

    def read(count: int) -> bytes:
        return header.readframes(count // size)

    return header.getframerate(), _blocks(read, header.getsampwidth(), header.getnchannels(), frames)


def _blocks(read: Any, width: int, channels: int, frames: int) -> Iterator[np.ndarray]:
    rest = b""
    while data := read(frames * width * channels):
        rest += data
        whole = len(rest) // (width * channels) * width * channels
        samples = np.frombuffer(rest[:whole], "<u1" if width == 1 else f"<i{width}").astype(np.float32)
        rest = rest[whole:]
        yield ((samples - (128 if width == 1 else 0)) / SCALE[width]).reshape(-1, channels).mean(1)


class LiveLine:
    """Words on standard output; on a terminal the line that is being said grows in place."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.live = not as_json and sys.stdout.isatty()
        self._line: list[str] = []
        self._partial = ""
        self._speaker: str | None = None

    def show(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if self.as_json:
                print(json.dumps(event, ensure_ascii=False), flush=True)
            elif event["type"] == "word":
                words = [event["word"]]
                if (speaker := event.get("speaker")) != self._speaker or (speaker and not self._line):
                    self._end()
                    self._speaker = speaker
                    words = [f"{speaker}:", *words]
                self._line += words
                if not self.live:
                    print(*words, end=" ", flush=True)
            elif event["type"] == "partial":
                self._partial = event["text"]
            else:
                self._end()
        if self.live and events:
            text = " ".join([*self._line, self._partial]).strip()
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[-width:]}", end="", flush=True)

    def close(self) -> None:
        self._end()

    def _end(self) -> None:
        """What was said is a line."""
        if self._line:
            print(f"\r\x1b[K{' '.join(self._line)}" if self.live else "", flush=True)
        self._line = []
