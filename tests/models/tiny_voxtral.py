"""A tiny Voxtral and its tokenizer, made offline from the vocabulary that mistral-common brings."""

import json
from pathlib import Path

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.models.base import Bundle, Family, TaskRequirements

WORDS = 300  # subwords kept, the 256 bytes first
SPECIAL = 100
CONFIG = {
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
LORA = {"rank": 2, "alpha": 4, "dropout": 0.0, "targets": ["language_model.*.q_proj", "language_model.*.v_proj"]}


def write_tokenizer(folder: Path) -> Path:
    """A tekken.json with few words and Voxtral's special tokens."""
    import mistral_common
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    data = Path(mistral_common.__file__).parent / "data" / "tekken_240911.json"
    facts = json.loads(data.read_text(encoding="utf-8"))
    facts.pop("image", None)
    facts["vocab"] = facts["vocab"][:WORDS]
    special = {t["rank"]: dict(t) for t in Tekkenizer.DEPRECATED_SPECIAL_TOKENS}
    for rank, token in ((24, "[AUDIO]"), (25, "[BEGIN_AUDIO]"), (34, "[TRANSCRIBE]")):
        special[rank] = {"rank": rank, "token_str": token, "is_control": True}
    for rank in range(SPECIAL):
        special.setdefault(rank, {"rank": rank, "token_str": f"<SPECIAL_{rank}>", "is_control": True})
    facts["special_tokens"] = [special[rank] for rank in sorted(special)]
    facts["config"] |= {
        "num_vocab_tokens": WORDS,
        "default_vocab_size": SPECIAL + WORDS,
        "default_num_special_tokens": SPECIAL,
        "version": "v7",
    }
    facts["audio"] = {
        "sampling_rate": 16000,
        "frame_rate": 12.5,
        "audio_encoding_config": {"num_mel_bins": 128, "hop_length": 160, "window_size": 400},
        "chunk_length_s": 30.0,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tekken.json").write_text(json.dumps(facts))
    return folder


def build(tokenizer: Path | None, seed: int = 0, **keys) -> Bundle:
    """A bundle in evaluation mode, with weights from `seed`."""
    torch.manual_seed(seed)
    given = {"type": "voxtral", "max_text_tokens": 64, "token_rate": 20.0, **keys}
    if tokenizer is not None:
        given |= {"config": CONFIG, "tokenizer": str(tokenizer)}
    bundle = Family.model_validate(given).build(TaskRequirements("transcribe", ("text",)))
    bundle.model.eval()
    return bundle


def examples(seconds, texts=("one two", "three", "nine eight seven"), languages=("en", None, "fr"), seed=0):
    """Noise of these lengths; texts and languages in turn."""
    rng = np.random.default_rng(seed)
    return [
        Example(
            str(i),
            (0.1 * rng.standard_normal(round(s * 16000))).astype(np.float32),
            texts[i % len(texts)],
            languages[i % len(languages)],
        )
        for i, s in enumerate(seconds)
    ]
