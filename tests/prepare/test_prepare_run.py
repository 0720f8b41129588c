"""The section `prepare:` of a run file: steps in order, each once, with the settings of its verb."""

import json
import os
import signal
from pathlib import Path

import pytest

from stentor.cli import main
from stentor.config.load import load
from stentor.errors import ConfigError
from stentor.sources.corpus import Corpus

STEPS = """\
prepare:
  - {{type: codec, to: codec, data: {{type: jsonl, path: "{corpus}/train.jsonl", limit: 8}},
     codec: {{type: mel_rvq, codebooks: 2, entries: 16}}, device: cpu}}
  - {{type: tokens, to: tokens, codec: codec, min_shards: 2, device: cpu,
     data: {{type: jsonl, path: "{corpus}/train.jsonl", where: {{id: [train0, train1, train2, train3]}}}}}}
"""


@pytest.fixture
def run_file(tiny, corpus, tmp_path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = tiny()
    path.write_text(path.read_text() + STEPS.format(corpus=corpus))
    return path


def test_a_codec_and_its_tokens_across_a_stop(run_file, tmp_path, capsys, monkeypatch):
    import stentor.commands.prepare.tokens.shards as shards

    real = shards.ShardWriter.write

    def stopped(*arguments):
        real(*arguments)
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(shards.ShardWriter, "write", stopped)
    assert main(["prepare", "run", str(run_file)]) == 75
    first = capsys.readouterr()
    assert "Preparing codec (codec, 1 of 2)" in first.out and "Run the same command" in first.err
    monkeypatch.setattr(shards.ShardWriter, "write", real)
    assert main(["prepare", "run", str(run_file)]) == 0
    second = capsys.readouterr().out
    assert "Preparing tokens (tokens, 2 of 2)" in second and "Preparing codec" not in second
    assert "are already done" in second
    config = json.loads((tmp_path / "codec" / "config.json").read_text())
    assert (config["codebooks"], config["entries"]) == (2, 16)
    labels = [json.loads(line) for p in Path("tokens").glob("*.jsonl") for line in p.read_text().splitlines()]
    assert {label["id"] for label in labels} == {"train0", "train1", "train2", "train3"}
    assert main(["prepare", "run", str(run_file), "prepare.1.jobs=2"]) == 0  # changes nothing in what is made
    assert "Preparing" not in capsys.readouterr().out
    assert main(["prepare", "run", str(run_file), "prepare.0.codec.codebooks=3"]) == 2
    assert "codec holds something already" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("prepare.0.type=codecs", "unknown type 'codecs'"),
        ("prepare.1.min_shard=2", "did you mean .min_shards"),
        ("stages=[{prepare: []}]", "a stage has no prepare of its own"),
    ],
)
def test_mistakes_are_found_when_the_file_is_read(run_file, override, message):
    with pytest.raises(ConfigError, match=message):
        load(run_file, [override])


def test_a_part_that_somebody_unpacked_is_not_fetched_again(tmp_path, monkeypatch):
    """lhotse would remove the folder and fetch 6 GB."""
    import lhotse.recipes

    def fetched(**_):
        raise AssertionError("fetched")

    monkeypatch.setattr(lhotse.recipes, "download_librispeech", fetched)
    (tmp_path / "LibriSpeech" / "dev-clean").mkdir(parents=True)
    corpus = Corpus(name="librispeech", from_=tmp_path, split="dev-clean", download=True)
    assert list(corpus.parts()) == ["dev-clean"]


def test_the_studio_leaves_it_to_its_owner(run_file, tmp_path):
    from stentor.studio.projects import Projects
    from stentor.studio.runs.path_policy import checked

    with pytest.raises(ConfigError, match="'prepare' is for the studio's owner alone"):
        checked(run_file.read_text(), Projects(tmp_path / "studio", guarded=True))
