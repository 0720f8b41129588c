"""The whole way through the studio in a real browser: from the first phrase to a model on the Hub (its stand-in), with
the page closed in the middle of the training. `STENTOR_SHOTS=FOLDER` keeps a picture of every step."""

import json

import pytest

import studio_steps
from studio_steps import shoot

pytestmark = pytest.mark.browser
SPOKEN = "the quick brown fox jumps over the lazy dog near the river bank"
UPLOADED = "seven green bottles were standing on the wall"
CORRECTED = "The kettle is boiling, so let us drink tea."


@pytest.fixture
def sounds(tmp_path):
    """(microphone.wav, bottles.wav): what the microphone hears, and a recording that was made elsewhere."""
    from stentor.audio.io import write
    from stentor.audio.synth import say

    paths = tmp_path / "microphone.wav", tmp_path / "bottles.wav"
    for path, text in zip(paths, (SPOKEN, UPLOADED), strict=True):
        speech = say(text, voice="en-us", speed=160, pitch=50)
        write(path, speech.audio / abs(speech.audio).max() * 0.5, 16000)
    return paths


def manifest(folder):
    return [json.loads(line) for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]


def publish(page, repo):
    """Publishes what is chosen as `repo`, its key at the Hub."""
    # A card that goes away scrolls the page: a click that is on its way then hits nothing.
    page.wait("!document.querySelector('#card textarea')?.value", "the card of something else is gone")
    page.click("#card_make")
    page.wait("document.querySelector('#card textarea')?.value.startsWith('---')", "the card can be read")
    page.still("#card")
    page.click("#publish_go")
    link = "document.querySelector('#publish_state .stentor-publication[data-state=published] a')?.href"
    page.wait(f"{link}?.endsWith('/{repo}')", "it is published", 120)


def record_and_upload(page, data, bottles):
    """The language, the data set, three phrases, ten more, and a file."""
    page.wait("document.querySelector('#create')", "the page is there", 180)
    studio_steps.create(page)
    for number in (1, 2, 3):
        studio_steps.record(page, number)
    shoot(page, "speak")
    page.click("#more")
    page.wait("document.querySelectorAll('stentor-speak .row').length === 20", "there are ten more phrases")
    studio_steps.upload(page, bottles, UPLOADED)
    shoot(page, "upload", "#upload_part")
    records = manifest(data)
    assert len(records) == 4 and records[3]["text"] == UPLOADED and {r["language"] for r in records} == {"en"}
    assert all(r["duration"] > 1.5 and (data / r["audio_path"]).stat().st_size > 30_000 for r in records)
    return records


def look_over(page, data, records):
    """Listen: one text is corrected, one recording removed, the rest divided."""
    studio_steps.step(page, "2 Check")
    row = "stentor-check .row[data-number='{}']"
    page.wait("document.querySelectorAll('stentor-check .row').length === 4", "all recordings are listed")
    page.wait(f"document.querySelector(\"{row.format(1)} audio\").src.includes('/studio/audio/voice/')", "a player")
    page.still("#recordings")
    page.fill(f"{row.format(1)} textarea", CORRECTED)
    page.until(lambda: manifest(data)[0]["text"] == CORRECTED, "the text is saved")
    page.still("#recordings")
    page.click(f"{row.format(3)} button.remove")
    page.wait("document.querySelector('stentor-check .figure b').textContent === '3'", "one is removed")
    page.click("#split")
    page.wait("document.querySelector('#divided').innerText.includes('2 recordings')", "they are divided")
    shoot(page, "check")
    left = manifest(data)
    assert [r["text"] for r in left] == [CORRECTED, records[1]["text"], UPLOADED]
    parts = [(data / f"{part}.jsonl").read_text().count("\n") for part in ("train", "held_out")]
    assert parts == [2, 1]


def train_and_come_back(browser, page, opened, rows):
    """Train; the page is closed in the middle, and another one shows the same run."""
    studio_steps.step(page, "3 Train")
    studio_steps.settle(page)
    page.click("#after_publish")
    page.wait("/^tester\\/./.test(document.querySelector('#after_to :is(input, textarea)')?.value)", "a name for it")
    page.click("#after_demo")
    declined(page, "#after_private", "#start", "tester/voice")
    shoot(page, "train")
    page.click("#start")
    studio_steps.reach(page, "running", 4)
    shoot(page, "run", "#runs")
    assert not page.errors, page.errors
    page.close()
    page = browser.open(opened.address)
    studio_steps.step(page, "3 Train")
    page.wait("document.querySelector('#status .state')", "the run is there again")
    assert studio_steps.state(page) == "running", page.text("#status")
    studio_steps.reach(page, "finished", 60)
    shoot(page, "finished", "#runs")
    (run,) = (opened.folder / "runs").iterdir()
    events = [json.loads(line)["event"] for line in (run / "events.jsonl").read_text().splitlines()]
    assert events.count("started") == 1 and events[-1] == "finished"
    losses = [row["train/loss"] for row in rows(run)]
    assert losses[-1] < losses[0] / 2
    assert (run / "export" / "model.safetensors").is_file()
    return page, run


def declined(page, private, go, to):
    """What everybody would see is not begun unless a person agrees."""
    page.js("window.confirm = (question) => { window.asked = question; }")
    page.click(f"{private} input")
    page.click(go)
    page.wait("document.body.innerText.includes('did not agree that everybody can see it')", "it was not begun")
    assert to in page.js("window.asked")
    page.click(f"{private} input")


def try_it(page, bottles):
    """Try it on a clip whose words are known."""
    studio_steps.step(page, "4 Try")
    page.click("#clip button[aria-label='Upload file']")
    page.give("#clip input[type=file]", bottles)
    page.find("#clip .play-pause-button")
    page.fill("#try_said input, #try_said textarea", UPLOADED)
    page.click("#try")
    page.wait("document.querySelector('#answers').innerText.includes('8 words')", "its answer is there", 120)
    shoot(page, "try")


def publish_both(page, hub, run, records):
    """Publish both. Nobody else sees them."""
    studio_steps.step(page, "5 Publish")
    repo = f"tester/{run.name}"
    demo = f"spaces/{repo}-demo"
    page.until(lambda: repo in hub.repos and demo in hub.repos, "both are published as it was said before the start")
    assert hub.repos[repo].private and hub.repos[demo].private
    weights = hub.repos[repo].files["model.safetensors"]
    assert weights == (run / "export" / "model.safetensors").read_bytes()
    page.still("#publish_to", 2)  # the Hub is asked who is signed in, and a name is suggested
    page.choose("#publish_what", "The data set voice (without any model)")
    page.wait("document.querySelector('#publish_to :is(input, textarea)').value === 'tester/voice'", "its name")
    declined(page, "#publish_private", "#publish_go", "tester/voice")
    publish(page, "datasets/tester/voice")
    shoot(page, "publish")
    stored = hub.repos["datasets/tester/voice"]
    sounds = sorted(name for name in stored.files if name.endswith(".wav"))
    assert stored.private and stored.type == "dataset" and len(sounds) == 3
    published = b"\n".join(content for name, content in stored.files.items() if not name.endswith(".wav")).decode()
    assert CORRECTED in published and records[2]["text"] not in published, "what was removed is not published"
    assert not page.errors and page.hosts == {"127.0.0.1"}, (page.errors, page.hosts)


def test_the_whole_journey(chromium, opened, hub, sounds, rows):
    microphone, bottles = sounds
    opened.start(**hub.fresh)
    data = opened.folder / "datasets" / "voice"
    with chromium(microphone=microphone) as browser:
        page = browser.open(opened.address)
        records = record_and_upload(page, data, bottles)
        look_over(page, data, records)
        page, run = train_and_come_back(browser, page, opened, rows)
        try_it(page, bottles)
        publish_both(page, hub, run, records)
    written = opened.log.read_text() + "".join(p.read_text() for p in opened.folder.rglob("output.txt"))
    assert hub.token not in written and "Traceback" not in written, written[-3000:]
