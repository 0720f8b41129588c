import json
import math

import pytest

from stentor.engine.run_logger import RunLogger


def lines(folder, name="metrics.jsonl") -> list[dict]:
    return [json.loads(line) for line in (folder / name).read_text().splitlines()]


def test_rows_can_be_followed_while_they_are_written(tmp_path):
    journal = RunLogger(tmp_path / "run", main=True)
    journal.metrics({"step": 1, "train/loss": 0.5, "grad_norm": math.nan, "lr": math.inf, "mfu": None})
    journal.event("saved", step=1, folder="step-000001")
    assert lines(tmp_path / "run") == [{"step": 1, "train/loss": 0.5, "grad_norm": None, "lr": None, "mfu": None}]
    (event,) = lines(tmp_path / "run", "events.jsonl")
    assert event.pop("time") > 1e9 and event == {"event": "saved", "step": 1, "folder": "step-000001"}


def test_lines_reach_the_log_and_the_terminal(tmp_path, capsys):
    RunLogger(tmp_path, main=True).say("Grüße")
    assert capsys.readouterr().out == "Grüße\n"
    assert (tmp_path / "log.txt").read_text(encoding="utf-8").endswith(" Grüße\n")


def test_other_ranks_write_nothing(tmp_path, capsys):
    journal = RunLogger(tmp_path / "run", main=False)
    journal.metrics({"step": 1})
    journal.event("saved")
    journal.say("hello")
    journal.forget_after(0)
    journal.close()
    assert not (tmp_path / "run").exists() and capsys.readouterr().out == ""


def test_a_terminal_that_is_gone_stops_nothing(tmp_path, monkeypatch):
    def gone(*args, **kwargs):
        raise BrokenPipeError

    monkeypatch.setattr("builtins.print", gone)
    RunLogger(tmp_path, main=True).say("still logged")
    assert "still logged" in (tmp_path / "log.txt").read_text()


def test_a_resumed_run_forgets_what_it_will_write_again(tmp_path):
    journal = RunLogger(tmp_path, main=True)
    for step in range(1, 7):
        journal.metrics({"step": step, "train/loss": 1 / step})
    journal.metrics({"step": 6, "eval/dev/wer": 0.1})
    journal.close()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "train/lo')  # killed in the middle of a line
    journal = RunLogger(tmp_path, main=True)
    journal.forget_after(4)
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3, 4]
    journal.metrics({"step": 5, "train/loss": 0.2})
    assert [row["step"] for row in lines(tmp_path)] == [1, 2, 3, 4, 5]
    journal.forget_after(0)
    assert lines(tmp_path) == []


def test_stages_share_the_files(tmp_path):
    for stage in ("1", "2"):
        journal = RunLogger(tmp_path, main=True, stage=stage)
        for step in (1, 2, 3):
            journal.metrics({"step": step})
        journal.event("saved", step=3)
        journal.close()
    journal = RunLogger(tmp_path, main=True, stage="2")
    journal.forget_after(1)
    assert [(row["stage"], row["step"]) for row in lines(tmp_path)] == [("1", 1), ("1", 2), ("1", 3), ("2", 1)]
    assert [row["stage"] for row in lines(tmp_path, "events.jsonl")] == ["1", "2"]


@pytest.mark.parametrize("before", ['{"event": "started"}\n{"event": "sav', '{"ev', "", '{"event": "started"}\n'])
def test_half_a_line_spoils_no_other(tmp_path, before):
    """A run that was killed while it wrote goes on with files whose every line can be parsed."""
    for name in ("metrics.jsonl", "events.jsonl"):
        (tmp_path / name).write_text(before)
    journal = RunLogger(tmp_path, main=True)
    journal.metrics({"step": 1})
    journal.event("saved")
    first = [{"event": "started"}] * before.count("\n")
    assert lines(tmp_path) == [*first, {"step": 1}]
    assert [line["event"] for line in lines(tmp_path, "events.jsonl")] == ["started"] * len(first) + ["saved"]
