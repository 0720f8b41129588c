import base64
import io
import json
import re

import pytest
from page import Page

from accessible import violations
from browser import Browser, chromium
from stentor.errors import ConfigError
from stentor.metrics.format import duration
from stentor.report.curves import all_charts, grouped
from stentor.report.report import boards, facts, write_report
from stentor.report.run_folder import read_run
from stentor.report.sounds import SoundBudget


@pytest.fixture
def html(run_folder):
    return write_report(run_folder).read_text(encoding="utf-8")


def test_it_is_whole_html_and_loads_nothing(html):
    page = Page(html)
    assert html.startswith("<!doctype html>")
    for tag, attributes in page.elements:
        for key in ("src", "href", "srcset", "poster", "action", "data"):
            value = attributes.get(key)
            assert value is None or value.startswith(("data:", "#")), (tag, value)
    assert not re.search(r"url\(|@import|https?://", html)
    assert "default-src 'none'" in html


def test_strangers_text_stays_text(html):
    """The only scripts are ours, and the policy names the hash of the one that runs."""
    page = Page(html)
    assert len(page.all("script")) == 2
    assert "<script>alert" not in html
    assert "<voices>" not in html
    assert any("alert" in t for t in page.text)
    code = html[html.rindex("<script>") + 8 : html.rindex("</script>")]
    import hashlib

    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in html
    assert not [a for _, attributes in page.elements for a in attributes if a.startswith("on")]


def test_headline_has_the_figure_its_interval_and_its_counts(html, run_folder):
    score = json.loads((run_folder / "results.json").read_text())["eval"]["dev"]["wer"]
    text = " ".join(" ".join(Page(html).text).split())
    assert f"{100 * score['value']:.2f} %" in text
    assert f"95 % interval {100 * score['low']:.2f}–{100 * score['high']:.2f} %" in text
    assert f"{score['errors']} errors in {score['total']}" in text
    assert "97 of 100 training records" in text
    assert "1 min 15 s" in text
    assert "stentor train 'my run.yaml'" in text


def test_curves_carry_the_logged_values(html):
    page = Page(html)
    charts = json.loads(html.split('id="charts">', 1)[1].split("</script>", 1)[0])
    names = [[line["name"] for line in chart["lines"]] for chart in charts]
    assert names[0] == ["dev", "unseen <voices>"]
    assert charts[0]["lines"][0]["xs"] == [250, 500, 750, 1000]
    assert charts[0]["lines"][0]["ys"] == [0.4375, 0.375, 0.3125, 0.25]
    assert names[1] == ["total", "text", "ctc"]
    assert ["mine/<b>"] in names  # metrics of a plug-in are shown as well
    assert len(page.all("svg")) > len(charts)
    labels = [a["aria-label"] for a in page.all("div") if a.get("class") == "area"]
    assert len(labels) == len(charts)
    assert "25.0 % at step 1000" in labels[0]
    assert not any("mfu" in name for group in names for name in group)  # it was never known


def test_examples_have_players_and_marked_differences(html):
    import soundfile

    page = Page(html)
    players = [a["src"] for a in page.all("audio")]
    assert players
    wav = base64.b64decode(players[0].removeprefix("data:audio/wav;base64,"))
    samples, rate = soundfile.read(io.BytesIO(wav))
    assert rate == 16000
    assert 0.2 < len(samples) / rate < 3
    assert abs(samples).max() > 0.01
    kinds = {a["class"] for a in page.all("span") if a.get("class", "").startswith("pair ")}
    assert kinds >= {"pair equal", "pair substitute", "pair insert"}
    assert "unsure" in html


def test_examples_respect_the_budget(run_folder, monkeypatch):
    monkeypatch.setattr("stentor.report.report.SoundBudget", lambda: SoundBudget(100_000))
    players = Page(write_report(run_folder).read_text()).all("audio")
    assert 0 < sum(len(a["src"]) for a in players) < 140_000


def test_recordings_that_are_gone_cost_only_their_player(run_folder):
    for path in (run_folder / "predictions").iterdir():
        path.write_text(path.read_text().replace('"voice": {"text": "one two"}', '"audio_path": "/nowhere/a.wav"'))
    page = Page(write_report(run_folder).read_text())
    assert page.all("audio") == []
    assert [a for a in page.all("span") if a.get("class") == "pair substitute"]


@pytest.mark.parametrize("missing", ["results.json", "events.jsonl", "metrics.jsonl", "predictions", "resolved.yaml"])
def test_what_is_missing_is_left_out(run_folder, missing):
    import shutil

    path = run_folder / missing
    shutil.rmtree(path) if path.is_dir() else path.unlink()
    Page(write_report(run_folder).read_text())


def test_a_running_run_shows_its_last_evaluation(run_folder):
    (run_folder / "results.json").unlink()
    (run_folder / "events.jsonl").write_text('{"time": 1, "event": "started"}\n')
    text = " ".join(Page(write_report(run_folder).read_text()).text)
    assert "25.00 %" in text
    assert "not finished" in text


def test_a_failed_run_says_why(run_folder):
    (run_folder / "results.json").unlink()
    with (run_folder / "events.jsonl").open("a") as file:
        file.write('{"time": 1e9, "event": "started"}\n{"time": 1e9, "event": "failed", "error": "disk <full>"}\n')
    assert "failed: disk &lt;full&gt;" in write_report(run_folder).read_text()


def test_answers_without_text_are_shown_as_data(run_folder):
    for path in (run_folder / "predictions").iterdir():
        path.write_text(
            json.dumps({"id": "a", "reference": {"turns": [1]}, "output": {"turns": [2]}, "seconds": 1}) + "\n"
        )
    text = " ".join(Page(write_report(run_folder).read_text()).text)
    assert '{"turns": [2]}' in text


def test_another_folder_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="not a run folder"):
        write_report(tmp_path)


def test_stages_are_told_together(run_folder):
    (run_folder / "stages" / "1").mkdir(parents=True)
    (run_folder / "stages" / "1" / "results.json").write_text(json.dumps({"steps": 40, "seconds": 100.0}))
    resolved = (run_folder / "resolved.yaml").read_text()
    (run_folder / "resolved.yaml").write_text(resolved + "\nstages: [{}, {optim: {lr: 1}}, {task: {type: words}}]\n")
    last_stage = json.loads((run_folder / "results.json").read_text())
    shown = dict(facts(read_run(run_folder)))
    assert shown["task"] == "transcribe, then words"
    assert shown["steps"] == f"{last_stage['steps'] + 40:,}" and shown["time"] == duration(last_stage["seconds"] + 100)


def test_the_deciding_score_and_sets_that_chose_nothing_lead(run_folder):
    results = json.loads((run_folder / "results.json").read_text())
    timed = {"word_time_mean_ms": {"value": 12.0}, **results["eval"]["dev"]}
    results["eval"] = {"fitted": timed, "dev": timed, "held": timed}
    (run_folder / "results.json").write_text(json.dumps(results))
    callbacks = "callbacks: [{type: samples}, {type: calibrate, set: fitted}]\n"
    (run_folder / "resolved.yaml").write_text(f"task: {{type: words}}\ndata: {{test: {{held: {{}}}}}}\n{callbacks}")
    run = read_run(run_folder)
    assert [(b.name, b.metric) for b in boards(run)] == [("held", "WER"), ("dev", "WER"), ("fitted", "WER")]
    assert next(name for name, _ in boards(run)[0].others) == "mean boundary error"


def test_what_was_measured_once_is_a_row(run_folder):
    rows = [json.loads(line) for line in (run_folder / "metrics.jsonl").read_text().splitlines()[:-1]]
    last = {"step": 1000, "eval/dev/cer": 0.25, "eval/unseen/cer": 0.5, "memory_gb": 2.5}
    quality, optimisation, throughput = grouped(all_charts([*rows, last]))
    assert quality.head == ["dev", "unseen"] and quality.rows == [("CER", ["25.0 %", "50.0 %"])] and not quality.folded
    assert [c.title for c in quality.charts] == ["WER"] and optimisation.charts[0].title == "Training loss"
    assert throughput.rows == [("Memory", ["2.5"])] and throughput.folded


def test_examples_come_before_curves(html):
    places = [html.index(f'id="{name}"') for name in ("results", "examples", "curves", "data")]
    assert places == sorted(places)


@pytest.mark.browser
@pytest.mark.skipif(chromium() is None, reason="no Chromium, or no Playwright")
def test_everybody_can_read_it(html, run_folder, tmp_path):
    """Also on a phone, where no cell of a table is squeezed to some letters a line."""
    narrow = "[...document.querySelectorAll('td, .set')].filter((e) => e.innerText.length > 3 && e.offsetWidth < 40)"
    with Browser(tmp_path) as browser:
        page = browser.open((run_folder / "report.html").as_uri())
        page.wait("document.querySelector('footer')", "the report is there")
        page.js("document.querySelectorAll('details').forEach((d) => { d.open = true; })")
        assert not (found := violations(page)), "\n".join(found)
        page.look(phone=True)
        assert page.js(f"{narrow}.map((e) => e.innerText)") == []
