"""`stentor transcribe --stream`: words as they are said, of standard input or of a file."""

import json
import shutil
import signal
import struct
import sys
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Self

import numpy as np

from stentor.audio.channels import to_mono
from stentor.commands.recording_options import TranscribeOptions
from stentor.errors import AudioError, ConfigError
from stentor.inference.declarations import refuse_unused
from stentor.inference.options import STREAM
from stentor.inference.recording import STDIN, label, open_recording
from stentor.text.written_words import joined, spaced

READ = 0.02
"""Seconds of audio that are read at a time."""
FORMATS = {(1, 8): "<u1", (1, 16): "<i2", (1, 24): "<u1", (1, 32): "<i4", (3, 32): "<f4", (3, 64): "<f8"}
"""Data types of the samples in a WAV, by its code and their bits; 24 bits are read byte by byte."""
EXTENSIBLE, UNKNOWN = 0xFFFE, 0x7F000000
"""The code stands further on; that many bytes, or 0, are written into a pipe, whose length is not known."""
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
        blocks = open_recording(name, rate, channel=options.channel).blocks()
    stream = model.stream(rate, options.language, options.delay, diarizer=diarizer, vad=detector)
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
        return rate, _blocks(file.read1, FORMATS[1, 16], 2, 1, round(rate * READ), channel)  # type: ignore[attr-defined]
    try:
        (code, channels, stated, bits), size = _header(file)
        known = FORMATS[code, bits]
    except (struct.error, KeyError):
        raise AudioError(
            f"Standard input is no WAV of whole or floating-point numbers: {NO_WAV}", "unreadable"
        ) from None
    if rate not in (None, stated):
        raise ConfigError(f"--rate {rate}: the WAV on standard input has {stated} Hz; leave out --rate.")
    read = file.read1 if size is None else _first(file, size)  # type: ignore[attr-defined]
    return stated, _blocks(read, known, bits // 8, channels, round(stated * READ), channel)


def _header(file: BinaryIO) -> tuple[tuple[int, int, int, int], int | None]:
    """Code, channels, rate and bits of a WAV, and the bytes of samples, where that is known: all that stands before
    them. Raises struct.error when it ends there, KeyError when it says nothing of them."""
    file.read(12)
    parts: dict[bytes, bytes] = {}
    while True:
        name, size = struct.unpack("<4sI", file.read(8))
        if name == b"data":
            break
        parts[name] = file.read(size + size % 2)
    form = parts[b"fmt "]
    code, channels, rate, _, _, bits = struct.unpack("<HHIIHH", form[:16])
    if code == EXTENSIBLE:
        (code,) = struct.unpack("<H", form[24:26])
    if not channels or not rate:
        raise KeyError
    return (code, channels, rate, bits), size if 0 < size < UNKNOWN else None


def _first(file: Any, left: int) -> Callable[[int], bytes]:
    """Reads the first `left` bytes of a file: what may follow the samples is none."""

    def read(size: int) -> bytes:
        nonlocal left
        data: bytes = file.read1(min(size, left))
        left -= len(data)
        return data

    return read


def _blocks(
    read: Callable[[int], bytes], kind: str, width: int, channels: int, frames: int, channel: int | None
) -> Iterator[np.ndarray]:
    rest = b""
    while data := read(frames * width * channels):
        rest += data
        complete = len(rest) // (width * channels) * width * channels
        samples = np.frombuffer(rest[:complete], kind)
        rest = rest[complete:]
        if width == 3:
            samples = np.pad(samples.reshape(-1, 3), ((0, 0), (1, 0))).view("<i4")
        full = 1.0 if samples.dtype.kind == "f" else 2.0 ** (8 * samples.dtype.itemsize - 1)
        scaled = samples.astype(np.float32) / np.float32(full) - (1 if width == 1 else 0)
        yield to_mono(scaled.reshape(-1, channels), "Standard input", channel)


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
