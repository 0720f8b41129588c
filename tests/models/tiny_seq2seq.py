"""Tiny encoder-decoder recognisers, and what tests do with them."""

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.losses.token import CrossEntropy
from stentor.models.base import Family, TaskRequirements
from tiny_configs import WHISPER

HALF = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
CONFIGS = {
    "whisper": WHISPER,
    "moonshine": {
        "model_type": "moonshine",
        "hidden_size": 32,
        "intermediate_size": 64,
        "encoder_num_hidden_layers": 1,
        "decoder_num_hidden_layers": 1,
        "encoder_num_attention_heads": 2,
        "decoder_num_attention_heads": 2,
        "max_position_embeddings": 64,
        "initializer_range": 0.2,
    },
    "moonshine_streaming": {
        "model_type": "moonshine_streaming",
        **HALF,
        "max_position_embeddings": 300,
        # Another width than the decoder's, and frames that see as little to come as those of the real one.
        "encoder_config": {**HALF, "hidden_size": 48, "num_key_value_heads": 2, "sliding_windows": [[16, 4]]},
    },
    "cohere_asr": {
        "model_type": "cohere_asr",
        **HALF,
        "max_position_embeddings": 64,
        "initializer_range": 0.1,
        "encoder_config": {
            **HALF,
            "subsampling_conv_channels": 16,
            "num_mel_bins": 40,
            "conv_kernel_size": 5,
            "initializer_range": 0.1,
        },
    },
}
LORA = {"rank": 2, "alpha": 4, "dropout": 0.0}


def family(kind="whisper", **keys):
    origin = {} if "from" in keys else {"config": CONFIGS[kind]}
    return Family.model_validate({"type": "seq2seq", **origin, **keys})


def build(kind="whisper", **keys):
    torch.manual_seed(0)
    return family(kind, **keys).build(TaskRequirements("transcribe", ("text",)))


def example(seconds, text="one two", language="en", name="a", **extra):
    clip = np.random.default_rng(round(1000 * seconds)).standard_normal(round(16000 * seconds)).astype(np.float32)
    return Example(name, 0.1 * clip, text, language, **extra)


def loss(bundle, *examples):
    return CrossEntropy().sum(**bundle.model(**bundle.processor.collate(examples).inputs)["text"])


def answers(bundle, *examples, **options):
    bundle.model.eval()
    inputs = bundle.processor.collate(examples, labels=False).inputs
    return bundle.model.generate(inputs, 12, {bundle.processor.eos_id}, **options)
