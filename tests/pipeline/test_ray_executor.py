"""The Ray executor: results in order, whoever dies; errors and signals as with local processes."""

import importlib
import os
import signal
import time

import pytest

import squares
from squares import GROUPS, Squares, die, outcomes, pipeline
from stentor.errors import ConfigError, DataError, Stopped
from stentor.pipeline.journal import Journal
from stentor.pipeline.ray_executor import RayExecutor

pytestmark = pytest.mark.long

pytest.importorskip("ray", reason="needs the extra `ray`: pip install 'stentor[ray]'")
importlib.import_module("ray.cloudpickle").register_pickle_by_value(squares)  # the actors have no path to it


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
        pipeline(tmp_path / "a.part", worker, RayExecutor(ray_cluster, jobs, **settings), finish_groups).run(GROUPS)
        journal = Journal(tmp_path / "a.part", {"seed": 1})
        return list(journal.lines(journal.offsets))

    return run


def test_results_come_in_order_though_a_worker_dies(run, tmp_path):
    assert run(Squares(once(tmp_path / "died", die), "cpu")) == list(outcomes())
    assert (tmp_path / "died").exists()


@pytest.mark.slow
def test_a_record_on_which_workers_die_is_a_reject(run):
    found = run(Squares(die))
    crashed = [outcome for outcome in found if outcome.get("dropped") == "crashed"]
    assert [outcome for outcome in found if outcome not in crashed] == list(outcomes({13}))
    message = "13: every process that works on it dies."
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
@pytest.mark.parametrize("finish", [False, True])
def test_a_signal_stops_it_and_it_goes_on(run, tmp_path, finish):
    driver, handler = os.getpid(), signal.getsignal(signal.SIGTERM)

    def stop():
        os.kill(driver, signal.SIGTERM)
        time.sleep(0.5)

    worker = Squares(once(tmp_path / "stopped", stop))
    with pytest.raises(Stopped, match=r"Stopped by SIGTERM; \d+ numbers are in .*a\.part\. Run the same command"):
        run(worker, finish_groups=finish)
    assert signal.getsignal(signal.SIGTERM) is handler
    assert len(Journal(tmp_path / "a.part", {"seed": 1})) in (range(15, 30) if finish else range(30))
    assert run(worker, jobs=1) == list(outcomes())


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
    with pytest.raises(ConfigError, match=r"--ray needs ray, .*pip install 'stentor\[ray\]'"):
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
