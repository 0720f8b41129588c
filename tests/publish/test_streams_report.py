"""Error rate over latency in the report, from the rows of streams.jsonl."""

import json

from page import Page

from stentor.report.report import write_report
from stentor.report.streams import stream_figures


def row(delay, wer, p50, p90, policy="chunks", model="mine", data="dev"):
    scores = {"wer": wer, "final_p50": p50, "final_p90": p90, "churn": 0.0}
    return {"data": data, "model": model, "policy": policy, "delay": delay, "records": 5, "scores": scores}


def test_a_line_for_each_policy_and_a_point_for_each_delay():
    rows = [
        row(0.32, 0.9, 9.0, 9.0),
        row(1.28, 0.06, 0.7, 1.3),
        row(0.32, 0.07, 0.3, 0.5),  # measured again
        row(0.32, 0.08, 1.0, 2.0, "LocalAgreement"),
        row(0.08, 0.2, 0.1, 0.2, data="other"),
    ]
    dev, other = stream_figures(rows)
    chunks, agreement = dev.chart.lines
    assert (chunks.name, chunks.xs, chunks.ys) == ("chunks", [0.3, 0.7], [0.07, 0.06])
    assert (agreement.xs, [text for *_, text in chunks.labels]) == ([1.0], ["0.32 s", "1.28 s"])
    assert dev.chart.bounds[1] > 2.0 and chunks.raw and chunks.raw != chunks.path  # nine words in ten
    assert "7.00 % at 0.3 s" in dev.chart.summary
    assert dev.rows[0] == ("chunks", ["0.32", "7.00 %", "0.3", "0.5", "0"])
    assert [cells[0] for _, cells in dev.rows] == ["0.32", "1.28", "0.32"] and len(other.rows) == 1


def test_models_are_named_where_there_are_several():
    (figures,) = stream_figures([row(0.3, 0.1, 0.2, 0.3), row(1.0, 0.1, 1.2, 1.3, "LocalAgreement", "openai/whisper")])
    assert [line.name for line in figures.chart.lines] == ["mine, chunks", "openai/whisper, LocalAgreement"]


def test_the_page(run_folder):
    evil = '<script>alert("data")</script>'
    unheard = row(0.3, 1.0, None, None, data="nothing was recognised")
    rows = [row(0.3, 0.1, 0.2, 0.3, data=evil), row(1.0, 0.1, 0.9, 1.0, data=evil), unheard]
    (run_folder / "streams.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows))
    html = write_report(run_folder).read_text()
    page = Page(html)
    assert evil not in html and evil in page.text
    labels = [a["aria-label"] for a in page.all("div") if a.get("class") == "area"]
    charts = json.loads(html.split('id="charts">', 1)[1].split("</script>", 1)[0])
    assert len(labels) == len(charts) and "10.0 % at 0.2 s" in labels[0]
    assert "nothing was recognised" in page.text and "100.00 %" in page.text
