"""Encoder: audio as the bytes of a file, for somebody who reads them while it is made."""

import importlib.util
import io
from typing import Any

import numpy as np
import soundfile

from stentor.audio.resampler import Resampler
from stentor.audio.writer import quantised, wav_header
from stentor.errors import ConfigError

PCM_RATE = 24000
"""Hz of bare samples, as OpenAI's interface has them: nothing in them says it."""
MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
RATES = {"pcm": (PCM_RATE,), "opus": (8000, 12000, 16000, 24000, 48000), "mp3": MPEG_RATES, "aac": MPEG_RATES}
"""Hz that there are of a kind; other audio is resampled to the next higher one. Of the others any."""
CODED = {"mp3": ("MP3", "MPEG_LAYER_III"), "opus": ("OGG", "OPUS"), "flac": ("FLAC", "PCM_16")}
MP3_LEVEL = 0.3
"""Compression level, from 0 to 1: 112 kbit/s at 24 kHz."""
KINDS = ("mp3", "opus", "aac", "flac", "wav", "pcm")


class Encoder:
    """Encodes 16-bit mono audio piece by piece.

    A file that is sent while it is made cannot say how long it is: the sizes of a WAV are 0xFFFFFFFF, and an MP3 has no
    frame with its length. With `at_once` it comes as one at the end, and says it; so does every FLAC, as many readers
    need its length.
    """

    def __init__(self, kind: str, rate: int, at_once: bool = False):
        """`kind` is one of `KINDS`. Raises ConfigError where there is no encoder for it."""
        rates = RATES.get(kind, (rate,))
        self.kind, self.at_once = kind, at_once or kind == "flac"
        self.rate = next((known for known in rates if known >= rate), rates[-1])
        self._resampler = Resampler(rate, self.rate)
        self._sink = _Sink(skips_first=kind == "mp3")
        self._file: Any = None
        if kind in CODED:
            form, code = CODED[kind]
            if code not in soundfile.available_subtypes(form):
                raise ConfigError(
                    f"The libsndfile here writes no {kind}: choose another format, or reinstall soundfile."
                )
            # At a constant rate readers know the length of an MP3 that does not say it.
            constant: Any = {"bitrate_mode": "CONSTANT", "compression_level": MP3_LEVEL} if kind == "mp3" else {}
            self._file = soundfile.SoundFile(self._sink, "w", self.rate, 1, code, format=form, **constant)
        elif kind == "aac":
            self._file = _AAC(self._sink, self.rate)
        elif kind == "wav" and not self.at_once:
            self._sink.write(wav_header(self.rate))

    def add(self, audio: np.ndarray, last: bool = False) -> bytes:
        """Bytes that can be sent after more float [samples]. Raises AudioError (`not_finite`)."""
        audio = self._resampler.add(audio, last)
        samples = quantised(audio)
        if self._file is None:
            self._sink.write(samples.astype("<i2").tobytes())
        elif len(samples):
            self._file.write(samples)
        if last and self._file is not None:
            self._file.close()
        if not self.at_once:
            return self._sink.taken()
        content = self._sink.getvalue() if last else b""
        return wav_header(self.rate, len(content)) + content if last and self.kind == "wav" else content


class _Sink(io.BytesIO):
    """A file in memory that also hands out what is written to its end, in parts."""

    def __init__(self, skips_first: bool):
        """`skips_first`: the first thing that is written is not handed out, as it is written again at the end."""
        super().__init__()
        self._skips, self._parts = skips_first, [b""]

    def write(self, data: Any) -> int:
        at_end = self.tell() == self.getbuffer().nbytes
        if at_end and not (self._skips and self.tell() == 0):
            self._parts.append(bytes(data))
        return super().write(data)

    def taken(self) -> bytes:
        taken, self._parts = b"".join(self._parts), []
        return taken


class _AAC:
    """AAC in ADTS, by FFmpeg."""

    def __init__(self, sink: _Sink, rate: int):
        if importlib.util.find_spec("av") is None:
            raise ConfigError("aac needs PyAV: pip install 'stentor[av]', or take mp3, opus, flac, wav or pcm.")
        import av

        self._container = av.open(sink, "w", format="adts")
        self._stream: Any = self._container.add_stream("aac", rate=rate, layout="mono")
        self._frame, self._rate = av.AudioFrame, rate

    def write(self, samples: np.ndarray) -> None:
        frame = self._frame.from_ndarray(samples[None], format="s16", layout="mono")
        frame.sample_rate = self._rate
        self._container.mux(self._stream.encode(frame))

    def close(self) -> None:
        self._container.mux(self._stream.encode(None))
        self._container.close()
