"""People between the rounds, in a real browser: the labels of a run of `stentor improve` become drafts, the least
certain is corrected, and the next round learns from it. `STENTOR_SHOTS=FOLDER` keeps pictures."""

import json
import re

import pytest
from stand_in import ended

import studio_steps
from studio_steps import shoot

pytestmark = pytest.mark.browser
CORRECTED = "six five four"
ROUNDS = """
improve:
  rounds: 1
  unlabelled: [{{type: jsonl, path: "{manifest}"}}]
  labels: {{stages: [], filters: [], max_error: 1.0, assurance: 0.5, device: cpu}}
  may_share: [texts]
"""
MINE = '{{type: jsonl, path: "{manifest}", exclude: {{label_source: [pseudo], text: [""]}}}}'
ROWS = "[...document.querySelectorAll('stentor-check .row')]"
STATE = "document.querySelector('#status .state')?.dataset.state"


def records(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def job(desk, corpus, tiny_text):
    """A finished run of one round, on a data set of six recordings with texts and eight without."""
    from stentor.audio.io import read
    from stentor.studio.projects import Projects
    from stentor.studio.runs import jobs

    projects = Projects(desk.folder)
    voices = projects.create("voices", "en")
    for number, record in enumerate(records(corpus / "train.jsonl")[:14]):
        audio = read(corpus / record["audio_path"], rate=16000)
        voices.add(audio, 16000, record["text"] if number < 6 else "")
    text = tiny_text.format(folder=corpus, runs="runs", dropout=0.0).replace("  eval: {", "  test: {")
    text = text.replace(f'{{type: jsonl, path: "{corpus}/train.jsonl"}}', MINE.format(manifest=voices.manifest))
    text = text.replace("steps: 6, log_every: 1", "steps: 10, log_every: 10").replace("lr: 1e-3", "lr: 1e-2")
    job = jobs.start(projects, f"name: mine\n{text}{ROUNDS.format(manifest=voices.manifest)}")
    assert ended(job).state == "finished", jobs.log(job)
    return job


def correct_the_least_certain(page, voices):
    """Step Check, the least certain first: its text is corrected. Answers its id."""
    studio_steps.step(page, "2 Check")
    page.wait("document.querySelectorAll('stentor-check .row').length === 14", "all recordings are listed")
    page.click("stentor-check .choice[data-show=unsure]")
    drafts = sorted((r for r in records(voices.manifest) if "confidence" in r), key=lambda r: r["confidence"])
    assert len(drafts) > 2 and all(r["draft"] and r["label_source"] == "pseudo" for r in drafts)
    page.wait(f"{ROWS}.length === {len(drafts)}", "only labels are listed")
    page.still("#recordings")
    assert page.js(f"{ROWS}.map((row) => row.dataset.id)") == [r["id"] for r in drafts]
    seen = page.js(f"{ROWS}.map((row) => row.innerText)")
    percents = [int(re.search(r"(\d+) %", text)[1]) for text in seen]
    assert percents == sorted(percents) and percents[0] == round(100 * drafts[0]["confidence"])
    shoot(page, "unsure", "#recordings")
    least = drafts[0]["id"]
    page.fill(f"stentor-check .row[data-id='{least}'] textarea", CORRECTED)
    page.until(lambda: voices.record(least)["text"] == CORRECTED, "the text is saved")
    assert not {"draft", "label_source", "confidence", "round"} & voices.record(least).keys()
    page.still("#recordings")
    shoot(page, "corrected", "#recordings")
    return least


def test_labels_are_corrected_and_the_next_round_learns_from_them(chromium, desk, job):
    from stentor.studio.projects import Projects

    voices = Projects(desk.folder).dataset("voices")
    with chromium() as browser:
        page = browser.open(desk.address)
        page.wait("document.querySelector('#create')", "the page is there", 180)
        studio_steps.step(page, "3 Train")
        studio_steps.reach(page, "finished")
        assert "Finished after round 1" in page.text("#status")
        page.wait("document.querySelector('stentor-curves')", "the curves of the last training are there")
        shoot(page, "run", "#runs")
        page.click("#labels")
        page.until(lambda: any(r.get("draft") for r in voices.records()), "labels are drafts")
        page.wait("document.body.innerText.includes('have labels as drafts')", "the page says so")
        shoot(page, "labels", "#runs")
        least = correct_the_least_certain(page, voices)
        studio_steps.step(page, "3 Train")
        page.click("#round")
        page.wait(f"{STATE} !== 'finished'", "the next round runs")
        page.wait(
            "document.querySelector('#status').innerText.includes('Round 2 of')", "the page says which round it is"
        )
        shoot(page, "next", "#runs")
        studio_steps.reach(page, "finished")
        assert "Finished after round 2" in page.text("#status")
        shoot(page, "done", "#runs")
        page.click("#retry")
        page.wait(
            "document.querySelector('#command').innerText.includes('stentor improve ')", "the command is that of rounds"
        )
        assert not page.errors and page.hosts == {"127.0.0.1"}, (page.errors, page.hosts)
    first, second = (json.loads((job.folder / f"round-{n}" / "round.json").read_text()) for n in (1, 2))
    assert [r["entered"]["human"]["records"] for r in (first, second)] == [6, 7]
    assert second["left"]["pseudo"]["human"]["records"] >= 6
    assert least not in {r["recording"] for r in records(job.folder / "round-2" / "pseudo.jsonl")}
