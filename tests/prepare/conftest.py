"""A CTC model of random weights that believes every text about as likely as any other."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "inference"))  # for speaking


@pytest.fixture(scope="session")
def ctc_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny Wav2Vec2ForCTC with a tokenizer of characters."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC

    folder = tmp_path_factory.mktemp("ctc")
    characters = ["<pad>", "<unk>", "|", *"EFHINORSTUVWX"]
    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(characters)}))
    Wav2Vec2CTCTokenizer(folder / "vocab.json", pad_token="<pad>", unk_token="<unk>").save_pretrained(folder)
    Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(folder)
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(
        Wav2Vec2Config(
            vocab_size=len(characters),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=16,
            conv_dim=(8,) * 7,
            num_conv_pos_embedding_groups=2,
            num_conv_pos_embeddings=4,
            pad_token_id=0,
            mask_time_prob=0.0,
        )
    )
    torch.nn.init.normal_(model.lm_head.weight, std=1e-3)
    torch.nn.init.zeros_(model.lm_head.bias)
    model.save_pretrained(folder)
    return folder
