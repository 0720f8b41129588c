"""`stentor demo`: the page of one's own model on this machine."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from accessible import violations
from browser import Browser, chromium
from stentor.cli import main
from stentor.errors import ConfigError
from stentor.publish import space

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))
from speaking import make_model, voiced

IN_GRADIO = ("image-redundant-alt", "footer")
"""Gradio's footer gives its pictures the text beside them as their name."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that speaks, with a voice of its own."""
    import stentor
    from stentor.inference.speak.voice import Voice, save_voice

    folder = make_model(tmp_path_factory.mktemp("talker") / "model")
    codec = stentor.load(folder).bundle.processor.codec
    save_voice(Voice(codec.encode([voiced(2.0)])[0], "one two"), folder / "voices" / "anna", codec)
    return folder


def test_without_gradio_the_extra_is_named(model, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "gradio", None)
    assert main(["demo", str(model)]) == 2
    assert "needs gradio, which is not installed: pip install 'stentor[studio]'" in capsys.readouterr().err


@pytest.mark.long
def test_a_model_that_is_not_there(tmp_path, capsys):
    pytest.importorskip("gradio")
    assert main(["demo", str(tmp_path / "no model")]) == 2
    assert "There is no model" in capsys.readouterr().err


def test_the_model_stays_where_it_is(model, tmp_path):
    pytest.importorskip("gradio")
    program = space.build_page(model, tmp_path, title="Mine")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo.py", "space.json", "speak.py"] and program.is_file()
    facts = json.loads((tmp_path / "space.json").read_text())
    assert (facts["model"], facts["title"], facts["task"]) == (str(model.resolve()), "Mine", "speak")
    adapters = shutil.copytree(model, tmp_path / "adapters")
    (adapters / "model.safetensors").unlink()
    section = {"type": "omnivoice", "from": str(model)}
    (adapters / "training_config.json").write_text(json.dumps({"task": {"type": "speak"}, "model": section}))
    (adapters / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": str(model)}))
    with pytest.raises(ConfigError, match="a folder that a Space has not"):
        space.build(adapters, tmp_path / "space")
    (tmp_path / "page").mkdir()
    assert space.build_page(adapters, tmp_path / "page").is_file()


@pytest.fixture(scope="module")
def page(model, tmp_path_factory):
    """The address of the page, served by the command."""
    pytest.importorskip("gradio")
    log = tmp_path_factory.mktemp("log") / "log.txt"
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, "-m", "stentor", "demo", str(model), "--port", "0", "--title", "My voice"],
            env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"},
            stdout=file,
            stderr=subprocess.STDOUT,
        )
    until = time.monotonic() + 300
    while not (address := re.search(r"http://127\.0\.0\.1:\d+", log.read_text())):
        assert process.poll() is None and time.monotonic() < until, log.read_text()
        time.sleep(0.1)
    yield address[0]
    process.terminate()
    process.wait(30)


@pytest.mark.slow
def test_the_page_is_served_here(page):
    config = json.load(urllib.request.urlopen(f"{page}/config", timeout=60))
    assert config["title"] == "My voice" and not config.get("analytics_enabled")
    (saved,) = (c["props"] for c in config["components"] if c["props"].get("label") == "Saved voice")
    assert saved["visible"] and [value for _, value in saved["choices"]] == ["", "anna"]


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="no Chromium, or no Playwright")
def test_the_page_speaks(page, tmp_path):
    with Browser(tmp_path) as browser:
        tab = browser.open(page)
        tab.wait("document.querySelector('textarea')", "the page is there")
        tab.fill("textarea", "one two three")
        tab.click("button.primary")
        tab.wait("document.querySelector('audio[src], .waveform-container, #waveform')", "speech is there")
        assert not (found := violations(tab, IN_GRADIO)), "\n".join(found)
        assert tab.hosts == {"127.0.0.1"}
