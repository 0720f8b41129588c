"""Preparation of data: its costs, Ray beside local processes, filters against a known truth, and data that is made."""

import contextlib
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import DATA, RATE, Result, Row, Rows, Table, benchmark
from benchmarks.storage import stand_ins
from stentor.audio.io import read, write

# Costs of each step

STEPS = {
    "check": ["prepare", "check", "{data}", "--jobs", "1", "--to", "{to}"],
    "index": ["prepare", "index", "{data}"],
    "tokens, raw FLAC": ["prepare", "tokens", "{data}", "--codec", "none", "--to", "{to}", "--min-shards", "1"],
    "tokens, mel_rvq": ["prepare", "tokens", "{data}", "--codec", "{codec}", "--to", "{to}", "--min-shards", "1"],
    "features": ["prepare", "features", "{data}", "--to", "{to}"],
    "words": ["prepare", "words", "{data}", "--model", "{model}", "--device", "cpu", "--to", "{to}/words.jsonl"],
    "transcribe": ["transcribe", "{model}", "{data}", "--format", "json", "--out", "{to}"],
}


@benchmark
def preparation_costs(
    minutes: float = 30.0,
    data: Annotated[str, "Where the audio comes from."] = "type=synth,texts=sentences,count=2000",
    model: Annotated[str | None, "Run or export of a recogniser."] = None,
    only: Annotated[tuple[str, ...], "Names of steps."] = tuple(STEPS),
) -> Result:
    """Costs of preparation: CPU hours, and bytes read and written, of each step, for 1,000 hours of audio.

    Each verb runs as its users run it, with one process of one thread, on FLAC files of `--data` (the built-in voice).
    CPU time is that of the process and its children; start-up (the same verb on a single record) is taken off, since it
    does not grow with the data. Bytes are the sizes of the files that a step reads and of those that it leaves.
    `--model` names a run or export for the steps that need a recogniser; without it they are left out.
    """
    table = Table()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        manifest, hours = _flac_files(folder / "data", data, minutes * 60)
        values = {"model": model or "", "codec": str(folder / "codec")}
        _stentor(["prepare", "codec", str(manifest), "--to", values["codec"], "--device", "cpu"])
        print(f"{hours:.2f} h of audio, {_size(folder / 'data') / 1e6:.1f} MB of FLAC; for 1,000 h:")
        for step, words in STEPS.items():
            if step in only and (model or "{model}" not in " ".join(words)):
                table.add(_step_cost(step, words, manifest, hours, values))
    return table, {"hours": hours, "data": data, "model": model}


def _step_cost(step: str, words: list[str], manifest: Path, hours: float, values: dict[str, str]) -> Row:
    """The cost of a step for 1,000 hours: it runs on one record, then on all."""
    one = manifest.with_name("one.jsonl")
    seconds = []
    for data in (one, manifest):
        to = manifest.parent.parent / f"{step.replace(', ', '-').replace(' ', '-')}-{data.stem}"
        before = _size(manifest.parent)
        files = [str(p) for p in sorted(manifest.parent.glob("*.flac"))][: 1 if data == one else None]
        inputs = files if step == "transcribe" else [str(data)]
        command = [v for w in words for v in (inputs if w == "{data}" else [w.format(to=to, **values)])]
        seconds.append(_stentor(command, (0, 3) if data == one else (0,)))  # a single record may be refused
        written = _size(to) + _size(manifest.parent) - before
    read_bytes = (0 if step == "index" else before) + manifest.stat().st_size
    scale = 1000 / hours
    row: Row = {"step": step, "cpu_hours": (seconds[1] - seconds[0]) * scale / 3600, "startup_seconds": seconds[0]}
    return row | {"gb_read": read_bytes * scale / 1e9, "gb_written": written * scale / 1e9}


def _flac_files(folder: Path, data: str, seconds: float) -> tuple[Path, float]:
    """FLAC files at 16 kHz with their manifest, beside one of the first alone, and hours of audio."""
    from stentor.config.load import parse_source
    from stentor.data.cut import record_from_cut
    from stentor.data.load_audio import load_audio

    cuts, total = [], 0.0
    for cut in parse_source(data).cuts():
        cuts.append(cut)
        total += cut.duration
        if total >= seconds:
            break

    def clip(cut: Any) -> tuple[np.ndarray, Row]:
        record = record_from_cut(cut)
        keys = ("id", "text", "duration", "speaker", "language")
        return load_audio(cut, RATE), {key: record[key] for key in keys if record.get(key)}

    harness.write_clips(folder, map(clip, cuts[:1]), "one.jsonl", "flac")
    return harness.write_clips(folder, map(clip, cuts), "data.jsonl", "flac"), total / 3600


def _size(path: Path) -> int:
    """Bytes of the files of a folder."""
    return sum(p.stat().st_size for p in path.rglob("*") if p.is_file()) if path.is_dir() else 0


def _stentor(words: list[str], allowed: tuple[int, ...] = (0,)) -> float:
    """CPU seconds of a command of Stentor, its children included."""
    return harness.timed_command(harness.stentor_command(*words), allowed, OMP_NUM_THREADS="1")[1]


# Ray

SPOKEN = ("the quick brown fox jumps over the lazy dog", "a cold wind came down from the hills that night")


@benchmark
def ray_overhead(hours: float = 2.0, jobs: int = 2, rounds: int = 3) -> Result:
    """`stentor prepare tokens` on Ray beside local processes of the same number, on one machine, in turns.

    Speech of the built-in voice is encoded by a small fitted codec (mel_rvq). CPU time counts all processes: the
    command, its workers and the cluster (GCS, raylet, agents), which is there for both ways. The cluster is started
    once before the rounds, as where people have one; the time that its start takes is given apart. Both ways must give
    the same bytes.
    """
    from ray.cluster_utils import Cluster

    table = Table()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        seconds = _clips_with_codec(folder, hours * 3600)
        began = time.perf_counter()
        node = {"num_cpus": jobs, "object_store_memory": 200 * 2**20, "include_dashboard": False}
        cluster = Cluster(initialize_head=True, head_node_args=node)
        start = time.perf_counter() - began
        try:
            for number in range(rounds):
                table.add(_both_ways(folder, number, jobs, cluster.address))
        finally:
            cluster.shutdown()
    for kind in ("wall", "cpu"):
        times = harness.ratio([row[f"ray_{kind}"] for row in table], [row[f"local_{kind}"] for row in table])
        print(f"{kind}: Ray takes {times - 1:+.1%} (median of {len(table)} rounds)")
    return table, {"hours": seconds / 3600, "jobs": jobs, "cluster_start_s": start}


def _clips_with_codec(folder: Path, seconds: float) -> float:
    """Write a manifest of clips of about 12 s and a codec; return their seconds."""
    from stentor.audio.synth import say
    from stentor.models.codecs.mel_rvq.config import MelRVQ

    lengths: list[float] = []
    heard: list[np.ndarray] = []

    def clips() -> Iterator[tuple[np.ndarray, Row]]:
        while sum(lengths) < seconds:
            number = len(lengths)
            text = f"number {number} " + " ".join(SPOKEN[(number + i) % 2] for i in range(5))
            audio = say(text, speed=150 + number % 40).audio
            lengths.append(len(audio) / RATE)
            heard.extend([audio] if number < 8 else [])
            yield audio, {"text": text}

    harness.write_clips(folder, clips(), "data.jsonl")
    MelRVQ().fit(heard).save(folder / "codec")
    return sum(lengths)


class Meter:
    """CPU seconds of this process's children, which come and go: each is looked at a few times a second."""

    def __init__(self) -> None:
        self.ended, self.seconds = threading.Event(), dict[tuple[int, float], float]()
        self.look()
        self.before = sum(self.seconds.values())
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def look(self) -> None:
        import psutil

        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                self.seconds[process.pid, process.create_time()] = sum(process.cpu_times()[:2])

    def watch(self) -> None:
        while not self.ended.wait(0.2):
            self.look()

    def stop(self) -> float:
        """Seconds since the start."""
        self.ended.set()
        self.thread.join()
        self.look()
        return sum(self.seconds.values()) - self.before


def _both_ways(folder: Path, number: int, jobs: int, address: str) -> Row:
    """Wall and CPU seconds of both ways, which start in turn."""
    row: Row = {}
    ways = {"local": [], "ray": ["--ray", address]}
    for name in list(ways)[:: 1 if number % 2 == 0 else -1]:
        words = ["--codec", folder / "codec", "--to", folder / f"{name}{number}", "--jobs", jobs, *ways[name]]
        meter, began = Meter(), time.perf_counter()
        command = harness.stentor_command("prepare", "tokens", folder / "data.jsonl", "--device", "cpu", *words)
        subprocess.run(command, check=True, capture_output=True)
        row[f"{name}_wall"] = round(time.perf_counter() - began, 2)
        row[f"{name}_cpu"] = round(meter.stop(), 2)
    local, ray = ({p.name: p.read_bytes() for p in (folder / f"{name}{number}").glob("shard-*")} for name in ways)
    if local != ray or not local:
        raise RuntimeError("the shards differ")
    return row


SLOWLY = """\
import time
from typing import Literal
from stentor.engine.callback import Callback

class Slow(Callback):
    type: Literal["slow"] = "slow"

from stentor.models.codecs.mel_rvq.codec import MelRVQCodec
from stentor.commands.prepare.tokens import plan
plan.GROUP_ITEMS = 2
encode = MelRVQCodec._encode
MelRVQCodec._encode = lambda *a: (time.sleep(0.2), encode(*a))[1]
"""
"""A plug-in: small groups that take a while, so that there is something to kill."""
LATEST, LONGEST = 12.0, 240.0
"""Seconds after its first group at which the command is killed, and a node, at most: about what the work takes; and
seconds that a command may take."""


@benchmark
def ray_trials(trials: int = 10, seed: int = 0, s3: bool = False) -> None:
    """`stentor prepare tokens --ray` while a node and the driver are killed: the bytes are those of a local run.

    Each trial starts a Ray cluster of two nodes of one CPU, kills one node (SIGKILL) and the command (SIGKILL) at
    random times, starts the command again, and compares shards, labels, data.lst, errors.jsonl, summary.json and
    settings.json with those of a run without Ray. Ten of 106 records have broken audio. With `--s3` the output goes to
    an S3 stand-in (moto), and the command that resumes has lost its local work folder.
    """
    storage = stand_ins().StandIn() if s3 else None
    differing = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        arguments = _data_with_broken_files(folder)
        process = _start(arguments, str(folder / "local"))
        if process.wait() != 3:
            raise RuntimeError(process.stderr.read())
        expected = _contents(folder / "local", str(folder / "local"))
        rejects = expected["errors.jsonl"].count(b"\n")
        print(f"local: {len(expected)} files, {rejects} rejects", flush=True)
        for number in range(seed, seed + trials):
            (folder / str(number)).mkdir()
            files, happened = _trial(number, arguments, folder / str(number), storage)
            different = sorted(n for n in expected.keys() | files.keys() if expected.get(n) != files.get(n))
            differing += bool(different)
            print(
                f"seed {number}: {happened}; {'differs: ' if different else 'equal'}{', '.join(different)}", flush=True
            )
    print(f"{trials - differing} of {trials} trials equal")
    raise SystemExit(int(differing > 0))


def _data_with_broken_files(folder: Path) -> list[str]:
    """A manifest of noise with a codec that is fitted on it; the arguments of `stentor` that encode it."""
    from stentor.models.codecs.mel_rvq.config import MelRVQ

    rng = np.random.default_rng(0)
    clips = [rng.normal(0, 0.1, rng.integers(4000, 24000)).astype(np.float32) for _ in range(96)]
    records = []
    for i, clip in enumerate(clips):
        write(folder / f"r{i}.wav", clip, RATE)
        records.append({"id": f"r{i}", "audio_path": f"r{i}.wav", "text": f"number {i}"})
    for i in range(10):
        broken = folder / f"broken{i}.wav"
        if i % 3 == 0:
            write(broken, np.zeros(8000, np.float32), RATE)
        elif i % 3 == 1:
            broken.write_bytes(b"RIFF this is no audio")
        duration = {} if i % 3 == 0 else {"duration": 1.0}
        records.insert(i * 9, {"id": f"b{i}", "audio_path": broken.name, "text": "broken", **duration})
    harness.write_lines(folder / "data.jsonl", records)
    MelRVQ(codebooks=2, entries=16, mels=20, rounds=2).fit(clips[:8]).save(folder / "codec")
    (folder / "slowly.py").write_text(SLOWLY)
    names = {"--codec": folder / "codec", "--plugin": folder / "slowly.py", "--min-shards": 6, "--device": "cpu"}
    return ["prepare", "tokens", str(folder / "data.jsonl"), *(str(x) for pair in names.items() for x in pair)]


def _start(arguments: list[str], to: str, **environment: str) -> Any:
    pipes = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    command = harness.stentor_command(*arguments, "--to", to)
    return subprocess.Popen(command, env={**os.environ, **environment}, **pipes)


def _contents(folder: Path, name: str) -> dict[str, bytes]:
    """All files by their path, `name` of the folder taken out of them."""
    files = [file for file in folder.rglob("*") if file.is_file()]
    return {str(file.relative_to(folder)): file.read_bytes().replace(name.encode(), b"TO") for file in files}


def _groups_done(folder: Path) -> int:
    """Lines of the command's journal; at an address it has a copy on this machine."""
    journals = list(folder.rglob("tokens.part"))
    return max(0, journals[0].read_bytes().count(b"\n") - 1) if journals and journals[0].is_file() else 0


def _trial(seed: int, arguments: list[str], folder: Path, storage: Any) -> tuple[dict[str, bytes], str]:
    """The files that are there in the end, and what happened."""
    from ray.cluster_utils import Cluster

    rng = random.Random(seed)
    node_at, driver_at = rng.uniform(0, LATEST), rng.uniform(0, LATEST)
    to = str(folder / "out") if storage is None else f"s3://bucket/trial-{seed}"
    environment = {"STENTOR_CACHE": str(folder / "cache"), **(storage.environment() if storage else {})}
    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    other = cluster.add_node(**node)
    happened = []
    try:
        arguments = [*arguments, "--ray", cluster.address]
        process = _start(arguments, to, **environment)
        while not _groups_done(folder):
            time.sleep(0.05)
        began = time.monotonic()
        kill_node = threading.Timer(node_at, lambda: cluster.remove_node(other, allow_graceful=False))
        kill_node.start()
        try:
            process.wait(driver_at)
            happened.append(f"done before {driver_at:.1f} s")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            happened.append(f"driver killed at {driver_at:.1f} s, after {_groups_done(folder)} groups")
            if storage is not None:
                shutil.rmtree(folder / "cache", ignore_errors=True)
            process = _start(arguments, to, **environment)
        code = process.wait(LONGEST)
        kill_node.cancel()
        ended = time.monotonic() - began
        happened.append(f"node killed at {node_at:.1f} s" if node_at < ended else "node lived")
        happened.append(f"exit {code} after {ended:.1f} s")
        if code not in (3, 0):  # over 1 % of the records cannot be used; or it was killed when all was written
            raise RuntimeError(process.stderr.read())
    finally:
        cluster.shutdown()
    if storage is None:
        return _contents(folder / "out", to), ", ".join(happened)
    place = stand_ins().Folder(storage, f"trial-{seed}")
    files = {name: place.get(name).replace(to.encode(), b"TO") for name in place.names()}
    return files, ", ".join(happened)


# Filters against a known truth

RNG = np.random.default_rng(0)
SOME = 12
"""Segments that the costly stages are timed on."""
Verdicts = list[tuple[bool, bool]]
"""Whether each item was dropped, and whether it should have been."""


@benchmark
def corpus_filters(
    data: Path = DATA,
    hours: float = 0.25,
    clips: Annotated[int, "Of LibriSpeech's dev part, and twice as many others."] = 176,
) -> Result:
    """Filters of `stentor prepare segments` against a known truth, on real recordings, and what each stage costs.

    Precision and recall of what each filter drops at its default threshold, and CPU seconds an hour of audio of each
    stage on recordings made of LibriSpeech's dev part. Set OMP_NUM_THREADS=1. The folder is that of MANIFEST.md:
    LibriSpeech, LJ Speech, AMI, spoken digits (8 kHz), clips in other languages, noises, a rebuilt Whisper tiny.en and
    Silero VAD.
    """
    silero = next((data / "weights" / "silero_vad").glob("*.onnx"))
    model = data / "weights" / "whisper-tiny.en-rebuilt"
    dev, train = (harness.read_lines(data / "librispeech" / f"{part}.jsonl") for part in ("dev", "train"))
    heard = [read(r["file"], RATE) for r in dev]
    lossless = [read(r["file"], RATE) for r in harness.read_lines(data / "librispeech" / "lossless.jsonl")]
    wide = [(a, RATE) for a in heard[:60]] + [
        (read(p, 22050), 22050) for p in sorted((data / "ljspeech").glob("*.flac"))
    ]
    table = Table()
    others = [read(r["file"], RATE) for r in train[: 2 * clips]]
    for rows in (
        _noisy_clips(data, lossless + heard[:12]),
        _narrow_and_clipped(data, wide),
        _duplicates(heard[:clips], others),
        _activity(data, silero),
        _languages(data),
        _made_up(data, model, dev[: clips // 4]),
    ):
        for row in rows:
            table.add(row)
    with tempfile.TemporaryDirectory() as folder:
        costs = _stage_costs(heard, hours, Path(folder), model, silero)
    return table, {"costs": costs}


def _score(filter_name: str, on: str, pairs: Verdicts) -> Row:
    """Precision and recall."""
    hits = sum(d and t for d, t in pairs)
    dropped, true = sum(d for d, _ in pairs), sum(t for _, t in pairs)
    row = {"filter": filter_name, "on": on, "items": len(pairs), "to_drop": true, "dropped": dropped}
    return row | {"precision": round(hits / max(dropped, 1), 3), "recall": round(hits / max(true, 1), 3)}


def _mixed(audio: np.ndarray, noise: np.ndarray, decibels: float) -> np.ndarray:
    noise = np.resize(noise, len(audio))
    power = np.square(audio).mean() / 10 ** (decibels / 10)
    return (0.3 * (audio + noise * np.sqrt(power / np.square(noise).mean()))).astype(np.float32)


def _encoded(audio: np.ndarray, kind: str, level: float) -> np.ndarray:
    import soundfile

    file = io.BytesIO()
    options = {"subtype": "OPUS"} if kind == "OGG" else {}
    soundfile.write(file, audio, RATE, format=kind, compression_level=level, **options)
    file.seek(0)
    return soundfile.read(file, dtype="float32")[0]


def _telephone(audio: np.ndarray, rate: int = RATE) -> np.ndarray:
    import soxr

    return soxr.resample(soxr.resample(audio, rate, 8000), 8000, rate)


def _noises(data: Path) -> dict[str, np.ndarray]:
    """Steady ones first: `noise2` and `noise4` come and go."""
    real = {name: read(data / "noise_rir" / f"{name}.wav", RATE) for name in ("noise1", "noise5", "noise2", "noise4")}
    return {"white": RNG.standard_normal(10 * RATE), **real}


def _noisy_clips(data: Path, clips: list[np.ndarray]) -> Iterator[Row]:
    from stentor.audio.quality import snr
    from stentor.inference.segments.quality import QualityStage

    least, levels = QualityStage().min_snr or 0.0, [0.0, 3.0, 6.0, 14.0, 17.0, 20.0]
    for name, noise in _noises(data).items():
        values = [(db, snr(_mixed(c, noise, db), RATE)) for db in levels for c in clips]
        error = {f"{db:g} dB": round(float(np.mean([v - db for d, v in values if d == db])), 1) for db in levels}
        pairs = [(v < least, db < least) for db, v in values]
        yield _score("quality: snr < 10", f"LibriSpeech in {name}, 0 to 20 dB", pairs) | {"mean_error": error}


def _narrow_and_clipped(data: Path, wide: list[tuple[np.ndarray, int]]) -> Iterator[Row]:
    import soxr

    from stentor.audio.quality import bandwidth
    from stentor.data.signal_stats import measure_audio
    from stentor.inference.segments.quality import QualityStage

    digits = [read(r["file"], 8000) for r in harness.read_lines(data / "digits" / "test.jsonl")[:100]]
    least, most = QualityStage().min_bandwidth or 0.0, QualityStage().max_clipped or 1.0
    phone = [(soxr.resample(np.rint(a * 32768) / 32768, 8000, r), r) for a in digits for r in (16000, 48000)]
    phone += [(_telephone(a, r), r) for a, r in wide]
    pairs = [(bandwidth(a, r) < least, True) for a, r in phone] + [(bandwidth(a, r) < least, False) for a, r in wide]
    yield _score("quality: bandwidth", "digits and sampled-down clips against whole clips", pairs)
    pairs = []
    for audio, rate in wide:
        peak = np.quantile(np.abs(audio), 0.995)  # one sample in 200 beyond full scale
        pairs.append((measure_audio(np.clip(audio / peak, -1, 1), rate).clipped > most, True))
        pairs.append((measure_audio(audio, rate).clipped > most, False))
    yield _score("quality: clipped", "clips as they are, and 0.5 % of their samples cut off", pairs)


CHANGES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gain -20 dB": lambda a: 0.1 * a,
    "offset 0.31 s": lambda a: a[5001:],
    "MP3, -8 dB, offset": lambda a: _encoded(0.4 * a[5001:], "MP3", 0.9),
    "Opus": lambda a: _encoded(a, "OGG", 0.9),
    "telephone": _telephone,
    "second half": lambda a: a[len(a) // 2 :],
    "white noise 20 dB": lambda a: _mixed(a, RNG.standard_normal(len(a)), 20),
    "white noise 10 dB": lambda a: _mixed(a, RNG.standard_normal(len(a)), 10),
}


def _duplicates(clips: list[np.ndarray], others: list[np.ndarray]) -> Iterator[Row]:
    from stentor.audio.fingerprint import fingerprint, shared

    originals = [fingerprint(a, RATE) for a in clips + others]
    n = len(originals)
    for name, change in CHANGES.items():
        copies = [fingerprint(change(a).astype(np.float32), RATE) for a in clips]
        pairs = {(b, a) for b, a, _ in shared(originals + copies, 0.1)}
        copied = [(any((n + i, a) in pairs for a in range(n)), True) for i in range(len(clips))]
        unrelated = [(any((b, a) in pairs for a in range(b)), False) for b in range(n)]
        yield _score("duplicates: same sound", f"LibriSpeech dev again: {name}", copied + unrelated)


def _activity(data: Path, silero: Path) -> Iterator[Row]:
    """Share of the speech that no segment holds, and share of the segments' time in which no one speaks."""
    from stentor.audio.activity import EnergyDetector
    from stentor.data.rttm import read_rttm
    from stentor.inference.vad import cut, open_detector

    recordings = sorted((data / "ami").glob("*.flac"))
    turns = {name: each for part in ("dev", "train") for name, each in read_rttm(data / "ami" / f"{part}.rttm").items()}
    for name, detector in {"energy": EnergyDetector(), "silero": open_detector(str(silero))}.items():
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
        row: Row = {"filter": f"vad: {name}", "on": "AMI, 12 x 30 s, headset mix", "lost": round(lost / speech, 3)}
        yield row | {"without_speech": round(wrong / inside, 3)}


def _languages(data: Path) -> Iterator[Row]:
    """The text in a language that is not wanted: all against English."""
    from stentor.text.detect import detect

    lines = map(json.loads, (data / "languages" / "clips.jsonl").read_text("utf-8").splitlines())
    clips = [c for c in lines if c.get("text") and c.get("language")]
    pairs = [(detect(c["text"]) != "en", c["language"] != "en") for c in clips]
    pairs += [(detect(c["text"]) != "en", False) for c in harness.read_lines(data / "librispeech" / "dev.jsonl")]
    yield _score("language: text", "clips in es, sv, ja, zh, en and LibriSpeech, en wanted", pairs)


def _made_up(data: Path, model: Path, clips: Rows) -> Iterator[Row]:
    """Answers of a real recogniser to speech and to noise; and texts that were broken."""
    from stentor.inference.recording import ArrayRecording
    from stentor.inference.segments.base import Segment
    from stentor.inference.segments.hallucinations import HallucinationsStage
    from stentor.inference.segments.transcribe import TranscribeStage
    from stentor.metrics.wer import rate, text_errors

    stage, recogniser = HallucinationsStage(), TranscribeStage(model=str(model))
    recogniser.setup("cpu")

    def check(audio: np.ndarray, text: str | None = None) -> tuple[bool, str]:
        recording, segment = ArrayRecording(audio, RATE, RATE, "clip"), Segment(0.0, len(audio) / RATE, {})
        heard: Any = segment.measured(text=text, confidence=0.9)
        if text is None:
            (heard,) = recogniser.process(recording, [segment])
        if not isinstance(heard, Segment):  # it hears nothing
            return True, ""
        (result,) = stage.process(recording, [heard])
        return not isinstance(result, Segment), heard.measures["text"]

    audio, texts = [read(c["file"], RATE) for c in clips], [c["text"] for c in clips]
    answers = [check(a) for a in audio]
    quiet = [np.resize(n, 6 * RATE).astype(np.float32) * g for n in _noises(data).values() for g in (0.02, 0.3)]
    pairs = [(check(a)[0], True) for a in quiet] + [(dropped, False) for dropped, _ in answers]
    yield _score("hallucinations", "answers of Whisper tiny.en (rebuilt) to noise, against to speech", pairs)
    looped = [" ".join(t.split()[:4] * 8) for t in texts]
    longer = [f"{t} {u} {v}" for t, u, v in zip(texts, texts[1:] + texts[:1], texts[2:] + texts[:2])]
    shorter = [" ".join(t.split()[:1]) for t in texts]
    for name, broken in (("a loop", looped), ("the texts of three", longer), ("the first word alone", shorter)):
        pairs = [(check(a, t)[0], True) for a, t in zip(audio, broken)]
        pairs += [(check(a, t)[0], False) for a, t in zip(audio, texts)]
        yield _score("hallucinations", f"LibriSpeech with {name} as text, against its own", pairs)
    wers = [rate(text_errors(t, answer, "en")) for t, (_, answer) in zip(texts, answers)]
    print(f"  (word error rate of that recogniser on these clips: mean {np.mean(wers):.1%})")


def _stage_costs(clips: list[np.ndarray], hours: float, folder: Path, model: Path, silero: Path) -> Rows:
    """CPU seconds an hour of recording of each stage; later stages see what the earlier ones kept."""
    import soundfile

    from stentor.inference.recording import DecodedRecording
    from stentor.inference.segments.base import Segment, Stage

    pause = np.zeros(RATE, np.float32)
    audio = np.concatenate([part for clip in clips for part in (clip, pause)])[: round(hours * 3600 * RATE)]
    hours = len(audio) / RATE / 3600
    path = folder / "podcast.mp3"
    soundfile.write(path, audio, RATE, format="MP3")
    table = Table()
    print(f"\nCPU seconds an hour of recording ({hours:.2f} h of LibriSpeech with pauses, MP3):")

    def timed(name: str, work: Callable[[], Any], share: float = 1.0, **more: Any) -> Any:
        start = time.process_time()
        result = work()
        table.add(
            {"stage": name, "cpu_seconds_an_hour": round((time.process_time() - start) / hours * share, 1), **more}
        )
        return result

    recording = timed("decode and resample", lambda: DecodedRecording.of_file(str(path), "podcast"))

    def run(name: str, section: Row, segments: list[Segment], share: float = 1.0) -> list[Segment]:
        stage = Stage.model_validate(section)
        stage.setup("cpu")
        answers = partial(stage.process, recording, segments)
        return timed(name, lambda: [s for s in answers() if isinstance(s, Segment)], share)

    whole = [Segment(0.0, int(recording.seconds), {})]
    run("vad, silero", {"type": "vad", "detector": str(silero)}, whole)
    segments = run("vad, energy", {"type": "vad", "seconds": [1, 30]}, whole)
    segments = run("quality", {"type": "quality"}, segments)
    prints = run("duplicates, fingerprints", {"type": "duplicates"}, segments)
    size = round(sum(len(s.measures["fingerprint"]) for s in prints) / hours)
    named = [s.measured(id=str(i)) for i, s in enumerate(prints)]
    compare = Stage.model_validate({"type": "duplicates"})
    timed("duplicates, comparing", lambda: compare.select(named), journal_bytes_an_hour=size)
    # A few segments are recognised; the figure is for all of them.
    share = len(prints) / SOME
    segments = run("transcribe, Whisper tiny.en", {"type": "transcribe", "model": str(model)}, segments[:SOME], share)
    run("hallucinations (some segments)", {"type": "hallucinations"}, segments)
    run("language, text (some segments)", {"type": "language"}, segments)
    return table


# Data that is made

SPELLED = {"Mr.": "Mister", "Mrs.": "Missus", "Dr.": "Doctor", "St.": "Saint"}
COMMON = {"the", "and", "of", "to", "in", "that", "was", "he", "a", "it", "his", "with"}
"""Words that make up a quarter of English; of a book where they are less than 15 % nothing is taken."""
MOST, SHARED = 3000, 8
"""Sentences of one book, and how many may share five words with the unwanted texts."""


@benchmark
def book_lines(
    books: tuple[Path, ...],
    /,
    not_: Annotated[tuple[Path, ...], "Manifests whose texts must not appear."] = (),
    to: Path = Path("data"),
) -> None:
    """Sentences of books for the built-in voices: lines of 4 to 16 words, in lower case, as LibriSpeech writes them.

        python benchmarks book_lines books/*.txt --not data/librispeech/dev.jsonl data/digits/test.jsonl

    writes data/books.txt (40,000 lines) and data/books_held.txt (400 others). The books are plain text, such as those
    of Project Gutenberg (https://www.gutenberg.org/cache/epub/1342/pg1342.txt). Sentences with digits, abbreviations in
    capitals or letters that are not English are left out, and those that share five words in a row with a text of
    `--not`; of a book that shares more than eight sentences with those nothing is taken.
    """
    texts = [json.loads(line)["text"] for path in not_ for line in path.read_text().splitlines()]
    unwanted = set().union(*map(_grams, texts))
    draw, chosen = random.Random(0), set()
    for path in sorted(books):
        lines = _sentences(path.read_text(encoding="utf-8", errors="replace"))
        clean = [line for line in lines if not _grams(line) & unwanted]
        words = " ".join(clean).split()
        is_english = sum(word in COMMON for word in words) >= 0.15 * len(words)
        if clean and is_english and len(lines) - len(clean) <= SHARED:
            chosen |= set(draw.sample(clean, min(len(clean), MOST)))
    lines = draw.sample(sorted(chosen), min(len(chosen), 40400))
    for name, part in (("books.txt", lines[400:]), ("books_held.txt", lines[:400])):
        (to / name).write_text("\n".join(part) + "\n")
        print(f"{to / name}: {len(part)} lines")


def _grams(text: str) -> set[str]:
    """Runs of five words."""
    words = text.split()
    return {" ".join(words[i : i + 5]) for i in range(len(words) - 4)}


def _sentences(book: str) -> list[str]:
    """The usable sentences of a book, without Project Gutenberg's own words."""
    start, end = re.search(r"\*\*\* ?START OF.*?\*\*\*", book, re.S), re.search(r"\*\*\* ?END OF", book)
    book = book[start.end() if start else 0 : end.start() if end else None]
    book = book.replace("’", "'").replace("‘", "'").replace("—", " -- ").replace("_", "")
    lines = []
    for paragraph in re.split(r"\n\s*\n", book):
        text = " ".join(paragraph.split())
        for short, spelled in SPELLED.items():
            text = re.sub(rf"\b{re.escape(short)}", spelled, text)
        if len(text) < 80:
            continue
        for part in re.split(r"(?<=[.!?;:])[\"'”’)]*\s+|--", text):
            if re.search(r"[^A-Za-zé“”\"'(),.;:!? -]|\b[A-Z]{2,}\b|\bi[vx]+\b|\b[A-Z]\.", part):
                continue
            words = re.sub(r"[^a-z' ]", " ", part.lower().replace("-", " ")).split()
            words = [word.strip("'") for word in words if word.strip("'")]
            if 4 <= len(words) <= 16:
                lines.append(" ".join(words))
    return list(dict.fromkeys(lines))


@benchmark
def noisy_pool(
    manifest: Path,
    /,
    *,
    without: Annotated[tuple[str, ...], "Speakers that are left out."] = (),
    noise: Annotated[tuple[Path, ...], "Audio files."],
    to: Annotated[Path, "Folder."],
) -> None:
    """A manifest of untranscribed clips, half of them with recorded noise: what a filter of labels has to sort.

        python benchmarks noisy_pool data/librispeech/train.jsonl --without 1272 2035 --noise noise*.wav --to data/noisy

    writes data/noisy/pool.jsonl, the clips of the other speakers without their texts, and audio for those that were
    drawn: one of the noises, from a random place in it and repeated as needed, 5 dB below to 5 dB above the speech.
    """
    noises = [read(path, rate=RATE) for path in noise]
    records = [record for record in harness.read_lines(manifest) if record["speaker"] not in without]
    rng = np.random.default_rng(0)
    drawn = set(rng.permutation(len(records))[: len(records) // 2].tolist())
    to.mkdir(parents=True, exist_ok=True)
    rows = []
    for i, record in enumerate(records):
        audio = record.pop("file").absolute()
        if i in drawn:
            background = noises[rng.integers(len(noises))]
            background = np.roll(background, -rng.integers(len(background)))
            clip = to.absolute() / f"{record['id']}.wav"
            write(clip, _noisy(read(audio, rate=RATE), background, rng.uniform(-5.0, 5.0)), RATE)
            audio = clip
        kept = {key: value for key, value in record.items() if key not in ("text", "words")}
        rows.append(kept | {"audio_path": str(audio)})
    harness.write_lines(to / "pool.jsonl", rows)


def _noisy(speech: np.ndarray, noise: np.ndarray, snr: float) -> np.ndarray:
    """The speech [samples] with the noise [samples], so many dB below it; no sample is clipped."""
    noise = np.resize(noise, len(speech))
    noise = noise * np.sqrt(np.mean(speech**2) / (np.mean(noise**2) + 1e-9)) * 10 ** (-snr / 20)
    mixed = speech + noise
    return (mixed / max(1.0, float(np.abs(mixed).max()) / 0.95)).astype(np.float32)
