"""axe on every step of the page, of a studio with recordings, a finished run and a publication."""

import json
import time

import pytest
from stand_in import exported
from studio_audio import RATE, tone

from stentor.studio.files import write_json

pytestmark = pytest.mark.browser
# Not the form of all settings, whose hundreds of fields are alike.
UNFOLD = """document.querySelectorAll('details').forEach((d) => { d.open = true; }) ??
    document.querySelectorAll('#steps button.label-wrap:not(.open)')
        .forEach((b) => b.closest('#advanced') || !b.checkVisibility() || b.click())"""
STEPS = {
    "1 Speak": ("button.record", "#upload_part summary"),
    "2 Check": (".play", ".words textarea", "#split"),
    "3 Train": ("#model input", "#start", "#yaml .cm-content", "#run input"),
    "4 Try": ("#try_run input", "#try"),
    "5 Publish": ("#publish_what input", "#publish_go", "#publish_again"),
}
"""Controls of each step that keys must reach."""
FOCUSED = """((e) => [%s.filter((s) => e.matches(s)), e.matches('input, textarea, .cm-content')
    || getComputedStyle(e).outlineStyle !== 'none', e.matches('.cm-content'), e.ariaSelected === 'true', e.outerHTML
    .slice(0, 90)])(document.activeElement)"""


@pytest.fixture
def furnished(desk):
    """A data set, a run that has finished, one that has failed, and a publication; all of it made as files."""
    from stentor.studio.projects import Projects

    projects = Projects(desk.folder)
    voice = projects.create("voice", "en")
    for number in range(6):
        voice.add(tone(1 + number / 2, RATE), RATE, f"text {number}" if number else "", speaker="Anna")
    voice.split()
    for name, code in (("failed", 1), ("first", 0)):
        run = exported(projects, name, {"type": "ctc"}, exit=code).parent
        rows = [{"step": step, "time": 100.0 + step, "loss": 2 - step / 10, "lr": 1e-3} for step in range(1, 9)]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        answer = {"time": 109.0, "step": 8, "set": "dev", "id": "a", "text": "one two", "hypothesis": "one too"}
        (run / "samples.jsonl").write_text(json.dumps(answer) + "\n")
        (run / "log.txt").write_text("step 8\n")
    sent = desk.folder / "published" / "tester-voice"
    sent.mkdir(parents=True)
    order = {"what": "dataset", "of": "voice", "to": "tester/voice", "private": True, "licence": "mit", "merge": False}
    write_json(sent / "publication.json", {**order, "time": time.time()})
    write_json(sent / "ending.json", {"started": 1.0, "exit": 1})
    (sent / "output.txt").write_text("stentor: The Hub does not answer.\n")
    return desk


def by_keys(page, controls):
    """What the Tab key does not reach of the controls from an open tab to the next round, or reaches unseen."""
    page.js("document.querySelector('#steps [role=tab][aria-selected=true]').focus()")
    met, problems = set(), []
    for _ in range(150):
        page.press("Tab")
        names, seen, editor, again, what = page.js(FOCUSED % json.dumps(controls))
        met.update(names)
        problems += [] if seen or "<body" in what else [f"the focus is not seen: {what}"]
        if editor:
            page.press("Escape")  # then Tab leaves it
        if again:
            break
    return problems + [f"keys do not reach {control}" for control in controls if control not in met]


def test_every_step_is_accessible(chromium, furnished):
    """On a computer and a phone, in light and dark, with everything unfolded."""
    import studio_steps as studio
    from accessible import violations

    with chromium() as browser:
        page = browser.open(furnished.address)
        found = {}
        for step in STEPS:
            studio.step(page, step)
            page.find(STEPS[step][0])
            page.js(UNFOLD)
            if step == "3 Train":
                page.wait("document.querySelector('#log[role=log]')?.ariaLabel === 'Log'", "the log has a name")
            found[step] = [*violations(page), *by_keys(page, STEPS[step])]
        assert not any(found.values()), json.dumps(found, indent=1)
        assert page.errors == []


def test_the_door_is_accessible(chromium, desk):
    from accessible import violations
    from stentor.studio.texts import render

    with chromium() as browser:
        page = browser.open(desk.address.partition("?")[0])
        assert violations(page) == []
        page.tab.set_content(render("sign_in", True, True))
        assert violations(page) == []
