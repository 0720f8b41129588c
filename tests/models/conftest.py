import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the tiny models


@pytest.fixture(scope="session")
def onnx_export(tmp_path_factory):
    """The folder of a model of the task `words`, and its ONNX export as the command writes it, which takes long."""
    from tiny_speech_llm import ENCODERS, LLMS, spoken_for

    from stentor.cli import main

    folder = tmp_path_factory.mktemp("export")
    encoder = {"config": {**ENCODERS["whisper"], "encoder_layers": 1}}
    bundle = spoken_for(encoder, {"config": {**LLMS["qwen2"], "num_hidden_layers": 1}}, ctc={"units": "characters"})
    bundle.family.save_merged(bundle, folder / "model")
    facts = {"task": {"type": "words", "checks": {"on": False}}, "data": {"eval": {}}}
    (folder / "model" / "training_config.json").write_text(json.dumps(facts))
    (folder / "model" / "README.md").write_text("# A model\n")
    assert main(["export", str(folder / "model"), "--to", str(folder / "both"), "--format", "hf,onnx"]) == 0
    return folder / "model", folder / "both" / "onnx"
