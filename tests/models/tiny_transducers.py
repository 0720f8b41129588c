"""Tiny Parakeet and Nemotron transducers with their processors, made offline: subwords of the digits' names."""

from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.batch import Example

QUIET = dict.fromkeys(("dropout", "dropout_positions", "activation_dropout", "attention_dropout", "layerdrop"), 0.0)
ENCODER = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "subsampling_conv_channels": 16,
    "num_mel_bins": 40,
    "subsampling_factor": 4,
    "initializer_range": 0.1,
    **QUIET,
}
DECODER = {"decoder_hidden_size": 32, "num_decoder_layers": 2, "max_symbols_per_step": 3}
STREAMING = {**ENCODER, "sliding_window": 9, "default_num_lookahead_tokens": 3}
CONFIGS: dict[str, dict[str, Any]] = {
    "parakeet_tdt": {**DECODER, "encoder_config": ENCODER},
    "parakeet_rnnt": {**DECODER, "encoder_config": ENCODER},
    "nemotron_asr_streaming": {**DECODER, "encoder_config": STREAMING},
    "nemotron3_5_asr": {**DECODER, "encoder_config": STREAMING, "prompt_intermediate_size": 32},
}
BLANK_BIAS = {"parakeet_tdt": 2.0, "parakeet_rnnt": 4.0, "nemotron_asr_streaming": 6.0, "nemotron3_5_asr": 2.0}
"""With which random weights write a little."""
PIECES = ["<unk>", "<pad>", "▁", *"efghinorstuvwxz", "on", "one", "▁one", "tw", "two", "▁two"]
MERGES = [("o", "n"), ("on", "e"), ("▁", "one"), ("t", "w"), ("tw", "o"), ("▁", "two")]

OWN_ENCODER = {
    "model_type": "parakeet_encoder",
    "hidden_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "subsampling_conv_channels": 8,
    "num_mel_bins": 40,
    "subsampling_factor": 4,
    "conv_kernel_size": 9,
    **QUIET,
}
OWN = {"type": "transducer", "encoder": {"config": OWN_ENCODER}, "predictor": {"hidden": 48}, "ctc": {}, "times": True}
OWN_LORA = {"lora": {"rank": 4, "alpha": 8, "dropout": 0.0, "targets": ["encoder.*_proj"]}}
TEXTS = ("one two three", "nine eight", "zero zero seven")
SECONDS = (1.3, 0.4, 0.9)


def tokenizer() -> Any:
    """Subwords with `<blank>` as the last class."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import ParakeetTokenizer

    model = models.BPE({piece: i for i, piece in enumerate(PIECES)}, MERGES, unk_token="<unk>")
    subwords = Tokenizer(model)
    subwords.pre_tokenizer, subwords.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    fast = ParakeetTokenizer(tokenizer_object=subwords, unk_token="<unk>", pad_token="<pad>")
    fast.add_special_tokens({"additional_special_tokens": ["<blank>"]})
    return fast


def processor(kind: str) -> Any:
    """transformers' processor of a kind."""
    import transformers

    if kind.startswith("parakeet"):
        extractor = transformers.ParakeetFeatureExtractor(feature_size=ENCODER["num_mel_bins"])
        return transformers.ParakeetProcessor(extractor, tokenizer(), decoder_type=kind.rpartition("_")[2])
    extractor = transformers.NemotronAsrStreamingFeatureExtractor(feature_size=ENCODER["num_mel_bins"])
    if kind == "nemotron3_5_asr":
        return transformers.Nemotron3_5AsrProcessor(extractor, tokenizer(), default_num_lookahead_tokens=3)
    return transformers.NemotronAsrStreamingProcessor(extractor, tokenizer(), default_num_lookahead_tokens=3)


def write(kind: str, folder: Path, seed: int = 1) -> Path:
    """A checkpoint as it would lie on the Hub, with random weights that write something."""
    import torch
    from transformers import AutoConfig, AutoModelForRNNT, AutoModelForTDT

    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(seed)
    hf = processor(kind)
    blank = hf.tokenizer.convert_tokens_to_ids("<blank>")
    config = AutoConfig.for_model(
        kind, **CONFIGS[kind], vocab_size=blank + 1, blank_token_id=blank, pad_token_id=hf.tokenizer.pad_token_id
    )
    model = (AutoModelForTDT if kind == "parakeet_tdt" else AutoModelForRNNT).from_config(config)
    for name, parameter in model.named_parameters():
        if not name.startswith("encoder."):
            parameter.data.normal_(std=0.5 if name.startswith("encoder_projector.") else 0.2)
    model.joint.head.bias.data[blank] = BLANK_BIAS[kind]
    if (
        kind == "parakeet_tdt"
    ):  # transformers' decoding takes the best of all logits, and would stay at a frame for ever
        model.joint.head.bias.data[blank + 1 :] = torch.tensor([-25.0, *[-20.0] * 4])
    model.generation_config.decoder_start_token_id = blank
    model.save_pretrained(folder)
    hf.save_pretrained(folder)
    return folder


def term(kind):
    return "tdt" if kind == "parakeet_tdt" else "rnnt"


def examples(texts=TEXTS, language=None):
    """Tones that change eight times a second, with pauses and a little noise."""
    rng = np.random.default_rng(0)
    clips = []
    for seconds in SECONDS:
        t = np.arange(round(seconds * 16000)) / 16000
        tone = np.sin(2 * np.pi * (200 + 300 * np.floor(t * 8) % 1700) * t) * (np.floor(t * 5) % 2)
        clips.append((0.1 * tone + 0.01 * rng.standard_normal(len(t))).astype(np.float32))
    return [Example(str(i), clip, text, language) for i, (clip, text) in enumerate(zip(clips, texts))]


# Streams


def noise(samples, seed=0):
    """Noise whose level changes ten times a second."""
    levels = np.repeat(np.random.default_rng(seed + 1).uniform(0.01, 0.5, -(-samples // 1600)), 1600)[:samples]
    return (levels * np.random.default_rng(seed).normal(0, 1, samples)).astype(np.float32)


def words_of(stream, audio, cuts=()):
    """The words of a stream that is fed in pieces."""
    events = [e for piece in np.split(audio, cuts) for e in stream.feed(piece)] + stream.finish()
    return [e for e in events if e["type"] == "word"]


def check_together(recogniser):
    """Recordings that are written together have the words that each has alone."""
    from stentor.inference.stream.stream import Stream

    audio = [noise(n, n) for n in (30_000, 16_000, 41_234)]
    together = [recogniser.open() for _ in audio]
    for hypothesis, samples in zip(together, audio):
        hypothesis.add(samples)
        hypothesis.finish()
    while ready := [hypothesis for hypothesis in together if hypothesis.ready]:
        recogniser.advance(ready)
    for hypothesis, samples in zip(together, audio):
        alone = words_of(Stream(recogniser, silence=60), samples)
        assert [w["word"] for w in hypothesis.words] == [w["word"] for w in alone] != []
