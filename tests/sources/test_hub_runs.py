"""Whole runs on data sets in the Hub's layouts, through the command line, with two processes."""

import io
import json
from collections import Counter
from pathlib import Path

import pytest
import soundfile

datasets = pytest.importorskip("datasets")
SPY = Path(__file__).parents[1] / "record_spy.py"


@pytest.fixture(scope="module")
def parquet(corpus, tmp_path_factory):
    """The corpus of 16 clips as a data set of four parquet files with embedded audio, and its size in bytes."""
    folder = tmp_path_factory.mktemp("hub") / "set"
    folder.mkdir()
    rows = []
    for line in (corpus / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        flac = io.BytesIO()
        soundfile.write(flac, *soundfile.read(corpus / record["audio_path"]), format="FLAC")
        name = "ann" if len(rows) % 2 else "ben"
        rows.append({"audio": {"bytes": flac.getvalue(), "path": None}, "sentence": record["text"], "client_id": name})
    dataset = datasets.Dataset.from_list(rows).cast_column("audio", datasets.Audio())
    for i in range(4):
        dataset.shard(4, i, contiguous=True).to_parquet(folder / f"train-{i:05d}-of-00004.parquet")
    return folder, sum(len(r["audio"]["bytes"]) for r in rows)


@pytest.fixture
def run_on(parquet, tiny, tmp_path, cli):
    """Trains on the data set with two processes and answers what each noted."""
    yaml = tiny()
    text = yaml.read_text()
    source = f'{{type: hub, name: "{parquet[0]}", cache: "{tmp_path / "cache"}", stream: STREAM}}'
    start = text.index("train: [")
    text = text[:start] + f"train: [{source}]\n  " + text[text.index("eval: {dev") :]
    text = text.replace("max_items: 4", "max_items: 1") + "callbacks: [{type: spy}]\n"

    def run(stream, *overrides, steps):
        yaml.write_text(text.replace("STREAM", str(stream).lower()))
        plan = ["train.eval_every=100", "train.save_every=100", f"train.steps={steps}", *overrides]
        done = cli("train", yaml, "name=run", *plan, "--plugin", SPY, processes=2)
        folder = tmp_path / "runs" / "run"
        return done, [json.loads((folder / f"spy-{rank}-{steps}.json").read_text()) for rank in (0, 1)], folder

    return run


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_see_every_record_once(run_on, parquet, stream):
    done, spies, folder = run_on(stream, steps=8)
    seen = Counter(i for spy in spies for ids in spy["ids"] for i in ids)
    assert len(seen) == 16 and set(seen.values()) == {1}
    if stream:
        assert "read in 4 lanes: each of the 2 processes reads 1/2 of it" in done.stdout + done.stderr
        # Windows are read ahead, so an epoch's end may come with the start of the next: never with others' files.
        assert all(spy["bytes"] <= parquet[1] * 1.2 for spy in spies)
    results = json.loads((folder / "results.json").read_text())
    assert results["eval"]["dev"]["wer"]["total"] > 0


def test_each_process_reads_its_own_files(run_on, parquet):
    """Of the first half of an epoch."""
    _, spies, _ = run_on(True, "train.dry_run=false", "data.window=4", "data.prefetch=1", steps=4)
    assert sum(spy["bytes"] for spy in spies) == parquet[1], "one window of each lane, each lane by one process"
    read = {i for spy in spies for ids in spy["ids"] for i in ids}
    parts = [{i.split("-")[1] for ids in spy["ids"] for i in ids} for spy in spies]
    assert parts == [{"00000", "00002"}, {"00001", "00003"}] and len(read) == 8
