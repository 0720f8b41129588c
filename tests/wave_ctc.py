"""A tiny Wav2Vec2ForCTC of random weights, as plain transformers writes it."""

import json
from pathlib import Path


def save_ctc(folder: Path, characters: list[str], std: float, bias: bool = True) -> Path:
    """The folder, with the model and its processor. `std`: of the weights of its head; without `bias` it has none, so
    that with a small `std` every text is about as likely as any other."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2CTCTokenizer, Wav2Vec2FeatureExtractor, Wav2Vec2ForCTC
    from transformers import Wav2Vec2Processor as Both

    (folder / "vocab.json").write_text(json.dumps({c: i for i, c in enumerate(characters)}))
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes |= {"conv_dim": (8,) * 7, "num_conv_pos_embeddings": 4, "num_conv_pos_embedding_groups": 2}
    torch.manual_seed(0)
    model = Wav2Vec2ForCTC(Wav2Vec2Config(vocab_size=len(characters), pad_token_id=0, mask_time_prob=0.0, **sizes))
    torch.nn.init.normal_(model.lm_head.weight, std=std)
    if not bias:
        torch.nn.init.zeros_(model.lm_head.bias)
    model.save_pretrained(folder)
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), pad_token="<pad>", unk_token="<unk>")
    Both(Wav2Vec2FeatureExtractor(return_attention_mask=True), tokenizer).save_pretrained(folder)
    return folder
