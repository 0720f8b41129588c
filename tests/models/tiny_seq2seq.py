"""Tiny encoder-decoder recognisers, and what tests do with them."""

import json

import numpy as np
import torch

from stentor.data.batch import Example
from stentor.losses.token import CrossEntropy
from stentor.models.base import Family, TaskRequirements
from stentor.models.seq2seq.tokenizer import whisper_tokenizer
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


def talking(kind, folder, **config):
    """The export of a model of `kind` with shaken weights, which writes something other than special tokens."""
    torch.manual_seed(0)
    whisper = {"init_std": 0.02, "max_target_positions": 64, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}
    settings = CONFIGS[kind] | (whisper if kind == "whisper" else {}) | config
    bundle = Family.model_validate({"type": "seq2seq", "config": settings, "token_rate": 3.0}).build(
        TaskRequirements("transcribe")
    )
    for name, parameter in bundle.model.named_parameters():
        if "embed_positions" not in name:
            parameter.data.add_((0.4 if kind == "whisper" else 0.1) * torch.randn_like(parameter))
    if kind == "whisper":  # letters alone, clearly chosen: nothing depends on rounding
        letters = bundle.processor.tokenizer.convert_tokens_to_ids([*"abcdefghijklmnopqrstuvwxyz", "Ġ"])
        others = torch.ones(bundle.model.config.vocab_size, 1)
        others[letters] = 0
        bundle.model.proj_out.weight.data.mul_(1 - others)
    end, vocabulary = bundle.processor.eos_id, bundle.model.config.vocab_size
    special = range(end + 1, vocabulary) if kind == "whisper" else bundle.processor.tokenizer.all_special_ids
    bundle.model.generation_config.begin_suppress_tokens = [end]
    bundle.model.generation_config.suppress_tokens = sorted(set(special) - {end})
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


def openai_tokenizer():
    """A Whisper tokenizer with as many tokens as OpenAI's: bytes, words that mean nothing and the special tokens."""
    from transformers import WhisperTokenizer

    small = whisper_tokenizer()
    vocabulary = {token: i for token, i in small.get_vocab().items() if i < 256}
    vocabulary |= {f"Ġw{i}": i for i in range(256, 50257)}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[], pad_token="<|endoftext|>")
    special = [token for token, _ in sorted(small.get_added_vocab().items(), key=lambda pair: pair[1])]
    tokenizer.add_special_tokens({"additional_special_tokens": special[1:]})
    tokenizer.set_prefix_tokens()
    return tokenizer
