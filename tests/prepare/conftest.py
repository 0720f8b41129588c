"""A tiny CTC model, which believes every text about as likely as any other, and a tiny codec."""

import sys
from pathlib import Path

import pytest

from wave_ctc import save_ctc

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))  # for speaking


@pytest.fixture(scope="session")
def ctc_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Wav2Vec2ForCTC with a tokenizer of characters."""
    return save_ctc(tmp_path_factory.mktemp("ctc"), ["<pad>", "<unk>", "|", *"EFHINORSTUVWX"], 1e-3, bias=False)


@pytest.fixture(scope="session")
def codec(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a small codec for the tiny corpus."""
    from stentor.audio.io import read
    from stentor.models.codecs.mel_rvq.config import MelRVQ

    folder = tmp_path_factory.mktemp("codec")
    clips = [read(corpus / f"train{i}.wav", rate=16000) for i in range(6)]
    MelRVQ(codebooks=2, entries=16, mels=20, rounds=2).fit(clips).save(folder)
    return folder
