"""Before and after training, and scores by groups: in the card and in the report, with intervals."""

import json

import pytest
from page import Page
from test_card import CONFIG

from stentor.metrics.wer import score
from stentor.publish.card import write_card
from stentor.report.changes import changes, groups
from stentor.report.report import write_report

BAD = "<script>alert(1)</script> | pipe"


@pytest.fixture
def results(run_folder):
    """`dev` went from 30 to 20 %, the second set from 10 to 20 %; `dev` has two languages, one with a hostile name."""
    results_json = json.loads((run_folder / "results.json").read_text())
    dev, other = results_json["eval"]

    def rate(value, low, high, errors=None, total=None):
        counts = {} if errors is None else {"errors": errors, "total": total}
        return {"value": value, "low": low, "high": high, **counts}

    results_json["eval"][dev]["wer"] |= rate(0.2, 0.18, 0.22)
    results_json["eval"][dev]["perplexity"] = {"value": 2.0, "details": {"tokens": 50}}
    results_json["eval"][other]["wer"] |= rate(0.2, 0.18, 0.22)
    results_json["before"] = {
        dev: {"wer": rate(0.3, 0.28, 0.32), "perplexity": {"value": 4.0}},
        other: {"wer": rate(0.1, 0.08, 0.12)},
    }
    results_json["change"] = {
        dev: {"wer": {"value": -1 / 3, "low": -0.4, "high": -0.25}},
        other: {"wer": {"value": 1.0, "low": 0.5, "high": 1.6}},
    }
    results_json["by"] = {
        dev: {
            "language": {
                "de": {"wer": rate(0.25, 0.2, 0.3, 25, 100) | {"items": 9}},
                BAD: {"wer": rate(0.15, 0.1, 0.2, 15, 100) | {"items": 3}},
            }
        }
    }
    results_json["before_by"] = {dev: {"language": {"de": {"wer": rate(0.5, 0.4, 0.6, 50, 100) | {"items": 9}}}}}
    return results_json


@pytest.mark.parametrize(("metric", "worse"), [("wer", [False, True]), ("chrf", [True, False])])
def test_which_way_is_worse(metric, worse):
    scores = [{"dev": {metric: {"value": v, "low": v - 1, "high": v + 1}}} for v in (50.0, 10.0, 90.0)]
    for after, expected in zip(scores[1:], worse, strict=True):
        assert [c.worse for c in changes({"before": scores[0], "eval": after})] == [expected]
        sign = 1 if after is scores[2] else -1
        paired = {"dev": {metric: {"value": sign * 0.8, "low": sign * 0.8 - 0.1, "high": sign * 0.8 + 0.1}}}
        assert [c.worse for c in changes({"before": scores[0], "eval": after, "change": paired})] == [expected]


def test_rows_of_changes(results):
    dev, perplexity, other = changes(results)
    assert (dev.set, dev.metric, dev.before, dev.after) == ("dev", "WER", "30.00 %", "20.00 %")
    assert (dev.before_interval, dev.after_interval) == ("28.00–32.00 %", "18.00–22.00 %")
    assert (dev.change, dev.change_interval, dev.worse) == ("−33.3 %", "−40.0 % to −25.0 %", False)
    assert (perplexity.before, perplexity.after, perplexity.change, perplexity.change_interval) == (
        "4",
        "2",
        "−50.0 %",
        "",
    )
    assert (other.change, other.worse) == ("+100.0 %", True)
    assert changes({"eval": {"dev": {}}}) == []


def test_rows_of_groups(results):
    (table,) = groups(results)
    assert (table.set, table.field, table.metric, table.more, table.compared) == ("dev", "language", "WER", 0, True)
    de, other = table.rows
    assert (de.value, de.items, de.score, de.interval, de.made_of) == ("de", 9, "25.00 %", "20.00–30.00 %", "25 / 100")
    assert (de.before, de.before_interval, other.before) == ("50.00 %", "40.00–60.00 %", "")
    (short,) = groups(results, most=1)
    assert [row.value for row in short.rows] == ["de"] and short.more == 1


def test_the_card_shows_both_and_says_what_got_worse(tmp_path, results):
    from huggingface_hub import ModelCard

    text = write_card(tmp_path, CONFIG, results).read_text()
    assert "| dev | WER | 30.00 % (28.00–32.00 %) | 20.00 % (18.00–22.00 %) | −33.3 % | −40.0 % to −25.0 % |" in text
    assert "Training made it worse beyond chance: WER on `unseen <voices>`" in text
    assert "### dev by language" in text
    assert "| de | 9 | 25.00 % | 20.00–30.00 % | 25 / 100 | 50.00 % (40.00–60.00 %) |" in text
    assert "<script>" not in text.replace("`", "")
    replayed = {
        **CONFIG,
        "data": {**CONFIG["data"], "replay": {"share": 0.2, "sources": [{"type": "hub", "name": "o/g"}]}},
    }
    text = write_card(tmp_path, replayed, results).read_text()
    assert "* `hub` o/g\n* the last one of these as replay against forgetting: 20 % of the items of each epoch" in text
    assert ModelCard.load(tmp_path / "README.md").data.datasets == ["o/g", "owner/speech"]


def test_without_them_the_card_says_nothing_of_them(tmp_path, results):
    plain = {k: v for k, v in results.items() if k not in ("before", "change", "by", "before_by")}
    text = write_card(tmp_path, CONFIG, plain).read_text()
    assert "efore training" not in text and " by language" not in text


def test_the_report_shows_both(run_folder, results):
    (run_folder / "results.json").write_text(json.dumps(results))
    html = write_report(run_folder).read_text(encoding="utf-8")
    text = " ".join(" ".join(Page(html).text).split())
    assert "Before and after training" in text
    assert "30.00 % 28.00–32.00 % 20.00 % 18.00–22.00 % −33.3 % −40.0 % to −25.0 %" in text
    assert "dev by language" in text and "50.00 % 40.00–60.00 %" in text and "25 / 100" in text
    assert "<script>alert(1)" not in html


def test_a_paired_interval_is_narrower_than_those_of_the_two_rates():
    import numpy as np

    from stentor.metrics.wer import relative_change

    rng = np.random.default_rng(0)
    references = [" ".join(f"w{i}" for i in range(int(n))) for n in rng.integers(1, 30, 200)]

    def answer(reference, share):
        return " ".join("x" if rng.random() < share else word for word in reference.split())

    hard = rng.random(200) * 0.6  # items differ much, systems little
    before = [answer(r, h) for r, h in zip(references, hard)]
    after = [
        " ".join(b if rng.random() > 0.2 else r for r, b in zip(a.split(), s.split()))
        for a, s in zip(references, before)
    ]
    change = relative_change(references, before, after)
    first, second = score(references, before), score(references, after)
    assert change.value == pytest.approx((second.errors - first.errors) / first.errors)
    assert change.low < change.value < change.high < 0
    assert change.high - change.low < ((second.high - second.low) + (first.high - first.low)) / first.value / 2
    assert relative_change(references, references, after) is None
