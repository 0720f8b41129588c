import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the tiny models


def manifest(corpus, folder, languages):
    """Writes one with a clip of the tiny corpus for each language, None for one that is not named."""
    lines = (corpus / "train.jsonl").read_text().splitlines()[: len(languages)]
    records = [json.loads(line) for line in lines]
    for record, language in zip(records, languages):
        record |= {"audio_path": str(corpus / record["audio_path"])} | ({"language": language} if language else {})
    path = folder / "train.jsonl"
    path.write_text("\n".join(map(json.dumps, records)) + "\n")
    return path


@pytest.fixture(scope="session")
def four(corpus, tmp_path_factory):
    """A manifest with four clips of the tiny corpus, one without a language."""
    return manifest(corpus, tmp_path_factory.mktemp("four"), [None, "en", "en", "en"])


@pytest.fixture(scope="session")
def two(corpus, tmp_path_factory):
    """A manifest with two clips of the tiny corpus, one without a language."""
    return manifest(corpus, tmp_path_factory.mktemp("two"), [None, "en"])


@pytest.fixture(scope="session")
def eight(corpus, tmp_path_factory):
    """A manifest with eight clips of the tiny corpus, all of a known language."""
    return manifest(corpus, tmp_path_factory.mktemp("eight"), 8 * ["en"])


@pytest.fixture(scope="session")
def onnx_export(tmp_path_factory):
    """The folder of a model of the task `words`, and its ONNX export as the command writes it, which takes long."""
    from tiny_speech_llm import ENCODERS, spoken_for

    from stentor.cli import main

    folder = tmp_path_factory.mktemp("export")
    encoder = {"config": {**ENCODERS["whisper"], "encoder_layers": 1}}
    bundle = spoken_for(encoder, "qwen2", ctc={"units": "characters"})
    bundle.family.save_merged(bundle, folder / "model")
    facts = {"task": {"type": "words", "checks": {"on": False}}, "data": {"eval": {}}}
    (folder / "model" / "training_config.json").write_text(json.dumps(facts))
    (folder / "model" / "README.md").write_text("# A model\n")
    assert main(["export", str(folder / "model"), "--to", str(folder / "both"), "--format", "hf,onnx"]) == 0
    return folder / "model", folder / "both" / "onnx"
