"""The Ray executor: results in order, whoever dies; errors and signals as with local processes."""

import os
import signal
import time

import pytest

from stentor.data.cut import UnusableRecord
from stentor.data.record_table import Selection
from stentor.errors import ConfigError, DataError, StentorError, Stopped
from stentor.pipeline.journal import Journal
from stentor.pipeline.ray_executor import RayExecutor
from stentor.pipeline.runner import JournalWriter, Pipeline
from stentor.pipeline.worker import Worker

pytestmark = pytest.mark.long

pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'stentor[ray]'")

GROUPS = [Selection(int, range(i, i + 3)) for i in range(0, 30, 3)]


class Squares(Worker):
    """Squares of numbers; those that end in 7 are rejected. At 13, `action` happens."""

    def __init__(self, action=lambda: None):
        self.action = action

    def setup(self, device):
        assert device == "cpu"

    def name(self, group):
        return str(group[0])

    def process(self, group):
        time.sleep(0.1 if group[0] < 6 else 0)
        if 13 in group:
            self.action()
        outputs = [{"id": str(n), "square": n * n} for n in group if n % 10 != 7]
        return outputs, [UnusableRecord(str(n), "seven", f"{n} ends in 7.") for n in group if n % 10 == 7]


def once(path, action):
    """An action that happens the first time only."""

    def act():
        if not path.exists():
            path.touch()
            action()

    return act


@pytest.fixture
def run(ray_cluster, tmp_path):
    """Runs the pipeline of a worker; gives the outcomes in the journal."""

    def run(worker, jobs=None, finish_groups=False, **settings):
        journal = Journal(tmp_path / "a.part", {"seed": 1})
        Pipeline(
            worker=worker,
            writer=JournalWriter(journal, lambda number: str(number) in journal),
            executor=RayExecutor(ray_cluster, jobs, **settings),
            title="squaring",
            saved=lambda: f"{len(journal)} numbers are in the journal",
            finish_groups=finish_groups,
        ).run(GROUPS)
        return list(journal.lines(journal.offsets))

    return run


def expected(without=()):
    """The outcomes of a local run, in its order."""
    for group in GROUPS:
        kept = [n for n in group if n % 10 != 7 and n not in without]
        yield from [{"id": str(n), "record": {"id": str(n), "square": n * n}} for n in kept]
        yield from [{"id": str(n), "dropped": "seven", "message": f"{n} ends in 7."} for n in group if n % 10 == 7]


def test_results_come_in_order_though_a_worker_dies(run, tmp_path):
    assert run(Squares(once(tmp_path / "died", lambda: os._exit(9)))) == list(expected())
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_record_on_which_workers_die_is_a_reject(run):
    outcomes = run(Squares(lambda: os._exit(9)))
    crashed = [outcome for outcome in outcomes if outcome.get("dropped") == "crashed"]
    assert [outcome for outcome in outcomes if outcome not in crashed] == list(expected({13}))
    message = "13: the process that works on it dies, each time."
    assert crashed == [{"id": "13", "dropped": "crashed", "message": message}]


@pytest.mark.slow
def test_errors_of_a_worker_are_those_of_a_local_one(run):
    def fail():
        raise DataError("Thirteen is no number.")

    with pytest.raises(DataError, match=r"^Thirteen is no number\.$"):
        run(Squares(fail))

    class Unready(Squares):
        def setup(self, device):
            raise ConfigError("There is no such model.")

    with pytest.raises(ConfigError, match=r"^There is no such model"):
        run(Unready())


@pytest.mark.slow
def test_files_on_which_workers_die_are_named(run):
    class Other:
        def setup(self, device):
            pass

        def process(self, group):
            os._exit(9)

    with pytest.raises(StentorError, match=r"3 workers died one after the other on the same files: \d+, \d+, \d+\.$"):
        run(Other(), jobs=1)


@pytest.mark.slow
@pytest.mark.parametrize("finish", [False, True])
def test_a_signal_stops_it_and_it_goes_on(run, tmp_path, finish):
    driver, handler = os.getpid(), signal.getsignal(signal.SIGTERM)

    def stop():
        os.kill(driver, signal.SIGTERM)
        time.sleep(0.5)

    worker = Squares(once(tmp_path / "stopped", stop))
    with pytest.raises(Stopped, match=r"Stopped by SIGTERM; \d+ numbers are in the journal\. Run the same command"):
        run(worker, finish_groups=finish)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert len(Journal(tmp_path / "a.part", {"seed": 1})) in (range(15, 30) if finish else range(30))
    assert run(worker, jobs=1) == list(expected())


def test_nodes_without_this_version_are_refused(run, monkeypatch):
    monkeypatch.setattr("stentor.pipeline.ray_executor.__version__", "99.1")
    with pytest.raises(ConfigError, match=r"A node of the cluster has Stentor .*, and this one has 99\.1: install"):
        run(Squares())


def test_wrong_usage(run, monkeypatch):
    with pytest.raises(ConfigError, match="--device cuda:1: with --ray the cluster places the workers"):
        run(Squares(), device="cuda:1")
    with pytest.raises(ConfigError, match="run the command on a node of the cluster"):
        list(RayExecutor("ray://host:10001").map(Squares(), GROUPS, lambda: False))
    with pytest.raises(ConfigError, match=r"There is no Ray cluster at 127\.0\.0\.1:1: start one"):
        list(RayExecutor("127.0.0.1:1").map(Squares(), GROUPS, lambda: False))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"--ray needs Ray: pip install 'stentor\[ray\]'"):
        list(RayExecutor("auto").map(Squares(), GROUPS, lambda: False))


def test_a_plugin_that_lies_where_the_command_runs(tmp_path, monkeypatch):
    """Ray has workers of the same machine look there for modules too."""
    from stentor.engine.callback import Callback
    from stentor.pipeline.ray_executor import load_sent_plugins

    content = (
        "from typing import Literal\nfrom stentor.engine.callback import Callback\n"
        'class Sent(Callback):\n    type: Literal["sent_here"] = "sent_here"\n'
    )
    (tmp_path / "sent_here.py").write_text(content)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(Callback, "_choices", dict(Callback.choices()))
    load_sent_plugins({"sent_here.py": content})
    assert "sent_here" in Callback.choices()
