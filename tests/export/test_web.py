"""`--format web`: a page that recognises speech in Chromium as Stentor does, and scripts that do so in Node."""

import functools
import hashlib
import http.server
import json
import re
import shutil
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("onnxruntime", reason="needs stentor[onnx]")
pytest.importorskip("onnxscript", reason="needs stentor[onnx]")

import soundfile

import stentor
from accessible import violations
from browser import Browser, chromium
from stentor.cli import main
from stentor.errors import ConfigError
from stentor.export.web import runtime
from stentor.export.web.page import LISTING, node_version

in_browser = pytest.mark.skipif(chromium() is None, reason="no Chromium, or no Playwright")
in_node = pytest.mark.skipif(node_version() is None, reason="no Node")
FROZEN = Path(__file__).parents[1] / "frozen"
"""Tiny models that know the clips beside them by heart."""
CLIP = FROZEN / "data" / "one.flac"
STREAMS = "nemotron_streaming"
RECORDED = """(() => {
  const send = Worker.prototype.postMessage;
  let stopped = false;
  window.recorded = [];
  Worker.prototype.postMessage = function (data, ...more) {
    stopped ||= data.kind === "stop";
    if (data.kind === "samples") stopped || recorded.push(...data.samples);
    if (data.kind !== "samples" || !stopped) return send.call(this, data, ...more);
  };
})()"""
"""Keeps in `recorded` what the microphone gives to the worker until it is stopped."""


@pytest.fixture(scope="session")
def package():
    """onnxruntime-web's package, from the cache or the registry."""
    try:
        return runtime.package()
    except ConfigError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="session")
def pages(package, tmp_path_factory):
    """The page of a frozen model, as the command writes it, by the model's name."""

    @functools.cache
    def exported(name):
        folder, model = tmp_path_factory.mktemp(name) / "page", FROZEN / "exports" / name / "export"
        assert main(["export", str(model), "--format", "web", "--to", str(folder), "--runtime", str(package)]) == 0
        return folder

    return exported


@pytest.fixture(scope="session")
def spoken(tmp_path_factory):
    """A recording of a clip behind a second of silence."""
    path = tmp_path_factory.mktemp("spoken") / "spoken.wav"
    audio = np.concatenate([np.zeros(16000), soundfile.read(CLIP)[0]])
    soundfile.write(path, audio, 16000, subtype="PCM_16")
    return path


@pytest.fixture
def served():
    """Serves a folder as any static server does, and answers its address; `served.stop()` ends all servers."""
    servers = []

    def serve(folder):
        handler = functools.partial(Quiet, directory=str(folder))
        servers.append(server := http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_port}/"

    def stop():
        while servers:
            server = servers.pop()
            server.shutdown()
            server.server_close()

    serve.stop = stop
    yield serve
    stop()


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


def opened(browser, address):
    tab = browser.open(address)
    tab.wait("!document.querySelector('#file').disabled", "the model is loaded")
    return tab


def transcribe(tab, path):
    tab.give("#file", path)
    tab.wait("document.querySelector('#status').innerText.startsWith('Done')", "the file is transcribed")
    return tab.text("#text")


def words(tab):
    """Words with their times, as the page shows them."""
    rows = tab.js("[...document.querySelectorAll('#times tbody tr')].map((row) => row.innerText.split('\\t'))")
    return [(word, float(start.split()[0]), float(end.split()[0])) for word, start, end in rows]


def error(tab, act=lambda: None):
    """What the page says is wrong after `act`."""
    tab.js("document.querySelector('#error').hidden = true")
    act()
    tab.wait("!document.querySelector('#error').hidden", "an error is shown")
    return tab.text("#error")


def agree(tab, model, language=""):
    """Whether a clip has the words and times of Stentor on the page."""
    heard = model.transcribe(CLIP, **({"language": language} if language else {}))
    tab.js(f"document.querySelector('#language select').value = {json.dumps(language)}")
    assert transcribe(tab, CLIP).split() == heard["text"].split() == [word for word, *_ in words(tab)] != []
    for (_, start, end), same in zip(words(tab), heard.get("words", [])):
        assert abs(start - same["start"]) < 0.02 and abs(end - same["end"]) < 0.02


def dictated(tab):
    """What the worker was given by the microphone, whose button has the focus, and the text that is shown for it."""
    tab.js(RECORDED)
    tab.press("Enter")
    tab.wait("document.querySelector('#text').innerText !== ''", "a text is shown while the microphone is on")
    tab.wait("parseFloat(document.querySelector('#seconds').innerText) > 2.5", "more is heard")
    tab.press("Enter")
    tab.wait("document.querySelector('#status').innerText === 'Done.'", "the microphone is off")
    return np.array(tab.js("window.recorded"), np.float32), tab.text("#text")


@pytest.mark.browser
@in_browser
def test_files_and_the_stream_of_the_microphone_have_the_words_of_stentor_also_offline(pages, spoken, served, tmp_path):
    page, model = pages(STREAMS), stentor.load(FROZEN / "exports" / STREAMS / "export")
    with Browser(tmp_path, microphone=spoken) as browser:
        tab = opened(browser, served(page))
        agree(tab, model)
        size = sum(facts["size"] for facts in json.loads((page / LISTING).read_text())["files"].values())
        assert tab.text("#size") == f"{size / 1e6:.1f} MB" and 0 < float(tab.text("#factor")) < 100
        assert not (found := violations(tab)), "\n".join(found)
        assert tab.hosts == {"127.0.0.1"} and not tab.errors
        tab.wait("!!navigator.serviceWorker.controller", "the page is stored")
        served.stop()
        tab.reload()
        tab.wait("!document.querySelector('#file').disabled", "the model is loaded without a server")
        for key in ("Tab", "Tab"):  # the keys alone: from the file to the microphone
            tab.press(key)
        audio, text = dictated(tab)
    stream = model.stream()
    events = [*stream.feed(audio), *stream.finish()]
    # Stentor also ends words at pauses, where this model writes no space.
    assert text.replace(" ", "") == "".join(event["word"] for event in events if event["type"] == "word")


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("name", ["transducer", "ctc", "whisper"])
@in_browser
def test_models_of_each_kind_write_the_words_of_stentor(name, pages, served, tmp_path):
    """Of a file, and of the microphone: speech without a pause is one window, which is read again as it grows."""
    soundfile.write(tmp_path / "speech.wav", np.tile(soundfile.read(CLIP)[0], 40), 16000, subtype="PCM_16")
    model, language = stentor.load(FROZEN / "exports" / name / "export"), "en" if name == "whisper" else ""
    with Browser(tmp_path, microphone=tmp_path / "speech.wav") as browser:
        tab = opened(browser, served(pages(name)))
        agree(tab, model, language)
        if name == "transducer":  # its clips were short: it cuts such speech, elsewhere each time
            return
        tab.js("document.querySelector('#record').focus()")
        audio, text = dictated(tab)
        assert text == model.transcribe(audio, 16000, **({"language": language} if language else {})).text != ""
        assert not tab.errors


@pytest.mark.slow
@pytest.mark.browser
@in_browser
def test_wrong_files_and_folders_are_named_on_the_page(pages, served, tmp_path):
    (tmp_path / "notes.txt").write_text("no audio")
    (tmp_path / "nothing.wav").write_bytes(b"")
    page = pages(STREAMS)
    damaged = shutil.copytree(page, tmp_path / "damaged")
    graph = damaged / "model" / "joint.onnx"
    graph.write_bytes(graph.read_bytes()[:-10] + bytes(10))
    with Browser(tmp_path) as browser:
        tab = opened(browser, served(page))
        said = error(tab, lambda: tab.give("#file", tmp_path / "notes.txt"))
        assert said.startswith("notes.txt cannot be read as audio: it has no sound, or a format that this browser")
        assert error(tab, lambda: tab.give("#file", tmp_path / "nothing.wav")).startswith("nothing.wav is empty")
        tab.js("navigator.mediaDevices.getUserMedia = () => Promise.reject(new Error('Permission denied'))")
        said = error(tab, lambda: tab.click("#record"))
        assert said.startswith("The microphone cannot be used: Permission denied. Connect one, and allow it")
        said = error(browser.open(address := served(damaged)))
        assert said.startswith("model/joint.onnx is damaged or of another export: load the page again")
        graph.unlink()
        said = error(browser.open(address))
        assert said == "model/joint.onnx cannot be downloaded (404): copy the folder whole."
        shutil.copy(page / "model" / graph.name, graph)
        (damaged / "ort" / "ort-wasm-simd-threaded.mjs").unlink()
        assert "Use a current browser with WebAssembly, and copy the folder whole" in error(
            browser.open(served(damaged))
        )


@pytest.mark.slow
@in_node
def test_the_comparison_is_that_of_the_pages_scripts(pages):
    facts = json.loads((pages("transducer") / "export.json").read_text())
    assert facts["runtime"] == f"onnxruntime-web {runtime.VERSION} in Node {node_version()}"
    assert facts["rows"][1]["differ"] == 0
    assert facts["runtime"] in (pages("transducer") / "README.md").read_text()


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
    with pytest.raises(ConfigError, match="does not hold onnxruntime-web"):
        runtime.write_runtime(tmp_path / "ort", tmp_path / "cache")


@pytest.mark.slow
def test_a_static_space_is_the_page(pages, tmp_path, hub, attempt):
    page = pages(STREAMS)
    code, said = attempt("publish", "demo", page, "--static", "--to", f"{hub.user}/page", "--title", "My voice")
    assert code == 0, said
    space = hub.repos[f"spaces/{hub.user}/page"]
    readme = space.files["README.md"].decode()
    assert space.sdk == "static" and "sdk: static\n" in readme and "app_file: index.html" in readme
    assert "title: My voice" in readme and b"<h1>My voice</h1>" in space.files["index.html"]
    assert "training_config.json" not in space.files and {p.name for p in page.iterdir()} <= {
        name.split("/")[0] for name in space.files
    }
    for name, content in space.files.items():  # everything is relative: a Space is below another address
        if name.endswith((".html", ".css", ".js")):
            assert not re.search(rb"""(?:src|href|from|fetch|import|register)[=( ]+["'`](?:/|https?:)""", content), name
    assert attempt("publish", "demo", page, "--runtime", "x", "--dry-run", tmp_path / "b")[0] == 2
    code, said = attempt("publish", "model", page, "--dry-run", tmp_path / "model")
    assert code == 2 and "is a page: publish it with `stentor publish demo" in said
