"""Weights between start and end of training, and greedy soups, through the command line."""

import json
import math
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from run_events import events
from stentor.cli import main
from stentor.engine import checkpoint, interpolate
from stentor.engine.interpolate import between, check
from stentor.engine.section import Interpolate, Train
from stentor.engine.sharding import own_shards
from stentor.engine.tensor_files import MeanTensors, StoredTensors, save_shards
from stentor.engine.trainer import Trainer
from stentor.errors import ConfigError, StentorError


@pytest.fixture
def train(tiny, here, tmp_path):
    """Trains the tiny model in this process; answers its run folder."""

    def run(name, *settings):
        here("train", tiny(), f"name={name}", "optim.lr=0.01", "train.use=last", *settings)
        return tmp_path / "runs" / name

    return run


@pytest.fixture(scope="module")
def start(tiny_text, corpus, tmp_path_factory):
    """The export that other runs start from."""
    folder = tmp_path_factory.mktemp("start")
    (folder / "tiny.yaml").write_text(tiny_text.format(folder=corpus, runs=folder / "runs", dropout=0.0))
    assert main(["train", str(folder / "tiny.yaml"), "name=start", "optim.lr=0.01", "train.steps=2"]) == 0
    return folder / "runs" / "start" / "export"


@pytest.fixture
def scores(monkeypatch):
    """Gives sets word error rates by the name of the set and the number of its scoring; what was scored, in order."""
    calls: list[tuple[str, float]] = []
    plain = Trainer.score

    def install(fails=-1, **values):
        def score(self, eval_set):
            if len(calls) == fails and "cut" not in dict(calls):
                calls.append(("cut", 0.0))
                raise StentorError("cut off")
            scores, means, predictions = plain(self, eval_set)
            before = [name for name, _ in calls].count(eval_set.name)
            if eval_set.name in values and before < len(values[eval_set.name]):
                scores["wer"].value = values[eval_set.name][before]
            calls.append((eval_set.name, scores["wer"].value))
            return scores, means, predictions

        monkeypatch.setattr(Trainer, "score", score)
        return calls

    return install


def exported(folder) -> dict:
    return load_file(folder / "model.safetensors")


def tuned(folder, step=4) -> dict:
    return exported(folder / "checkpoints" / f"step-{step:06d}" / "export")


def same(one, other) -> bool:
    assert len(one) > 10 and one.keys() == other.keys()
    return all(one[n].equal(other[n]) for n in one)


def results(folder) -> dict:
    return json.loads((folder / "results.json").read_text())


def stored(folder, name, **tensors) -> StoredTensors:
    (path := folder / name).mkdir()
    save_shards(path, "weights", own_shards(tensors))
    return StoredTensors.of(path, "weights")


def test_by_hand(tmp_path):
    """Of an adapter the second factor is scaled, which is zero at the start; counters are those of the trained."""
    names = {"w": 1.0, "a.lora_A.default.weight": 3.0, "a.lora_B.default.weight": 0.0, "seen": 1}
    ends = {"w": 2.0, "a.lora_A.default.weight": 5.0, "a.lora_B.default.weight": 4.0, "seen": 7}
    start, end = (
        stored(tmp_path, k, **{n: torch.tensor(v) for n, v in x.items()}) for k, x in (("s", names), ("e", ends))
    )
    trainer = SimpleNamespace(bundle=SimpleNamespace(model=nn.Linear(1, 1)))
    values = {r: {n: float(between(trainer, start, end, r).rows(n)) for n in names} for r in (0.0, 0.25, 1.0)}
    assert values[0.0] == names and values[1.0] == ends
    assert list(values[0.25].values()) == [1.25, 5.0, 1.0, 7.0]
    three = MeanTensors([start, end, end], weights=[0.5, 0.25, 0.25])
    assert three.rows("w") == 1.5 and three.rows("seen") == 1


@pytest.mark.long
def test_the_ends_are_exact_and_the_middle_is_the_mean(train, start):
    """With a moving average, which is what is tuned."""
    init = [f"model.init={start}", "train.steps=4", "train.ema=0.5"]
    folders = {r: train(f"at{r}", *init, f"train.interpolate={r}") for r in (0, 0.5, 1)}
    assert same(exported(folders[0] / "export"), exported(start))
    assert same(exported(folders[1] / "export"), tuned(folders[1]))
    first, last, middle = exported(start), tuned(folders[0.5]), exported(folders[0.5] / "export")
    assert not same(first, last)
    for name in first:
        mean = (first[name].double() + last[name].double()) / 2
        assert middle[name].equal(mean.float() if first[name].is_floating_point() else last[name]), name
    assert results(folders[0.5])["interpolate"] == {"ratio": 0.5}
    assert events(folders[0.5], "interpolated")[0]["ratio"] == 0.5
    # At the start the answers are those of the run that it starts from.
    before = (start.parent / "predictions" / "dev.jsonl").read_text()
    assert (folders[0] / "predictions" / "dev.jsonl").read_text() == before


SETS = "data.eval={dev: null, new: {type: jsonl, path: DEV}, old: {type: jsonl, path: DEV, limit: 1}}"


def test_best_ratio_that_keeps_the_other_set(tiny, train, attempt, start, scores, corpus):
    """0.8 is best on the new set but loses more than 10 % on the old one. The test set is scored once, at the end. A
    run that is cut off in the search goes on there."""
    dev = str(corpus / "dev.jsonl")
    options = [SETS.replace("DEV", dev), f"data.test={{blind: {{type: jsonl, path: {dev}}}}}"]
    options += [f"model.init={start}", "train.steps=4", "train.score_before=false", "train.eval_every=9"]
    options += ["train.interpolate={ratios: [0.8, 0.4, 0.6], set: new, keep: {old: 0.1}}"]
    # The first scoring of a set is the evaluation at the last step.
    calls = scores(fails=7, new=[0.5, 0.9, 0.5, 0.4, 0.2], old=[0.5, 0.20, 0.21, 0.22, 0.23])
    code, text = attempt("train", tiny(), "name=search", "optim.lr=0.01", "train.use=last", *options)
    assert code == 1 and "cut off" in text
    folder = train("search", *options)
    assert [name for name, _ in calls] == ["new", "old"] * 3 + ["new", "cut"] + ["old"] + ["new", "old"] * 2 + ["blind"]
    entry = results(folder)["interpolate"]
    assert entry["ratio"] == 0.6 and entry["metric"] == "wer" and entry["sets"] == ["new"]
    assert [(r["ratio"], r["values"], r["kept"]) for r in entry["ratios"]] == [
        (0.0, {"new": 0.9, "old": 0.20}, True),
        (0.4, {"new": 0.5, "old": 0.21}, True),
        (0.6, {"new": 0.4, "old": 0.22}, True),
        (0.8, {"new": 0.2, "old": 0.23}, False),
    ]
    assert [e["ratio"] for e in events(folder, "interpolation")] == [0, 0.4, 0, 0.4, 0.6, 0.8]
    first, last, middle = exported(start), tuned(folder), exported(folder / "export")
    name = next(n for n in first if not first[n].equal(last[n]))
    torch.testing.assert_close(middle[name], 0.4 * first[name] + 0.6 * last[name])
    report = (folder / "report.html").read_text()
    assert "<b>chosen</b>" in report and "degrades too much" in report


def test_a_stage_starts_from_the_export_of_the_one_before(train):
    """Each stage's start is its own: the first from an export, the second from what the first made of it."""
    stages = "stages=[{train: {steps: 2}}, {train: {steps: 4, interpolate: 0.5}}]"
    folder = train("stages", stages)
    first, last, middle = exported(folder / "stages" / "1" / "export"), tuned(folder), exported(folder / "export")
    name = next(n for n in first if not first[n].equal(last[n]))
    torch.testing.assert_close(middle[name], (first[name] + last[name]) / 2)


def test_greedy_soup(train, scores):
    """Of three checkpoints the third is left out, because it made the mean worse."""
    calls = scores(dev=[0.3, 0.1, 0.2, 0.1, 0.4])
    options = ["train.steps=6", "train.eval_every=2", "train.keep_best=3", "train.use=greedy"]
    folder = train("soup", *options)
    assert [e["steps"] for e in events(folder, "soup")] == [[4, 6], [4, 6, 2]]
    assert [e["taken"] for e in events(folder, "soup")] == [True, False]
    one, two = tuned(folder, 4), tuned(folder, 6)
    mean = {n: ((one[n].double() + two[n].double()) / 2).to(one[n].dtype) for n in one}
    assert same(exported(folder / "export"), mean) and len(calls) == 6


def test_a_soup_without_a_damaged_checkpoint(train, scores, monkeypatch):
    """The best one is damaged: the soup begins with the second, at that one's value."""
    scores(dev=[0.3, 0.1, 0.2, 0.15])
    plain = checkpoint.damage
    monkeypatch.setattr(checkpoint, "damage", lambda f: "torn" if f.name == "step-000004" else plain(f))
    folder = train("soup", "train.steps=6", "train.eval_every=2", "train.keep_best=3", "train.use=greedy")
    assert [(e["steps"], e["taken"]) for e in events(folder, "soup")] == [([6, 2], True)]


@pytest.mark.parametrize("unknown", [math.nan, math.inf])
def test_of_what_was_never_measured_nothing_is_lost(monkeypatch, unknown):
    values = {0.0: {"new": 0.9, "old": unknown}, 0.5: {"new": 0.4, "old": 0.3}, 1.0: {"new": 0.5, "old": unknown}}
    monkeypatch.setattr(interpolate, "scored", lambda trainer, name, assign, names: values[float(name.split()[1])])
    trainer = SimpleNamespace(
        task=SimpleNamespace(main_metric=lambda: ("wer", "min")),
        event=lambda *args, **keys: None,
        say=lambda text: None,
    )
    section = Interpolate(ratios=[0.5, 1.0], set="new", keep={"old": 0.02})
    assert interpolate._search(trainer, section, lambda ratio: None)["ratio"] == 0.5


def test_adapters_that_go_on_from_others_are_refused(start):
    """Between two adapters that are not zero lies none of the same rank."""
    model = nn.ModuleDict({"lora_B": nn.ModuleDict({"default": nn.Linear(2, 2, bias=False)})})
    section = {"init": str(start)}
    config = SimpleNamespace(train=Train(interpolate=0.5), plain=lambda: {"model": section})
    setup = SimpleNamespace(bundle=SimpleNamespace(model=nn.ModuleDict({"layer": model})), evals=[], tests=[])
    with pytest.raises(ConfigError, match="average of two adapters"):
        check(config, setup)
    nn.init.zeros_(model["lora_B"]["default"].weight)
    check(config, setup)


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        (["train.interpolate=0.5"], "this model starts from random weights"),
        (["train.interpolate=1.5"], "interpolate"),
        (["model.init=START", "train.interpolate={set: other}"], "there is no set `other`"),
        (
            [
                "model.init=START",
                "train.interpolate={keep: {blind: 0.1}}",
                "data.test={blind: {type: jsonl, path: DEV}}",
            ],
            "which must not be used for selection",
        ),
        (["model.init=START", "train.interpolate={}", "data.eval.dev=null"], "there is none: add one"),
    ],
)
def test_what_cannot_be_done_is_said_before_training(settings, problem, tiny, attempt, start, corpus, tmp_path):
    settings = [s.replace("START", str(start)).replace("DEV", str(corpus / "dev.jsonl")) for s in settings]
    code, text = attempt("train", tiny(), "name=refused", *settings)
    assert code == 2 and problem in " ".join(text.split())
    assert not (tmp_path / "runs" / "refused" / "checkpoints").exists()
