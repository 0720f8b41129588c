"""A manifest of untranscribed clips, half of them with recorded noise: what a filter of labels has to sort.

    python benchmarks/noisy_pool.py data/librispeech/train.jsonl --without 1272 2035 --noise noise*.wav --to data/noisy

writes data/noisy/pool.jsonl, the clips of the other speakers without their texts, and audio for those that were drawn:
one of the noises, from a place of its own and as often as it takes, 5 dB below to 5 dB above the speech.
"""

import argparse
import json
from pathlib import Path

import numpy as np

from stentor.audio.io import read, write

RATE = 16000
SNR = (-5.0, 5.0)


def noisy(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """The speech [samples] with the noise [samples], which stands so many dB below it; no sample is clipped."""
    noise = np.resize(noise, len(speech))
    noise = noise * np.sqrt(np.mean(speech**2) / (np.mean(noise**2) + 1e-9)) * 10 ** (-snr / 20)
    mixed = speech + noise
    return (mixed / max(1.0, float(np.abs(mixed).max()) / 0.95)).astype(np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("manifest", type=Path)
    parser.add_argument("--without", nargs="*", default=[], help="speakers that are left out")
    parser.add_argument("--noise", nargs="+", type=Path, required=True, help="audio files")
    parser.add_argument("--to", type=Path, required=True, help="folder")
    args = parser.parse_args()
    noises = [read(path, rate=RATE) for path in args.noise]
    records = [json.loads(line) for line in args.manifest.read_text("utf-8").splitlines()]
    records = [record for record in records if record["speaker"] not in args.without]
    rng = np.random.default_rng(0)
    drawn = set(rng.permutation(len(records))[: len(records) // 2].tolist())
    args.to.mkdir(parents=True, exist_ok=True)
    with (args.to / "pool.jsonl").open("w", encoding="utf-8") as file:
        for i, record in enumerate(records):
            audio = (args.manifest.parent / record["audio_path"]).absolute()
            if i in drawn:
                noise = noises[rng.integers(len(noises))]
                noise = np.roll(noise, -rng.integers(len(noise)))
                clip = args.to.absolute() / f"{record['id']}.wav"
                write(clip, noisy(read(audio, rate=RATE), noise, rng.uniform(*SNR)), RATE)
                audio = clip
            kept = {key: value for key, value in record.items() if key not in ("text", "words")}
            file.write(json.dumps(kept | {"audio_path": str(audio)}) + "\n")


if __name__ == "__main__":
    main()
