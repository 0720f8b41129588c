"""What a page keeps: its data set and step, its forms, a take that is being made; through a reload, a link, the back
button, and a connection that goes and returns."""

import json

import pytest
from studio_audio import spoken

import studio_steps as studio

pytestmark = pytest.mark.browser
TEXTS = ("one two three", "four five six", "seven eight nine")
ROWS = "document.querySelectorAll('stentor-speak .row').length === 10"


@pytest.fixture
def two(desk):
    """A studio with the data sets `ben` and `anna`, which is the newer one."""
    for name in ("ben", "anna"):
        spoken(desk.folder, name, TEXTS)
    return desk


def shows(page, name, step):
    page.wait(
        f"document.querySelector('#dataset input')?.value === '{name}' && document.querySelector"
        f"('#step_{step}-button')?.ariaSelected === 'true' && location.search === '?dataset={name}&step={step}'",
        f"{step} of {name} is shown",
    )


def test_data_set_and_step_are_in_the_address(chromium, two):
    with chromium() as browser:
        page = browser.open(two.address)
        page.wait(ROWS, "the page is there")
        assert page.js("location.search") == "?dataset=anna"
        page.choose("#dataset", "ben")
        studio.step(page, "2 Check")
        shows(page, "ben", "check")
        assert page.errors == []
        page.reload()
        shows(page, "ben", "check")
        other = browser.open(page.js("location.href"))
        shows(other, "ben", "check")
        other.close()
        studio.step(page, "3 Train")
        page.choose("#dataset", "anna")
        shows(page, "anna", "train")
        for name, step in (("ben", "train"), ("ben", "check")):
            page.tab.go_back(wait_until="commit")
            shows(page, name, step)
        page.go(two.address.split("?")[0] + "?dataset=carl&step=dance")
        page.wait(
            "['carl', 'dance'].every((name) => document.querySelector('.toast-wrap')?.innerText.includes(name))",
            "both names are said",
        )
        page.wait(
            "['anna', 'ben'].includes(document.querySelector('#dataset input')?.value)"
            " && !location.search.includes('carl')",
            "one that is there is shown",
        )


def test_the_form_of_each_data_set_comes_back(chromium, two):
    edited = f"({studio.YAML}.startsWith('# mine') && {studio.YAML}.includes('speech_llm'))"
    with chromium() as browser:
        page = browser.open(two.address)
        studio.step(page, "3 Train")
        studio.settle(page, epochs=7)
        page.click(".cm-content")
        page.press("Control+Home")
        page.tab.keyboard.type("# mine\n")
        page.fill("#run_name input, #run_name textarea", "the-run")
        page.choose("#dataset", "ben")
        page.wait(f"{studio.YAML}.includes('/ben/') && !{edited}", "the other has a form of its own")
        page.choose("#dataset", "anna")
        for what in ("another data set", "a reload", "a second reload"):
            page.wait(
                f"{edited} && document.querySelector('#model input').value === {json.dumps(studio.SMALL)}",
                f"the form comes back after {what}",
            )
            page.wait(
                "document.querySelector('#basic_epochs :is(input, textarea)').value === '7'", "so do its settings", 60
            )
            page.still("#basic", 2)
            assert page.js(edited) and page.value("#run_name input, #run_name textarea") == "the-run"
            page.reload()
        page.wait(edited, "it is there")
        page.click("#new button.label-wrap")
        page.click("#delete_dataset")
        page.wait("document.querySelector('#dataset input').value === 'ben'", "the data set is gone")
        page.wait("!Object.keys(sessionStorage).some((key) => key.includes('/anna/'))", "and what was kept of it")


def test_offline_in_the_middle_of_everything(chromium, two, tmp_path):
    """While one records, types and has chosen files; then the page is loaded again in the middle of a take."""
    (tmp_path / "a.txt").write_text("a")
    folder = two.folder / "datasets" / "anna"
    lines = (folder / "manifest.jsonl").read_text().count("\n")
    row = "document.querySelector(\"stentor-speak .row[data-number='{}']\")"
    heard = f"parseFloat({row}.querySelector('.seconds').textContent) > "
    with chromium() as browser:
        page = browser.open(two.address)
        page.wait(ROWS, "the page is there")
        page.js("(window.same = true)")
        page.click("#upload_part summary")
        page.give("#upload input[type=file]", next((folder / "audio").iterdir()))
        page.click("stentor-speak .row[data-number='4'] button.record")
        page.wait(heard.format(4) + "1", "the microphone hears")
        browser.offline(True)
        page.wait(heard.format(4) + "3", "it still hears")
        page.click("stentor-speak .row[data-number='4'] button.record")
        page.wait(f"{row.format(4)}.dataset.state === 'unsent'", "the take waits")
        page.fill("#pasted textarea", "some text")
        studio.step(page, "3 Train")
        page.wait("document.querySelector('.stentor-lost')?.innerText", "it is said that the connection is lost")
        browser.offline(False)
        page.wait("!document.querySelector('.stentor-lost').innerText", "it is back")
        page.wait(f"{studio.YAML}.includes('train:')", "the click is answered")
        studio.step(page, "1 Speak")
        page.wait(f"{row.format(4)}.dataset.state === 'saved'", "the take is saved")
        assert page.js("window.same") and page.value("#pasted textarea") == "some text"
        assert page.js("document.querySelector('#upload').innerText.includes('.wav')")

        page.click("stentor-speak .row[data-number='5'] button.record")
        page.wait(heard.format(5) + "1.5", "the microphone hears")
        page.reload()
        page.wait(f"{row.format(5)}?.innerText.includes('The page was closed')", "what was recorded is kept")
        kept = [json.loads(line) for line in (folder / "manifest.jsonl").read_text().splitlines()][lines:]
        assert len(kept) == 2 and kept[0]["duration"] > 3 and kept[1]["duration"] > 1
