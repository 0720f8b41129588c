"""Whole runs on shards through the command line: codec tokens and audio, broken ones, and several processes."""

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest

from stentor.commands.prepare.tokens.shards import Shard
from stentor.commands.prepare.tokens.worker import npy
from stentor.sources.shards import Shards

RUN = """\
task: {{type: speak}}
model:
  type: omnivoice
  llm: {{config: {{model_type: qwen3, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1,
                 num_attention_heads: 2, num_key_value_heads: 2, head_dim: 8}}}}
  text: {{type: characters}}
  codebooks: 2
  entries: 32
  attention: {attention}
losses: {{codes: {{type: codebook, weights: [2, 1]}}}}
data:
  train: [{{type: shards, path: "{path}", stream: {stream}}}]
  batch_tokens: 128
  window: 30
  workers: 2
optim: {{type: adamw, lr: 1e-3}}
train: {{steps: 4, log_every: 1, save_every: 100, device: cpu}}
output: "{runs}"
"""
SPY = ["callbacks=[spy]", "--plugin", Path(__file__).parents[1] / "record_spy.py"]


@pytest.fixture
def tokens(tmp_path):
    """Three shards of ten records with 2 x 12 to 21 codes, and the list of them; `change` may put something else into a
    member, or take its label or itself away."""

    def make(change=lambda name, codes: codes):
        folder = tmp_path / "tokens"
        folder.mkdir()
        rng = np.random.default_rng(0)
        lines = []
        for number in range(3):
            shard = Shard(folder, number)
            shard.resume_at(0)
            labels = []
            for i in range(10):
                name, frames = f"s{number}-{i}", 12 + i
                codes = change(name, rng.integers(0, 32, (2, frames)).astype(np.int16))
                if codes is not None:
                    shard.add(f"{name}.npy", npy(codes))
                labels.append(
                    {"id": name, "text": "abcde"[i % 5] * 3, "num_tokens": frames, "audio_duration": frames / 25}
                )
            shard.finish(labels)
            lines.append(f"{shard.tar} {shard.labels} 10 6.6\n")
        (folder / "data.lst").write_text("".join(lines))
        return folder / "data.lst"

    return make


@pytest.fixture
def config(tmp_path):
    """Writes the run's YAML; answers its path."""

    def make(path, stream=True, attention="sdpa"):
        run = tmp_path / "run.yaml"
        run.write_text(RUN.format(path=path, stream=str(stream).lower(), attention=attention, runs=tmp_path / "runs"))
        return run

    return make


def batches_of(tmp_path, name, processes, step):
    folder = tmp_path / "runs" / name
    return [json.loads((folder / f"spy-{rank}-{step}.json").read_text())["ids"] for rank in range(processes)]


@pytest.mark.parametrize("stream, attention", [(True, "flex"), (False, "sdpa")])
def test_broken_records_are_counted_and_the_run_goes_on(tokens, config, attempt, tmp_path, stream, attention):
    def change(name, codes):
        odd = {
            "s0-1": codes[:1],
            "s0-2": codes + 20,
            "s0-3": codes.astype(np.float32),
            "s0-4": codes[:, 1:],
            "s0-5": None,
        }
        return odd.get(name, codes)

    path = tokens(change)
    tar = path.parent / "shard-000001.tar"
    tar.write_bytes(tar.read_bytes()[: 6 * 1024 + 100])
    (path.parent / "shard-000002.tar").unlink()
    run = config(path, stream, attention)
    code, output = attempt("train", run, "name=mend", "data.max_bad=0.7", "train.steps=12", "data.workers=0")
    assert code == 0, output
    results = json.loads((tmp_path / "runs" / "mend" / "results.json").read_text())
    assert results["data"]["dropped"] == {
        "wrong_shape": 2,
        "wrong_range": 1,
        "wrong_type": 1,
        "no_member": 1,
        "truncated": 4,
        "missing": 10,
    }
    code, output = attempt("train", run, "name=stop", "data.max_bad=0.1", "train.steps=12", "data.workers=0")
    assert code == 3
    assert "records cannot be used, more than `data.max_bad` allows" in output and "does not exist" in output


def test_a_model_of_other_codebooks_says_so(tokens, config, attempt):
    code, output = attempt(
        "train", config(tokens(), stream=False), "name=other", "model.codebooks=3", "losses.codes.weights=[1,1,1]"
    )
    assert code == 3 and "2 codebooks; this model takes 3" in output


def test_audio_in_shards_trains_a_recogniser(corpus, tiny, attempt, tmp_path):
    import soundfile

    shard = Shard(tmp_path, 0)
    shard.resume_at(0)
    labels = []
    for line in (corpus / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        audio, rate = soundfile.read(corpus / record["audio_path"])
        data = io.BytesIO()
        soundfile.write(data, audio, rate, format="FLAC")
        shard.add(f"{record['id']}.flac", data.getvalue())
        labels.append({"id": record["id"], "text": record["text"], "audio_duration": len(audio) / rate})
    shard.finish(labels)
    yaml = tiny()
    text = yaml.read_text()
    text = text.replace(f'{{type: jsonl, path: "{corpus}/train.jsonl"}}', "STREAM")
    losses = {}
    for name, source in (
        ("plain", f'{{type: jsonl, path: "{corpus}/train.jsonl"}}'),
        ("shards", f'{{type: shards, path: "{shard.tar}"}}'),
        ("stream", f'{{type: shards, path: "{shard.tar}", stream: true}}'),
    ):
        yaml.write_text(text.replace("STREAM", source))
        code, output = attempt("train", yaml, f"name={name}", "train.steps=2")
        assert code == 0, output
        rows = (tmp_path / "runs" / name / "metrics.jsonl").read_text().splitlines()
        losses[name] = [json.loads(row).get("train/loss") for row in rows]
    assert losses["plain"][:2] == pytest.approx(losses["shards"][:2], rel=1e-4)
    assert all(math.isfinite(loss) for loss in losses["stream"][:2])


@pytest.mark.slow  # three runs, one of them of two processes
def test_two_processes_and_then_one_are_as_one(tokens, config, attempt, cli, tmp_path):
    """On a stream, with more workers than shards; stopped in the second epoch."""
    command = ["train", config(tokens(), True, "flex"), *SPY]
    assert attempt(*command, "name=straight", "train.steps=16")[0] == 0
    (straight,) = batches_of(tmp_path, "straight", 1, 16)
    assert len({i for ids in straight for i in ids}) == 30, "every record was there"
    cli(*command, "name=changed", "train.steps=5", processes=2)
    first = batches_of(tmp_path, "changed", 2, 5)
    assert [ids for pair in zip(*first) for ids in pair] == straight[:10]
    assert attempt(*command, "name=changed", "train.steps=8")[0] == 0  # the step goes on taking two batches
    (rest,) = batches_of(tmp_path, "changed", 1, 8)
    assert rest == straight[10:16]


def test_hours_and_languages_of_a_stream(tokens, config, attempt, tmp_path):
    """Refused with the mend where they are unknown; else the run is trained on whole shards alone."""
    path = tokens()
    part = ["name=part", "data.train.0.max_hours=0.004", "data.language_temperature=0.5", "data.workers=0"]
    command = ["train", config(path), *SPY, *part, "train.steps=12"]
    code, said = attempt(*command)
    assert code == 2 and "those of data.train.0, a stream, are unknown" in " ".join(said.split())
    chosen = Shards(type="shards", path=path, stream=True, max_hours=0.004).shards()
    assert len(chosen) == 2
    code, said = attempt(*command, "data.train.0.language=en")
    assert code == 0, said
    (batches,) = batches_of(tmp_path, "part", 1, 12)
    assert {name[:2] for names in batches for name in names} == {f"s{shard.tar.stem[-1]}" for shard in chosen}
