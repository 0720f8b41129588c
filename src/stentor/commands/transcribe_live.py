"""`stentor transcribe --stream`: words as they are said, of standard input or of a file."""

import io
import json
import math
import shutil
import signal
import struct
import sys
from collections.abc import Iterator
from typing import Any, BinaryIO, Self

import numpy as np
import soundfile

from stentor.audio.channels import to_mono
from stentor.commands.recording_options import TranscribeOptions
from stentor.errors import AudioError, ConfigError
from stentor.inference.declarations import refuse_unused
from stentor.inference.options import STREAM
from stentor.inference.recording import STDIN, label, open_recording
from stentor.text.written_words import joined, spaced

READ = 0.02
"""Seconds of audio that are read at a time."""
BYTES = {"PCM_U8": 1, "PCM_16": 2, "PCM_24": 3, "PCM_32": 4, "FLOAT": 4, "DOUBLE": 8}
"""Sizes of samples, by the names that libsndfile gives them."""
UNKNOWN = 0x7F000000
"""Bytes that, like 0, are written into a pipe, whose length is not known."""
OTHERS = (b"OggS", b"fLaC", b"ID3", b"RF64", b"RIFX", b"FORM", b"NIST", b"caff", b".snd", b"\x1aE\xdf\xa3")
"""First bytes of other audio files."""
NO_WAV = "`ffmpeg -i FILE -f wav -` writes one that can be read."


def transcribe_live(options: TranscribeOptions) -> None:
    """Write words as they are known. Raises ConfigError for options that do not go together, and AudioError."""
    if len(options.audio) != 1 or options.format not in ("txt", "json") or options.out is not None:
        raise ConfigError(
            "--stream is for one recording, as --format txt or json on standard output: `arecord -f S16_LE -r 16000 | "
            "stentor transcribe runs/x - --stream`."
        )
    refuse_unused(options, STREAM)
    if options.rate is not None and options.audio != [STDIN]:
        raise ConfigError("--rate is of bare samples on standard input (-): a file says its own, leave it out.")
    from stentor.inference.load import load
    from stentor.inference.vad import open_detector

    detector = open_detector(options.vad, options.vad_threshold)
    model = load(options.model, options.device)
    diarizer = load(options.diarizer, options.device) if options.diarizer is not None else None
    (name,) = options.audio
    rate = model.bundle.processor.sample_rate
    if name == STDIN:
        rate, blocks = read_standard_input(sys.stdin.buffer, options.rate, options.channel, rate)
    else:
        blocks = open_recording(name, rate, selection=options.selection).blocks()
    stream = model.stream(rate, options.language, options.delay, options.silence, diarizer=diarizer, vad=detector)
    shown, any_audio = LiveLine(options.format == "json"), False
    with Interrupt() as interrupt:
        for block in interrupt.until(blocks):
            any_audio = any_audio or len(block) > 0
            shown.show(stream.feed(block))
        if not any_audio and interrupt.error is None:
            raise AudioError(f"{label(name)} is empty: there is no audio to transcribe.", "empty")
        shown.show(stream.finish())
        shown.close()
    if interrupt.error is not None:
        raise interrupt.error


class Interrupt:
    """Ctrl-C as one stops to speak: the last words are still to come. It ends the wait for audio, and no step of the
    model in its middle; a second one ends everything."""

    def __init__(self) -> None:
        self.error: KeyboardInterrupt | None = None
        self._waiting = False

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._come)
        return self

    def __exit__(self, *_: object) -> None:
        signal.signal(signal.SIGINT, self._before)

    def _come(self, *_: object) -> None:
        second, self.error = self.error is not None, KeyboardInterrupt()
        if self._waiting or second:
            raise self.error

    def until(self, blocks: Iterator[np.ndarray]) -> Iterator[np.ndarray]:
        """The blocks that come before it."""
        try:
            while self.error is None:
                self._waiting = True
                block = next(blocks, None)
                self._waiting = False
                if block is None:
                    return
                yield block
        except KeyboardInterrupt as error:
            self.error = error
        finally:
            self._waiting = False


def read_standard_input(
    file: BinaryIO, rate: int | None, channel: int | None, usual: int
) -> tuple[int, Iterator[np.ndarray]]:
    """The rate, and float32 [samples] as they come: of a WAV, or of bare 16-bit samples of one channel at `rate` (None:
    `usual`). Raises AudioError for what is neither, and ConfigError for a WAV of another rate than `rate`."""
    head = file.peek(32)[:32]  # type: ignore[attr-defined]
    if head[:4] != b"RIFF":
        text = len(head) >= 16 and head.isascii() and not any(byte < 32 and byte not in b"\t\n\r" for byte in head)
        if text or head.startswith(OTHERS) or head[4:8] == b"ftyp":
            raise AudioError(f"Standard input is neither a WAV nor bare samples: {NO_WAV}", "unreadable")
        rate = rate or usual
        return rate, _blocks(file, rate, 1, "PCM_16", 2, channel)
    try:
        header, size = _header(file)
        form = header.samplerate, header.channels, header.subtype, BYTES[header.subtype]
    except (struct.error, KeyError, soundfile.LibsndfileError):
        raise AudioError(
            f"Standard input is no WAV of whole or floating-point numbers: {NO_WAV}", "unreadable"
        ) from None
    if rate not in (None, header.samplerate):
        raise ConfigError(f"--rate {rate}: the WAV on standard input has {header.samplerate} Hz; leave out --rate.")
    return header.samplerate, _blocks(file, *form, channel, size)


def _header(file: BinaryIO) -> tuple[Any, float]:
    """Properties of a WAV from libsndfile, and the bytes of its samples: all that stands before them is read. Raises
    struct.error when it ends there, and LibsndfileError."""
    head = file.read(12)
    while True:
        chunk = file.read(8)
        name, size = struct.unpack("<4sI", chunk)
        if name == b"data":
            return soundfile.info(io.BytesIO(head + b"data\0\0\0\0")), size if 0 < size < UNKNOWN else math.inf
        head += chunk + file.read(size + size % 2)


def _blocks(
    file: Any, rate: int, channels: int, subtype: str, width: int, channel: int | None, left: float = math.inf
) -> Iterator[np.ndarray]:
    """Audio of at most `left` bytes, `width` for a sample, float32 [samples] at a time."""
    raw = {"samplerate": rate, "channels": channels, "subtype": subtype, "format": "RAW", "endian": "LITTLE"}
    width, rest = width * channels, b""
    while data := file.read1(int(min(round(rate * READ) * width, left))):
        left, rest = left - len(data), rest + data
        whole, rest = rest[: len(rest) // width * width], rest[len(rest) // width * width :]
        samples, _ = soundfile.read(io.BytesIO(whole), dtype="float32", always_2d=True, **raw)
        yield to_mono(samples, "Standard input", channel)


class LiveLine:
    """Words on standard output; on a terminal the line that is being said grows in place."""

    def __init__(self, as_json: bool):
        self.as_json = as_json
        self.live = not as_json and sys.stdout.isatty()
        self._line = self._partial = ""
        self._speaker: str | None = None

    def show(self, events: list[dict[str, Any]]) -> None:
        for event in events:
            if self.as_json:
                print(json.dumps(event, ensure_ascii=False), flush=True)
            elif event["type"] == "word":
                if (speaker := event.get("speaker")) != self._speaker or (speaker and not self._line):
                    self.close()
                    self._speaker = speaker
                    self._add(f"{speaker}:")
                self._add(event["word"])
            elif event["type"] == "partial":
                self._partial = event["text"]
            else:
                self.close()
        if self.live and events:
            text = joined([self._line, self._partial])
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[-width:]}", end="", flush=True)

    def _add(self, word: str) -> None:
        part = spaced(self._line, word)
        self._line += part
        if not self.live:
            print(part, end="", flush=True)

    def close(self) -> None:
        """A line for each utterance."""
        if self._line:
            print(f"\r\x1b[K{self._line}" if self.live else "", flush=True)
        self._line = ""
