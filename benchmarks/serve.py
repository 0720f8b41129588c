"""`stentor serve`: throughput, latency and sessions, beside offline transcription and `transformers serve`."""

import asyncio
import base64
import contextlib
import json
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import httpx
import numpy as np
import psutil
from websockets.asyncio.client import connect

import stentor
from benchmarks import harness
from benchmarks.harness import DATA, RATE, Result, Row, Rows, Table, benchmark
from benchmarks.words import Utterance, data_whisper, speech
from stentor.metrics.wer import count_errors, matches, rate
from stentor.models.base import Family, TaskRequirements

Options = Annotated[str, "Further options of stentor serve, in quotes."]
SILENT = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}


# Servers as processes of their own, and the clients that ask them


@dataclass
class Answers:
    """Results of the clients for a list of clips."""

    seconds: float = 0.0
    """Seconds from the first request to the last answer."""
    cpu_seconds: float = 0.0
    """CPU seconds of the server and its helper processes."""
    texts: list[str] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)


class Server:
    """A server that answers at `url`."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, model: str):
        self.process, self.model = process, model
        self.url = f"http://127.0.0.1:{port}"

    def cpu_seconds(self) -> float:
        return harness.cpu_seconds(self.process.pid)

    def client(self, timeout: float | None = None) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout)

    def ask(self, client: httpx.Client, path: Path) -> str:
        """The text of a file."""
        files = {"file": (path.name, path.read_bytes())}
        answer = client.post("/v1/audio/transcriptions", data={"model": self.model}, files=files)
        if answer.status_code != 200:
            raise RuntimeError(f"{answer.status_code}: {answer.text[:300]}")
        return str(answer.json()["text"]).strip()

    def ask_all(self, clips: Rows, clients: int) -> Answers:
        """All clips, by so many clients, each of which sends the next clip when it has an answer."""
        answers = Answers(texts=[""] * len(clips), latencies=[0.0] * len(clips))
        errors: list[Exception] = []
        numbers = iter(range(len(clips)))

        def work() -> None:
            with self.client() as client:
                for i in numbers:
                    began = time.perf_counter()
                    try:
                        answers.texts[i] = self.ask(client, clips[i]["file"])
                    except Exception as error:
                        errors.append(error)
                        return
                    answers.latencies[i] = time.perf_counter() - began

        began, cpu = time.perf_counter(), self.cpu_seconds()
        in_threads([work] * clients)
        answers.seconds, answers.cpu_seconds = time.perf_counter() - began, self.cpu_seconds() - cpu
        if errors:
            raise errors[0]
        return answers


def in_threads(calls: list[Callable[[], None]], apart: float = 0.0) -> None:
    """All calls at once, or each so many seconds after the one before."""
    threads = [threading.Thread(target=call) for call in calls]
    for thread in threads:
        thread.start()
        time.sleep(apart)
    for thread in threads:
        thread.join()


@contextlib.contextmanager
def serving(command: list[str], model: str) -> Iterator[Server]:
    """The server of a command, once it answers; `{port}` in the command is a free port."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([part.replace("{port}", str(port)) for part in command], **SILENT)
    server = Server(process, port, model)
    try:
        _wait_until_ready(server)
        yield server
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def stentor_serve(model: str, *options: str) -> contextlib.AbstractContextManager[Server]:
    command = harness.stentor_command("serve", "--name", f"model={model}", *options, "--port", "{port}")
    return serving(command, "model")


def transformers_serve(model: str) -> contextlib.AbstractContextManager[Server]:
    """`transformers serve` of one model, in float32 as ours."""
    program = str(Path(sys.executable).parent / "transformers")
    command = [program, "serve", model, "--device", "cpu", "--dtype", "float32", "--host", "127.0.0.1"]
    return serving([*command, "--port", "{port}"], model)


def _wait_until_ready(server: Server) -> None:
    deadline = time.monotonic() + 900
    with server.client() as client:
        while time.monotonic() < deadline and server.process.poll() is None:
            with contextlib.suppress(httpx.TransportError):
                if client.get("/health").status_code == 200:
                    return
            time.sleep(0.1)
    raise RuntimeError(f"{server.process.args} does not answer.")


# Throughput


@benchmark
def serve(
    models: tuple[str, ...] = (),
    /,
    data: Path = DATA,
    minutes: float = 20,
    clients: int = 32,
    rounds: int = 2,
    options: Options = "",
) -> Result:
    """Throughput of `stentor serve`: many clients at once, beside offline transcription and one client after another.

    A model is a run, an export or a folder of transformers; without one it is the Whisper of the development data
    (tiny's size, and it stops). The clips are utterances of LibriSpeech of 1 to 20 s, their lengths spread evenly. In
    each round three ways have all of them, one after another:

    * `offline`: `stentor.load(MODEL).transcribe_many(files)`, which is what `stentor transcribe` runs, in this process;
    * `concurrent`: so many clients, each of which sends its next clip when it has its answer, over loopback to a
      process of `stentor serve`;
    * `one at a time`: one such client.

    Models are loaded, and have answered once, before a clock starts. Seconds of the processor are those of the server
    with its helper processes, or of this process; the clients' are not among them. Texts of all ways must be equal, or
    it fails.
    """
    clips, table = harness.spread(harness.utterances(data), minutes), Table()
    with tempfile.TemporaryDirectory() as scratch:
        for name in models or [data_whisper(data, Path(scratch))]:
            model = stentor.load(name, "cpu")
            with stentor_serve(name, *options.split()) as server:
                ways = {
                    "offline": partial(_offline, model, clips),
                    "concurrent": partial(server.ask_all, clips, clients),
                    "one at a time": partial(server.ask_all, clips, 1),
                }
                _offline(model, clips[:2])
                server.ask_all(clips[:4], 4)
                runs = _taken_in_turns(ways, rounds)
                rows = [_described(Path(model.name).name, way, answers, clips) for way, answers in runs.items()]
                for way in ("offline", "one at a time"):
                    rows[1] |= _times(f"times_{way.replace(' ', '_')}", runs[way], runs["concurrent"])
                for row in rows:
                    table.add(row)
    facts: Row = {"clips": len(clips), "minutes": round(sum(clip["duration"] for clip in clips) / 60, 1)}
    facts |= {"clients": clients, "rounds": rounds, "threads": harness.set_threads(), "options": options}
    return table, facts


@benchmark
def serve_peer(
    model: str | None = None, /, data: Path = DATA, minutes: float = 3, clients: int = 32, rounds: int = 2
) -> Result:
    """`stentor serve` beside `transformers serve`, with the same weights of Whisper in one run.

    The model is a folder of transformers; without one it is the Whisper of the development data (tiny's size). Both
    serve it in float32 over loopback, each in a process of its own, and have answered once before a clock starts; the
    other one then waits. In each round both have the same clips (as in the benchmark `serve`), by so many clients and
    by one. The texts of both must be equal, or it fails. `transformers serve` needs the package openai besides those of
    stentor[serve].
    """
    clips, table = harness.spread(harness.utterances(data), minutes), Table()
    with tempfile.TemporaryDirectory() as scratch:
        model = model or data_whisper(data, Path(scratch))
        with stentor_serve(model) as server, transformers_serve(model) as peer:
            for count in (clients, 1):
                ways = {
                    "stentor serve": partial(server.ask_all, clips, count),
                    "transformers serve": partial(peer.ask_all, clips, count),
                }
                for one in (server, peer):
                    one.ask_all(clips[:2], 1)
                runs = _taken_in_turns(ways, rounds)
                for way, answers in runs.items():
                    row = {**_described(Path(model).name, way, answers, clips), "clients": count}
                    if way == "stentor serve":
                        row |= _times("times_transformers_serve", runs["transformers serve"], answers)
                    table.add(row)
    return table, {"clips": len(clips), "rounds": rounds, "threads": harness.set_threads()}


@benchmark
def serve_exports(
    models: tuple[str, ...] = (),
    /,
    data: Path = DATA,
    clips: int = 12,
    clients: int = 6,
    rounds: int = 3,
    quantization: str | None = "int8",
) -> Result:
    """`stentor serve` of exports beside the torch models that they were made from, on this CPU in one run.

    A model is a run or an export: Whisper is exported to CTranslate2, others to ONNX, in float32 and in
    `--quantization`. Without one they are the Whisper of the development data (tiny's size) and a Parakeet RNN-T of
    about 0.1 B parameters with random weights, whose blank is as likely as makes it write about four tokens a second.
    `characters` is what each way wrote. Each server is a process of its own with the threads that it takes by itself
    (`OMP_NUM_THREADS` sets them for all) and has answered before a clock starts; the others then wait. In each round
    all have the same utterances of LibriSpeech of 2 to 15 s, by so many clients. Where other programs run, the ratio by
    CPU seconds says more than that by the clock.
    """
    pool, table = harness.spread(harness.utterances(data), 60.0, 2.0, 15.0)[:clips], Table()
    with tempfile.TemporaryDirectory() as scratch:
        for name in models or (data_whisper(data, Path(scratch)), _random_transducer(17, pool, Path(scratch))):
            with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
                folders = _exported(name, Path(folder), quantization)
                servers = {way: stack.enter_context(stentor_serve(path)) for way, path in folders.items()}
                for server in servers.values():
                    server.ask_all(pool[:clients], clients)
                ways = {way: partial(server.ask_all, pool, clients) for way, server in servers.items()}
                runs = _taken_in_turns(ways, rounds, equal=False)
                texts = runs["torch"][0].texts
                for way, answers in runs.items():
                    row = _described(Path(name).name, way, answers, pool)
                    row["characters"] = sum(map(len, answers[0].texts))
                    row["texts_differ"] = sum(a != b for a, b in zip(answers[0].texts, texts))
                    table.add(row | (_times("times_torch", runs["torch"], answers) if way != "torch" else {}))
    return table, {"clips": clips, "clients": clients, "rounds": rounds, "threads": harness.set_threads()}


def _exported(name: str, scratch: Path, quantization: str | None) -> dict[str, str]:
    """A model as torch has it, and its exports."""
    from stentor.export.table import exporter_of
    from stentor.inference.load import find_export

    model = stentor.load(name, "cpu")
    format = "ctranslate2" if model.bundle.family.type == "seq2seq" else "onnx"
    exporter, folders = exporter_of(format, model.bundle), {"torch": name}
    whole = scratch / "float32"
    for kind in dict.fromkeys((None, quantization)):
        folder = scratch / (kind or "float32")
        folder.mkdir()
        if kind is None:
            exporter.write(model, folder)
        else:
            exporter.quantize(model, whole, folder, kind)
        with contextlib.suppress(FileNotFoundError):  # a folder of transformers has none
            shutil.copy(find_export(name) / "training_config.json", folder)
        folders[f"{format} {folder.name}"] = str(folder)
    return folders


def _random_transducer(layers: int, pool: Rows, scratch: Path) -> str:
    """The export of a Parakeet RNN-T of the released size of 0.1 B that writes about four tokens a second."""
    import torch

    from stentor.audio.io import read
    from stentor.data.batch import Example

    torch.manual_seed(0)
    encoder: Row = {"hidden_size": 512, "num_hidden_layers": layers, "num_attention_heads": 8}
    encoder |= {"intermediate_size": 2048, "num_mel_bins": 80}
    section = {"type": "transducer", "config": {"model_type": "parakeet_rnnt", "encoder_config": encoder}}
    texts = [row["text"].lower() for row in pool]
    bundle = Family.model_validate({**section, "tokenizer": {"type": "bpe", "size": 300}}).build(
        TaskRequirements("transcribe", ("rnnt",), lambda: iter(texts))
    )
    model: Any = bundle.model.eval()
    for name, parameter in model.recogniser.named_parameters():
        if not name.startswith("encoder."):
            parameter.data.normal_(std=0.1)
    examples = [Example("a", read(row["file"], RATE)) for row in pool[:2]]
    inputs = bundle.processor.collate(examples, labels=False).inputs
    least = 4 * sum(len(example.audio) for example in examples if example.audio is not None) / RATE
    low, high = -20.0, 60.0
    for _ in range(8):
        model.joint.head.bias.data[model.blank] = middle = (low + high) / 2
        many = sum(len(output.ids) for output in model.generate(inputs, [1000] * 2)) > least
        low, high = (middle, high) if many else (low, middle)
    folder = scratch / "parakeet-0.1b"
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return str(folder)


def _offline(model: Any, clips: Rows) -> Answers:
    began, cpu = time.perf_counter(), time.process_time()
    texts = [t.text.strip() for t in model.transcribe_many([clip["file"] for clip in clips], words=False)]
    return Answers(time.perf_counter() - began, time.process_time() - cpu, texts)


def _taken_in_turns(
    ways: dict[str, Callable[[], Answers]], rounds: int, equal: bool = True
) -> dict[str, list[Answers]]:
    """Each way in each round; the texts of all are `equal`, or it fails."""
    runs: dict[str, list[Answers]] = {name: [] for name in ways}
    texts: list[str] = []
    for _ in range(rounds):
        for name, way in ways.items():
            runs[name].append(way())
            texts = texts or runs[name][-1].texts
            if equal and (different := [pair for pair in zip(texts, runs[name][-1].texts) if pair[0] != pair[1]]):
                raise SystemExit(f"{name}: {len(different)} texts differ: {different[0]}")
    return runs


def _described(model: str, way: str, answers: list[Answers], clips: Rows) -> Row:
    audio = sum(clip["duration"] for clip in clips)
    row: Row = {"model": model, "way": way, "clips": len(clips), "audio_seconds": round(audio, 1)}
    row["seconds"] = [round(a.seconds, 2) for a in answers]
    row["cpu_seconds"] = [round(a.cpu_seconds, 2) for a in answers]
    row["audio_per_second"] = round(audio / statistics.median(a.seconds for a in answers), 2)
    if latencies := [latency for a in answers for latency in a.latencies]:
        row["latency_p50"] = round(statistics.median(latencies), 3)
    return row


def _times(name: str, theirs: list[Answers], ours: list[Answers]) -> Row:
    """Return our speed relative to theirs, for each round and as the median, and also by CPU seconds."""
    rounds = [round(a.seconds / b.seconds, 3) for a, b in zip(theirs, ours, strict=True)]
    cpu = harness.ratio([a.cpu_seconds for a in theirs], [b.cpu_seconds for b in ours])
    return {name: round(statistics.median(rounds), 3), f"{name}_rounds": rounds, f"{name}_cpu": round(cpu, 3)}


# Latency


@benchmark
def serve_latency(
    model: str | None = None,
    /,
    data: Path = DATA,
    samples: int = 200,
    blocks: int = 4,
    fifo_samples: int = 30,
    patience: float = 240,
    hours: float = 2,
    options: Options = "",
) -> Result:
    """Latency of a short clip at `stentor serve`, with and without a file of two hours in its queue.

    One client sends clips of about 2 s, one after another, and waits for each answer. In turns, `--blocks` of them: to
    a server that has nothing else to do, and while a file of two hours (LibriSpeech's utterances laid end to end, FLAC)
    has windows in the queue; before the next block its client goes away, which takes it out. So with fair turns. In the
    order of arrival (`--fifo`) a clip waits for the rest of the file: clips are sent one a second by clients of their
    own while it runs, and the last answer is waited for, but `--patience` seconds at most: what has no answer then
    counts as that long.

    The model is as in the benchmark `serve`. The clips' texts are the same with and without the file, or it fails.
    """
    table = Table()
    with tempfile.TemporaryDirectory() as scratch:
        model = model or data_whisper(data, Path(scratch))
        pool = harness.utterances(data)
        clips = [clip for clip in pool if 1.9 <= clip["duration"] <= 2.1]
        long = _long_file(pool, Path(scratch) / "long.flac", hours)
        latencies: dict[str, list[float]] = {}
        if samples:
            with stentor_serve(model, *options.split()) as server:
                latencies |= _in_blocks(server, clips, long, samples // blocks, blocks)
        if fifo_samples:
            with stentor_serve(model, "--fifo", *options.split()) as server:
                beside = _in_order_of_arrival(server, clips, long, fifo_samples, patience)
                latencies["beside the file, --fifo"] = beside
    for way, taken in latencies.items():
        p50, p99 = statistics.median(taken), float(np.percentile(taken, 99))
        row: Row = {"way": way, "n": len(taken), "p50": round(p50, 3), "p99": round(p99, 3)}
        row |= {"mean": round(statistics.mean(taken), 3), "most": round(max(taken), 3), "model": Path(model).name}
        alone = table[0] if table else row
        row |= {"times_alone": {k: round(row[k] / alone[k], 2) for k in ("p50", "p99")}} if samples else {}
        table.add(row)
    return table, {"hours": hours, "threads": harness.set_threads(), "options": options}


def _long_file(pool: Rows, to: Path, hours: float) -> Path:
    """Utterances laid end to end until they are so long, from the first again where there are no more."""
    import soundfile

    from stentor.audio.io import read

    left, number = round(hours * 3600 * RATE), 0
    with soundfile.SoundFile(to, "w", RATE, 1, "PCM_16") as file:
        while left:
            audio = read(pool[number % len(pool)]["file"], RATE)[:left]
            file.write(audio)
            left, number = left - len(audio), number + 1
    return to


def _in_blocks(server: Server, clips: Rows, long: Path, count: int, blocks: int) -> dict[str, list[float]]:
    """Latencies of the clips alone and beside the file, by fair turns."""
    server.ask_all(clips[:4], 1)
    alone: list[float] = []
    beside: list[float] = []
    for block in range(blocks):
        part = [clips[(block * count + i) % len(clips)] for i in range(count)]
        answers = server.ask_all(part, 1)
        with _in_queue(server, long):
            others = server.ask_all(part, 1)
        alone, beside = alone + answers.latencies, beside + others.latencies
        if answers.texts != others.texts:
            raise SystemExit("texts differ beside a long file")
    return {"alone": alone, "beside the file, fair turns": beside}


def _in_order_of_arrival(server: Server, clips: Rows, long: Path, count: int, patience: float) -> list[float]:
    server.ask_all(clips[:4], 1)
    latencies = [patience] * count

    def ask(i: int) -> None:
        began = time.perf_counter()
        with server.client(patience) as client, contextlib.suppress(httpx.TimeoutException):
            server.ask(client, clips[i % len(clips)]["file"])
            latencies[i] = time.perf_counter() - began

    with _in_queue(server, long):
        in_threads([partial(ask, i) for i in range(count)], 1.0)
    return latencies


@contextlib.contextmanager
def _in_queue(server: Server, long: Path) -> Iterator[None]:
    """While the file's windows wait in the queue. At the end its client goes away."""
    ended = threading.Event()

    def send() -> None:
        data = {"model": server.model, "stream": "true"}
        with server.client() as client, long.open("rb") as file:
            with client.stream("POST", "/v1/audio/transcriptions", data=data, files={"file": file}) as answer:
                for _ in answer.iter_raw():
                    if ended.is_set():
                        return

    thread = threading.Thread(target=send)
    thread.start()
    try:
        _wait_for(server, lambda seconds: seconds > 600, thread)
        yield
    finally:
        ended.set()
        thread.join()
    _wait_for(server, lambda seconds: seconds == 0, None)


def _wait_for(server: Server, condition: Callable[[float], bool], thread: threading.Thread | None) -> None:
    with server.client() as client:
        while thread is None or thread.is_alive():
            lines = client.get("/metrics").text.splitlines()
            if condition(sum(float(line.split()[-1]) for line in lines if line.startswith("stentor_queue_seconds{"))):
                return
            time.sleep(0.2)
    raise SystemExit("The long file was not taken.")


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
    """Audio that a session sends, and its words."""

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
