"""What goes wrong, seen through the page: nothing is lost, one clear message, never two runs."""

import json
import os
import signal

import pytest
from studio_audio import spoken

pytestmark = pytest.mark.browser
TEXTS = ("one two three", "four five six", "seven eight nine", "ten eleven twelve")


@pytest.fixture
def filled(opened):
    """A studio, not yet started, whose data set `voice` has four recordings."""
    spoken(opened.folder, "voice", TEXTS)
    return opened


def test_two_starts_at_once_then_a_crash_of_everything(chromium, filled):
    """Two tabs press start: one run, and one is told why. The studio is killed: the run continues and the page finds it
    again. The training is killed: that is said; it resumes, and stops when it is told to."""
    import studio_steps as studio
    from stentor.studio.runs import detached

    filled.start()
    runs = filled.folder / "runs"
    with chromium() as browser:
        pages = [browser.open(filled.address) for _ in range(2)]
        for page in pages:
            studio.step(page, "3 Train")
            studio.settle(page, epochs=3000)  # longer than the test, on any machine
        for page in pages:  # both find the button before either presses it
            page.find("#start")
        for page in pages:
            page.js("document.querySelector('#start').click()")
        refused = "[...document.querySelectorAll('.toast-body')].some((t) => t.innerText.includes('There is a run'))"
        warned = [False, False]

        def one_is_told() -> bool:
            warned[:] = [before or bool(page.js(refused)) for before, page in zip(warned, pages, strict=True)]
            return any(warned)

        first, second = pages
        first.until(one_is_told, "one of the two is told that there is a run already")
        assert len(list(runs.iterdir())) == 1 and sum(warned) == 1
        second.close()
        (run,) = runs.iterdir()

        studio.reach(first, "running", 6)
        process = detached.process(run)
        filled.kill()
        assert process and detached.process(run) == process, "the training outlives the studio"
        filled.start()
        first.wait(
            "fetch('/studio/ready').then((r) => r.json()).then((d) => d.ready)", "the studio is there again", 180
        )
        first.reload()
        studio.step(first, "3 Train")
        studio.reach(first, "running", 8)
        assert detached.process(run) == process, "it is the same training"

        first.until(lambda: (run / "checkpoints" / "latest").exists(), "something is saved", 180)
        os.kill(process, signal.SIGKILL)
        studio.reach(first, "failed")
        assert "killed" in first.text("#status"), first.text("#status")
        first.click("#resume")
        studio.reach(first, "running", 12)
        first.click("#stop")
        studio.reach(first, "stopped", 12)
    events = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    began = [e for e in events if e["event"] == "started"]
    assert len(began) == 2 and began[1]["step"] >= 10, "it went on from its last checkpoint"
    assert events[-1]["event"] == "stopped" and detached.process(run) is None
    assert len(list(runs.iterdir())) == 1


def test_the_network_goes_while_publishing(chromium, filled, hub):
    """The connection breaks in the middle of a file, and the answer to the commit is lost: it is published all the
    same, once. With no network at all the page says so, and once it is there again the same button goes on."""
    import studio_steps as studio

    hub.part_bytes = 20_000
    hub.break_after(50_000)
    hub.lose_answer("/commit/")
    filled.start(**hub.fresh)
    published = "document.querySelector('#publish_state [data-state=published] a')?.href.endsWith('{}')"
    with chromium() as browser:
        page = browser.open(filled.address)
        studio.step(page, "5 Publish")
        to = "#publish_to input, #publish_to textarea"
        page.wait(f"document.querySelector('{to}').value === 'tester/voice'", "a name is suggested")
        page.click("#publish_go")
        page.wait(published.format("tester/voice"), "it is published", 180)
        repo = hub.repos["datasets/tester/voice"]
        assert 0 in {r.status for r in hub.asked("^PUT")} and 0 in {r.status for r in hub.asked("/commit/")}
        assert sum(name.endswith(".wav") for name in repo.files) == len(TEXTS)
        assert [c.title for c in repo.commits[1:]] == [repo.commits[1].title], "one commit, though it was sent twice"

        hub.pull()
        page.fill(to, "tester/other")
        page.click("#publish_go")
        page.wait("document.querySelector('#publish_state [data-state=failed] [role=alert]')", "it says why not", 180)
        alert = page.text("#publish_state [role=alert]")
        assert len(alert) > 20 and "Traceback" not in alert and hub.token not in page.text(), alert
        hub.plug()
        page.click("#publish_again")
        page.wait(published.format("tester/other"), "it is published after all", 180)
        assert hub.repos["datasets/tester/other"].files.keys() == repo.files.keys()
