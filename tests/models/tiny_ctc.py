"""Tiny recognisers of the family `ctc`, and clips for them."""

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.models.base import Family, TaskRequirements
from tiny_configs import WAVE

LAYER_NORM = {"feat_extract_norm": "layer", "do_stable_layer_norm": True}
MELS = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "subsampling_conv_channels": 16,
    "num_mel_bins": 40,
    "subsampling_factor": 4,
}
CONFIGS = {
    "wav2vec2": {"model_type": "wav2vec2", **WAVE},
    "wav2vec2_layer_norm": {"model_type": "wav2vec2", **LAYER_NORM, **WAVE},
    "hubert": {"model_type": "hubert", **WAVE},
    "wavlm": {"model_type": "wavlm", **WAVE},
    "data2vec": {"model_type": "data2vec-audio", **WAVE, "num_conv_pos_embeddings": 3, "conv_pos_kernel_size": 5},
    "mms": {"model_type": "wav2vec2", "adapter_attn_dim": 4, **LAYER_NORM, **WAVE},
    "parakeet": {"model_type": "parakeet_ctc", "encoder_config": MELS},
}
QUIET_MEL = {
    "model_type": "parakeet_ctc",
    "encoder_config": MELS
    | dict.fromkeys(("dropout", "dropout_positions", "activation_dropout", "attention_dropout"), 0.0),
}
"""Without dropout."""
MASKED = ("wav2vec2_layer_norm", "mms", "parakeet")
"""Those that transformers itself runs in batches with an attention mask."""
TEXTS = ("one two three", "nine eight", "zero zero seven", "six")
SECONDS = (1.3, 0.9, 4.07, 0.5)


def build(kind="wav2vec2", texts=TEXTS, seed=0, **keys):
    torch.manual_seed(seed)
    keys = keys if "from" in keys else {"config": CONFIGS[kind], **keys}
    bundle = Family.model_validate({"type": "ctc", **keys}).build(
        TaskRequirements("transcribe", ("ctc",), lambda: iter(texts))
    )
    bundle.model.eval()
    return bundle


def examples(seconds=SECONDS, texts=TEXTS, seed=0):
    rng = np.random.default_rng(seed)
    clips = [(0.1 * rng.standard_normal(round(s * 16000)) + 0.01).astype(np.float32) for s in seconds]
    return [Example(str(i), clip, text) for i, (clip, text) in enumerate(zip(clips, texts))]
