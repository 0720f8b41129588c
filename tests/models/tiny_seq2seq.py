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
    """The export of a model of `kind` with shaken weights, which writes letters; those of Whisper end their texts."""
    torch.manual_seed(0)
    whisper = {
        "decoder_layers": 2,
        "init_std": 0.02,
        "max_target_positions": 64,
        "encoder_ffn_dim": 128,
        "decoder_ffn_dim": 128,
    }
    settings = CONFIGS[kind] | (whisper if kind == "whisper" else {}) | config
    bundle = Family.model_validate({"type": "seq2seq", "config": settings, "token_rate": 3.0}).build(
        TaskRequirements("transcribe")
    )
    for name, parameter in bundle.model.named_parameters():
        if "embed_positions" not in name:
            parameter.data.add_((0.4 if kind == "whisper" else 0.1) * torch.randn_like(parameter))
    end, vocabulary = bundle.processor.eos_id, bundle.model.config.vocab_size
    letters = bundle.processor.tokenizer.convert_tokens_to_ids([*"abcdefghijklmnopqrstuvwxyz", "\u0120"])
    if kind == "whisper":  # letters alone, clearly chosen: nothing depends on rounding
        _end_texts(bundle.model, letters, end)
    special = bundle.processor.tokenizer.all_special_ids
    unwritten = {"whisper": range(end + 1, vocabulary), "cohere_asr": set(range(vocabulary)) - {*letters}}
    bundle.model.generation_config.begin_suppress_tokens = [end]
    bundle.model.generation_config.suppress_tokens = sorted(set(unwritten.get(kind, special)) - {end})
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


def _end_texts(model, letters, end, size=16):
    """Let a Whisper write `letters` that depend on their position, up to the position `size`."""
    decoder, head = model.model.decoder, model.proj_out.weight.data
    others = torch.ones(len(head), dtype=torch.bool)
    others[letters] = False
    head[others] = 0
    head[:, 0] = 0
    head[end, 0] = 40
    for layer in decoder.layers:
        for part in (layer.self_attn.out_proj, layer.encoder_attn.out_proj, layer.fc2):
            part.weight.data[0], part.bias.data[0] = 0, 0
    decoder.layer_norm.weight.data[0], decoder.layer_norm.bias.data[0] = 1, 0
    places = decoder.embed_positions.weight.data.normal_(std=6.0)
    places[:size, 0], places[size:, 0] = -9, 9


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
