"""What several test folders share: a tiny spoken corpus, a tiny run, and the command line as a user calls it."""

import gc
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SHARED = ROOT.parent / "shared" / "data"
if str(ROOT / "tests") not in sys.path:
    sys.path.append(str(ROOT / "tests"))  # for the modules beside this one; last, so that they hide nothing

from kinds import kinds_kept  # noqa: E402
from process_group import environment  # noqa: E402

TINY = """\
task: {{type: transcribe, normalizer: none}}
model:
  type: speech_llm
  encoder:
    config: {{model_type: whisper, num_mel_bins: 40, d_model: 32, encoder_layers: 1, encoder_attention_heads: 2,
             encoder_ffn_dim: 64, max_source_positions: 1500, dropout: {dropout}}}
  projector: {{type: mlp, rate: 12.5}}
  llm:
    config: {{model_type: qwen2, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1, num_attention_heads: 2,
             num_key_value_heads: 2, tie_word_embeddings: true, max_position_embeddings: 512}}
  tokenizer: {{type: characters}}
  ctc: {{units: characters}}
  prompt: {{instruction: null, language: false, context: false}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  batch_tokens: 400
  max_items: 4
  workers: 0
losses: {{text: {{type: cross_entropy}}, ctc: {{type: ctc, weight: 0.5}}}}
optim: {{type: adamw, lr: 1e-3}}
schedule: {{warmup_steps: 2}}
train: {{steps: 6, log_every: 1, eval_every: 6, save_every: 2, device: cpu}}
output: "{runs}"
"""


@pytest.hookimpl(wrapper=True)
def pytest_collection(session: pytest.Session):
    """What collection imports and makes stays to the end: no time is spent on looking for garbage in it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="module", autouse=True)
def kinds():
    with kinds_kept():
        yield


@pytest.fixture(scope="session", autouse=True)
def no_process_left():
    """A process that outlives its test would keep the whole run from ending."""
    yield
    left = multiprocessing.active_children()
    for process in left:
        process.kill()
    assert not left, f"processes were left running: {left}"


@pytest.fixture(scope="session")
def whisper(tmp_path_factory):
    """A folder with a tiny multilingual Whisper with random weights, as transformers writes it."""
    import torch

    from stentor.models.base import Family, TaskRequirements
    from tiny_configs import WHISPER

    torch.manual_seed(0)
    bundle = Family.model_validate({"type": "seq2seq", "config": WHISPER}).build(
        TaskRequirements("transcribe", ("text",))
    )
    folder = tmp_path_factory.mktemp("whisper")
    state = bundle.model.state_dict()
    bundle.family.save(bundle, {n: state[n] for n in bundle.family.exported_tensor_names(bundle)}, folder)
    (folder / "stentor.json").unlink()
    return folder


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """Real speech for development; not part of the project."""
    if not SHARED.is_dir():
        pytest.skip(f"real speech is not at {SHARED}")
    return SHARED


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl (16 clips), dev.jsonl (4) and their audio, spoken by the built-in voice."""
    from stentor.audio.io import write
    from stentor.audio.synth import say

    folder = tmp_path_factory.mktemp("corpus")
    words = ["one", "two", "three", "four", "five", "six"]
    for part, count in (("train", 16), ("dev", 4)):
        lines = []
        for i in range(count):
            text = " ".join(words[(i + k) % 6] for k in range(1 + i % 3))
            speech = say(text, voice=["en-us", "en+f3"][i % 2], speed=170, pitch=50)
            write(folder / f"{part}{i}.wav", speech.audio, 16000)
            record = {"id": f"{part}{i}", "audio_path": f"{part}{i}.wav", "text": text, "words": speech.words}
            lines.append(json.dumps(record))
        (folder / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def manifest(corpus, folder, languages):
    """Writes one with a clip of the tiny corpus for each language, None for one that is not named."""
    lines = (corpus / "train.jsonl").read_text().splitlines()[: len(languages)]
    records = [json.loads(line) for line in lines]
    for record, language in zip(records, languages):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": language} if language else {})
    path = folder / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="session")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    return manifest(corpus, tmp_path_factory.mktemp("four"), [None, "en", "en", "en"])


@pytest.fixture(scope="session")
def two(corpus, tmp_path_factory):
    """A manifest with two clips of the tiny corpus, one without a language."""
    return manifest(corpus, tmp_path_factory.mktemp("two"), [None, "en"])


@pytest.fixture(scope="session")
def eight(corpus, tmp_path_factory):
    """A manifest with eight clips of the tiny corpus, all of a known language."""
    return manifest(corpus, tmp_path_factory.mktemp("eight"), 8 * ["en"])


@pytest.fixture(scope="session")
def meetings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with train.jsonl (8 recordings of 4 to 21 s and a silent one) and dev.jsonl (3): two of four "speakers"
    in each, every one a tone of his own, who take turns and overlap; `segments` say who when."""
    import numpy as np

    from stentor.audio.io import write

    folder, rng = tmp_path_factory.mktemp("meetings"), np.random.default_rng(0)
    tones = {"low": 150, "middle": 340, "high": 700, "shrill": 1500}

    def recording(name: str, seconds: float, speakers: list[str]) -> dict:
        time, segments = np.arange(round(seconds * 16000)) / 16000, []
        audio = 0.003 * rng.standard_normal(len(time))
        for speaker in speakers:
            start = rng.uniform(0, 1)
            while start < seconds - 0.6:
                end = min(start + rng.uniform(0.6, 2.0), seconds)
                audio += 0.2 * np.sign(np.sin(2 * np.pi * tones[speaker] * time)) * ((time >= start) & (time < end))
                segments.append({"speaker": speaker, "start": round(start, 3), "end": round(end, 3)})
                start = end + rng.uniform(0.3, 1.5)
        write(folder / f"{name}.wav", audio.astype(np.float32), 16000)
        return {"id": name, "audio_path": f"{name}.wav", "duration": seconds, "segments": segments}

    names = list(tones)
    for part, lengths in (("train", [4, 5.5, 7, 8, 8, 21, 6, 12.5]), ("dev", [4, 7, 18])):
        lines = [recording(f"{part}{i}", s, [names[i % 4], names[(i + 1) % 4]]) for i, s in enumerate(lengths)]
        if part == "train":
            lines.append(recording("quiet", 3.0, []))
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture(scope="session")
def tiny_text() -> str:
    """A tiny run's YAML with the places `folder`, `runs` and `dropout` to fill in."""
    return TINY


@pytest.fixture
def tiny(corpus: Path, tmp_path: Path):
    """Writes a tiny run's YAML and answers its path; `dropout` of the encoder can be set."""

    def make(dropout: float = 0.0, name: str = "tiny.yaml") -> Path:
        path = tmp_path / name
        path.write_text(TINY.format(folder=corpus, runs=tmp_path / "runs", dropout=dropout))
        return path

    return make


def in_process(capsys: pytest.CaptureFixture, arguments: tuple[object, ...]) -> tuple[int, str, str]:
    """Runs `stentor ...` in this process, which spares it the start; its exit code and what it wrote to standard output
    and error."""
    from stentor.cli import main

    capsys.readouterr()
    code = main([str(a) for a in arguments])
    written = capsys.readouterr()
    return code, written.out, written.err


@pytest.fixture
def here(capsys: pytest.CaptureFixture):
    """Runs `stentor ...` in this process, which must end well; answers what it wrote to standard output."""

    def run(*arguments: object) -> str:
        code, out, err = in_process(capsys, arguments)
        assert code == 0, out + err
        return out

    return run


@pytest.fixture
def attempt(capsys: pytest.CaptureFixture):
    """Runs `stentor ...` in this process; answers its exit code and all that it wrote."""

    def run(*arguments: object) -> tuple[int, str]:
        code, out, err = in_process(capsys, arguments)
        return code, out + err

    return run


@pytest.fixture(scope="session")
def warm(tmp_path_factory: pytest.TempPathFactory):
    """Runs `stentor ...` in processes forked from one that has imported everything (see warm.py)."""
    from warm_server import Warm

    warm = Warm(tmp_path_factory.mktemp("warm"), environment)
    yield warm
    warm.close()


@pytest.fixture
def cli(warm):
    """Runs `stentor ...`, optionally as several processes of one group; answers the completed process. `packages` are
    folders of further installed packages.

    A Python of its own is started for another PYTHONPATH, and torchrun where one of several may fail, whose business
    it is to end the others.
    """

    def run(
        *arguments: object, processes: int = 1, check: bool = True, packages: Sequence[object] = (), **extra: str
    ) -> subprocess.CompletedProcess:
        if "PYTHONPATH" in extra or (processes > 1 and not check):
            command = [sys.executable, "-m"]
            if processes > 1:
                command += ["torch.distributed.run", "--standalone", f"--nproc-per-node={processes}", "-m"]
            done = subprocess.run(
                [*command, "stentor", *map(str, arguments)],
                env=environment(**extra),
                capture_output=True,
                text=True,
                timeout=300,
            )
        else:
            done = warm([[*map(str, arguments)]], processes, packages, **extra)
        if check and done.returncode:
            raise AssertionError(f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-5000:]}")
        return done

    return run


@pytest.fixture(scope="session")
def together(warm, tmp_path_factory: pytest.TempPathFactory):
    """Runs several `stentor ...` commands one after the other in one group of processes (see group.py); under torchrun
    itself with variables of its own environment, or where they may fail."""

    def run(commands: list[list[object]], processes: int, check: bool = True, **extra: str) -> str:
        if check and not extra:
            done = warm([list(map(str, command)) for command in commands], processes)
            if done.returncode:
                raise AssertionError(f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
            return done.stdout + done.stderr
        file = tmp_path_factory.mktemp("commands") / "commands.json"
        file.write_text(json.dumps([list(map(str, command)) for command in commands]))
        start = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
        done = subprocess.run(
            [sys.executable, *start, str(ROOT / "tests" / "group.py"), str(file)],
            env=environment(**extra),
            capture_output=True,
            text=True,
            timeout=540,
        )
        if check and done.returncode:
            raise AssertionError(f"exit {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-6000:]}")
        return done.stdout + done.stderr

    return run


@pytest.fixture
def start(warm):
    """Starts `stentor ...` in the background, at the head of a process group of its own; what still runs at the end of
    the test is killed. A Python of its own is started for another PYTHONPATH."""
    started: list = []

    def run(*arguments: object, **extra: str):
        if "PYTHONPATH" in extra:
            process = subprocess.Popen(
                [sys.executable, "-m", "stentor", *map(str, arguments)],
                env=environment(**extra),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                text=True,
            )
        else:
            process = warm.start(arguments, **extra)
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def rows():
    """Rows of a run's metrics.jsonl; `kind` picks training or evaluation rows by the key they carry."""

    def read(folder: Path, kind: str = "train/loss") -> list[dict]:
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        return [row for row in lines if kind in row]

    return read


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A Hub of this test's own on loopback (tests/hub_server.py), empty, to which huggingface_hub in this process
    turns; `cli(..., **hub.fresh)` and other processes with `hub.fresh` in their environment turn to it, too.

    The client reads its environment once, when it is imported, so here its constants are set instead. Xet is off, whose
    session would live on in this process; a process of its own may have it on (HF_HUB_DISABLE_XET=0). What the client
    waits before it tries again is written to `hub.waits` and not waited for.
    """
    from types import SimpleNamespace

    from huggingface_hub import constants, hf_api
    from huggingface_hub.utils import _http

    from hub_server import Hub

    hub, home = Hub(), tmp_path / "hub-home"
    hub.waits = []
    hub.fresh = {**hub.environment(str(home)), "PYTHONPATH": os.environ.get("PYTHONPATH", str(ROOT / "src"))}
    for name in ("HF_HUB_CACHE", "HF_ASSETS_CACHE", "HF_XET_CACHE", "HF_TOKEN_PATH", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in hub.environment(str(home)).items():
        monkeypatch.setenv(name, value)
    for name, value in {
        "ENDPOINT": hub.endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": hub.endpoint + "/{repo_id}/resolve/{revision}/{filename}",
        "HF_HOME": str(home),
        "HF_HUB_CACHE": str(home / "hub"),
        "HUGGINGFACE_HUB_CACHE": str(home / "hub"),
        "HF_TOKEN_PATH": str(home / "token"),
        "HF_STORED_TOKENS_PATH": str(home / "stored_tokens"),
        "AGENT_HARNESSES_PATH": str(home / "harnesses.json"),
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_DISABLE_TELEMETRY": True,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
    }.items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(hf_api.api, "endpoint", hub.endpoint)
    monkeypatch.setattr(hf_api.api, "token", None)
    monkeypatch.setattr(_http, "time", SimpleNamespace(sleep=hub.waits.append))
    _http.close_session()
    yield hub
    hub.close()
    _http.close_session()
    assert not hub.crashes, hub.crashes


@pytest.fixture(scope="session")
def ray_cluster():
    """The address of a Ray cluster of two nodes of one CPU each."""
    pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'stentor[ray]'")
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "object_store_memory": 100 * 2**20}
    cluster = Cluster(initialize_head=True, head_node_args={**node, "include_dashboard": False})
    cluster.add_node(**node)
    yield cluster.address
    cluster.shutdown()
