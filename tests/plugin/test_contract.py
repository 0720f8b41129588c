"""Mistakes in plug-ins, as people make them: each ends with exit code 2 and one sentence that names class, file, method
and what was expected."""

import importlib
import json
import sys

import pytest

from kinds import kinds_kept
from stentor.config.plugins import load_plugins
from stentor.errors import ConfigError

IMPORTS = """
from pathlib import Path
from typing import Literal

import numpy as np

from stentor.engine.callback import Callback
from stentor.losses.all_paths import CTCLoss
from stentor.losses.token import CrossEntropy
from stentor.sources.base import Source
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.transcribe import Transcribe

"""
COUNT = """
class Counted(Labels):
    type: Literal["counted"] = "counted"
    @property
    def classes(self):
        return 3
    @property
    def names(self):
        return ["talk", "overlap"]
    def losses(self):
        return {"count": CrossEntropy()}
    def targets(self, activity, ids):
        TARGETS
    def decode(self, logits):
        DECODE
"""
LOSS = """
class Bent(CTCLoss):
    type: Literal["bent"] = "bent"
    def sum(self, ARGUMENTS):
        RETURNED
"""
ARGUMENTS = "log_probs, lengths, targets, target_lengths"
CALLBACK = """
class Watch(Callback):
    type: Literal["watch"] = "watch"
    def HOOK:
        BODY
"""


@pytest.fixture
def plugin(tmp_path):
    """Writes a plug-in file; what it registers is forgotten after the test."""

    def write(text: str, **parts: str):
        for name, part in parts.items():
            text = text.replace(name, part)
        path = tmp_path / "mistaken_plugin.py"
        path.write_text(IMPORTS + text)
        importlib.invalidate_caches()
        return path

    with kinds_kept():
        yield write
    sys.modules.pop("mistaken_plugin", None)
    if str(tmp_path) in sys.path:
        sys.path.remove(str(tmp_path))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            'class Half(Labels):\n    type: Literal["half"] = "half"\n    def losses(self):\n        return {}\n',
            "Half (FILE) lacks `classes`, `targets`, `decode`: a class of its kind (Labels) needs classes, losses",
        ),
        (
            CALLBACK.replace("HOOK", "on_epoc_end(self, trainer, epoch, metrics)").replace("BODY", "pass"),
            "Watch.on_epoc_end (FILE, line 17) is never called: there is no such hook (did you mean on_epoch_end?)",
        ),
        (
            CALLBACK.replace("HOOK", "on_train_end(self, trainer)").replace("BODY", "pass"),
            "The hooks are before_optimizer, on_batch, on_end, on_epoch, on_epoch_end, on_evaluate",
        ),
        (
            CALLBACK.replace("HOOK", "on_step(self)").replace("BODY", "pass"),
            "Watch.on_step (FILE, line 17) is called with (self, trainer), not (self).",
        ),
        ("class Loose(CTCLoss):\n    pass\n", "registers nothing: a class in it extends Source, Family, Task"),
        ("", "registers nothing"),
    ],
)
def test_what_a_class_lacks_is_told_when_it_is_loaded(plugin, text, message):
    path = plugin(text)
    with pytest.raises(ConfigError) as caught:
        load_plugins([path])
    assert message.replace("FILE", str(path)) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (
            LOSS.replace("ARGUMENTS", ARGUMENTS).replace("RETURNED", "return log_probs.sum(-1)"),
            ["losses.ctc.type=bent"],
            "Bent.sum (FILE, line 17) must return the sum over all targets, a scalar tensor, not a Tensor of shape [",
        ),
        (
            LOSS.replace("ARGUMENTS", ARGUMENTS).replace("RETURNED", "return float(log_probs.sum())"),
            ["losses.ctc.type=bent"],
            "must return the sum over all targets, a scalar tensor, not",
        ),
        (
            LOSS.replace("ARGUMENTS", "logits, labels").replace("RETURNED", "return logits.sum()"),
            ["losses.ctc.type=bent"],
            "Bent.sum (FILE, line 17) must take what the model returned under 'ctc' (log_probs, lengths, targets",
        ),
        (
            LOSS.replace("ARGUMENTS", ARGUMENTS).replace("RETURNED", "return log_probs.summ()"),
            ["losses.ctc.type=bent"],
            "Bent.sum (FILE, line 18) raised AttributeError: 'Tensor' object has no attribute 'summ'",
        ),
        (
            'class Rows(Source):\n    type: Literal["rows"] = "rows"\n    path: Path\n    def records(self):\n'
            '        yield {"audio_path": "a.wav"}\n',
            ["data.train=[{type: rows, path: .}]"],
            "Rows.records (FILE, line 17) must yield lhotse cuts (`stentor.data.cut.cut_from_record` makes one from a "
            "record), not {'audio_path': 'a.wav'}.",
        ),
        (
            'class Rows(Source):\n    type: Literal["rows"] = "rows"\n    def records(self):\n        pass\n',
            ["data.train=[{type: rows}]"],
            "must yield lhotse cuts (`stentor.data.cut.cut_from_record` makes one from a record), not None.",
        ),
        (
            CALLBACK.replace("HOOK", "on_step(self, trainer)").replace("BODY", "raise KeyError('exact')"),
            ["callbacks=[watch]"],
            "Watch.on_step (FILE, line 18) raised KeyError: 'exact'",
        ),
        (
            CALLBACK.replace("HOOK", "state_dict(self)").replace("BODY", "return {1j: Path()}"),
            ["callbacks=[watch]", "train.steps=2"],
            "Watch.state_dict (FILE, line 17) must return JSON-serialisable data, not {1j: ",
        ),
        (
            'class Own(Transcribe):\n    type: Literal["own"] = "own"\n    def score(self, predictions):\n'
            "        return 0.5\n",
            ["task.type=own", "train.steps=1", "train.eval_every=1"],
            "Own.score (FILE, line 16) must return a dict of `stentor.metrics.score.Score`, not 0.5.",
        ),
        (
            'class Own(Transcribe):\n    type: Literal["own"] = "own"\n    def example(self, cut, audio, rng):\n'
            "        return cut.words\n",
            ["task.type=own", "data.workers=1"],
            "Own.example (FILE, line 17) raised AttributeError: ",
        ),
    ],
)
def test_a_mistake_in_a_run_names_its_place(plugin, tiny, cli, text, overrides, message, tmp_path):
    path = plugin(text)
    done = cli("train", tiny(), *overrides, "--plugin", path, check=False)
    assert done.returncode == 2, done.stderr
    assert message.replace("FILE", str(path)) in done.stderr
    assert "unexpected failure" not in done.stderr and "Traceback" not in done.stderr
    if "callbacks=[watch]" in overrides:
        events = (tmp_path / "runs" / "run" / "events.jsonl").read_text().splitlines()
        assert "Watch." in json.loads(events[-1])["error"]


DIARIZE = """\
task: {{type: diarize, chunk: 4, labels: {{type: counted}}}}
model: {{type: transformer, encoder: {{layers: 1}}, shared: {{d_model: 16, heads: 2}}}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{folder}/dev.jsonl"}}}}
  workers: 0
train: {{steps: 1, device: cpu}}
output: "{runs}"
"""
GOOD = "return activity.sum(1).clip(max=2).astype(np.int64)"
SHAPE = "must return one class from 0 to 2 (int64 ["


@pytest.mark.parametrize(
    ("targets", "decode", "message"),
    [
        ("return activity.sum(1)[:-1].astype(np.int64)", "pass", f"Counted.targets (FILE, line 25) {SHAPE}"),
        ("return activity.sum(1).astype(np.int64) + 2", "pass", "`classes` 3, not [2, 3, 4]."),
        ("return activity.astype(np.float64)", "pass", "and type float64."),
        ("pass", "pass", "`classes` 3, not None."),
        (GOOD, "return logits[0]", "Counted.decode (FILE, line 27) must return probabilities float32 ["),
        (GOOD, "return None", "speakers], not None."),
    ],
)
def test_wrong_labels_name_their_place(plugin, meetings, cli, tmp_path, targets, decode, message):
    path = plugin(COUNT, TARGETS=targets, DECODE=decode)
    run = tmp_path / "run.yaml"
    run.write_text(DIARIZE.format(folder=meetings, runs=tmp_path / "runs"))
    done = cli("train", run, "--plugin", path, check=False)
    assert done.returncode == 2, done.stderr
    assert message.replace("FILE", str(path)) in done.stderr and "unexpected failure" not in done.stderr


def test_epochs_end(plugin, tiny, cli, tmp_path):
    """Each epoch begins and ends once, also across a stop; `stop` at an end is obeyed before another step."""
    body = """with open(self.to, "a") as file:
            print(f"{trainer.step}:{epoch}:{metrics['step']}", file=file)
        if epoch == self.last:
            trainer.stop("enough")"""
    text = CALLBACK.replace("HOOK", "on_epoch_end(self, trainer, epoch, metrics)").replace("BODY", body)
    path = plugin(text.replace('"watch"\n', '"watch"\n    to: str\n    last: int = -1\n', 1))
    ends = tmp_path / "ends.txt"
    watch = f"callbacks=[{{type: watch, to: {ends}}}]"
    cli("train", tiny(), watch, "data.batch_tokens=4000", "data.max_items=8", "train.steps=5", "--plugin", path)
    assert ends.read_text().split() == ["2:0:2", "4:1:4", "5:2:5"]  # 16 records are two batches
    ends.unlink()
    watch = f"callbacks=[{{type: watch, to: {ends}, last: 1}}]"
    cli("train", tiny(), watch, "data.batch_tokens=4000", "data.max_items=8", "name=b", "--plugin", path)
    assert ends.read_text().split() == ["2:0:2", "4:1:4"]
    assert json.loads((tmp_path / "runs" / "b" / "results.json").read_text())["steps"] == 4
