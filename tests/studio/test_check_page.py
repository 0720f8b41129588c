"""Step 2 in a browser: trimming and undo, another name and language, the download."""

import json
import zipfile

import numpy as np
import pytest
from studio_audio import tone

pytestmark = pytest.mark.browser
RATE = 16000


def test_trim_rename_and_download(chromium, desk):
    """A data set with silence and, beside it, one without texts."""
    import studio_steps as studio
    from stentor.studio.dataset.prompts import languages
    from stentor.studio.projects import Projects

    projects = Projects(desk.folder)
    voices, mute = projects.create("voices", "en"), projects.create("mute", "en")
    mute.add(tone(1.0, RATE), RATE, "")
    quiet = 1e-4 * np.random.default_rng(0).standard_normal(RATE)
    for number in range(3):
        padded = np.concatenate([quiet, tone(2.0, RATE, 0.2 + number / 20), quiet]).astype(np.float32)
        voices.add(padded, RATE, f"sentence {number}")
    before = voices.records()
    note = "document.querySelector('stentor-check .trimmed-note').innerText"
    with chromium() as browser:
        page = browser.open(desk.address)
        page.wait("document.querySelector('#create')", "the page is there", 180)
        page.wait("/processor core.* GPU.* Hub/.test(document.querySelector('#machine').innerText)", "the machine")
        page.choose("#dataset", "mute")
        studio.step(page, "2 Check")
        page.wait(
            "document.querySelector('stentor-check .useless')?.innerText.includes('nothing')", "no text: it says so"
        )
        page.choose("#dataset", "voices")
        page.wait("document.querySelectorAll('stentor-check .row').length === 3", "three recordings")
        page.wait("!document.querySelector('stentor-check .trim-all')?.hidden", "silence is found")
        assert page.text("stentor-check .trim-all").endswith("from 3 recordings")
        page.click("stentor-check .row[data-number='1'] button.trim")
        page.wait(f"{note}.includes('from 1 recording.')", "one is trimmed")
        page.click("stentor-check .trim-all")
        page.wait(f"{note}.includes('from 2 recordings.')", "the others are trimmed")
        assert all(record["duration"] < 2.6 for record in voices.records())
        page.wait("document.querySelector('stentor-check .row .time').innerText.startsWith('2.')", "the player knows")
        page.click("stentor-check .whole-all")
        page.wait(f"{note}.includes('put back in 3 recordings')", "all is as before")
        assert voices.records() == before

        page.click("#identity button")
        page.fill("#identity_name input, #identity_name textarea", "stimmen")
        page.choose("#identity_language", next(label for label, code in languages() if code == "de"))
        page.click("#identity_save")
        page.wait("document.querySelector('#dataset input').value === 'stimmen'", "the new name is chosen")
        renamed = projects.dataset("stimmen")
        assert {r["language"] for r in renamed.records()} == {"de"} and "voices" not in projects.datasets()
        page.wait("document.querySelector('stentor-check .download')?.href.endsWith('/stimmen')", "its recordings")
        with page.tab.expect_download() as download:
            page.click("stentor-check .download")
        assert download.value.suggested_filename == "stimmen.zip"
        with zipfile.ZipFile(download.value.path()) as archive:
            lines = archive.read("metadata.jsonl").decode().splitlines()
        assert [json.loads(line)["text"] for line in lines] == [record["text"] for record in before]
