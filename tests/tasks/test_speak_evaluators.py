"""Samples that are judged while a model is trained."""

import json
from typing import ClassVar, Literal

import numpy as np
import pytest

from stentor.data.batch import Prediction
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator
from stentor.tasks.speak.task import Speak


class Ear(SpeechEvaluator):
    """Hears a word for each tenth of a second that is louder than a half."""

    type: Literal["ear"] = "ear"
    gives: ClassVar = "text"

    def load(self, device="cpu"):
        def evaluate(clips, languages):
            return [
                " ".join("word" for i in range(0, len(c) - 99, 100) if abs(c[i : i + 100]).max() > 0.5) for c in clips
            ]

        return LoadedEvaluator(1000, evaluate)


class Voice(SpeechEvaluator):
    type: Literal["nobody"] = "nobody"
    gives: ClassVar = "voice"

    def load(self, device="cpu"):
        raise AssertionError("nothing here has a reference voice")


def test_samples_are_judged_beside_their_recordings():
    from types import SimpleNamespace

    import torch

    task = Speak.model_validate({"judges": ["ear", "nobody"]})
    loud, soft = np.ones(300, np.float32), np.full(300, 0.1, np.float32)
    codec = SimpleNamespace(sample_rate=1000)
    bundle = SimpleNamespace(model=torch.nn.Linear(1, 1), processor=SimpleNamespace(codec=codec))
    examples = [SimpleNamespace(audio=loud, language="en"), SimpleNamespace(audio=None, language=None)]
    rows = task._evaluate(bundle, examples, [loud[:200], soft], [loud, loud])  # type: ignore[arg-type]
    assert rows[0]["text"] == {"synthetic": "word word", "codec": "word word word", "real": "word word word"}
    assert rows[1]["text"] == {"synthetic": "", "codec": "word word word"} and "voice" not in rows[0]
    reference = {"text": "word word word", "language": None, "speaker": None}
    scores = task.score([Prediction(str(i), reference, {"heard": row}) for i, row in enumerate(rows)])
    assert scores["wer"].errors == 4 and scores["wer_codec"].errors == 0 and scores["wer_real"].total == 3
    assert json.dumps(rows)  # travels between ranks and into files


def test_without_judges_nothing_is_scored():
    task = Speak.model_validate({})
    assert task.score([Prediction("a", {"text": "x", "language": None, "speaker": None}, {"seconds": 1.0})]) == {}


@pytest.mark.slow
def test_judged_in_a_run(corpus, tiny, tmp_path, capsys):
    """A recogniser of Stentor's listens to the samples of each evaluation; its word error rate is in the results."""
    from stentor.cli import main

    assert main(["train", str(tiny())]) == 0
    run = f"""\
task: {{type: speak, samples: 2, judges: [{{type: recognizer, from: "{tmp_path}/runs/run"}}], generation: {{steps: 2}}}}
model:
  type: omnivoice
  llm: {{config: {{model_type: qwen3, hidden_size: 32, intermediate_size: 64, num_hidden_layers: 1,
         num_attention_heads: 2, num_key_value_heads: 1, head_dim: 16}}}}
  text: characters
  codec: {{type: mel_rvq, entries: 16, codebooks: 2}}
data:
  train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]
  eval: {{dev: {{type: jsonl, path: "{corpus}/dev.jsonl"}}}}
  workers: 0
train: {{steps: 2, eval_every: 2, device: cpu}}
name: voice
output: "{tmp_path}/runs"
"""
    (tmp_path / "voice.yaml").write_text(run)
    assert main(["train", str(tmp_path / "voice.yaml")]) == 0, capsys.readouterr().err
    scores = json.loads((tmp_path / "runs" / "voice" / "results.json").read_text())["eval"]["dev"]
    assert list(scores)[:4] == ["loss", "wer", "wer_codec", "wer_real"] and scores["wer"]["total"] >= 2
    assert scores["loss"]["details"]["items"] == 4
