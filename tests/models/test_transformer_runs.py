"""The three architectures of the family `transformer` through the command line: they learn, stop, go on and export."""

import json
import math
from collections import Counter

import pytest
import torch

from stentor.cli import main
from stentor.inference.load import load

torch.set_num_threads(1)

RUN = """\
task: {{type: transcribe, normalizer: none}}
model:
  type: transformer
  kind: encoder_decoder
  shared: {{d_model: 64, layers: 2, heads: 2, dropout: 0.0}}
  features: {{num_mel_bins: 40, stack: 4, subsample: 4}}
data:
  train: [{{type: jsonl, path: "{corpus}/train.jsonl"}}]
  eval: {{same: {{type: jsonl, path: "{corpus}/train.jsonl"}}}}
  batch_tokens: 2000
  workers: 0
losses: {{text: cross_entropy, ctc: {{type: ctc, weight: 0.3}}}}
optim: {{type: adamw, lr: 2e-3}}
schedule: {{type: constant, warmup_steps: 0}}
train: {{steps: 60, log_every: 20, eval_every: 1000, save_every: 1000, device: cpu}}
output: "{runs}"
"""
LANGUAGE = """\
task: language
model:
  type: transformer
  kind: decoder
  shared: {{d_model: 32, layers: 2, heads: 2, dropout: 0.0, positions: sinusoidal, attention: {attention}}}
data:
  train: [{{type: text, path: "{folder}/train.txt"}}]
  eval: {{dev: {{type: text, path: "{folder}/dev.txt"}}}}
  batch_tokens: 600
  workers: 0
optim: {{type: adamw, lr: 5e-3}}
train: {{steps: 60, log_every: 20, eval_every: 30, save_every: 30, device: cpu}}
output: "{folder}/runs"
"""


def train(path, name, *options):
    """Train through the command line; answers the run's folder."""
    code = main(["train", str(path), f"name={name}", *options])
    assert not code, f"exit {code}"
    return path.parent / "runs" / name


@pytest.fixture
def run(tmp_path, corpus):
    path = tmp_path / "run.yaml"
    path.write_text(RUN.format(corpus=corpus, runs=tmp_path / "runs"))
    return path


def results(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.long
def test_encoder_decoder_learns_by_heart(run, corpus, capsys):
    """Sixteen clips, told apart by the decoder; what it exports transcribes files just so."""
    folder = train(run, "heart")
    scores = results(folder)
    assert scores["eval"]["same"]["wer"]["value"] < 0.05 and scores["eval"]["same"]["perplexity"]["value"] < 1.3
    assert scores["eval"]["same"]["ctc_wer"]["total"] == scores["eval"]["same"]["wer"]["total"]
    assert scores["export"]["clips"] == 16 and scores["export"]["wer"]["export"] == scores["export"]["wer"]["model"]
    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    audio = [str(corpus / record["audio_path"]) for record in records[:3]]
    capsys.readouterr()
    assert not main(["transcribe", str(folder), *audio, "--format", "txt", "--out", str(run.parent / "out")])
    for record in records[:3]:
        text = (run.parent / "out" / record["audio_path"]).with_suffix(".txt").read_text()
        assert text.strip() == record["text"]


@pytest.mark.slow
def test_encoder_with_ctc_alone(run, corpus, capsys):
    run.write_text(run.read_text().replace("{text: cross_entropy, ctc: {type: ctc, weight: 0.3}}", "{ctc: ctc}"))
    folder = train(run, "ctc", "model.kind=encoder", "model.encoder={conv_kernel: 5}", "train.steps=60")
    scores = results(folder)
    assert scores["eval"]["same"]["wer"]["value"] < 0.6
    assert scores["export"]["wer"]["export"] == scores["export"]["wer"]["model"]
    capsys.readouterr()
    record = json.loads((corpus / "train.jsonl").read_text().splitlines()[0])
    assert not main(["transcribe", str(folder), str(corpus / record["audio_path"]), "--format", "json"])
    assert json.loads(capsys.readouterr().out)["text"]


@pytest.mark.parametrize("attention", ["softmax", "causal_linear"])
@pytest.mark.long
def test_decoder_is_a_better_language_model_than_frequencies(attention, tmp_path):
    """Counting strings: each word tells the next one. Its perplexity on new texts falls under that of a model that
    knows how frequent each token is, and its export gives the same."""
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine"]
    texts = [" ".join(words[first : first + count]) for first in range(9) for count in (1, 2, 3, 4)]
    (tmp_path / "train.txt").write_text("\n".join(texts) + "\n")
    new = [" ".join(words[first : first + 5]) for first in range(5)]
    (tmp_path / "dev.txt").write_text("\n".join(new) + "\n\n")
    path = tmp_path / "run.yaml"
    path.write_text(LANGUAGE.format(folder=tmp_path, attention=attention))
    folder = train(path, "lm")
    scores = results(folder)["eval"]["dev"]
    bundle = load(folder).bundle
    counts = Counter(token for text in texts for token in [*bundle.processor.ids(text), bundle.processor.eos_id])
    tokens = [token for text in new for token in [*bundle.processor.ids(text), bundle.processor.eos_id]]
    total = sum(counts.values())
    unigram = math.exp(-sum(math.log(counts[token] / total) for token in tokens) / len(tokens))
    assert 1 < scores["perplexity"]["value"] < unigram / 3
    assert scores["perplexity"]["details"]["tokens"] == len(tokens)
    assert results(folder)["export"]["perplexity"]["export"] == pytest.approx(scores["perplexity"]["value"], rel=1e-4)

    examples = [load(folder).task.example(cut, None, None) for cut in _cuts(tmp_path / "dev.txt")]
    outputs = load(folder).task.predict(bundle, examples)
    again = math.exp(-sum(o["log_prob"] for o in outputs) / sum(o["tokens"] for o in outputs))
    assert again == pytest.approx(scores["perplexity"]["value"], rel=1e-4)


def _cuts(path):
    from stentor.sources.base import Source

    return list(Source.model_validate({"type": "text", "path": str(path)}).cuts())


TALKS = """\
task: {{type: diarize, labels: {{type: speaker, speakers: 2}}, chunk: 8}}
model:
  type: transformer
  embedding: 8
  shared: {{d_model: 48, layers: 2, heads: 2, dropout: 0.0, attention: linear}}
  encoder: {{conv_kernel: 5, positions: none}}
  features: {{num_mel_bins: 40, stack: 5, subsample: 5}}
data:
  train: [{{type: jsonl, path: "{folder}/talks.jsonl"}}]
  eval: {{same: {{type: jsonl, path: "{folder}/talks.jsonl"}}}}
  batch_tokens: 2000
  workers: 0
losses: {{speakers: pit_bce, voice: {{type: contrastive, weight: 0.1}}, small: {{type: norm_reg, weight: 0.001}}}}
optim: {{type: adamw, lr: 2e-3}}
train: {{steps: 40, log_every: 10, eval_every: 1000, save_every: 1000, device: cpu}}
output: "{folder}/runs"
"""


@pytest.mark.long
def test_encoder_tells_two_voices_apart(corpus, tmp_path, capsys):
    """Clips of two voices in turn, some at the same time."""
    import numpy as np

    from stentor.audio.io import read, write

    records = [json.loads(line) for line in (corpus / "train.jsonl").read_text().splitlines()]
    clips = [read(corpus / r["audio_path"], rate=16000) for r in records]
    lines = []
    for talk in range(4):
        audio, at, segments = np.zeros(8 * 16000, np.float32), 0.1, []
        for turn in range(4):
            clip = clips[(4 * talk + turn) % 16]
            first = round(at * 16000)
            clip = clip[: len(audio) - first]
            audio[first : first + len(clip)] += clip
            end = round(at + len(clip) / 16000, 3)
            segments.append({"speaker": "ab"[turn % 2], "start": round(at, 3), "end": end})
            at = end + (0.2 if turn % 3 else -0.2)
        write(tmp_path / f"{talk}.wav", audio, 16000)
        lines.append(json.dumps({"id": str(talk), "audio_path": f"{talk}.wav", "segments": segments}))
    (tmp_path / "talks.jsonl").write_text("\n".join(lines) + "\n")
    path = tmp_path / "run.yaml"
    path.write_text(TALKS.format(folder=tmp_path))
    folder = train(path, "talks")
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    terms = [[row[f"train/{term}"] for row in rows if "train/loss" in row] for term in ("speakers", "voice", "small")]
    assert terms[0][-1] < terms[0][0] / 2 and terms[1][-1] < terms[1][0]
    assert results(folder)["eval"]["same"]["der"]["value"] < 0.35
    capsys.readouterr()
    assert not main(["diarize", str(folder), str(tmp_path / "0.wav"), "--format", "rttm"])
    assert "SPEAKER 0 1 " in capsys.readouterr().out
