"""`stentor prepare features`: it stores what training reads, goes on after a kill, and refuses what it must."""

import json
import os
from pathlib import Path

import pytest

from stentor.commands.prepare.features import prepare_features
from stentor.commands.prepare_options import FeaturesOptions
from stentor.data.cut import cut_from_record
from stentor.errors import ConfigError, DataError
from stentor.models.encoders.features import Features
from stentor.models.transformer.feature_cache import FeatureStore

RUN = """\
task: {{type: diarize, chunk: 1.0, labels: binary}}
model:
  type: transformer
  features: {{num_mel_bins: 20, stack: 10, subsample: 10, store: {store}, store_bits: 32}}
  shared: {{d_model: 16, layers: 1, heads: 2, dropout: 0.0}}
data:
  train: [{{type: jsonl, path: "{folder}/train.jsonl"}}]
  batch_tokens: 100
  workers: 2
train: {{steps: 2, log_every: 1, save_every: 2, device: cpu, seed: 1}}
output: "{runs}"
"""


def stored(folder: Path, **settings) -> FeatureStore:
    return FeatureStore(folder, Features(**settings), settings.get("store_bits", 16))


@pytest.fixture
def recordings(tmp_path: Path, corpus: Path) -> Path:
    """A manifest of two recordings with segments, of 2.5 s and 0.8 s."""
    import numpy as np

    from stentor.audio.io import read, write

    folder = tmp_path / "recordings"
    speech = np.concatenate([read(corpus / f"train{i}.wav", rate=16000) for i in range(8)])
    lines = []
    for name, seconds in (("long", 2.5), ("short", 0.8)):
        write(folder / f"{name}.wav", speech[: round(seconds * 16000)], 16000)
        segments = [{"speaker": "a", "start": 0.1, "end": seconds - 0.3}]
        lines.append(json.dumps({"id": name, "audio_path": f"{name}.wav", "duration": seconds, "segments": segments}))
    (folder / "train.jsonl").write_text("\n".join(lines) + "\n")
    return folder


def test_store_a_manifest(here, corpus, tmp_path, capsys):
    to = tmp_path / "features"
    data = corpus / "train.jsonl"
    told = here("prepare", "features", data, "--to", to, "--option", "num_mel_bins=20", "--jobs", 2)
    assert f"{to}: features of 16 records" in told and f"model.features.store: {to}" in told
    store = stored(to, num_mel_bins=20)
    records = [json.loads(line) for line in data.read_text().splitlines()]
    assert len(records) == 16 and all(store.has(cut_from_record(r, corpus, "x")) for r in records)
    files = len(list(to.glob("*.bin")))
    assert files in (1, 2)  # a process may have begun too late to do anything
    prepare_features(FeaturesOptions(data=str(data), to=to, option=("num_mel_bins=20",)))
    assert "16 of 16 records were stored before" in capsys.readouterr().out and len(list(to.glob("*.bin"))) == files
    with pytest.raises(ConfigError, match="num_mel_bins was 20 and is 30"):
        prepare_features(FeaturesOptions(data=str(data), to=to, option=("num_mel_bins=30",)))


def test_records_that_cannot_be_used(corpus, tmp_path, capsys):
    manifest = corpus / "with_bad.jsonl"
    bad = json.dumps({"id": "gone", "audio_path": "gone.wav", "duration": 1.0, "text": "x"})
    manifest.write_text((corpus / "dev.jsonl").read_text() + bad + "\n")
    with pytest.raises(DataError, match=r"1 of 5 records cannot be used.*\n.*gone"):
        prepare_features(FeaturesOptions(data=str(manifest), to=tmp_path / "f"))
    assert "unusable: 1 missing" in capsys.readouterr().out
    store, records = stored(tmp_path / "f"), map(json.loads, (corpus / "dev.jsonl").read_text().splitlines())
    assert [store.has(cut_from_record(r, corpus, "x")) for r in records] == [True] * 4


def test_a_run_trains_on_what_was_stored(here, rows, recordings, tmp_path, capsys):
    """The pieces of the run's recordings are stored ahead; training then reads no audio, and learns the same."""
    store = tmp_path / "store"

    def config(name, place):
        path = tmp_path / f"{name}.yaml"
        path.write_text(RUN.format(folder=recordings, store=place, runs=tmp_path / name))
        return path

    plain, keeping = config("plain", "null"), config("keeping", store)
    here("train", plain)
    prepare_features(FeaturesOptions(to=store, config=keeping))
    assert "features of 4 records" in capsys.readouterr().out
    audio = recordings / "long.wav"
    stat, data = audio.stat(), audio.read_bytes()
    audio.write_bytes(bytes(len(data)))  # all zeros: whoever reads it fails
    os.utime(audio, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    trained = here("train", keeping)
    assert "Features of 4 of 4 training items are stored in" in trained
    losses = [[row["train/loss"] for row in rows(next((tmp_path / n).iterdir()))] for n in ("plain", "keeping")]
    assert len(losses[0]) == 2 and losses[0] == losses[1]
    export = json.loads((next((tmp_path / "keeping").iterdir()) / "export" / "preprocessor_config.json").read_text())
    assert "store" not in export["features"]
