import json
import subprocess
import sys
import textwrap

import pytest

from stentor.callbacks.memory import Memory
from stentor.callbacks.profile import Profile
from stentor.callbacks.samples import Samples
from stentor.callbacks.tracking import Tracking, Trackio, guarded
from stentor.data.batch import Prediction


class Raising:
    """A tracker whose network is gone."""

    name = "raising"

    def log(self, values, step=None):
        raise ConnectionError("no route\nto host")

    def finish(self):
        raise ConnectionError("still none")


class Keeping:
    name = "keeping"

    def __init__(self):
        self.rows = []

    def log(self, values, step=None):
        self.rows.append((step, values))

    def finish(self):
        self.rows.append("finished")


def test_a_missing_package_is_named_before_the_first_step(trainer, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    Tracking.model_validate({"wandb": {"project": "p"}}).on_start(trainer)
    (message,) = trainer.messages
    assert message == "Logging to wandb needs wandb, which is not installed: pip install 'stentor[wandb]'."


def test_a_tracker_that_raises_is_switched_off_and_the_others_go_on(trainer):
    good = Keeping()
    trainer.accelerator.trackers = [Raising(), good]
    tracking = Tracking()
    for step in (10, 20):
        tracking.on_metrics(trainer, {"step": step, "time": 1.0, "train/loss": 2.0, "grad_norm": None, "stage": "1"})
    tracking.on_end(trainer, None)
    assert good.rows == [(10, {"train/loss": 2.0}), (20, {"train/loss": 2.0}), "finished"]
    assert [line for line in trainer.messages if "raising" in line] == [
        "raising failed (ConnectionError: no route to host); it is switched off and the run continues."
    ]
    assert trainer.accelerator.trackers == []


def test_an_interrupt_is_not_swallowed(trainer):
    def interrupt():
        raise KeyboardInterrupt

    trainer.accelerator.trackers = [tracker := Keeping()]
    with pytest.raises(KeyboardInterrupt):
        guarded(trainer, tracker, interrupt)


def test_tensorboard_gets_curves_texts_and_sounds(trainer, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracking, samples = Tracking(tensorboard=True), Samples(count=2)
    tracking.on_start(trainer)
    assert [t.name for t in trainer.accelerator.trackers] == ["tensorboard"], trainer.messages
    tracking.on_metrics(trainer, {"step": 10, "time": 0.0, "train/loss": 2.5})
    trainer.step = 10
    predictions = [
        Prediction(f"p{i}", {"text": "one | two"}, {"text": "<b>one"}, 1.0, {"voice": {"text": "one two"}})
        for i in range(5)
    ]
    samples.on_evaluate(trainer, "dev", {}, predictions)
    trainer.step = 20
    samples.on_evaluate(trainer, "dev", {}, predictions)
    tracking.on_end(trainer, None)
    assert trainer.messages == []
    events = EventAccumulator(str(tmp_path / "tensorboard"), size_guidance={"audio": 0, "tensors": 0}).Reload()
    assert [(e.step, e.value) for e in events.Scalars("train/loss")] == [(10, 2.5)]
    picked = [p.id for p in samples.pick(predictions)]
    assert sorted(events.Tags()["audio"]) == sorted(f"samples/dev/{i}" for i in picked)
    sounds = events.Audio(f"samples/dev/{picked[0]}")
    assert [(s.step, s.sample_rate) for s in sounds] == [(10, 16000.0)]  # once: recordings do not change
    tables = events.Tensors("samples/dev/text_summary")
    assert [t.step for t in tables] == [10, 20]
    assert "<b>" not in tables[0].tensor_proto.string_val[0].decode()


def test_a_package_that_is_missing_is_one_warning(trainer, monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name, *_: None)
    Tracking(tensorboard=True, trackio=Trackio(project="x")).on_start(trainer)
    assert trainer.accelerator.trackers == []
    assert len(trainer.messages) == 2
    assert all("pip install" in line for line in trainer.messages)


def test_samples_are_the_same_whatever_the_order(trainer):
    predictions = [Prediction(f"id-{i}", {"text": str(i)}, {"text": str(i)}) for i in range(50)]
    samples = Samples(count=5)
    first = [p.id for p in samples.pick(predictions)]
    assert first == [p.id for p in samples.pick(predictions[::-1])]
    assert first != [p.id for p in predictions[:5]]
    assert first != [p.id for p in Samples(count=5, seed=1).pick(predictions)]
    trainer.step = 7
    samples.on_evaluate(trainer, "dev", {}, predictions)
    rows = [json.loads(line) for line in (trainer.folder / "samples.jsonl").read_text().splitlines()]
    assert [r["id"] for r in rows] == first
    assert {(r["step"], r["set"]) for r in rows} == {(7, "dev")}


def test_a_resumed_run_writes_no_sample_twice(trainer):
    predictions = [Prediction("a", {"text": "a"}, {"text": "a"})]
    samples = Samples()
    samples.on_start(trainer)
    for trainer.step in (5, 10, 15):
        samples.on_evaluate(trainer, "dev", {}, predictions)
    trainer.step = 10
    samples.on_start(trainer)
    trainer.step = 15
    samples.on_evaluate(trainer, "dev", {}, predictions)
    rows = [json.loads(line) for line in (trainer.folder / "samples.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [5, 10, 15]


def test_memory_is_logged_with_the_rows_of_metrics(trainer):
    rows = []
    for trainer.step in range(1, 26):
        Memory().on_step(trainer)
        if trainer.extra:
            rows.append({"step": trainer.step, **trainer.extra})
            trainer.extra = {}
    assert [row["step"] for row in rows] == [10, 20] and not trainer.logged
    assert 0.01 < rows[0]["memory/rss_gb"] <= rows[0]["memory_gb"]


def test_the_gpu_is_watched_between_rows(trainer, monkeypatch):
    looks = iter([50, 100, 0, None, 30])  # the first is whether it can be had at all
    monkeypatch.setattr("stentor.callbacks.memory.utilization", lambda: next(looks))
    monkeypatch.setattr("stentor.callbacks.memory.EVERY", 0.0)
    trainer.config.train.log_every = 2
    callback = Memory()
    callback.on_start(trainer)
    rows = []
    for trainer.step in (1, 2, 3, 4):
        callback.on_step(trainer)
        if trainer.extra:
            rows.append(trainer.extra["gpu_utilization"])
            trainer.extra = {}
    assert rows == [0.5, 0.3]


def test_where_the_gpu_tells_nothing_nothing_is_logged(trainer, monkeypatch):
    from stentor.callbacks.memory import utilization

    def raising(device=None):
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    assert utilization() is None or 0 <= utilization() <= 100
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.utilization", raising)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: False)
    assert utilization() is None
    callback = Memory()
    callback.on_start(trainer)
    trainer.step = 10
    callback.on_step(trainer)
    assert "gpu_utilization" not in trainer.extra and "memory_gb" in trainer.extra


def test_profile_records_the_steps_it_was_told_to(trainer):
    import torch

    profile = Profile(start=2, steps=3)
    trainer.step = 40
    profile.on_start(trainer)
    for _ in range(8):
        torch.ones(8, 8) @ torch.ones(8, 8)
        trainer.step += 1
        profile.on_step(trainer)
    profile.on_end(trainer, None)
    assert sorted(p.name for p in (trainer.folder / "profile").iterdir()) == [
        "steps-000043-000045.json",
        "steps-000043-000045.txt",
    ]
    trace = json.loads((trainer.folder / "profile" / "steps-000043-000045.json").read_text())
    assert sum(e.get("name") == "aten::matmul" for e in trace["traceEvents"]) == 3
    assert len(trainer.messages) == 1


@pytest.mark.slow
def test_a_run_with_a_broken_tracker_ends_well(tiny, cli, tmp_path):
    """A trackio that breaks while logging and a wandb that breaks at the start: the run continues without them."""
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "trackio.py").write_text(
        textwrap.dedent("""
        class Run:
            def log(self, values, step=None):
                raise RuntimeError("the space is asleep")
            def finish(self):
                pass
        def init(**options):
            return Run()
    """)
    )
    (fakes / "wandb.py").write_text("def init(**options):\n    raise RuntimeError('no api key')\n")
    run = tiny(name="tracked.yaml")
    run.write_text(
        "name: tracked\n" + run.read_text() + "callbacks:\n"
        "- {type: tracking, tensorboard: true, trackio: {project: p}, wandb: {project: p}}\n"
        "- samples\n- {type: early_stop, patience: 9}\n- {type: profile, start: 1, steps: 1}\n"
    )
    done = cli("train", run, packages=[fakes])
    folder = tmp_path / "runs" / "tracked"
    log = (folder / "log.txt").read_text()
    assert "trackio failed (RuntimeError: the space is asleep); it is switched off and the run continues." in log
    assert log.count("trackio failed") == 1
    assert "wandb could not be started (RuntimeError: no api key)" in log
    assert "step 6/6" in done.stdout
    assert (folder / "results.json").exists()
    assert list((folder / "tensorboard").glob("events*"))
    assert (folder / "samples.jsonl").exists()
    assert len(list((folder / "profile").glob("*.json"))) == 1
    assert (folder / "export" / "README.md").exists()
    assert (folder / "report.html").exists()


@pytest.mark.long
def test_trackio_gets_project_and_space_and_nobody_the_token(tiny, cli, tmp_path):
    """What reaches `trackio.init` and `log`; the token stays where it is, in the environment."""
    token = "hf_SecretTokenThatNobodyMaySee123"
    fakes = tmp_path / "fakes"
    fakes.mkdir()
    (fakes / "trackio.py").write_text(
        textwrap.dedent("""
        import json, os, pathlib
        file = pathlib.Path(os.environ["TRACKIO_FAKE"])
        def told(**what):
            with file.open("a") as out:
                out.write(json.dumps(what, default=str) + "\\n")
        class Run:
            def log(self, values, step=None):
                told(values=values, step=step)
            def finish(self):
                told(finished=True)
        def init(**options):
            told(**options)
            return Run()
    """)
    )
    run = tiny(name="spaced.yaml")
    run.write_text(
        "name: spaced\n" + run.read_text() + "callbacks:\n"
        "- {type: tracking, trackio: {project: dialects, space_id: anna/runs, private: true}}\n"
    )
    done = cli("train", run, packages=[fakes], TRACKIO_FAKE=str(tmp_path / "told.jsonl"), HF_TOKEN=token)
    first, *rest = map(json.loads, (tmp_path / "told.jsonl").read_text().splitlines())
    assert (first["project"], first["space_id"], first["private"]) == ("dialects", "anna/runs", True)
    assert first["name"].startswith("spaced-") and first["resume"] == "allow"
    assert first["config"]["optim"]["lr"] == 1e-3
    assert [r["step"] for r in rest if "train/loss" in r.get("values", {})] == [1, 2, 3, 4, 5, 6]
    assert any("eval/dev/perplexity" in r.get("values", {}) for r in rest) and rest[-1] == {"finished": True}
    assert token not in done.stdout + done.stderr
    for file in (tmp_path / "runs").rglob("*"):
        if file.is_file():
            assert token.encode() not in file.read_bytes(), file
    assert token not in (tmp_path / "told.jsonl").read_text()


def test_listing_callbacks_imports_nothing_heavy():
    code = (
        "import sys; from stentor.engine.callback import Callback; print(sorted(Callback.choices()));"
        "assert not {'torch', 'lhotse', 'accelerate', 'transformers', 'rich', 'numpy'} & set(sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for name in ("console", "early_stop", "memory", "profile", "samples", "tracking"):
        assert f"'{name}'" in done.stdout
