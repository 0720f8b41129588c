"""Audio language models in GGUF for CrispASR 0.8.45: keys, tokens and further tensors of its qwen3_asr.cpp,
voxtral.cpp and granite_speech.cpp."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from stentor.export.gguf.kind import Keys, Kind, prefixed, read
from stentor.export.gguf.names import GRANITE, QWEN3_ASR, VOXTRAL

if TYPE_CHECKING:
    import numpy as np

    from stentor.models.base import Bundle

FEATURES = {"sample_rate": 16000, "n_fft": 400, "win_length": 400, "hop_length": 160}
"""Whisper's log-mel."""
PROMPT = ([6584, 25, 220], [4919, 499, 1380, 3191, 279, 8982, 1139, 264, 5439, 3645, 5380, 36660, 3931, 2891, 25])
"""Tokens before and after the audio that CrispASR has for Granite Speech 4: `USER: ` and `can you transcribe the speech
into a written format?\\n ASSISTANT:`. (It reads the prompts of version 3 without their line breaks.)"""


def language_model_keys(text: Any) -> Keys:
    """Keys of the language model, from its transformers config."""
    pairs = """n_layers=num_hidden_layers d_model=hidden_size n_heads=num_attention_heads n_kv_heads=num_key_value_heads
        ff_dim=intermediate_size rms_norm_eps=rms_norm_eps vocab_size=vocab_size max_pos=max_position_embeddings"""
    head = text.to_dict().get("head_dim") or text.hidden_size // text.num_attention_heads
    derived = {"head_dim": head, "rope_theta": float(text.rope_parameters["rope_theta"])}
    return prefixed("llm", read(text, pairs) | derived)


def byte_pair_keys(tokenizer: Any, size: int) -> Keys:
    """Tokens and merges of a tokenizer of byte pairs."""
    names = {i: token for token, i in tokenizer.get_vocab().items()}
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": [names.get(i, f"[PAD{i}]") for i in range(size)],
        "tokenizer.ggml.merges": [merge if isinstance(merge, str) else " ".join(merge) for merge in merges],
    }


def qwen3_keys(bundle: Bundle, config: Any) -> Keys:
    audio, processor = config.audio_config, bundle.processor
    tokenizer: Any = processor.tokenizer
    pairs = """n_layers=encoder_layers d_model=d_model n_heads=encoder_attention_heads ff_dim=encoder_ffn_dim
        conv_channels=downsample_hidden_size proj_dim=output_dim max_source_pos=max_position_embeddings"""
    tower = read(audio, pairs) | {"head_dim": audio.d_model // audio.encoder_attention_heads}
    start, end = tokenizer.convert_tokens_to_ids(["<|audio_start|>", "<|audio_end|>"])
    special = {"audio_start_token_id": start, "audio_end_token_id": end, "audio_pad_token_id": config.audio_token_id}
    special |= {"eos_token_id": processor.eos_id, "pad_token_id": config.pad_token_id}
    values = FEATURES | {"n_mels": audio.num_mel_bins} | prefixed("audio", tower) | special
    keys = prefixed("qwen3asr", values | language_model_keys(config.text_config))
    return keys | byte_pair_keys(tokenizer, config.text_config.vocab_size)


def voxtral_keys(bundle: Bundle, config: Any) -> Keys:
    audio, text = config.audio_config, config.text_config
    pairs = """n_layers=num_hidden_layers d_model=hidden_size n_heads=num_attention_heads ff_dim=intermediate_size
        max_pos=max_source_positions"""
    tower = read(audio, pairs) | {"head_dim": audio.hidden_size // audio.num_attention_heads}
    stack = audio.intermediate_size // audio.hidden_size
    projector = {"in_dim": audio.intermediate_size, "out_dim": text.hidden_size, "frame_stack": stack}
    values = FEATURES | {"n_mels": audio.num_mel_bins, "audio_token_id": config.audio_token_id}
    values |= prefixed("audio", tower) | prefixed("proj", projector) | language_model_keys(text)
    facts = tekken(bundle)
    return {
        **prefixed("voxtral", values),
        "tokenizer.tekken.pattern": facts["config"]["pattern"],
        "tokenizer.tekken.specials": [token["token_str"] for token in facts["special_tokens"]],
        "tokenizer.tekken.n_specials": len(facts["special_tokens"]),
        "tokenizer.tekken.n_vocab": len(facts["vocab"]),
    }


def tekken(bundle: Bundle) -> dict[str, Any]:
    """Contents of tekken.json, with the words that the model has."""
    import tempfile
    from pathlib import Path

    with tempfile.TemporaryDirectory() as folder:
        bundle.processor.save(Path(folder))
        facts: dict[str, Any] = json.loads((Path(folder) / "tekken.json").read_text(encoding="utf-8"))
    facts["vocab"] = facts["vocab"][: facts["config"]["default_vocab_size"] - len(facts["special_tokens"])]
    return facts


def whisper_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Whisper's mel filters and window, and the embeddings as output layer where there is no other."""
    import numpy as np
    from transformers import WhisperFeatureExtractor

    filters = WhisperFeatureExtractor(feature_size=config.audio_config.num_mel_bins).mel_filters
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 400)
    extra = {"audio.mel_filters": np.asarray(filters, np.float32), "audio.mel_window": window.astype(np.float32)}
    return extra | {"output.weight": named.get("output.weight", named["token_embd.weight"])}


def voxtral_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """As `whisper_extra`, and the bytes of words, each after its length in two bytes, a float32 for each byte."""
    import base64

    import numpy as np

    words = [base64.b64decode(word["token_bytes"]) for word in tekken(bundle)["vocab"]]
    packed = b"".join(len(word).to_bytes(2, "little") + word for word in words)
    tensor = np.frombuffer(packed, np.uint8).astype(np.float32)
    return whisper_extra(bundle, config, named) | {"tokenizer.tekken.vocab_tensor": tensor}


def granite_keys(bundle: Bundle, config: Any) -> Keys:
    encoder, projector, text = config.encoder_config, config.projector_config, config.text_config
    processor: Any = bundle.processor
    pairs = """n_layers=num_layers d_model=hidden_dim n_heads=num_heads head_dim=dim_head input_dim=input_dim
        conv_kernel=conv_kernel_size context_size=context_size max_pos_emb=max_pos_emb"""
    tower = read(encoder, pairs) | {"ff_dim": encoder.hidden_dim * encoder.feedforward_mult}
    pairs = """n_layers=num_hidden_layers d_model=hidden_size n_heads=num_attention_heads ff_dim=intermediate_size
        encoder_hidden_size=encoder_hidden_size"""
    further = sorted(encoder.to_dict().get("cat_hidden_layers") or ())
    former = read(projector, pairs) | {"cat_layers": ",".join(map(str, further))}
    scales = ("embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling")
    model = {name: float(text.to_dict()[name]) for name in scales} | {"eos_token_id": processor.eos_id}
    keys = prefixed("enc", tower) | prefixed("proj", former) | prefixed("llm", model) | language_model_keys(text)
    keys |= read(config, "downsample_rate=downsample_rate window_size=window_size audio_token_index=audio_token_index")
    return prefixed("granite_speech", keys) | byte_pair_keys(processor.tokenizer, text.vocab_size)


def granite_refusal(bundle: Bundle, config: Any) -> str | None:
    encoder = config.encoder_config
    processor: Any = bundle.processor
    request = processor.request(None, None, False)
    if processor.split(request) != PROMPT:
        return f"CrispASR asks every Granite Speech with the prompt of version 4, and this one's is {request!r}"
    if encoder.conv_expansion_factor != 2 or config.projector_config.cross_attention_frequency != 1:
        return "CrispASR's Granite Speech has conv_expansion_factor 2 and cross_attention_frequency 1"
    if encoder.num_layers // 2 in (encoder.to_dict().get("cat_hidden_layers") or ()):
        return "CrispASR's Granite Speech Plus does not read the middle layer (cat_hidden_layers)"
    return None


def granite_extra(bundle: Bundle, config: Any, named: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Mel filters, and the embeddings as output layer where there is no other."""
    processor: Any = bundle.processor
    output = named.get("output.weight", named["token_embd.weight"])
    return {"audio.mel_filters": processor.filters.numpy(), "output.weight": output}


EXACT = ("audio.mel_", "audio.embed_positions", "tokenizer.")
GRANITE_KIND = Kind(
    "granite_speech", GRANITE, granite_keys, granite_refusal, granite_extra, ("audio.", "proj.query"), language=False
)
KINDS = {
    "qwen3_asr": Kind("qwen3asr", QWEN3_ASR, qwen3_keys, extra=whisper_extra, exact=EXACT),
    "voxtral": Kind("voxtral", VOXTRAL, voxtral_keys, extra=voxtral_extra, exact=EXACT),
    **dict.fromkeys(("granite_speech", "granite_speech_plus"), GRANITE_KIND),
}
"""By transformers' `model_type`."""
