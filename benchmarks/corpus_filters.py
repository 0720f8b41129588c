"""Filters of `stentor prepare segments` against a known truth, on real recordings, and what each stage costs.

    OMP_NUM_THREADS=1 python benchmarks/corpus_filters.py [--data ../shared/data] [--hours 0.25] [--clips 176]

Prints precision and recall of what each filter drops at its default threshold, and CPU seconds an hour of audio of each
stage on recordings made of LibriSpeech's dev part. The folder is that of MANIFEST.md: LibriSpeech, LJ Speech, AMI,
spoken digits (8 kHz), clips in other languages, noises, a rebuilt Whisper tiny.en and Silero VAD."""

import argparse
import io
import json
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import results
import soundfile
import soxr

from stentor.audio.activity import EnergyDetector
from stentor.audio.fingerprint import fingerprint, shared
from stentor.audio.io import read
from stentor.audio.quality import bandwidth, snr
from stentor.data.rttm import read_rttm
from stentor.data.signal_stats import measure_audio
from stentor.inference.recording import ArrayRecording, DecodedRecording
from stentor.inference.segments.base import Segment, Stage
from stentor.inference.segments.hallucinations import HallucinationsStage
from stentor.inference.segments.quality import QualityStage
from stentor.inference.segments.transcribe import TranscribeStage
from stentor.inference.vad import Detector, cut, open_detector
from stentor.metrics.wer import rate, word_errors
from stentor.text.detect import detect
from stentor.text.normalize import normalize

RATE = 16000
RNG = np.random.default_rng(0)
SOME = 12
"""Segments that the costly stages are timed on."""


def manifest(data: Path, name: str) -> list[dict[str, Any]]:
    path = data / name
    return [{**r, "file": path.parent / r["audio_path"]} for r in map(json.loads, path.read_text("utf-8").splitlines())]


def score(filter_name: str, on: str, verdicts: Iterable[tuple[bool, bool]]) -> dict[str, Any]:
    """A row of precision and recall of (dropped, should be dropped) pairs."""
    pairs = list(verdicts)
    hits = sum(d and t for d, t in pairs)
    dropped, true = sum(d for d, _ in pairs), sum(t for _, t in pairs)
    row = {"filter": filter_name, "on": on, "items": len(pairs), "to_drop": true, "dropped": dropped}
    row |= {"precision": round(hits / max(dropped, 1), 3), "recall": round(hits / max(true, 1), 3)}
    print(f"{filter_name:22} {on:58} {len(pairs):5} {true:5} {dropped:5}   {row['precision']:.3f}  {row['recall']:.3f}")
    return row


def mixed(audio: np.ndarray, noise: np.ndarray, decibels: float) -> np.ndarray:
    noise = np.resize(noise, len(audio))
    power = np.square(audio).mean() / 10 ** (decibels / 10)
    return (0.3 * (audio + noise * np.sqrt(power / np.square(noise).mean()))).astype(np.float32)


def encoded(audio: np.ndarray, kind: str, level: float) -> np.ndarray:
    file = io.BytesIO()
    options = {"subtype": "OPUS"} if kind == "OGG" else {}
    soundfile.write(file, audio, RATE, format=kind, compression_level=level, **options)
    file.seek(0)
    return soundfile.read(file, dtype="float32")[0]


def noises(data: Path) -> dict[str, np.ndarray]:
    """Steady ones first: `noise2` and `noise4` come and go."""
    real = {name: read(data / "noise_rir" / f"{name}.wav", RATE) for name in ("noise1", "noise5", "noise2", "noise4")}
    return {"white": RNG.standard_normal(10 * RATE), **real}


def noisy(data: Path, clips: list[np.ndarray]) -> Iterator[dict[str, Any]]:
    least = QualityStage().min_snr or 0.0
    for name, noise in noises(data).items():
        levels = [0.0, 3.0, 6.0, 14.0, 17.0, 20.0]
        values = [(db, snr(mixed(c, noise, db), RATE)) for db in levels for c in clips]
        error = {f"{db:g} dB": round(float(np.mean([v - db for d, v in values if d == db])), 1) for db in levels}
        on = f"LibriSpeech in {name}, 0 to 20 dB"
        yield {**score("quality: snr < 10", on, ((v < least, db < least) for db, v in values)), "mean_error": error}


def narrow(data: Path, wide: list[tuple[np.ndarray, int]]) -> dict[str, Any]:
    digits = [read(r["file"], 8000) for r in manifest(data, "digits/test.jsonl")[:100]]
    least = QualityStage().min_bandwidth or 0.0
    phone = [(soxr.resample(np.rint(a * 32768) / 32768, 8000, r), r) for a in digits for r in (16000, 48000)]
    phone += [(soxr.resample(soxr.resample(a, r, 8000), 8000, r), r) for a, r in wide]
    pairs = [(bandwidth(a, r) < least, True) for a, r in phone] + [(bandwidth(a, r) < least, False) for a, r in wide]
    return score("quality: bandwidth", "digits and sampled-down clips against whole clips", pairs)


def clipped(wide: list[tuple[np.ndarray, int]]) -> dict[str, Any]:
    most = QualityStage().max_clipped or 1.0
    pairs = []
    for audio, rate_ in wide:
        peak = np.quantile(np.abs(audio), 0.995)  # one sample in 200 beyond full scale
        pairs.append((measure_audio(np.clip(audio / peak, -1, 1), rate_).clipped > most, True))
        pairs.append((measure_audio(audio, rate_).clipped > most, False))
    return score("quality: clipped", "clips as they are, and 0.5 % of their samples cut off", pairs)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gain -20 dB": lambda a: 0.1 * a,
    "offset 0.31 s": lambda a: a[5001:],
    "MP3, -8 dB, offset": lambda a: encoded(0.4 * a[5001:], "MP3", 0.9),
    "Opus": lambda a: encoded(a, "OGG", 0.9),
    "telephone": lambda a: soxr.resample(soxr.resample(a, RATE, 8000), 8000, RATE),
    "second half": lambda a: a[len(a) // 2 :],
    "white noise 20 dB": lambda a: mixed(a, RNG.standard_normal(len(a)), 20),
    "white noise 10 dB": lambda a: mixed(a, RNG.standard_normal(len(a)), 10),
}


def duplicates(clips: list[np.ndarray], others: list[np.ndarray]) -> Iterator[dict[str, Any]]:
    originals = [fingerprint(a, RATE) for a in clips + others]
    for name, change in CHANGES.items():
        copies = [fingerprint(change(a).astype(np.float32), RATE) for a in clips]
        n = len(originals)
        pairs = {(b, a) for b, a, _ in shared(originals + copies, 0.1)}
        copied = [(any((n + i, a) in pairs for a in range(n)), True) for i in range(len(clips))]
        unrelated = [(any((b, a) in pairs for a in range(b)), False) for b in range(n)]
        yield score("duplicates: same sound", f"LibriSpeech dev again: {name}", copied + unrelated)


def activity(data: Path, detectors: dict[str, Detector]) -> Iterator[dict[str, Any]]:
    """Share of the speech that no segment holds, and share of the segments' time in which nobody speaks."""
    recordings = sorted((data / "ami").glob("*.flac"))
    turns = {name: each for part in ("dev", "train") for name, each in read_rttm(data / "ami" / f"{part}.rttm").items()}
    for name, detector in detectors.items():
        lost = speech = wrong = inside = 0
        for path in recordings:
            audio = read(path, RATE)
            truth, kept = np.zeros(len(audio) // 160, bool), np.zeros(len(audio) // 160, bool)
            for turn in turns[path.stem]:
                truth[round(turn["start"] * 100) : round(turn["end"] * 100)] = True
            for window in cut(detector.activity([audio], RATE), RATE, padding=0.15, silence=0.8):
                kept[window.start // 160 : window.end // 160] = True
            lost, speech = lost + int((truth & ~kept).sum()), speech + int(truth.sum())
            wrong, inside = wrong + int((kept & ~truth).sum()), inside + int(kept.sum())
        row = {"filter": f"vad: {name}", "on": "AMI, 12 x 30 s, headset mix", "lost": round(lost / speech, 3)}
        row["without_speech"] = round(wrong / inside, 3)
        print(f"{row['filter']:22} {row['on']:58} lost {row['lost']:.1%} of the speech; {row['without_speech']:.1%} of "
              "what is kept is pauses")  # fmt: skip
        yield row


def made_up(data: Path, model: Path, clips: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Answers of a real recogniser to speech and to noise; and texts that were broken."""
    stage, recogniser = HallucinationsStage(), TranscribeStage(model=str(model))
    recogniser.setup("cpu")

    def verdict(audio: np.ndarray, text: str | None = None) -> tuple[bool, str]:
        recording, segment = ArrayRecording(audio, RATE, RATE, "clip"), Segment(0.0, len(audio) / RATE, {})
        if text is None:
            (answer,) = recogniser.transcripts(recording, [segment])
        else:
            answer = {"text": text, "confidence": 0.9}
        if not answer["text"]:
            return True, ""
        (result,) = stage.process(recording, [segment.measured(**answer)])
        return not isinstance(result, Segment), answer["text"]

    audio = [read(c["file"], RATE) for c in clips]
    texts = [c["text"] for c in clips]
    answers = [verdict(a) for a in audio]
    quiet = [np.resize(n, 6 * RATE).astype(np.float32) * g for n in noises(data).values() for g in (0.02, 0.3)]
    yield score(
        "hallucinations",
        "answers of Whisper tiny.en (rebuilt) to noise, against to speech",
        [(verdict(a)[0], True) for a in quiet] + [(dropped, False) for dropped, _ in answers],
    )
    looped = [" ".join(t.split()[:4] * 8) for t in texts]
    longer = [f"{t} {u} {v}" for t, u, v in zip(texts, texts[1:] + texts[:1], texts[2:] + texts[:2])]
    shorter = [" ".join(t.split()[:1]) for t in texts]
    for name, broken in (("a loop", looped), ("the texts of three", longer), ("the first word alone", shorter)):
        pairs = [(verdict(a, t)[0], True) for a, t in zip(audio, broken)]
        right = [(verdict(a, t)[0], False) for a, t in zip(audio, texts)]
        yield score("hallucinations", f"LibriSpeech with {name} as text, against its own", pairs + right)
    wers = [rate(word_errors([(normalize(t), normalize(answer))])) for t, (_, answer) in zip(texts, answers)]
    print(f"  (word error rate of that recogniser on these clips: mean {np.mean(wers):.1%})")


def languages(data: Path) -> dict[str, Any]:
    """The text in a language that is not wanted: all against English."""
    clips = [c for c in manifest(data, "languages/clips.jsonl") if c.get("text") and c.get("language")]
    english = [c["text"] for c in manifest(data, "librispeech/dev.jsonl")]
    pairs = [(detect(c["text"]) != "en", c["language"] != "en") for c in clips]
    pairs += [(detect(text) != "en", False) for text in english]
    return score("language: text", "clips in es, sv, ja, zh, en and LibriSpeech, en wanted", pairs)


def costs(clips: list[np.ndarray], hours: float, folder: Path, model: Path, silero: Path) -> list[dict[str, Any]]:
    """CPU seconds an hour of recording of each stage; later stages see what the earlier ones kept."""
    pause = np.zeros(RATE, np.float32)
    audio = np.concatenate([part for clip in clips for part in (clip, pause)])[: round(hours * 3600 * RATE)]
    hours = len(audio) / RATE / 3600
    path = folder / "podcast.mp3"
    soundfile.write(path, audio, RATE, format="MP3")
    rows = []

    def timed(name: str, work: Callable[[], Any]) -> Any:
        start = time.process_time()
        result = work()
        seconds = time.process_time() - start
        rows.append({"stage": name, "cpu_seconds_an_hour": round(seconds / hours, 1)})
        print(f"  {name:42} {seconds / hours:8.1f}")
        return result

    print(f"\nCPU seconds an hour of recording ({hours:.2f} h of LibriSpeech with pauses, MP3):")
    recording = timed("decode and resample", lambda: DecodedRecording.of_file(str(path), "podcast"))
    whole = [Segment(0.0, int(recording.seconds), {})]

    def run(name: str, section: dict[str, Any], segments: list[Segment]) -> list[Segment]:
        stage = Stage.model_validate(section)
        stage.setup("cpu")
        kept = timed(name, lambda: [s for s in stage.process(recording, segments) if isinstance(s, Segment)])
        return kept

    run("vad, silero", {"type": "vad", "detector": str(silero)}, whole)
    segments = run("vad, energy", {"type": "vad", "seconds": [1, 30]}, whole)
    segments = run("quality", {"type": "quality"}, segments)
    prints = run("duplicates, fingerprints", {"type": "duplicates"}, segments)
    size = sum(len(s.measures["fingerprint"]) for s in prints) / hours
    named = [s.measured(id=str(i)) for i, s in enumerate(prints)]
    timed("duplicates, comparing", lambda: Stage.model_validate({"type": "duplicates"}).select(named))
    rows[-1]["journal_bytes_an_hour"] = round(size)
    segments = run("transcribe, Whisper tiny.en", {"type": "transcribe", "model": str(model)}, segments[:SOME])
    rows[-1]["cpu_seconds_an_hour"] = round(rows[-1]["cpu_seconds_an_hour"] * len(prints) / SOME, 1)
    print(f"  {'  the same for all segments':42} {rows[-1]['cpu_seconds_an_hour']:8.1f}")
    run("hallucinations (some segments)", {"type": "hallucinations"}, segments)
    run("language, text (some segments)", {"type": "language"}, segments)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path, default=Path(__file__).parents[2] / "shared" / "data")
    parser.add_argument("--hours", type=float, default=0.25)
    parser.add_argument("--clips", type=int, default=176, help="of LibriSpeech's dev part, and twice as many others")
    options = parser.parse_args()
    data, silero = options.data, next((options.data / "weights" / "silero_vad").glob("*.onnx"))
    model = data / "weights" / "whisper-tiny.en-rebuilt"
    dev, train = manifest(data, "librispeech/dev.jsonl"), manifest(data, "librispeech/train.jsonl")
    clips = [read(r["file"], RATE) for r in dev]
    lossless = [read(r["file"], RATE) for r in manifest(data, "librispeech/lossless.jsonl")]
    wide = [(a, RATE) for a in clips[:60]] + [
        (read(p, 22050), 22050) for p in sorted((data / "ljspeech").glob("*.flac"))
    ]
    print(f"{'filter':22} {'on':58} items  true dropped  prec.  recall")
    rows = [*noisy(data, lossless + [a for a, r in wide if r == RATE][:12]), narrow(data, wide), clipped(wide)]
    rows += duplicates(clips[: options.clips], [read(r["file"], RATE) for r in train[: 2 * options.clips]])
    rows += activity(data, {"energy": EnergyDetector(), "silero": open_detector(str(silero))})
    rows.append(languages(data))
    rows += made_up(data, model, dev[: options.clips // 4])
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        stages = costs(clips, options.hours, Path(folder), model, silero)
    results.write("corpus_filters", rows, costs=stages)


if __name__ == "__main__":
    main()
