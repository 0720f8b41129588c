"""Long recordings and streams: diarization of an hour, ends of speech, an hour in one stream, sessions at once."""

import asyncio
import base64
import json
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
from benchmarks.harness import RATE, Result, Row, Rows, Table, benchmark

from benchmarks import harness

# Imports of the package lie inside the functions: a process that measures its memory imports only what it needs.
Utterance = tuple[np.ndarray, Rows]
"""Audio float32 and its words."""


# Diarization


@benchmark(threads=2)
def diarize_long(model: str | None = None, /, minutes: tuple[float, ...] = (10, 60), speakers: int = 4) -> Result:
    """Diarization of a long file: how much faster than real time, and in how much memory.

    The files are conversations of the built-in voice. The model is a run folder or an export; without one, an untrained
    model of the size of a small CPU recipe is measured: 80 mel bins, 10 frames joined, 10 frames a second, 4 layers of
    width 160, with speaker embeddings. Each file is diarized in a process of its own, from Python, twice; the faster
    one counts. Peak memory is the process's (torch and the weights included). With a model, its error rate is given
    too.
    """
    table, threads = Table(), harness.set_threads()
    with tempfile.TemporaryDirectory() as place:
        export = model or _untrained(Path(place) / "model")
        for length in minutes:
            path = Path(place) / f"conversation-{length:g}.wav"
            reference = conversation(path, length * 60, speakers)
            runs = [harness.apart(diarized, export, path, threads=threads) for _ in range(2)]
            best = min(runs, key=lambda run: run["seconds"])
            segments = best.pop("segments")
            row = {"minutes": length, **best, "faster_than_real_time": best["audio"] / best["seconds"]}
            table.add(row | {"der": _der(reference, segments, best["audio"]) if model else None})
    return table, {"model": model or "untrained", "speakers": speakers}


def diarized(model: str, path: str) -> Row:
    from stentor.inference.load import load

    began = time.perf_counter()
    loaded = load(model, "cpu")
    loaded.diarize(np.zeros(25 * RATE, np.float32), rate=RATE)  # what is imported or set up at first use
    ready, idle = time.perf_counter(), harness.memory("VmHWM") / 2**20
    result = loaded.diarize(path)
    row = {"audio": result["duration"], "seconds": time.perf_counter() - ready, "load_seconds": ready - began}
    return row | {"peak_mb": harness.memory("VmHWM") / 2**20, "idle_mb": idle, "segments": result.segments}


def conversation(path: Path, seconds: float, speakers: int, seed: int = 0) -> Rows:
    """Write a conversation of the built-in voice and return who speaks when. The file is written as it is made.

    Turns of one to three sentences; the next one begins 0.6 s before to 1.2 s after the end of the last, so that about
    one change in three overlaps. Everyone is heard through a different level.
    """
    from stentor.audio.synth import accents, say, variants
    from stentor.sources.phrases import command

    words, rng = random.Random(seed), np.random.default_rng(seed)
    voices = [f"{accents()[i % 7]}+{name}" for i, name in enumerate(rng.choice(variants(), speakers, replace=False))]
    gains = rng.uniform(0.4, 0.8, speakers)
    reference: Rows = []
    rest = np.zeros(0)  # what was made beyond what is written
    written, at, last = 0, 0.5, -1
    with soundfile.SoundFile(path, "w", RATE, 1) as file:
        while at < seconds:
            speaker = last = int(rng.choice([k for k in range(speakers) if k != last]))
            for _ in range(int(rng.integers(1, 4))):
                audio = gains[speaker] * say(command(words), voices[speaker], int(rng.integers(150, 190))).audio
                begin = round(at * RATE) - written
                rest = np.pad(rest, (0, max(0, begin + len(audio) - len(rest))))
                rest[begin : begin + len(audio)] += audio
                end = at + len(audio) / RATE
                reference.append({"speaker": voices[speaker], "start": at, "end": min(end, seconds)})
                at = end + rng.uniform(0.1, 0.4)
            at = max(at + rng.uniform(-1.0, 0.8), written / RATE)
            # Nothing more begins earlier than two seconds before the next turn.
            ready = max(0, min(round((at - 2) * RATE), round(seconds * RATE)) - written)
            file.write(np.clip(rest[:ready], -1, 1))
            rest, written = rest[ready:], written + min(ready, len(rest))
        left = round(seconds * RATE) - written
        file.write(np.clip(np.pad(rest, (0, max(0, left - len(rest))))[:left], -1, 1))
    return [s for s in reference if s["start"] < seconds]


def _der(reference: Rows, segments: Rows, duration: float) -> float:
    from stentor.metrics.diarization import DiarizedRecording, der

    return float(der([DiarizedRecording("long", reference, segments, None, duration)]).value)


def _untrained(folder: Path) -> Path:
    """An export of a model with random weights, of the size of the CPU recipe's."""
    from stentor.losses.contrastive import Contrastive
    from stentor.models.transformer import Transformer
    from stentor.tasks.diarize import Diarize

    task = Diarize.model_validate({"type": "diarize", "chunk": 20.0, "labels": {"type": "speaker", "speakers": 4}})
    features = {"type": "fbank", "num_mel_bins": 80, "stack": 10, "subsample": 10}
    encoder = {"d_model": 160, "layers": 4, "heads": 4}
    section = {"type": "transformer", "kind": "encoder", "embedding": 64, "features": features, "encoder": encoder}
    family = Transformer.model_validate(section)
    bundle = family.build(task.requirements({**task.losses(), "voice": Contrastive()}))
    folder.mkdir(parents=True)
    family.save(bundle, {k: v.cpu() for k, v in bundle.model.state_dict().items()}, folder)
    config = {"task": task.model_dump(mode="json", by_alias=True), "train": {}}
    (folder / "training_config.json").write_text(json.dumps(config))
    return folder


# Ends of speech

GAP, BLOCK = 2.0, 320


@benchmark
def stream_ends(data: Path = Path("data"), silero: str = "silero", silence: float = 0.8) -> Result:
    """The end of speech while it comes: by energy and by Silero VAD, in noise.

    Every seventh utterance of LibriSpeech dev with 2 s between them, in one recording, and noise over all of it: white,
    pink, and each recording of `noise_rir/noise*.wav` from its beginning again and again. An end is found when it is
    reported between the last word of an utterance and 0.3 s after the next one begins; all others are `besides`.
    """
    from stentor.inference.vad import open_detector

    speech, ends = _utterances(data / "librispeech")
    shapes: dict[str, Callable] = {"white": np.ones_like, "pink": lambda f: 1 / np.sqrt(np.maximum(f, 1))}
    audio = {name: _shaped(shape, len(speech)) for name, shape in shapes.items()}
    for path in sorted((data / "noise_rir").glob("noise*.wav")):
        audio[path.stem] = np.resize(_read(path), len(speech))
    table = Table()
    for noise, snr in ((noise, snr) for noise in audio for snr in (20, 10, 5, 0)):
        level = np.sqrt(np.mean(speech[speech != 0] ** 2) / np.mean(audio[noise] ** 2) / 10 ** (snr / 10))
        noisy = (speech + level * audio[noise]).astype(np.float32)
        for name, vad in (("energy", "energy"), ("silero", silero)):
            found = _found_ends(noisy, open_detector(vad), silence)
            table.add({"noise": noise, "snr_db": snr, "vad": name, **_scored_ends(found, ends)})
    return table, {"silence": silence}


def _utterances(folder: Path) -> tuple[np.ndarray, list[float]]:
    """One recording, and the second at which each utterance's last word ends."""
    parts, ends = [np.zeros(3 * RATE)], []
    for record in harness.read_lines(folder / "dev.jsonl")[::7][:24]:
        ends.append(sum(map(len, parts)) / RATE + record["words"][-1]["end"])
        parts += [_read(record["file"]), np.zeros(round(GAP * RATE))]
    return np.concatenate(parts).astype(np.float32), ends


def _read(path: Path) -> np.ndarray:
    import soxr

    audio, rate = soundfile.read(path, always_2d=True)
    return soxr.resample(audio.mean(1), rate, RATE)


def _shaped(shape: Callable, samples: int) -> np.ndarray:
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(samples))
    return np.fft.irfft(spectrum * shape(np.arange(len(spectrum), dtype=float)), samples)


def _found_ends(audio: np.ndarray, detector: Any, silence: float) -> list[float]:
    from stentor.inference.stream.endpoint import Endpointer

    endpointer = Endpointer(detector.live(RATE), silence)
    blocks = audio[: len(audio) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return [i * BLOCK / RATE for i, block in enumerate(blocks) if endpointer.add(block)]


def _scored_ends(found: list[float], ends: list[float]) -> Row:
    late = [next((f - end for f in found if end < f <= end + GAP + 0.3), None) for end in ends]
    hits = [seconds for seconds in late if seconds is not None]
    median = round(statistics.median(hits), 2) if hits else None
    return {"ends": len(ends), "found": len(hits), "besides": len(found) - len(hits), "median_seconds": median}


# An hour in one stream


@benchmark(threads=1)
def stream_hour(model: str, /, minutes: float = 60, delay: float | None = None, part: float = 10) -> Result:
    """One hour in one stream: whether memory and the times of words stay where they are.

    Utterances of the built-in voices (commands and digits of its test part, other voices than a training with `part:
    train` hears) with pauses of 0.3 to 2 s between them are fed in blocks of 20 ms, as fast as the model takes them;
    the true times of their words are exact. For each part of `--part` minutes: word errors, the median distance of the
    first second of a word from the true one (a drift would show there), the median time from the end of a word until it
    is final, and at the end of the part the memory of the process. Nothing of the audio is held here.
    """
    from stentor.inference.load import load

    stream, table = load(model, "cpu").stream(RATE, delay=delay), Table()
    truth: Rows = []
    words: Rows = []
    fed, began = 0, time.perf_counter()
    for audio, spoken in speech(minutes * 60):
        truth += [{**word, "start": word["start"] + fed / RATE, "end": word["end"] + fed / RATE} for word in spoken]
        for block in np.split(audio, range(BLOCK, len(audio), BLOCK)):
            words += [event for event in stream.feed(block) if event["type"] == "word"]
        fed += len(audio)
        if fed / RATE >= part * 60 * (len(table) + 1):
            table.add(_stream_part(truth, words, fed / RATE, time.perf_counter() - began))
            truth, words = [], []
    words += [event for event in stream.finish() if event["type"] == "word"]
    if truth:
        table.add(_stream_part(truth, words, fed / RATE, time.perf_counter() - began))
    return table, {"delay": delay}


def _stream_part(truth: Rows, words: Rows, seconds: float, took: float) -> Row:
    """The figures of a part that ends with an utterance whose words may come a little later: those count as missing."""
    from stentor.metrics.wer import count_errors, matches, rate

    reference, hypothesis = ([word["word"].lower() for word in side] for side in (truth, words))
    pairs = matches(reference, hypothesis)
    return {
        "minutes": round(seconds / 60, 1),
        "wer": round(rate(count_errors([(reference, hypothesis)])), 4),
        "start_median": round(statistics.median(words[k]["start"] - truth[i]["start"] for i, k in pairs), 4),
        "final_median": round(statistics.median(words[k]["time"] - truth[i]["end"] for i, k in pairs), 4),
        "memory_mb": round(harness.memory() / 2**20, 1),
        "rtf": round(took / seconds, 4),
    }


def speech(seconds: float) -> Iterator[Utterance]:
    """Utterances with a pause behind each, until there are so many seconds."""
    from stentor.data.cut import words_of
    from stentor.data.load_audio import load_audio
    from stentor.dataloading.section import Data

    rng, voices = random.Random(0), {"count": 70, "part": "test"}
    kinds = [
        {"type": "synth", "texts": {"kind": kind, "part": "test"}, "count": 200, "voices": voices}
        for kind in ("commands", "digits")
    ]
    cuts = [cut for source in Data.model_validate({"train": kinds}).train for cut in source.cuts()]
    length = 0.0
    while length < seconds:
        rng.shuffle(cuts)
        for cut in cuts:
            pause = np.zeros(round(rng.uniform(0.3, 2.0) * RATE), np.float32)
            audio = np.concatenate([load_audio(cut, RATE), pause])
            yield audio, words_of(cut)
            length += len(audio) / RATE
            if length >= seconds:
                return


# Sessions at once


@benchmark
def stream_sessions(
    model: str,
    /,
    sessions: tuple[int, ...] = (1, 16),
    seconds: float = 60,
    delay: float | None = None,
    block: float = 0.1,
    options: str = "",
) -> Result:
    """Sessions at once at `/v1/realtime` of `stentor serve`: how late words come, and the real-time factor.

    The model is a run or an export; `--options` are further options of stentor serve, in quotes. Each session sends a
    recording of its own of the built-in voices (their test part, with pauses, as in the benchmark `stream_hour`), PCM
    at 16 kHz in blocks of `--block` seconds, and commits it at its end; its clients share a process beside the
    server's. Twice for each number of sessions:

    * paced: a block is sent when its last sample would have been spoken; the sessions begin spread over a second.
      Latency is the wall time from the end of a word in the recording to its delta at the client, of words that are
      right; their word error rate; the share of the machine's time that the server used.
    * unpaced: blocks are sent as fast as they are taken. Real-time factor: wall time by the audio of all sessions.
    """
    from benchmarks.serve import stentor_serve

    harness.set_threads(1)
    recordings, table = _recorded(max(sessions), seconds), Table()
    with stentor_serve(model, *options.split()) as server:
        client = Client(server, block, delay)
        asyncio.run(client.sessions(recordings[:1], paced=False))
        for count in sessions:
            for paced in (True, False):
                table.add(asyncio.run(client.sessions(recordings[:count], paced)))
    return table, {"delay": delay, "block": block, "options": options}


class Recording:
    """What a session sends, and the words in it."""

    def __init__(self, utterances: list[Utterance]):
        self.words: Rows = []
        samples = 0
        for audio, words in utterances:
            self.words += [{**word, "end": word["end"] + samples / RATE} for word in words]
            samples += len(audio)
        self.audio = (np.concatenate([audio for audio, _ in utterances]).clip(-1, 1) * 32767).astype("<i2")
        self.seconds = samples / RATE


def _recorded(count: int, seconds: float) -> list[Recording]:
    """Recordings of about so many seconds."""
    utterances = speech(count * seconds * 1.5)
    recordings = []
    for _ in range(count):
        parts, length = [], 0.0
        while length < seconds:
            parts += islice(utterances, 1)
            length += len(parts[-1][0]) / RATE
        recordings.append(Recording(parts))
    return recordings


class Client:
    """Sends recordings to a server's `/v1/realtime` and notes when words come."""

    def __init__(self, server: Any, block: float, delay: float | None):
        self.server, self.size = server, round(block * RATE)
        transcription = {"model": server.model, **({} if delay is None else {"delay": delay})}
        audio = {"format": {"type": "audio/pcm", "rate": RATE}, "transcription": transcription, "turn_detection": None}
        self.settings = {"type": "session.update", "session": {"type": "transcription", "audio": {"input": audio}}}

    async def sessions(self, recordings: list[Recording], paced: bool) -> Row:
        """The figures of sessions at once."""
        import psutil

        from stentor.metrics.wer import count_errors, matches, rate

        began, cpu, count = time.perf_counter(), self.server.cpu_seconds(), len(recordings)
        answers = [self.session(each, paced, i / count * paced) for i, each in enumerate(recordings)]
        heard_all = await asyncio.gather(*answers)
        took, used = time.perf_counter() - began, self.server.cpu_seconds() - cpu
        sides, latencies = [], []
        for recording, heard in zip(recordings, heard_all):
            sides.append(([w["word"].lower() for w in recording.words], [word for word, _ in heard]))
            latencies += [heard[k][1] - recording.words[i]["end"] for i, k in matches(*sides[-1])]
        row: Row = {"sessions": count, "paced": paced, "wer": round(rate(count_errors(sides)), 4)}
        if paced:
            row |= {"words": len(latencies), "p50": round(statistics.median(latencies), 3)}
            row |= {f"p{p}": round(float(np.percentile(latencies, p)), 3) for p in (90, 99)}
        else:
            row["rtf"] = round(took / sum(recording.seconds for recording in recordings), 4)
        return row | {"cpu": round(used / took / (psutil.cpu_count() or 1), 3), "seconds": round(took, 1)}

    async def session(self, recording: Recording, paced: bool, wait: float) -> list[tuple[str, float]]:
        """Words with the seconds after the recording's start at which they came."""
        from websockets.asyncio.client import connect

        words: list[tuple[str, float]] = []
        await asyncio.sleep(wait)
        address = f"{self.server.url.replace('http', 'ws')}/v1/realtime?intent=transcription"
        async with connect(address, compression=None, ping_interval=None) as socket:
            await socket.send(json.dumps(self.settings))
            while json.loads(await socket.recv())["type"] != "session.updated":
                pass
            began = time.perf_counter()
            sender = asyncio.create_task(self.send(socket, recording, began if paced else None))
            async for message in socket:
                event = json.loads(message)
                if event["type"].endswith((".failed", "error")):
                    raise SystemExit(str(event))
                if event["type"].endswith(".delta"):
                    words.append((event["delta"].strip().lower(), time.perf_counter() - began))
                if event["type"].endswith(".completed"):
                    break
            await sender
        return words

    async def send(self, socket: Any, recording: Recording, began: float | None) -> None:
        for first in range(0, len(recording.audio), self.size):
            part = recording.audio[first : first + self.size]
            if began is not None:
                await asyncio.sleep(max(0.0, began + (first + len(part)) / RATE - time.perf_counter()))
            audio = base64.b64encode(part.tobytes()).decode()
            await socket.send(json.dumps({"type": "input_audio_buffer.append", "audio": audio}))
        await socket.send(json.dumps({"type": "input_audio_buffer.commit"}))
