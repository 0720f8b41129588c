"""A CTC model of random weights that believes every text about as likely as any other."""

import sys
from pathlib import Path

import pytest

from wave_ctc import save_ctc

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))  # for speaking


@pytest.fixture(scope="session")
def ctc_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Wav2Vec2ForCTC with a tokenizer of characters."""
    return save_ctc(tmp_path_factory.mktemp("ctc"), ["<pad>", "<unk>", "|", *"EFHINORSTUVWX"], 1e-3, bias=False)
