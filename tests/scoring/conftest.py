import json
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))  # for speaking
from speaking import make_model


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_model(tmp_path_factory.mktemp("models") / "speaker")


@pytest.fixture(scope="session")
def recognizer(tmp_path_factory):
    """A CTC model of transformers, untrained."""
    from transformers import (
        Wav2Vec2Config,
        Wav2Vec2CTCTokenizer,
        Wav2Vec2FeatureExtractor,
        Wav2Vec2ForCTC,
        Wav2Vec2Processor,
    )

    folder = tmp_path_factory.mktemp("ctc")
    letters = {c: i for i, c in enumerate(["<pad>", "<s>", "</s>", "<unk>", "|", *"ABCDEFGH"])}
    (folder / "vocab.json").write_text(json.dumps(letters))
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        vocab_size=len(letters),
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
        conv_dim=[32] * 7,
        num_conv_pos_embeddings=16,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
    )
    network = Wav2Vec2ForCTC(config)
    torch.nn.init.normal_(network.lm_head.weight, std=2.0)
    network.save_pretrained(folder)
    Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))).save_pretrained(
        folder
    )
    return folder
