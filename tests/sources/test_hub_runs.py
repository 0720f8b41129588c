"""Whole runs on data sets in the Hub's layouts, through the command line, with one process and with two."""

import io
import json
from collections import Counter

import pytest
import soundfile

datasets = pytest.importorskip("datasets")

SPY = '''
"""Notes which records each process was given, and how many bytes of audio it read for them."""
import json
from collections import Counter
from typing import Literal

from stentor.engine.callback import Callback
from stentor.sources.hub_open import OpenDataset

READ = Counter()
rows = OpenDataset.rows


def counted(self, *lane):
    for row in rows(self, *lane):
        READ[self.name] += len(row.data)
        yield row


OpenDataset.rows = counted


class Spy(Callback):
    type: Literal["spy"] = "spy"
    _ids: list = []

    def on_start(self, trainer):
        READ.clear()

    def on_batch(self, trainer, batch):
        self._ids.append(batch.ids)

    def on_end(self, trainer, error):
        about = {"ids": self._ids, "bytes": READ.total(), "step": trainer.step}
        (trainer.folder / f"spy-{trainer.rank}-{trainer.step}.json").write_text(json.dumps(about))
'''


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
    """Trains on the data set and answers what each process noted."""
    plugin = tmp_path / "spy.py"
    plugin.write_text(SPY)
    yaml = tiny()
    text = yaml.read_text()
    source = f'{{type: hub, name: "{parquet[0]}", cache: "{tmp_path / "cache"}", stream: STREAM}}'
    start = text.index("train: [")
    text = text[:start] + f"train: [{source}]\n  " + text[text.index("eval: {dev") :]
    text = text.replace("max_items: 4", "max_items: 1") + "callbacks: [{type: spy}]\n"

    def run(stream, *overrides, name="run", processes=1, steps=16):
        yaml.write_text(text.replace("STREAM", str(stream).lower()))
        done = cli(
            "train",
            yaml,
            f"name={name}",
            f"train.steps={steps}",
            "train.eval_every=100",
            "--plugin",
            plugin,
            "train.save_every=100",
            *overrides,
            processes=processes,
        )
        folder = tmp_path / "runs" / name
        return (
            done,
            [json.loads((folder / f"spy-{rank}-{steps}.json").read_text()) for rank in range(processes)],
            folder,
        )

    return run


@pytest.mark.parametrize("stream", [pytest.param(False, marks=pytest.mark.slow), True])
def test_two_processes_see_every_record_once(run_on, parquet, stream):
    done, spies, folder = run_on(stream, processes=2, steps=8)
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
    _, spies, _ = run_on(True, "train.dry_run=false", "data.window=4", "data.prefetch=1", processes=2, steps=4)
    assert sum(spy["bytes"] for spy in spies) == parquet[1], "one window of each lane, each lane by one process"
    read = {i for spy in spies for ids in spy["ids"] for i in ids}
    parts = [{i.split("-")[1] for ids in spy["ids"] for i in ids} for spy in spies]
    assert parts == [{"00000", "00002"}, {"00001", "00003"}] and len(read) == 8


@pytest.mark.slow
def test_a_stream_goes_on_with_other_processes(run_on):
    """Eight batches on two processes, then on one: the same records in the same order as on one alone."""
    _, (straight,), _ = run_on(True, name="straight", steps=24)
    expected = [i for ids in straight["ids"] for i in ids]
    _, first, _ = run_on(True, name="changed", processes=2, steps=5)
    assert [i for pair in zip(*(spy["ids"] for spy in first)) for ids in pair for i in ids] == expected[:10]
    # The step goes on taking two batches.
    _, (rest,), _ = run_on(True, name="changed", steps=12)
    assert [i for ids in rest["ids"] for i in ids] == expected[10:24]
