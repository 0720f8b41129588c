"""Demo Spaces: what is in their folders, and that each page starts from its folder and answers."""

import ast
import contextlib
import html
import importlib.util
import json
import os
import re
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import time
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile

from stentor.errors import ConfigError
from stentor.publish import space
from stentor.publish.space import PACKAGE, TASKS, TEMPLATES, build

if importlib.util.find_spec("gradio") is None:
    pytest.skip("demo Spaces need gradio, which is not installed", allow_module_level=True)

TESTS = Path(__file__).parents[1]
CANARY = "hf_CanaryCanaryCanaryCanary"
RATE = 16000
EVIL = '"<img src=x onerror=alert(1)>'
SERVER = """\
import importlib.machinery, json, os, runpy, signal, sys, traceback

refused = set(json.loads(sys.argv[1]))


class Guard(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in refused else super().find_spec(name, path, target)


plain = (importlib.machinery.BuiltinImporter, importlib.machinery.FrozenImporter)
sys.meta_path = [*plain, Guard]
import gradio, lhotse, torch, transformers

assert "stentor" not in sys.modules
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    asked = json.loads(line)
    child = os.fork()
    if child:
        print(child, flush=True)
        continue
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(asked["log"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)
    sys.stdout.reconfigure(line_buffering=True)
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    sys.path.insert(0, asked["folder"])
    code = 1
    try:
        import stentor

        assert stentor.__file__.startswith(asked["folder"]), stentor.__file__
        runpy.run_path("app.py", run_name="__main__")
        code = 0
    except SystemExit as left:
        print(left.code)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    with open(asked["log"] + ".exit", "w") as ended:
        ended.write(str(code))
    os._exit(code)
"""
"""Runs pages, each in its folder and in a process of its own, with the Space's own copy of the package and only what
its requirements bring along. What takes long to import is imported once."""


def module(path: str):
    spec = importlib.util.spec_from_file_location(Path(path).stem, TESTS / path)
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def facts(folder: Path, kind: str, **sections: object) -> Path:
    """Write the training config of an export, with a folder of "this machine" in it; answers the export."""
    about = {
        "name": f"tiny-{kind}",
        "task": {"type": kind},
        "output": "/home/ann/runs",
        "data": {"train": [{"type": "jsonl", "path": "/home/ann/train.jsonl", "language": "en"}]},
        **sections,
    }
    (folder / "training_config.json").write_text(json.dumps(about))
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Makes the export of an untrained model of a task; answers its folder."""
    exports = {}

    def make(task: str) -> Path:
        if task not in exports:
            exports[task] = write_export(task, tmp_path_factory.mktemp(task) / "export")
        return exports[task]

    return make


def write_export(task: str, folder: Path) -> Path:
    import torch

    torch.set_num_threads(1)
    if task == "speak":
        speaking = module("inference/speaking.py")
        speaking.make_model(folder)
        shutil.rmtree(folder.with_name(f"{folder.name}-codec"))  # it must be in the export
        known = json.loads((folder / "training_config.json").read_text())
        return facts(folder, task, task=known["task"], model=known["model"])
    if task == "diarize":
        from stentor.models.base import Family, TaskRequirements

        section = {
            "type": "transformer",
            "kind": "encoder",
            "shared": {"d_model": 32, "layers": 1, "heads": 2},
            "features": {"num_mel_bins": 20, "stack": 4, "subsample": 4},
        }
        torch.manual_seed(0)
        bundle = Family.model_validate(section).build(TaskRequirements("diarize", ("speech",), classes=2))
        with torch.no_grad():
            bundle.model.frame_head.bias.fill_(2.0)  # hears everybody all the time
        state = bundle.model.state_dict()
        bundle.family.save(bundle, {name: state[name] for name in bundle.family.exported_tensor_names(bundle)}, folder)
        return facts(folder, task, task={"type": task, "labels": {"type": "speaker", "speakers": 2}})
    tiny = module("models/tiny_speech_llm.py")
    timed = {"aligner": {"width": 16, "heads": 2}, "freeze": ["aligner.*"]} if task == "words" else {}
    bundle = tiny.build(llm="llama", **timed, token_rate=1.0)
    with torch.no_grad():  # it babbles letters
        bundle.model.llm.lm_head.weight[:4] = 0
    bundle.family.save_merged(bundle, folder)
    return facts(folder, task, task={"type": task, "checks": {"on": False}})


@pytest.fixture
def speech(tmp_path) -> Path:
    """Two seconds of a tone that swells as syllables do, under a name that tries to break out."""
    time = np.arange(2 * RATE) / RATE
    path = tmp_path / "a b&c.wav"
    soundfile.write(path, 0.3 * np.sin(2 * np.pi * 300 * time) * (0.55 - 0.45 * np.cos(8 * np.pi * time)), RATE)
    return path


def needed(text: str) -> set[str]:
    """Distributions that requirements.txt brings along."""
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name

    names: set[str] = set()
    queue = [Requirement(line) for line in text.splitlines() if not line.startswith("--")]
    while queue:
        asked = queue.pop()
        name = canonicalize_name(asked.name)
        key = f"{name}[{','.join(sorted(asked.extras))}]"
        if key in names:
            continue
        names |= {key, name}
        try:
            lines = metadata.requires(asked.name) or []
        except metadata.PackageNotFoundError:  # of another platform
            continue
        queue += [
            r
            for r in map(Requirement, lines)
            if not r.marker or any(r.marker.evaluate({"extra": e}) for e in ("", *asked.extras))
        ]
    return names


@pytest.fixture(scope="module")
def hub_cache(tmp_path_factory):
    """The Hub's cache of the machine that the Spaces run on; the Hub itself is out of reach."""
    return tmp_path_factory.mktemp("hub")


@pytest.fixture(scope="module")
def machine(tmp_path_factory, hub_cache):
    """The process that pages are started from, and the requirements that it has installed."""
    from packaging.utils import canonicalize_name

    installed = space.requirements("speech_llm", "cpu-basic")
    brought = needed(installed)
    refused = [
        name
        for name, owners in metadata.packages_distributions().items()
        if not {canonicalize_name(owner) for owner in owners} & brought or name == "stentor_speech"
    ]
    refused.remove("stentor")  # the Space's own copy
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "PYTHONPATH", "GRADIO", "HF_"))}
    process = subprocess.Popen(
        [sys.executable, "-c", SERVER, json.dumps(refused)],
        env={
            **inherited,
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HF_HUB_CACHE": str(hub_cache),
            "GRADIO_SERVER_PORT": str(port),
            "GRADIO_TEMP_DIR": str(tmp_path_factory.mktemp("gradio")),
        },
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    process.installed = installed
    yield process
    process.kill()
    process.communicate()


@pytest.fixture
def serve(machine, tmp_path):
    """Starts a demo and answers a client of it, or, where it ends at once, (exit code, what it said); keywords are
    environment variables."""
    from gradio_client import Client

    started: list[int] = []

    def run(folder: Path, **environment: str):
        assert (folder / "requirements.txt").read_text() == machine.installed
        log = tmp_path / f"log{len(started)}.txt"
        machine.stdin.write(json.dumps({"folder": str(folder), "log": str(log), "environment": environment}) + "\n")
        started.append(int(machine.stdout.readline()))
        while not log.with_suffix(".txt.exit").exists():
            if log.exists() and (url := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
                client = Client(url[0], verbose=False, analytics_enabled=False, download_files=str(tmp_path / "got"))
                client.log = log
                return client
            time.sleep(0.1)
        return int(log.with_suffix(".txt.exit").read_text()), log.read_text()

    yield run
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


# Folders --------------------------------------------------------------------------------------------------------------


def test_templates_are_python_without_secrets():
    assert sorted(p.stem for p in TEMPLATES.glob("*.py")) == sorted([*TASKS, "demo"])
    for path in TEMPLATES.glob("*.py"):
        ast.parse(path.read_text())
        assert not re.search(r"hf_[A-Za-z0-9]|token\s*=|getenv|share=True|allowed_paths|gr\.load\(", path.read_text())


def test_a_local_model_is_copied_beside_the_page(models, tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", CANARY)
    to = build(models("transcribe"), tmp_path / "new" / "space", title=f"Ann's {EVIL}: demo")
    assert sorted(p.name for p in to.iterdir()) == [
        "README.md",
        "app.py",
        "demo.py",
        "model",
        "requirements.txt",
        "space.json",
        "stentor",
    ]
    assert (to / "app.py").read_bytes() == (TEMPLATES / "transcribe.py").read_bytes()  # no text went into code
    about = json.loads((to / "space.json").read_text())
    assert (about["model"], about["local"], about["task"], about["hub"]) == ("model", True, "transcribe", [])
    assert about["languages"] == ["en"]
    assert (to / "model" / "model.safetensors").is_file()
    texts = [p for p in to.rglob("*") if p.is_file() and p.suffix not in (".safetensors", ".pyc", ".fst")]
    for path in texts:
        text = path.read_text("utf-8")
        assert CANARY not in text, path
        assert "/home/ann" not in text, path
    assert not list(to.rglob("__pycache__"))


def test_the_header_is_what_the_hub_reads(models, tmp_path):
    from huggingface_hub import SpaceCard

    title = 'a: "b" # c\n- d'
    to = build(models("transcribe"), tmp_path / "space", title=title, hardware="t4-small")
    data = SpaceCard.load(to / "README.md").data
    assert (data.title, data.sdk, data.app_file) == (title, "gradio", "app.py")
    assert data.sdk_version == metadata.version("gradio")
    assert data.suggested_hardware == "t4-small"
    assert data.python_version == f"{sys.version_info.major}.{sys.version_info.minor}"


def test_requirements_are_pinned_and_can_be_installed(models, tmp_path):
    """Each as it is installed here, but where the Hub's own additions to a Space refuse that version."""
    from packaging.requirements import Requirement

    lines = (build(models("transcribe"), tmp_path / "space") / "requirements.txt").read_text().splitlines()
    assert lines[0] == space.CPU_WHEELS
    requirements = {r.name: r for r in map(Requirement, lines[1:])}
    assert {"gradio", "torch", "transformers", "huggingface_hub", "av"} <= set(requirements)
    added = [Requirement(line) for line in metadata.requires("gradio")]
    for name, asked in requirements.items():
        here = metadata.version(name).partition("+")[0]
        of_space = [r.specifier for r in added if r.name == name.replace("_", "-")]
        accepted = all(s.contains(here, prereleases=True) for s in of_space)
        if accepted:
            assert str(asked.specifier) == f"=={here}"
        else:
            assert not asked.specifier.contains(here)
            assert {s.version for s in asked.specifier} >= {s.version for s in of_space[-1]}
    gpu = (build(models("transcribe"), tmp_path / "gpu", hardware="t4-small") / "requirements.txt").read_text()
    assert "--" not in gpu


def test_every_package_that_a_module_imports_at_its_top_is_required():
    """Of the rooms that a demo uses; what a function imports is an option."""
    modules = [
        p
        for room in ("audio", "data", "text", "inference", "report", "section")
        for p in (PACKAGE / room).rglob("*.py")
    ]
    imports = [node for p in modules for node in ast.parse(p.read_text()).body]
    names = {a.name for n in imports if isinstance(n, ast.Import) for a in n.names}
    names |= {n.module or "" for n in imports if isinstance(n, ast.ImportFrom)}
    owners = metadata.packages_distributions()
    needed = {owners[top][0].lower() for name in names if (top := name.partition(".")[0]) in owners} - {"stentor"}
    listed = {p.partition("[")[0].lower().replace("_", "-") for p in space.PACKAGES}
    brought = {re.split("[^a-z0-9-]", r.lower())[0] for p in listed for r in metadata.requires(p) or []}
    assert len(needed) > 4
    assert {name.replace("_", "-") for name in needed} <= listed | brought


def test_what_a_family_needs_is_required(monkeypatch):
    assert "mistral-common" not in space.requirements("whisper", "cpu-basic")
    monkeypatch.setitem(space.OF_FAMILY, "voxtral", ("packaging[nothing]",))
    assert f"packaging[nothing]=={metadata.version('packaging')}" in space.requirements("voxtral", "cpu-basic")
    monkeypatch.setitem(space.OF_FAMILY, "voxtral", ("no-such-package",))
    with pytest.raises(ConfigError, match="needs no-such-package, which is not installed: pip install"):
        space.requirements("voxtral", "cpu-basic")


def test_what_cannot_be_served_is_refused(models, tmp_path):
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep")
    with pytest.raises(ConfigError, match="is not empty"):
        build(models("transcribe"), full)
    other = shutil.copytree(models("transcribe"), tmp_path / "language")
    facts(other, "language")
    with pytest.raises(ConfigError, match="no demo for the task 'language'; there is one for transcribe"):
        build(other, tmp_path / "a")
    with pytest.raises(ConfigError, match="There is no model"):
        build("../nothing here", tmp_path / "b")
    based = shutil.copytree(models("transcribe"), tmp_path / "based")
    (based / "model.safetensors").unlink()
    (based / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(tmp_path)}))
    with pytest.raises(ConfigError, match=r"needs its base model .*, a folder that a Space has not: .* --merge"):
        build(based, tmp_path / "c")
    assert not any((tmp_path / name).exists() for name in "abc")


def test_a_hub_model_out_of_reach_needs_its_task(tmp_path, monkeypatch):
    import huggingface_hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    def unreachable(*arguments):
        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(huggingface_hub, "hf_hub_download", unreachable)
    with pytest.raises(ConfigError, match="cannot be reached to look up the task of ann/voice"):
        build("ann/voice", tmp_path / "space")
    to = build("ann/voice", tmp_path / "space", task="speak")
    about = json.loads((to / "space.json").read_text())
    assert (about["model"], about["local"], about["hub"]) == ("ann/voice", False, ["ann/voice"])
    assert not (to / "model").exists()
    assert "secret `HF_TOKEN`" in (to / "README.md").read_text()


def test_the_package_goes_along_whole(models, tmp_path):
    """Files that are no Python, such as templates, too."""

    def files(folder: Path) -> set[str]:
        paths = (p.relative_to(folder) for p in folder.rglob("*") if p.is_file() and p.suffix != ".pyc")
        return {str(p) for p in paths if p.parts[0] != "studio"}

    copied = build(models("transcribe"), tmp_path / "space") / "stentor"
    assert files(copied) == files(PACKAGE) and "report/templates/report.html" in files(copied)


@pytest.mark.parametrize("task", TASKS)
def test_pages_are_made_and_escape_their_texts(task, tmp_path, monkeypatch):
    """In this process, without a model: the components, and what is drawn."""
    import stentor

    monkeypatch.setattr(space, "_of_hub", lambda model, task: ({}, {}))
    monkeypatch.setattr(stentor, "load", lambda where: SimpleNamespace(voices=["anna"]))
    folder = build("ann/voice", tmp_path / "space", task=task, title=f"Mine {EVIL}")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "demo", raising=False)
    page = runpy.run_path(str(folder / "app.py"), run_name="app")
    monkeypatch.delitem(sys.modules, "demo")
    config = page["blocks"].get_config_file()
    assert [d["api_name"] for d in config["dependencies"]] == [task]
    assert "<img" not in json.dumps(config["components"]) and EVIL in config["title"]


# Pages ----------------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_transcribe_answers(models, serve, speech, tmp_path):
    from gradio_client import handle_file
    from gradio_client.exceptions import AppError

    folder = build(models("transcribe"), tmp_path / "space", title=f"Mine {EVIL}", max_seconds=3, max_megabytes=1)
    client = serve(folder)
    text = client.predict(handle_file(str(speech)), "", api_name="/transcribe")
    assert isinstance(text, str)
    assert html.escape(html.escape(EVIL)) not in json.dumps(client.config)
    assert "<img" not in json.dumps(client.config["components"])
    with pytest.raises(AppError, match="Record or upload some speech first"):
        client.predict(None, "", api_name="/transcribe")
    with pytest.raises(AppError):  # a language that is not in the list
        client.predict(handle_file(str(speech)), "xx; rm", api_name="/transcribe")
    long = tmp_path / "long.flac"
    soundfile.write(long, np.zeros(5 * RATE), RATE)
    with pytest.raises(AppError, match="has 5 s; this demo takes at most 3 s"):
        client.predict(handle_file(str(long)), "", api_name="/transcribe")
    broken = tmp_path / "<b>broken.wav"
    broken.write_bytes(b"<script>alert(1)</script>" * 9)
    with pytest.raises(AppError) as error:
        client.predict(handle_file(str(broken)), "", api_name="/transcribe")
    assert "cannot be read" in str(error.value) or "not" in str(error.value)
    assert "<" not in str(error.value) and str(tmp_path) not in str(error.value)
    huge = tmp_path / "huge.wav"
    soundfile.write(huge, np.zeros(20 * RATE * 3), RATE)
    with pytest.raises(Exception, match=r"(?i)413|size|large"):
        client.predict(handle_file(str(huge)), "", api_name="/transcribe")
    assert client.log.read_text().count("Traceback") == 1  # Gradio's own, about the language


@pytest.mark.slow
def test_words_answers(models, serve, speech, tmp_path):
    from gradio_client import handle_file

    client = serve(build(models("words"), tmp_path / "space"))
    text, drawing, table, subtitles = client.predict(handle_file(str(speech)), "", api_name="/words")
    assert table["headers"] == ["word", "start (s)", "end (s)", "confidence"]
    assert [row[0] for row in table["data"]] == text.split()
    assert text and "-->" in subtitles
    assert drawing.count("<button") == len(table["data"]) and "data:audio/flac" in drawing
    assert "Traceback" not in client.log.read_text()


@pytest.mark.slow
def test_diarize_answers(models, serve, speech, tmp_path):
    from gradio_client import handle_file

    client = serve(build(models("diarize"), tmp_path / "space"))
    drawing, table, rttm = client.predict(handle_file(str(speech)), 0, api_name="/diarize")
    assert table["data"] and len(table["data"]) == len(rttm.splitlines()) == drawing.count("<rect")
    for speaker, start, end in table["data"]:
        assert f"SPEAKER recording 1 {start:.3f} {end - start:.3f} <NA> <NA> {speaker} <NA> <NA>" in rttm


@pytest.mark.slow
def test_speak_answers(models, serve, speech, tmp_path):
    from gradio_client import handle_file
    from gradio_client.exceptions import AppError

    client = serve(build(models("speak"), tmp_path / "space", max_characters=40))
    asked = ["one two three", None, "", "", "", 1.0, 7]
    first, again = (client.predict(*asked, api_name="/speak") for _ in range(2))
    audio, rate = soundfile.read(first)
    assert rate == RATE and len(audio) > 0.2 * RATE and np.abs(audio).max() > 0
    np.testing.assert_array_equal(soundfile.read(again)[0], audio)
    reference = handle_file(str(speech))
    other = client.predict("one two three", reference, "one two", "", "", 1.0, 7, api_name="/speak")
    assert not np.array_equal(soundfile.read(other)[0], audio)
    with pytest.raises(AppError, match="Write down what is said in the reference"):
        client.predict("one", reference, "", "", "", 1.0, 7, api_name="/speak")
    with pytest.raises(Exception, match=r"(?i)41|length|characters"):
        client.predict("o" * 41, None, "", "", "", 1.0, 7, api_name="/speak")


@pytest.mark.slow
def test_adapters_of_a_hub_model_are_served(serve, speech, hub_cache, tmp_path):
    """Model and base are in the Hub's cache, as a Space has them after its start."""
    import torch
    from gradio_client import handle_file
    from transformers import AutoConfig, AutoModelForCausalLM

    from stentor.models.text.tokenizers import characters

    tiny, snapshots = module("models/tiny_speech_llm.py"), {}
    for name in ("base", "voice"):
        hub = hub_cache / f"models--ann--{name}"
        (hub / "refs").mkdir(parents=True)
        (hub / "refs" / "main").write_text("0" * 40)
        snapshots[name] = hub / "snapshots" / ("0" * 40)
    torch.manual_seed(0)
    tokenizer = characters(["abcdefghijklmnopqrstuvwxyz \n.:"])
    qwen = dict(tiny.LLMS["qwen2"])
    config = AutoConfig.for_model(
        qwen.pop("model_type"), **qwen, vocab_size=len(tokenizer), pad_token_id=0, eos_token_id=tokenizer.eos_token_id
    )
    AutoModelForCausalLM.from_config(config).save_pretrained(snapshots["base"])
    tokenizer.save_pretrained(snapshots["base"])
    base = str(snapshots["base"])
    lora = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["llm.*.q_proj"]}
    bundle = tiny.build(llm={"from": base}, tokenizer=None, lora=lora, token_rate=1.0)
    export = tmp_path / "made"
    bundle.family.save(bundle, bundle.model.state_dict(), export)
    with pytest.raises(ConfigError, match="needs its base model"):
        build(export, tmp_path / "refused")
    for name in ("config.json", "adapter_config.json"):  # as if it had been trained on the Hub's
        (export / name).write_text((export / name).read_text().replace(base, "ann/base"))
    section = {"type": "speech_llm", "llm": {"from": "ann/base"}}
    facts(export, "transcribe", task={"type": "transcribe", "checks": {"on": False}}, model=section)
    shutil.copytree(export, snapshots["voice"])
    for k, model in enumerate((export, "ann/voice")):
        folder = build(model, tmp_path / f"space{k}", task="transcribe")
        about = json.loads((folder / "space.json").read_text())
        assert about["hub"][0] == ("ann/base" if about["local"] else "ann/voice")
        client = serve(folder)
        assert isinstance(client.predict(handle_file(str(speech)), "", api_name="/transcribe"), str)


@pytest.mark.slow
def test_a_model_that_cannot_be_read_ends_the_page_with_a_sentence(serve, tmp_path):
    folder = build("ann/nothing", tmp_path / "space", task="speak")
    code, log = serve(folder)
    assert code == 1 and "Traceback" not in log
    assert "ann/nothing is private, give this Space a secret HF_TOKEN that may read it." in " ".join(log.split())
    code, log = serve(folder, HF_TOKEN=CANARY)
    assert code == 1 and CANARY not in log and "secret HF_TOKEN" not in log
