import sys
from pathlib import Path

import pytest

from wave_ctc import save_ctc

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))  # for speaking
from speaking import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "speaker")


@pytest.fixture(scope="session")
def recognizer(tmp_path_factory):
    """A CTC model of transformers, untrained."""
    return save_ctc(tmp_path_factory.mktemp("ctc"), ["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGH"], 2.0)
