"""Times are those of a video player: audio that starts late or has gaps, and videos that last longer than it."""

from fractions import Fraction

import numpy as np
import pytest

from stentor.audio.io import read
from stentor.inference.recording import FileRecording

av = pytest.importorskip("av")
RATE = 48000
CONTAINERS = ["a.mkv libopus", "a.mkv aac", "a.webm libopus", "a.mp4 aac", "a.mov aac", "a.ts mp2", "a.flv aac"]


def bursts(*at: float, seconds: float = 4.0) -> np.ndarray:
    """Noise of 50 ms at these seconds."""
    audio = np.zeros(round(seconds * RATE), np.float32)
    for second in at:
        audio[round(second * RATE) :][:2400] = np.random.default_rng(0).normal(0, 0.3, 2400)
    return audio


def onsets(audio: np.ndarray, rate: int = 16000) -> list[float]:
    loud = np.flatnonzero(np.abs(audio) > 0.08) / rate
    return [float(second) for i, second in enumerate(loud) if i == 0 or second - loud[i - 1] > 0.2]


def movie(path, codec, late=0.0, gaps=(), video=6.0, tracks=1):
    """Bursts at 1, 2 and 3 s of audio that begins `late`, with `gaps` (second, length), beside a video."""
    picture = av.VideoFrame.from_ndarray(np.zeros((48, 64, 3), np.uint8), format="rgb24").reformat(format="yuv420p")
    kind = {".webm": "libvpx", ".flv": "flv", ".ts": "mpeg2video"}.get(path.suffix, "mpeg4")
    packets = []
    with av.open(str(path), "w") as container:
        pictures = container.add_stream(kind, rate=25, width=64, height=48, pix_fmt="yuv420p")
        for number in range(round(video * 25)):
            picture.pts, picture.time_base = number, Fraction(1, 25)
            packets += [(p, 0.0) for p in pictures.encode(picture)]
        packets += [(p, 0.0) for p in pictures.encode(None)]
        for _ in range(tracks):
            sound = container.add_stream(codec, rate=RATE, layout="mono")
            frame = av.AudioFrame.from_ndarray(bursts(1.0, 2.0, 3.0)[None], format="fltp", layout="mono")
            frame.rate, frame.pts, frame.time_base = RATE, 0, Fraction(1, RATE)
            size = sound.codec_context.frame_size or 960
            resampler = av.AudioResampler(sound.format.name, "mono", RATE, frame_size=size)
            for piece in [*resampler.resample(frame), *resampler.resample(None), None]:
                for packet in sound.encode(piece):
                    time = float(packet.pts * packet.time_base)
                    packets.append((packet, late + sum(length for second, length in gaps if time >= second)))
        for packet, shift in sorted(packets, key=lambda p: float(p[0].dts * p[0].time_base) + p[1]):
            packet.pts += round(shift / packet.time_base)
            packet.dts += round(shift / packet.time_base)
            container.mux(packet)
    return path


@pytest.mark.parametrize("late", [0.0, 0.01, 0.5, 2.0])
@pytest.mark.parametrize("kind", CONTAINERS)
def test_late_audio_and_gaps(tmp_path, kind, late):
    name, codec = kind.split()
    path = movie(tmp_path / name, codec, late, [(1.5, 0.7)])
    late = late if late > 0.02 else 0.0
    audio = read(path)
    assert onsets(audio) == pytest.approx([1 + late, 2.7 + late, 3.7 + late], abs=0.045)
    blocks = FileRecording(path, 16000)
    assert onsets(np.concatenate(list(blocks.blocks()))) == onsets(audio)
    piece = read(path, start=2.5 + late, duration=1.0)
    assert np.abs(piece - audio[round((2.5 + late) * 16000) :][: len(piece)])[200:-200].max() < 0.02
