"""Kinds of models that CrispASR 0.8.45 reads from GGUF: their architecture, keys, tokens and names of tensors.

The keys are those that its backends read (`kv_u32` and the like in src/*.cpp); where a file lacks one, a backend takes
the value of the model that it was written for, so all are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stentor.export.gguf import audio_llm
from stentor.export.gguf.kind import Keys, Kind, prefixed, read
from stentor.export.gguf.names import CONFORMER, NEMOTRON, TRANSDUCER, WAVE

if TYPE_CHECKING:
    import numpy as np

    from stentor.models.base import Bundle

SPECIALS = ("<pad>", "<s>", "</s>", "<unk>")
"""Classes that are no text; parakeet.cpp would write their names."""
CONTEXT = (56, 3)
"""Frames of context before and ahead that nemotron.cpp has in its first preset; it reads none from the file."""


def wave_keys(bundle: Bundle, config: Any) -> Keys:
    data2vec = config.model_type == "data2vec-audio"
    stable = bool(config.to_dict().get("do_stable_layer_norm"))
    same = """vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size num_conv_pos_embeddings
        num_conv_pos_embedding_groups layer_norm_eps pad_token_id num_feat_extract_layers"""
    keys = read(config, " ".join(f"{name}={name}" for name in same.split()))
    keys |= {
        "feat_extract_norm_type": int(data2vec or config.feat_extract_norm == "layer"),
        "do_stable_layer_norm": int(stable),
        "global_ln_before_encoder": int(not stable),
    }
    for name in ("conv_dim", "conv_kernel", "conv_stride"):
        keys |= {f"{name}_{i}": value for i, value in enumerate(config.to_dict()[name])}
    return prefixed("wav2vec2", keys) | {"tokenizer.ggml.tokens": tokens(bundle, config.vocab_size, "|")}


def wave_refusal(bundle: Bundle, config: Any) -> str | None:
    facts = config.to_dict()
    positions = facts.get("num_conv_pos_embeddings") if config.model_type == "data2vec-audio" else 1
    if config.model_type in ("wavlm",):
        return "CrispASR has no relative positions as WavLM's"
    if facts.get("adapter_attn_dim") is not None:
        return "CrispASR has no language adapters"
    if facts.get("conv_pos_batch_norm"):
        return "CrispASR has no batch norm before the positions"
    if positions > 8 or len(config.conv_dim) > 7:
        return "CrispASR takes at most seven convolutions, and eight for positions"
    if not bundle.processor.shape.normalize and facts.get("feat_extract_norm") == "layer":
        return "CrispASR normalizes audio, and this model was trained without"
    return None


def conformer_keys(config: Any) -> Keys:
    encoder = config.encoder_config
    pairs = """n_mels=num_mel_bins d_model=hidden_size n_layers=num_hidden_layers n_heads=num_attention_heads
        ff_dim=intermediate_size subsampling_factor=subsampling_factor subsampling_channels=subsampling_conv_channels
        conv_kernel=conv_kernel_size frame_dur_cs=subsampling_factor"""
    features = {"sample_rate": 16000, "n_fft": 512, "win_length": 400, "hop_length": 160}
    head = encoder.hidden_size // encoder.num_attention_heads
    return {**features, **read(encoder, pairs), "head_dim": head, "xscaling": bool(encoder.scale_input)}


def ctc_keys(bundle: Bundle, config: Any) -> Keys:
    """A hybrid with one layer of LSTM, of which parakeet.cpp decodes the CTC head. (canary_ctc.cpp reads models without
    predictor, but from one frame of log-mel too many.)"""
    order = blank_last(config)
    own = {"n_tdt_durations": 0, "has_ctc": True, "ctc_vocab_size": len(order)}
    own |= dict.fromkeys(("vocab_size", "blank_id"), len(order) - 1)
    own |= dict.fromkeys(("pred_hidden", "pred_layers", "joint_hidden"), 1)
    names = tokens(bundle, len(order), "▁")
    keys = prefixed("parakeet", conformer_keys(config) | own)
    return keys | {"tokenizer.ggml.tokens": ["" if names[i] in SPECIALS else names[i] for i in order[:-1]]}


def blank_last(config: Any) -> list[int]:
    """Classes in the order of CrispASR, which has the blank at the end."""
    return [i for i in range(config.vocab_size) if i != config.pad_token_id] + [config.pad_token_id]


def transducer_keys(bundle: Bundle, config: Any) -> Keys:
    durations = list(bundle.model.durations or ())  # type: ignore[arg-type]
    pairs = """pred_hidden=decoder_hidden_size pred_layers=num_decoder_layers joint_hidden=decoder_hidden_size
        blank_id=blank_token_id"""
    own = read(config, pairs) | {"vocab_size": config.vocab_size - 1, "n_tdt_durations": len(durations)}
    own |= {"tdt_durations": durations, "has_ctc": False}
    keys = prefixed("parakeet", conformer_keys(config) | own)
    names = tokens(bundle, config.vocab_size - 1, "▁")
    return keys | {"tokenizer.ggml.tokens": ["" if name in SPECIALS else name for name in names]}


def nemotron_keys(bundle: Bundle, config: Any) -> Keys:
    """As those of a Parakeet. The scale of the encoder's input is in its first matrix (`nemotron_extra`)."""
    keys = transducer_keys(bundle, config) | {"parakeet.xscaling": False}
    return {key.replace("parakeet.", "nemotron."): value for key, value in keys.items()}


def nemotron_refusal(bundle: Bundle, config: Any) -> str | None:
    encoder = config.encoder_config
    context = encoder.sliding_window - 1, encoder.default_num_lookahead_tokens
    if context != CONTEXT:
        return (
            f"CrispASR 0.8.45 gives Nemotron {CONTEXT[0]} frames before and {CONTEXT[1]} ahead, and this model has "
            f"{context[0]} and {context[1]}"
        )
    if encoder.subsampling_factor != 8 or config.blank_token_id != config.vocab_size - 1:
        return "CrispASR's Nemotron takes one of eight frames, and has the blank as its last class"
    return None


def nemotron_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As `conformer_extra`, and the layer behind the convolutions with the scale that follows it in transformers."""
    scale = config.encoder_config.hidden_size**0.5 if config.encoder_config.scale_input else 1.0
    scaled = {name: named[name] * scale for name in ("encoder.pre.out.weight", "encoder.pre.out.bias")}
    return {**conformer_extra(bundle, config, named), **scaled}


def conformer_refusal(bundle: Bundle, config: Any) -> str | None:
    encoder = config.encoder_config
    if bundle.family.streaming is not None:  # type: ignore[attr-defined]
        return "CrispASR's Parakeet hears whole recordings, and this one was trained to hear chunks"
    if encoder.subsampling_factor != 8 or encoder.subsampling_conv_kernel_size != 3:
        return "CrispASR's Parakeet takes one of eight frames with kernels of 3 (subsampling_factor 8)"
    return None


def transducer_refusal(bundle: Bundle, config: Any) -> str | None:
    if config.num_decoder_layers != 2:
        return "CrispASR's transducers have two layers of LSTM (num_decoder_layers 2)"
    if config.blank_token_id != config.vocab_size - 1:
        return "CrispASR's transducers have the blank as their last class"
    return conformer_refusal(bundle, config)


def conformer_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mel filters and window of the extractor, and biases of depthwise convolutions without one."""
    import numpy as np
    import torch

    processor: Any = bundle.processor
    extractor = processor.hf.feature_extractor if "hf" in vars(processor) else processor.extractor
    window = torch.hann_window(extractor.win_length, periodic=False)
    biases = {
        bias: np.zeros(len(array), np.float32)
        for name, array in named.items()
        if name.endswith(".conv.dw.weight") and (bias := name.replace("weight", "bias")) not in named
    }
    return {"preprocessor.fb": extractor.mel_filters.numpy(), "preprocessor.window": window.numpy(), **biases}


def ctc_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The head in the order of `blank_last`, and a predictor and a joint network of one unit that no one runs."""
    import numpy as np

    order = blank_last(config)
    head = {"ctc.weight": named["ctc.weight"][order, :, 0], "ctc.bias": named["ctc.bias"][order]}
    matrices = ("decoder.embed.weight", *(f"joint.{part}.weight" for part in ("enc", "pred", "out")))
    unused: dict[str, np.ndarray] = {name: np.zeros((1, 1), np.float32) for name in matrices}
    unused |= {f"joint.{part}.bias": np.zeros(1, np.float32) for part in ("enc", "pred", "out")}
    unused |= {f"decoder.lstm.0.w_{part}": np.zeros((4, 1), np.float32) for part in ("ih", "hh")}
    unused |= {f"decoder.lstm.0.b_{part}": np.zeros(4, np.float32) for part in ("ih", "hh")}
    return {**conformer_extra(bundle, config, named), **head, **unused}


def tokens(bundle: Bundle, size: int, space: str) -> list[str]:
    """Tokens by class; `space` is written for the delimiter of words of an alphabet of characters."""
    tokenizer: Any = bundle.processor.tokenizer
    names = {i: t for t, i in tokenizer.get_vocab().items()}
    delimiter = vars(tokenizer).get("word_delimiter_token", vars(tokenizer).get("_word_delimiter_token"))
    return [space if names.get(i) == delimiter else names.get(i, f"<{i}>") for i in range(size)]


WAVE_KIND = Kind("wav2vec2", WAVE, wave_keys, wave_refusal, exact=("cnn.", "pos_conv.", "lm_head."))
NEMOTRON_KIND = Kind(
    "nemotron", NEMOTRON, nemotron_keys, nemotron_refusal, nemotron_extra, ("preprocessor.", "encoder.pre.")
)
PARAKEET = Kind("parakeet", TRANSDUCER, transducer_keys, transducer_refusal, conformer_extra, ("preprocessor.",))
KINDS = {
    **dict.fromkeys(("wav2vec2", "hubert", "data2vec-audio", "unispeech", "unispeech-sat", "wavlm"), WAVE_KIND),
    "parakeet_ctc": Kind("parakeet", CONFORMER, ctc_keys, conformer_refusal, ctc_extra, ("preprocessor.",)),
    **dict.fromkeys(("parakeet_tdt", "parakeet_rnnt"), PARAKEET),
    "nemotron_asr_streaming": NEMOTRON_KIND,
    **audio_llm.KINDS,
}
"""By transformers' `model_type`."""
