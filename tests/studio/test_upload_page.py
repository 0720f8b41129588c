"""Uploads in the browser: what will be added is shown before it is, and survives a reload."""

import zipfile

import pytest
import soundfile
from studio_audio import tone

from stentor.studio.projects import Projects

pytestmark = pytest.mark.browser
TABLE = "[...document.querySelectorAll('#taken td')].map((e) => e.innerText)"


def texts(desk):
    return [r["text"] for r in Projects(desk.folder).dataset("voices").records()]


def test_an_upload_is_looked_at_and_survives_a_reload(chromium, desk, tmp_path):
    Projects(desk.folder).create("voices", "en")
    folder = tmp_path / "set" / "wavs"
    folder.mkdir(parents=True)
    for number, name in enumerate(("1 Take", "a2", "a3")):
        soundfile.write(folder / f"{name}.wav", tone(1.0 + number, 8000), 8000)
    (tmp_path / "later.csv").write_text("Datei;Text\na3.wav;three\na2.wav;another\nzz.wav;nobody's\n")
    (tmp_path / "set" / "metadata.csv").write_text("wavs/1_take.wav|one\nwavs/a2.wav|two\n")
    with zipfile.ZipFile(tmp_path / "set.zip", "w") as archive:
        for path in sorted((tmp_path / "set").rglob("*.*")):
            archive.write(path, path.relative_to(tmp_path / "set"))
    with chromium() as browser:
        page = browser.open(desk.address)
        page.wait("document.querySelector('#upload_part summary') !== null", "uploads are there")
        page.click("#upload_part summary")
        page.give("#upload input[type=file]", tmp_path / "set.zip")
        page.wait("document.querySelector('#upload .name') !== null", "the file is chosen")
        page.tab.reload()
        page.wait("document.querySelector('#upload .name')?.innerText === 'set.zip'", "the file is chosen still")
        page.click("#take")
        page.wait("document.querySelector('#add')", "the pairs are shown")
        cells = page.js(TABLE)
        assert cells[:2] == ["1 Take.wav", "one"] and "only similar" in cells[4], cells
        assert "a2.wav" in cells and "two" in cells and texts(desk) == []
        page.click("#add")
        page.wait("document.querySelector('#taken .ok')", "the upload is taken")
        assert texts(desk) == ["one", "two", ""]
        page.give("#transcripts input[type=file]", tmp_path / "later.csv")
        page.click("#take")
        page.wait("document.querySelector('#add')", "the pairs are shown")
        assert "no recording named zz" in page.text() and "another text already" in page.text()
        page.click("#add")
        page.wait("document.querySelector('#taken .ok')", "the texts are taken")
        assert "Texts added to recordings of before: 1" in page.text("#taken")
        assert texts(desk) == ["one", "two", "three"]
