"""Scores from before training: there where there is something to lose, paid once, and without a trace in training."""

import json
import re
import shutil

import pytest

from stentor.commands.baseline import wants_baseline
from stentor.config.load import load

RUN = """\
task: {{type: transcribe, normalizer: none}}
model: {{type: seq2seq, from: "{whisper}", full_window: 0.0, token_rate: 4}}
data:
  train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{corpus}/dev.jsonl"}}}}
  test: {{again: {{type: jsonl, path: "{corpus}/train.jsonl", limit: 5}}}}
  by: [language, speaker]
  batch_tokens: 6400
  max_items: 4
  workers: {workers}
optim: {{type: adamw, lr: 1e-3}}
train: {{steps: 4, log_every: 1, eval_every: 4, save_every: 2, device: cpu}}
output: "{runs}"
"""
SCORING = re.compile(r"Scoring (\w+) before training")


@pytest.fixture
def fine_tune(whisper, corpus, tmp_path):
    def make(workers: int = 0, name: str = "fine.yaml"):
        path = tmp_path / name
        text = RUN.format(whisper=whisper, corpus=corpus, runs=tmp_path / "runs", workers=workers)
        path.write_text(text)
        return path

    return make


def results(tmp_path, name):
    return json.loads((tmp_path / "runs" / name / "results.json").read_text())


def trace(folder, rows):
    return [(r["step"], r["train/loss"], r["train/text"], r["grad_norm"], r["lr"]) for r in rows(folder)]


@pytest.mark.long
def test_it_is_told_and_leaves_no_trace_in_training(fine_tune, here, rows, tmp_path):
    config = fine_tune(workers=2)
    done = here("train", config, "name=with")
    assert SCORING.findall(done) == ["dev", "again"]
    assert re.search(r"dev: WER \d+\.\d\d % before training, \d+\.\d\d % after \([−+]", done)
    without = here("train", config, "name=without", "train.score_before=false")
    assert not SCORING.findall(without)
    with_, plain = tmp_path / "runs" / "with", tmp_path / "runs" / "without"
    assert trace(with_, rows) == trace(plain, rows) and len(trace(with_, rows)) == 4
    assert [r["step"] for r in rows(with_, "eval/dev/wer")] == [0, 4]
    assert [r["step"] for r in rows(plain, "eval/dev/wer")] == [4]
    first, second = results(tmp_path, "with"), results(tmp_path, "without")
    assert first["eval"] == second["eval"]
    assert {"before", "before_by", "change"}.isdisjoint(second) and not (plain / "before").exists()
    assert set(first["before"]) == {"dev", "again"}
    before, after = first["before"]["dev"]["wer"], first["eval"]["dev"]["wer"]
    assert before["total"] == after["total"] and before["low"] <= before["value"] <= before["high"]
    change = first["change"]["dev"]["wer"]
    assert change["value"] == pytest.approx((after["errors"] - before["errors"]) / before["errors"])
    assert change["low"] <= change["value"] <= change["high"] and change["details"]["items"] == 4
    assert first["before"]["dev"]["perplexity"]["value"] > first["eval"]["dev"]["perplexity"]["value"] > 1


@pytest.mark.long
def test_a_resumed_run_does_not_score_again(fine_tune, here, rows, tmp_path):
    config = fine_tune()
    here("train", config, "train.steps=2", "schedule.type=constant")
    written = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "run" / "before").iterdir()}
    assert set(written) == {"dev.json", "dev.jsonl", "again.json", "again.jsonl"}
    early = results(tmp_path, "run")["before"]
    done = here("train", config, "train.steps=4", "schedule.type=constant")
    assert "Resuming from step 2" in done and not SCORING.findall(done)
    assert {p.name: p.stat().st_mtime_ns for p in (tmp_path / "runs" / "run" / "before").iterdir()} == written
    assert results(tmp_path, "run")["before"] == early
    assert [r["step"] for r in rows(tmp_path / "runs" / "run", "eval/dev/wer")] == [0, 2, 4]


@pytest.mark.long
def test_a_run_that_was_cut_off_scores_what_is_missing(fine_tune, here, rows, tmp_path):
    config, folder = fine_tune(), tmp_path / "runs" / "run"
    here("train", config, "train.steps=1")
    shutil.rmtree(folder / "checkpoints")
    (folder / "results.json").unlink()
    (folder / "before" / "again.json").unlink()
    done = here("train", config, "train.steps=1")
    assert SCORING.findall(done) == ["again"]
    assert set(results(tmp_path, "run")["before"]) == {"dev", "again"}
    assert [r["step"] for r in rows(folder, "eval/dev/wer")] == [0, 1]


@pytest.mark.long
def test_other_records_under_a_known_name_are_not_compared(fine_tune, here, tmp_path):
    """The weights from before training are gone when the set is changed later."""
    config = fine_tune()
    here("train", config, "train.steps=1")
    done = here("train", config, "train.steps=2", "schedule.type=constant", "data.test.again.limit=4")
    assert not SCORING.findall(done)
    assert set(results(tmp_path, "run")["before"]) == set(results(tmp_path, "run")["change"]) == {"dev"}


@pytest.mark.slow
def test_two_processes_find_the_same(fine_tune, here, cli, tmp_path):
    config = fine_tune()
    here("train", config, "train.steps=1", "name=one")
    done = cli("train", config, "train.steps=1", "name=two", processes=2)
    assert SCORING.findall(done.stdout) == ["dev", "again"]
    one, two = results(tmp_path, "one")["before"], results(tmp_path, "two")["before"]
    for name in one:
        assert one[name]["wer"] == two[name]["wer"]
        assert one[name]["perplexity"]["value"] == pytest.approx(two[name]["perplexity"]["value"], rel=1e-5)


@pytest.mark.long
def test_stages_are_compared_with_what_was_before_the_first(fine_tune, here, tmp_path):
    config = fine_tune()
    config.write_text(config.read_text() + "stages: [{train: {steps: 1}}, {train: {steps: 2}}]\n")
    done = here("train", config)
    assert SCORING.findall(done) == ["dev", "again"]
    folder = tmp_path / "runs" / "run"
    stage = json.loads((folder / "stages" / "1" / "results.json").read_text())
    assert results(tmp_path, "run")["before"] == stage["before"]
    assert "before training" in (folder / "export" / "README.md").read_text()


@pytest.mark.parametrize(
    ("setting", "expected"),
    [
        ([], True),
        (["train.score_before=false"], False),
        (["model.from=null", "model.config={model_type: whisper, d_model: 32}"], False),
        (["model.from=null", "model.config={model_type: whisper, d_model: 32}", "model.init=x"], True),
        (["model.from=null", "model.config={model_type: whisper, d_model: 32}", "train.score_before=true"], True),
    ],
)
def test_null_means_when_pretrained(fine_tune, setting, expected):
    assert wants_baseline(load(fine_tune(), setting).config) is expected


def test_languages_and_sources_are_told_apart(fine_tune, here, corpus, tmp_path):
    lines = [json.loads(line) for line in (corpus / "dev.jsonl").read_text().splitlines()]
    for i, record in enumerate(lines):
        record |= {
            "audio_path": str(corpus / record["audio_path"]),
            "language": ["en", "sv"][i % 2],
            "source": f"s{i % 2}",
        }
    (tmp_path / "two.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n")
    where = f"data.eval.dev.path={tmp_path / 'two.jsonl'}"
    here("train", fine_tune(), "train.steps=1", where, "data.by=[language, source]")
    scores = results(tmp_path, "run")
    assert set(scores["by"]) == set(scores["before_by"]) == {"dev"}
    for when, overall in (("by", "eval"), ("before_by", "before")):
        for field, names in (("language", {"en", "sv"}), ("source", {"s0", "s1"})):
            parts = scores[when]["dev"][field]
            assert set(parts) == names
            assert sum(p["wer"]["errors"] for p in parts.values()) == scores[overall]["dev"]["wer"]["errors"]
            assert all(p["wer"]["low"] <= p["wer"]["value"] <= p["wer"]["high"] for p in parts.values())
    card = (tmp_path / "runs" / "run" / "export" / "README.md").read_text()
    assert "### dev by language" in card and "### dev by source" in card
    report = (tmp_path / "runs" / "run" / "report.html").read_text()
    assert "dev by language" in report and "Before and after training" in report


@pytest.mark.long
def test_a_plain_whisper_folder_is_scored_used_and_copied(whisper, corpus, here, tmp_path):
    """As transformers writes it: no file of ours is in it."""
    assert not (whisper / "training_config.json").exists()
    done = here("evaluate", whisper, "--data", corpus / "dev.jsonl", "--json", tmp_path / "scores.json")
    scores = json.loads((tmp_path / "scores.json").read_text())
    assert scores["task"] == "transcribe" and scores["records"] == 4 and scores["eval"]["wer"]["total"] == 7
    assert done.startswith("4 records  wer ")
    transcript = json.loads(here("transcribe", whisper, corpus / "dev0.wav", "--format", "json"))
    # Not the same text: evaluation scores the first answer, transcribing samples others where the checks refuse it.
    answers = [json.loads(line) for line in (tmp_path / "scores.predictions.jsonl").read_text().splitlines()]
    assert [a["id"] for a in answers] == ["dev0", "dev1", "dev2", "dev3"]
    for merge in ([], ["--merge"]):
        to = tmp_path / f"copy{len(merge)}"
        here("export", whisper, "--to", to, *merge)
        again = json.loads(here("transcribe", to, corpus / "dev0.wav", "--format", "json"))
        assert again["text"] == transcript["text"]
