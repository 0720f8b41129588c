"""A model that streams, in a real browser: what the microphone hears appears while it plays."""

import json
import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources

import numpy as np
import pytest

from stentor.text.written_words import spaced
from studio_steps import shoot, step

pytestmark = pytest.mark.browser
RATE = 16000
TEXTS = ("stop the music now", "four six two one", "one two six four")
HEARD = "document.querySelector('stentor-live .lines')?.innerText ?? ''"
RUN = """
name: mine
task: {type: transcribe, normalizer: none}
model:
  type: transformer
  kind: encoder
  streaming: {chunk: [0.16, 0.64], reach: [1.0, 2.0]}
  features: {num_mel_bins: 40, stack: 4, normalize: fixed}
  encoder: {d_model: 64, layers: 2, heads: 2, conv_kernel: 5, dropout: 0.0}
data:
  train:
    - type: join
      source: {type: jsonl, path: data.jsonl}
      count: 48
      items: [1, 3]
      same: null
      pause: [0.3, 1.2]
      silence: [0.1, 0.7]
  eval: {heard: {type: jsonl, path: data.jsonl}}
  augment: {noise: {builtin: [white, pink], snr: [15, 40], p: 0.7}}
  batch_tokens: 1500
  workers: 0
losses: {ctc: ctc}
optim: {type: muon, lr: 3.0e-3, muon_lr: 0.02, weight_decay: 0.0}
train: {steps: 250, log_every: 100, eval_every: 1000, use: last}
"""


@pytest.fixture(scope="module")
def microphone(tmp_path_factory):
    """What the microphone hears: the last of the texts, again and again. All are the data of the model."""
    import soundfile

    from stentor.audio.synth import say

    folder, rows = tmp_path_factory.mktemp("sounds"), []
    for number, text in enumerate(TEXTS):
        speech = say(text, voice="en-us", speed=150, pitch=50).audio
        speech = 0.5 * speech / np.abs(speech).max()
        path = folder / f"{number}.wav"
        soundfile.write(path, np.pad(speech, RATE // 20), RATE, subtype="PCM_16")
        rows.append({"id": str(number), "audio_path": path.name, "text": text})
    (folder / "data.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    soundfile.write(folder / "microphone.wav", np.pad(speech, (RATE // 5, RATE)), RATE, subtype="PCM_16")
    return folder / "microphone.wav"


@pytest.fixture(scope="module")
def trained(microphone, warm):
    """A run of `stentor train`: a model of three texts."""
    folder = microphone.parent
    (folder / "run.yaml").write_text(RUN.replace("data.jsonl", str(folder / "data.jsonl")))
    done = warm([["train", str(folder / "run.yaml"), f"output={folder / 'runs'}"]], 1)
    assert done.returncode == 0, done.stderr
    return folder / "runs" / "mine"


@pytest.fixture
def studio(desk, trained):
    """A studio with the run `mine`."""
    run = shutil.copytree(trained, desk.folder / "runs" / "mine")
    (run / "studio.json").write_text(json.dumps({"created": 1}))
    (run / "ending.json").write_text(json.dumps({"started": 1, "exit": 0, "time": 2}))
    return desk


def test_words_appear_while_one_speaks(chromium, studio, microphone):
    with chromium(microphone=microphone) as browser:
        page = browser.open(studio.address)
        page.wait("document.querySelector('#step_try-button, button[role=tab]')", "the page is there", 180)
        step(page, "4 Try")
        page.click("stentor-live .toggle")
        page.wait(f"({HEARD}).split('{TEXTS[-1]}').length > 2", "it is heard twice", 120)
        page.wait("document.querySelectorAll('stentor-live .line').length > 2", "each time is a line of its own")
        page.click("stentor-live summary")
        page.wait("[...document.querySelectorAll('.partial')].some((part) => part.innerText)", "a word is being said")
        shoot(page, "live", "stentor-live")
        color = "getComputedStyle(document.querySelector('stentor-live .{}')).color"
        assert page.js(color.format("partial")) != page.js(color.format("final"))
        page.click("stentor-live .toggle")
        page.wait("document.querySelector('stentor-live .toggle').innerText === 'Speak and read along'", "it ends")
        page.wait("!document.querySelector('stentor-live .note.wrong')", "nothing went wrong")
        cells = page.js("[...document.querySelectorAll('stentor-live tbody tr')].map((r) => r.innerText.split(/\\s+/))")
        words = [row[0] for row in cells]
        first = next(k for k in range(len(words)) if words[k : k + 4] == TEXTS[-1].split())
        for word, start, end, confidence, known in cells[first : first + 4]:
            assert 0 <= float(start) < float(end) <= float(known) + 0.1, word
            assert 0 < float(confidence) <= 1
        assert not page.errors and page.hosts == {"127.0.0.1"}, (page.errors, page.hosts)


ALONE = """<!DOCTYPE html><title>live</title><script>window.stentorTexts = {};</script>
<script type="module">import { spaced } from "./live.mjs"; window.spaced = spaced;</script>
<stentor-live run="mine"></stentor-live>"""


@pytest.fixture
def alone(chromium, microphone, tmp_path):
    """The element on a page of its own, without a studio."""
    folder = tmp_path / "page"
    shutil.copytree(resources.files("stentor.studio") / "page", folder)
    (folder / "alone.html").write_text(ALONE)
    handler = partial(SimpleHTTPRequestHandler, directory=folder)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with chromium(microphone=microphone) as browser:
            page = browser.open(f"http://127.0.0.1:{server.server_port}/alone.html")
            page.wait("window.spaced && document.querySelector('stentor-live .toggle')", "the element is there")
            yield page
        server.shutdown()


def test_an_element_that_goes_while_the_browser_asks(alone):
    """It lets go of the microphone that it is given afterwards, and asks the server for nothing."""
    alone.js(
        "window.devices = navigator.mediaDevices, window.ask = devices.getUserMedia.bind(devices), window.posts = 0,"
        "window.fetch = () => { window.posts++; return new Promise(() => {}); },"
        "devices.getUserMedia = async (wish) => {"
        "  await new Promise((resolve) => { window.allow = resolve; });"
        "  return (window.stream = await ask(wish)); }, true"
    )
    alone.click("stentor-live .toggle")
    alone.wait("Boolean(window.allow)", "the browser asks")
    alone.js("document.querySelector('stentor-live').remove(), allow(), true")
    alone.wait("window.stream?.getTracks().every((t) => t.readyState === 'ended')", "the microphone is let go")
    assert alone.js("window.posts") == 0


def test_words_are_joined_as_elsewhere(alone):
    for before, word in (
        ("", "a"),
        ("on", "the"),
        ("は、", "東"),
        ("写", "Python"),
        ("ครับ", "ที่"),
        ("ラ", "ー"),
        ("한국어", "문장"),
        ("他说“", "你"),
        ("𠮷", "野家"),
        ("ジョン・", "スミ"),
    ):
        assert alone.js(f"spaced({json.dumps(before)}, {json.dumps(word)})") == spaced(before, word)


def test_a_microphone_that_is_refused(chromium, studio, microphone):
    with chromium(microphone=microphone) as browser:
        page = browser.open(studio.address)
        step(page, "4 Try")
        page.find("stentor-live .toggle")
        page.js(
            "navigator.mediaDevices.getUserMedia = () => Promise.reject(new DOMException('', 'NotAllowedError')), true"
        )
        page.click("stentor-live .toggle")
        page.wait("document.querySelector('stentor-live .note.wrong')?.innerText.includes('does not allow')", "it says")
        assert not page.js("document.querySelector('stentor-live .toggle').disabled")
        page.js("navigator.mediaDevices.getUserMedia = undefined, delete navigator.mediaDevices.getUserMedia")
