"""`--format web`: a page that recognises speech in Chromium as Stentor does, and scripts that do so in Node."""

import functools
import hashlib
import http.server
import json
import shutil
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models
pytest.importorskip("onnxruntime", reason="needs stentor[onnx]")
pytest.importorskip("onnxscript", reason="needs stentor[onnx]")

import soundfile
from tiny_runs import run
from tiny_transducers import OWN, OWN_ENCODER

import stentor
from accessible import violations
from browser import Browser, chromium
from stentor.cli import main
from stentor.errors import ConfigError
from stentor.export.web import runtime
from stentor.export.web.page import LISTING, node_version

in_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium, or no Playwright")
in_node = pytest.mark.skipif(node_version() is None, reason="no Node")
TIMES = {"type": "smooth_l1", "sigmoid": False, "weight": 0.1}
LEARN = {"losses": json.dumps({"rnnt": "rnnt", "ctc": {"type": "ctc", "weight": 0.3}, "times": TIMES})}
STREAM = """\
import {readFile} from "node:fs/promises";
const [folder, clip] = process.argv.slice(2), read = async (name) => new Uint8Array(await readFile(name));
const ort = await import(`${folder}/ort/ort.wasm.min.mjs`);
const {Recognizer, Stream} = await import(`${folder}/recognizer.mjs`);
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmBinary = await read(`${folder}/ort/ort-wasm-simd-threaded.wasm`);
ort.env.wasm.wasmPaths = `${folder}/ort/`;
const model = await Recognizer.open(ort, (name) => read(`${folder}/model/${name}`), []);
const stream = new Stream(model), audio = new Float32Array((await read(clip)).buffer);
let written;
for (let at = 0, last = false; !last; at += 1700) {
  last = at + 1700 >= audio.length;
  written = await stream.add(audio.subarray(at, at + 1700), last);
}
console.log(JSON.stringify(written));
"""


@pytest.fixture(scope="session")
def package():
    """onnxruntime-web's package, from the cache or the registry."""
    try:
        return runtime.package()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def learnt(eight, tmp_path_factory):
    """A run with word times that learnt eight clips by heart."""
    folder = tmp_path_factory.mktemp("learnt")
    task = {"type": "words", "normalizer": "none"}
    options = {"steps": 100, "lr": 5e-3, "data.batch_tokens": 4000, "data.max_items": 8}
    return run(folder, "talker", OWN, eight, task=task, **options, **LEARN)


@pytest.fixture(scope="session")
def page(learnt, package, tmp_path_factory):
    """Its page, as the command writes it."""
    folder = tmp_path_factory.mktemp("page") / "page"
    assert main(["export", str(learnt), "--format", "web", "--to", str(folder), "--runtime", str(package)]) == 0
    return folder


@pytest.fixture(scope="session")
def spoken(eight, learnt, tmp_path_factory):
    """A recording of two of the clips with pauses, and what Stentor hears in it."""
    records = [json.loads(line) for line in eight.read_text().splitlines()][1:3]
    pause = np.zeros(24000, np.float32)
    parts = [part for record in records for part in (pause, soundfile.read(record["audio_path"], dtype="float32")[0])]
    path = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    soundfile.write(path, np.concatenate([*parts, pause]), 16000, subtype="PCM_16")
    heard = stentor.load(learnt).transcribe(path)
    assert heard["text"] == " ".join(record["text"] for record in records)
    return path, heard


@pytest.fixture
def served():
    """Serves a folder as any static server does, and answers its address."""
    servers = []

    def serve(folder):
        handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
        handler.log_message = lambda *_: None
        servers.append(server := http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    yield serve
    for server in servers:
        server.shutdown()
        server.server_close()


def opened(browser, address):
    tab = browser.open(address)
    tab.wait("!document.querySelector('#file').disabled", "the model is loaded")
    return tab


def transcribe(tab, path):
    tab.give("#file", path)
    tab.wait("document.querySelector('#status').innerText.startsWith('Done')", "the file is transcribed")
    return tab.text("#text")


@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_the_page_writes_what_stentor_does_from_files_and_the_microphone_also_offline(page, spoken, served, tmp_path):
    path, heard = spoken
    with Browser(tmp_path, microphone=path) as browser:
        tab = opened(browser, served(page))
        assert transcribe(tab, path) == heard["text"]
        rows = tab.js("[...document.querySelectorAll('#times tbody tr')].map((row) => row.innerText)")
        times = [(row.split()[0], float(row.split()[1]), float(row.split()[3])) for row in rows]
        assert [word for word, *_ in times] == [word["word"] for word in heard["words"]]
        for (_, start, end), word in zip(times, heard["words"]):
            assert abs(start - word["start"]) < 0.02 and abs(end - word["end"]) < 0.02
        size = sum(facts["size"] for facts in json.loads((page / LISTING).read_text())["files"].values())
        assert tab.text("#size") == f"{size / 1e6:.1f} MB" and 0 < float(tab.text("#factor")) < 100
        assert not (found := violations(tab)), "\n".join(found)
        assert tab.hosts == {"127.0.0.1"} and not tab.errors
        tab.wait("!!navigator.serviceWorker.controller", "the page is stored")
        browser.offline(True)
        tab.reload()
        tab.wait("!document.querySelector('#file').disabled", "the model is loaded without a network")
        tab.click("#record")
        tab.wait(f"document.querySelector('#text').innerText.includes({json.dumps(heard['text'])})", "it was heard")
        tab.click("#record", "Stop")
        tab.wait("document.querySelector('#status').innerText === 'Done.'", "the microphone is off")


@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_a_damaged_graph_and_a_file_that_is_no_audio_are_named_on_the_page(page, spoken, served, tmp_path):
    damaged = shutil.copytree(page, tmp_path / "damaged")
    graph = damaged / "model" / "joint.onnx"
    graph.write_bytes(graph.read_bytes()[:-10] + bytes(10))
    with Browser(tmp_path) as browser:
        tab = browser.open(served(damaged))
        tab.wait("!document.querySelector('#error').hidden", "an error is shown")
        assert tab.text("#error").startswith("model/joint.onnx is damaged or of another export: load the page again")
        listing = json.loads((damaged / LISTING).read_text())  # a page of another name that fits the damaged graph
        listing["version"] = "0"
        listing["files"]["model/joint.onnx"]["sha256"] = hashlib.sha256(graph.read_bytes()).hexdigest()
        (damaged / LISTING).write_text(json.dumps(listing))
        tab = browser.open(served(damaged))
        tab.wait("!document.querySelector('#error').hidden", "an error is shown")
        assert "The graph joint.onnx cannot be loaded" in tab.text("#error")
        tab = opened(browser, served(page))
        (tmp_path / "notes.txt").write_text("no audio")
        tab.give("#file", tmp_path / "notes.txt")
        tab.wait("!document.querySelector('#error').hidden", "an error is shown")
        assert "notes.txt cannot be read as audio" in tab.text("#error")


@pytest.mark.slow
@in_node
def test_the_comparison_is_that_of_the_pages_scripts(page):
    facts = json.loads((page / "export.json").read_text())
    assert facts["runtime"] == f"onnxruntime-web {runtime.VERSION} in Node {node_version()}"
    assert facts["rows"][1]["differ"] == 0 and facts["rows"][1]["times_ms"][1] < 5
    assert facts["runtime"] in (page / "README.md").read_text()


@pytest.mark.slow
@in_node
def test_a_stream_in_pieces_gives_the_words_of_stentors_stream(eight, package, tmp_path):
    encoder = {"config": OWN_ENCODER, "log_mel": "fixed", "streaming": {}}
    options = {"steps": 2, "lr": 5e-3, "task": {"type": "words", "normalizer": "none"}}
    folder = run(tmp_path, "stream", {**OWN, "encoder": encoder}, eight, **options, **LEARN)
    to = tmp_path / "page"
    assert main(["export", str(folder), "--format", "web", "--to", str(to), "--runtime", str(package)]) == 0
    paths = [json.loads(line)["audio_path"] for line in eight.read_text().splitlines()]
    audio = np.concatenate([soundfile.read(path, dtype="float32")[0] for path in paths])
    audio.tofile(tmp_path / "clip.f32")
    (tmp_path / "stream.mjs").write_text(STREAM)
    command = ["node", str(tmp_path / "stream.mjs"), str(to), str(tmp_path / "clip.f32")]
    written = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    stream = stentor.load(folder).stream()
    words = [e for e in [*stream.feed(audio), *stream.finish()] if e["type"] == "word"]
    assert words and [w["word"] for w in written["words"]] == [w["word"] for w in words]
    for mine, theirs in zip(written["words"], words):
        assert abs(mine["start"] - theirs["start"]) < 0.01 and abs(mine["end"] - theirs["end"]) < 0.01


def packed(path, **contents):
    """A package with these files in `dist`."""
    with tarfile.open(path, "w:gz") as archive:
        for name in runtime.FILES:
            file = path.with_name("content")
            file.write_text(contents.get(name, "x"))
            archive.add(file, f"package/dist/{name}")
    return path


def test_a_download_that_is_another_one_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "ADDRESS", packed(tmp_path / "other.tgz").as_uri())
    with pytest.raises(ConfigError, match=r"is not onnxruntime-web 1\.30\.0: its SHA-512 is .*--runtime FILE"):
        runtime.write_runtime(tmp_path / "ort")
    assert not list((tmp_path / "cache" / "npm").iterdir())


def test_without_a_network_a_copy_is_taken(tmp_path, monkeypatch):
    monkeypatch.setenv("STENTOR_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(runtime, "ADDRESS", (tmp_path / "nothing.tgz").as_uri())
    with pytest.raises(ConfigError, match=r"cannot be downloaded .*npm pack onnxruntime-web@1\.30\.0`.*--runtime FILE"):
        runtime.write_runtime(tmp_path / "ort")
    wrong = packed(tmp_path / "wrong.tgz")
    with pytest.raises(ConfigError, match=r"ort\.wasm\.min\.mjs is not that of onnxruntime-web 1\.30\.0"):
        runtime.write_runtime(tmp_path / "ort", wrong)
    monkeypatch.setattr(runtime, "FILES", dict.fromkeys(runtime.FILES, hashlib.sha256(b"x").hexdigest()))
    runtime.write_runtime(tmp_path / "ort", wrong)
    unpacked = tmp_path / "node_modules" / "onnxruntime-web" / "dist"
    shutil.copytree(tmp_path / "ort", unpacked)
    runtime.write_runtime(tmp_path / "again", tmp_path)
    assert sorted(p.name for p in (tmp_path / "again").iterdir()) == sorted(runtime.FILES)
    with pytest.raises(ConfigError, match="does not hold onnxruntime-web's ort"):
        runtime.write_runtime(tmp_path / "ort", tmp_path / "cache")


@pytest.mark.slow
def test_a_static_space_is_the_page(page, learnt, tmp_path, capsys):
    command = ["publish", "demo", str(page), "--static", "--title", "My voice", "--dry-run", str(tmp_path / "space")]
    assert main(command) == 0
    readme = (tmp_path / "space" / "README.md").read_text()
    assert "sdk: static\n" in readme and "app_file: index.html" in readme and "title: My voice" in readme
    assert "<h1>My voice</h1>" in (tmp_path / "space" / "index.html").read_text()
    assert not (tmp_path / "space" / "training_config.json").exists()
    assert main(["publish", "demo", str(learnt), "--runtime", "x", "--dry-run", str(tmp_path / "b")]) == 2
    assert "--runtime is for --static" in capsys.readouterr().err
