"""The end of speech while it comes: by energy and by Silero VAD, in noise.

    python benchmarks/stream_ends.py [--data data] [--silero data/weights/silero_vad/silero_vad.onnx] [--silence 0.8]

Every seventh utterance of LibriSpeech dev with 2 s between them, in one recording, and noise over all of it: white,
pink, and each recording of `noise_rir/noise*.wav` from its beginning again and again. An end is found when it is told
between the last word of an utterance and 0.3 s after the next one begins; all others are besides.
"""

import argparse
import json
import statistics
from pathlib import Path

import numpy as np
import soundfile
import soxr
from results import write

from stentor.inference.stream.endpoint import Endpointer
from stentor.inference.vad import Detector, open_detector

RATE, GAP, BLOCK = 16000, 2.0, 320


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--silero", default="silero")
    parser.add_argument("--silence", type=float, default=0.8)
    args = parser.parse_args()
    speech, ends = utterances(args.data / "librispeech")
    noises = {"white": np.ones_like, "pink": lambda f: 1 / np.sqrt(np.maximum(f, 1))}
    audio = {name: shaped(shape, len(speech)) for name, shape in noises.items()}
    for path in sorted((args.data / "noise_rir").glob("noise*.wav")):
        audio[path.stem] = np.resize(read(path), len(speech))
    rows = []
    for noise, snr in ((noise, snr) for noise in audio for snr in (20, 10, 5, 0)):
        level = np.sqrt(np.mean(speech[speech != 0] ** 2) / np.mean(audio[noise] ** 2) / 10 ** (snr / 10))
        noisy = (speech + level * audio[noise]).astype(np.float32)
        for vad in ("energy", args.silero):
            rows.append({"noise": noise, "snr_db": snr, "vad": "energy" if vad == "energy" else "silero"})
            rows[-1] |= scored(found_ends(noisy, open_detector(vad), args.silence), ends)
            print(rows[-1], flush=True)
    write("stream_ends", rows, silence=args.silence)


def utterances(folder: Path) -> tuple[np.ndarray, list[float]]:
    """One recording, and the second at which each utterance's last word ends."""
    records = [json.loads(line) for line in (folder / "dev.jsonl").read_text().splitlines()][::7][:24]
    parts, ends = [np.zeros(3 * RATE)], []
    for record in records:
        ends.append(sum(map(len, parts)) / RATE + record["words"][-1]["end"])
        parts += [read(folder / record["audio_path"]), np.zeros(round(GAP * RATE))]
    return np.concatenate(parts).astype(np.float32), ends


def read(path: Path) -> np.ndarray:
    audio, rate = soundfile.read(path, always_2d=True)
    return soxr.resample(audio.mean(1), rate, RATE)


def shaped(shape, samples: int) -> np.ndarray:
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(samples))
    return np.fft.irfft(spectrum * shape(np.arange(len(spectrum), dtype=float)), samples)


def found_ends(audio: np.ndarray, detector: Detector, silence: float) -> list[float]:
    endpointer = Endpointer(detector.live(RATE), silence)
    blocks = audio[: len(audio) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return [i * BLOCK / RATE for i, block in enumerate(blocks) if endpointer.add(block)]


def scored(found: list[float], ends: list[float]) -> dict[str, float]:
    late = [next((f - end for f in found if end < f <= end + GAP + 0.3), None) for end in ends]
    hits = [seconds for seconds in late if seconds is not None]
    median = round(statistics.median(hits), 2) if hits else None
    return {"ends": len(ends), "found": len(hits), "besides": len(found) - len(hits), "median_seconds": median}


if __name__ == "__main__":
    main()
