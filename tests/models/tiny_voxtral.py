"""A tiny Voxtral and its tokenizer, made offline from the vocabulary that mistral-common brings."""

import json
from functools import partial
from pathlib import Path

import tiny_audio_llm

SPECIAL = 100
CONFIG = {
    "model_type": "voxtral",
    "audio_config": {
        "hidden_size": 16,
        "intermediate_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_mel_bins": 128,
    },
    "text_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
    },
}


def write_tekken(folder: Path, words: int, tokens: dict[int, str], audio: dict) -> Path:
    """A tekken.json with so many subwords, the 256 bytes first, special tokens by rank, and settings of audio."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    facts = json.loads(data.read_text(encoding="utf-8"))
    facts.pop("image", None)
    facts["vocab"] = facts["vocab"][:words]
    special = {t["rank"]: dict(t) for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS}
    for rank, token in tokens.items():
        special[rank] = {"rank": rank, "token_str": token, "is_control": True}
    for rank in range(SPECIAL):
        special.setdefault(rank, {"rank": rank, "token_str": f"<SPECIAL_{rank}>", "is_control": True})
    facts["special_tokens"] = [special[rank] for rank in sorted(special)]
    sizes = {"num_vocab_tokens": words, "default_vocab_size": SPECIAL + words, "default_num_special_tokens": SPECIAL}
    facts["config"] |= {**sizes, "version": "v7"}
    features = {"num_mel_bins": 128, "hop_length": 160, "window_size": 400}
    facts["audio"] = {"sampling_rate": 16000, "frame_rate": 12.5, "audio_encoding_config": features, **audio}
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(facts))
    return folder


def write_tokenizer(folder: Path) -> Path:
    """A tekken.json with few words and Voxtral's special tokens."""
    tokens = {24: "[AUDIO]", 25: "[BEGIN_AUDIO]", 34: "[TRANSCRIBE]"}
    return write_tekken(folder, 300, tokens, {"chunk_length_s": 30.0})


build = partial(tiny_audio_llm.build, CONFIG)
