"""The prepare pipeline: results in order, the same after a stop and with other numbers of processes."""

import json
import os
import signal
import time

import pytest

from squares import GROUPS, Squares, die, outcomes, pipeline
from stentor.data.cut import UnusableRecord
from stentor.errors import ConfigError, DataError, StentorError, Stopped
from stentor.pipeline.journal import Fingerprint, Journal, write_lines
from stentor.pipeline.runner import print_reasons, refuse_rejects, summarize
from stentor.pipeline.worker import LocalExecutor


def run(path, worker=None, jobs=1, finish_groups=False):
    pipeline(path, worker or Squares(), LocalExecutor(jobs, fork=True), finish_groups).run(GROUPS)


@pytest.mark.parametrize("jobs", [1, 2, 3])
def test_results_are_written_in_order(tmp_path, jobs, capsys):
    run(tmp_path / "a.part", jobs=jobs)
    header, *lines = map(json.loads, (tmp_path / "a.part").read_text().splitlines())
    assert header == {"settings": {"seed": 1}} and lines == list(outcomes())
    assert capsys.readouterr().err == ""  # lines of progress come every half a minute
    run(tmp_path / "a.part", Squares(lambda: pytest.fail("nothing remains")))
    assert capsys.readouterr().out == "Resuming: 30 of 30 numbers are already done.\n"


@pytest.mark.parametrize("jobs", [(1, 2), (2, 1), (3, 2)])
def test_after_a_stop_it_goes_on_with_other_processes(tmp_path, jobs, capsys):
    straight, stopped = tmp_path / "straight.part", tmp_path / "stopped.part"
    run(straight)

    def terminate():
        while not (stopped.exists() and stopped.read_bytes().count(b"\n") > 3):  # the first group is written
            time.sleep(0.01)
        os.kill(parent, signal.SIGTERM)
        time.sleep(0.2)

    parent, before = os.getpid(), signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped, match=r"Stopped by SIGTERM; \d+ numbers are in .*Run the same command to resume"):
        run(stopped, Squares(terminate), jobs[0])
    assert signal.getsignal(signal.SIGTERM) is before
    done = len(Journal(stopped, {"seed": 1}))
    assert 0 < done <= 12
    with stopped.open("ab") as file:
        file.write(b'{"id": "12", "rec')  # a kill in the middle of a line
    run(stopped, jobs=jobs[1])
    assert f"Resuming: {done} of 30 numbers" in capsys.readouterr().out
    assert stopped.read_bytes() == straight.read_bytes()


@pytest.mark.parametrize("jobs", [1, 2])
def test_groups_at_hand_can_be_finished_first(tmp_path, jobs):
    parent = os.getpid()
    worker = Squares(lambda: os.kill(parent, signal.SIGINT))
    with pytest.raises(Stopped, match="Stopped by SIGINT"):
        run(tmp_path / "a.part", worker, jobs, finish_groups=True)
    done = len(Journal(tmp_path / "a.part", {"seed": 1}))
    assert done == 15 if jobs == 1 else 15 <= done < 30


def test_a_process_that_dies_is_reported(tmp_path):
    with pytest.raises(StentorError, match="One of the 2 processes died, perhaps because memory ran out: run the same"):
        run(tmp_path / "a.part", Squares(die), jobs=2)
    run(tmp_path / "a.part", jobs=2)
    assert len(Journal(tmp_path / "a.part", {"seed": 1})) == 30


@pytest.mark.parametrize("jobs", [1, 2])
def test_errors_of_a_worker_reach_the_command(tmp_path, jobs):
    class Unready(Squares):
        def setup(self, device):
            raise ConfigError("There is no such model.")

    with pytest.raises(ConfigError, match="no such model"):
        run(tmp_path / "a.part", Unready(), jobs)


def test_processes_are_dealt_to_the_devices():
    class Device(Squares):
        def process(self, group):
            time.sleep(0.1)
            return self.device

    executor = LocalExecutor(3, ("cuda:0", "cuda:1"), fork=True)
    assert set(executor.map(Device(), GROUPS, lambda: False)) == {"cuda:0", "cuda:1"}
    assert list(executor.map(Device(), GROUPS[:1], lambda: False)) == ["cuda:0"]
    assert list(executor.map(Device(), GROUPS, lambda: True)) == []


def test_rejects_are_counted_by_reason(capsys):
    rejects = [UnusableRecord(str(n), "odd" if n % 2 else "even", f"number {n}") for n in range(51)]
    summary = summarize(rejects[:3])
    assert summary == {
        "even": {"count": 2, "first": ["number 0", "number 2"]},
        "odd": {"count": 1, "first": ["number 1"]},
    }
    assert [len(group["first"]) for group in summarize(rejects).values()] == [20, 20]
    print_reasons(rejects)
    print_reasons([])
    assert capsys.readouterr().out == "unusable: 26 even, 25 odd\n"
    refuse_rejects(["number 0"], 100)
    with pytest.raises(DataError, match=r"(?s)^51 of 5,000 records cannot be used\. The first are:\n  number 0\n.*"):
        refuse_rejects([reject.message for reject in rejects], 5000)
    with pytest.raises(DataError, match=r"\n  number 19\n  \.\.\. and 31 more$"):
        refuse_rejects([reject.message for reject in rejects], 5000)


def test_a_journal_of_other_settings_is_refused(tmp_path):
    Journal(tmp_path / "a.part", {"seed": 3})  # it ended before anything was done
    Journal(tmp_path / "a.part", {"seed": 1}).add([{"id": "a"}])
    with pytest.raises(ConfigError, match="seed was 1 and is 2"):
        Journal(tmp_path / "a.part", {"seed": 2})
    assert len(Journal(tmp_path / "a.part", {"seed": 1})) == 1
    (tmp_path / "a.part").write_bytes(b'{"sett')  # killed while it was begun
    assert len(Journal(tmp_path / "a.part", {"seed": 2})) == 0
    digests = [Fingerprint(lambda number: number) for _ in range(2)]
    assert list(digests[0].through([1, 2])) == [1, 2] and list(digests[1].through([2, 1])) == [2, 1]
    assert str(digests[0]) != str(digests[1]) and str(digests[0]).startswith("2:")


def test_a_file_appears_complete_or_not_at_all(tmp_path):
    write_lines(tmp_path / "a", ["before\n"])

    def lines():
        yield "half"
        raise OSError("no room")

    with pytest.raises(OSError, match="no room"):
        write_lines(tmp_path / "a", lines())
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a", "before\n")]
