"""Recordings as strangers have them, made of one clip: "one two three", 0.72 s at 16 kHz."""

import struct
from fractions import Fraction
from functools import cache
from pathlib import Path

import av
import numpy as np
import soundfile

RATE = 16000
CLIP = Path(__file__).parents[1] / "frozen" / "data" / "one.flac"


@cache
def clip() -> np.ndarray:
    """float32 [samples] at 16 kHz."""
    return soundfile.read(CLIP, dtype="float32")[0]


def talk(*pauses: float) -> np.ndarray:
    """The clip, then each pause in seconds and the clip again."""
    parts = [clip()]
    for pause in pauses:
        parts += [np.zeros(round(pause * RATE), np.float32), clip()]
    return np.concatenate(parts)


def wav(path: Path, audio: np.ndarray | None = None, **options: object) -> Path:
    """Write the clip, or `audio`, with libsndfile, by default as 16-bit WAV."""
    path.parent.mkdir(parents=True, exist_ok=True)
    options = {"samplerate": RATE, **options}
    soundfile.write(str(path), clip() if audio is None else audio, **options)
    return path


def header(path: Path, size: int) -> None:
    """Write another size of the data into the header of a plain WAV."""
    data = bytearray(path.read_bytes())
    at = data.index(b"data") + 4
    data[at : at + 4] = struct.pack("<I", size)
    path.write_bytes(data)


def media(
    path: Path,
    *tracks: np.ndarray,
    codec: str = "aac",
    delay: float = 0.0,
    video: float = 0.0,
    rate: int = 48000,
    languages: tuple[str, ...] = (),
) -> Path:
    """Write audio tracks with FFmpeg by the ending of the name: `delay` seconds late, beside `video` seconds of
    picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w") as container:
        if video:
            picture = container.add_stream("mpeg4", rate=10)
            picture.width = picture.height = 16
        streams = [container.add_stream(codec, rate=rate, layout="mono") for _ in tracks]
        for stream, language in zip(streams, languages):
            stream.metadata["language"] = language
        if video:
            for number in range(round(video * 10)):
                frame = av.VideoFrame.from_ndarray(np.zeros((16, 16, 3), np.uint8))
                frame.pts, frame.time_base = number, Fraction(1, 10)
                container.mux(picture.encode(frame))
            container.mux(picture.encode(None))
        for stream, audio in zip(streams, tracks):
            wave = np.interp(np.arange(0, len(audio), RATE / rate), np.arange(len(audio)), audio).astype(np.float32)
            resampler = av.AudioResampler(format=stream.codec_context.format, layout="mono", rate=rate)
            frame = av.AudioFrame.from_ndarray(wave[None], format="fltp", layout="mono")
            frame.sample_rate, frame.pts, frame.time_base = rate, 0, Fraction(1, rate)
            for part in [*resampler.resample(frame), *resampler.resample(None)]:
                container.mux([shifted(packet, delay) for packet in stream.encode(part)])
            container.mux([shifted(packet, delay) for packet in stream.encode(None)])
    return path


def shifted(packet: av.Packet, delay: float) -> av.Packet:
    """A packet that is played `delay` seconds later."""
    ticks = round(delay / packet.time_base)
    packet.pts, packet.dts = packet.pts + ticks, packet.dts + ticks
    return packet
