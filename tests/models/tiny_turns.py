"""Tiny models that say who speaks, each with its processor made offline: VibeVoice-ASR, MOSS-Transcribe-Diarize and
Nemotron 3.5 Transcribe. Prompts are shorter than those of the released models, in the same order."""

from pathlib import Path

import numpy as np
from tiny_audio_llm import qwen2_tokenizer

from stentor.data.batch import Example

QWEN = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 8192,
    "initializer_range": 0.2,
}
CODEC = {
    "model_type": "vibevoice_acoustic_tokenizer_encoder",
    "num_filters": 1,
    "downsampling_ratios": [8, 5, 5, 4, 2, 2],
    "depths": [1] * 7,
    "hidden_size": 16,
    "layer_scale_init_value": 0.5,
    "initializer_range": 0.3,
}
ENCODER = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "max_position_embeddings": 2000,
    "initializer_range": 0.2,
}
CONFIGS = {
    "vibevoice_asr": {
        "text_config": {"model_type": "qwen2", **QWEN},
        "acoustic_tokenizer_encoder_config": CODEC,
        "semantic_tokenizer_encoder_config": {**CODEC, "hidden_size": 24},
    },
    "moss_transcribe_diarize": {
        "text_config": {"model_type": "qwen3", "head_dim": 16, **QWEN},
        "audio_config": {
            "hidden_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "intermediate_size": 64,
            "max_source_positions": 200,
            "initializer_range": 0.2,
        },
        "audio_chunk_size": 64000,
        "tie_word_embeddings": True,
    },
    "nemo_speechlm": {
        "text_config": {
            "model_type": "nemotron_h",
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 16,
            "max_position_embeddings": 8192,
            "ssm_state_size": 16,
            "mamba_num_heads": 8,
            "mamba_head_dim": 16,
            "n_groups": 2,
            "chunk_size": 32,
            "n_routed_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 32,
            "moe_shared_expert_intermediate_size": 64,
            "initializer_range": 0.1,
        },
        "audio_config": {
            "asr_config": {**ENCODER, "num_mel_bins": 32},
            "diarization_config": {
                "model_type": "nemotron3_diarization",
                "audio_config": {**ENCODER, "num_mel_bins": 32},
                "head_config": {"hidden_size": 16, "num_speakers": 2, "audio_hidden_size": 32},
                "streaming_config": {"num_speakers": 2},
            },
        },
        "word_timestamp_config": {
            "hidden_size": 32,
            "intermediate_size": 32,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
            "vocab_size": 9,
            "blank_token_id": 8,
        },
    },
}

VIBEVOICE = """\
<|im_start|>system
JSON<|im_end|>
{% for message in messages %}<|im_start|>user
{% for part in message.content if part.type == "audio" -%}
<|object_ref_start|><|box_start|><|object_ref_end|>
<|AUDIO_DURATION|> seconds
{%- endfor %}{% for part in message.content if part.type == "text" %}, with {{ part.text }}{% endfor %}<|im_end|>
{% endfor -%}
"""
MOSS = """\
{% for message in messages %}<|im_start|>user
{% for part in message.content -%}
{{- "<|audio_start|><|audio_pad|><|audio_end|>" if part.type == "audio" else part.text -}}
{%- endfor %}[S01]<|im_end|>
{% endfor %}<|im_start|>assistant
"""
NEMOTRON = """\
{% for message in messages %}<|im_start|>user
{% for part in message.content %}{{ "<|audio|>" if part.type == "audio" else part.text }}{% endfor %}<|im_end|>
{% endfor %}<|im_start|>assistant
{% if not enable_thinking %}<think></think>{% endif -%}
"""
TEXT = '[{"Start":0,"End":1.25,"Speaker":0,"Content":"one two three"},{"Start":[0.00][S01]four five six.[1.75]' * 4

TURNS = [
    {"speaker": 0, "start": 0.0, "end": 0.5, "text": 'say "one" two'},
    {"speaker": 1, "start": 0.4, "end": 1.0, "text": "é 日本"},
]


def tokenizer(folder: Path, special: list[str], **tokens):
    """Byte-level subwords of `TEXT`, with special tokens."""
    made = qwen2_tokenizer(folder, TEXT, 330, **tokens)
    made.add_special_tokens({"additional_special_tokens": special})
    return made


def write_processor(kind: str, folder: Path) -> Path:
    """The processor of a kind of model, as transformers saves it."""
    import transformers

    chat = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    if kind == "vibevoice_asr":
        special = [*chat, "<|object_ref_start|>", "<|object_ref_end|>", "<|box_start|>", "<|image_pad|>"]
        made = transformers.VibeVoiceAsrProcessor(
            transformers.VibeVoiceAcousticTokenizerFeatureExtractor(),
            tokenizer(folder, special, eos_token="<|endoftext|>", pad_token="<|image_pad|>"),
            chat_template=VIBEVOICE,
        )
    elif kind == "moss_transcribe_diarize":
        special = [*chat, "<|audio_pad|>", "<|audio_start|>", "<|audio_end|>"]
        made = transformers.MossTranscribeDiarizeProcessor(
            transformers.MossTranscribeDiarizeFeatureExtractor(chunk_length=4),
            tokenizer(folder, special, eos_token="<|im_end|>", pad_token="<|endoftext|>"),
            chat_template=MOSS,
        )
    else:
        special = [*chat, "<|audio|>", *(f"<spk:{i}>" for i in range(4))]
        made = transformers.Nemotron3_5TranscribeProcessor(
            transformers.NemotronAsrStreamingFeatureExtractor(feature_size=32),
            tokenizer(folder, special, eos_token="<|im_end|>", pad_token="<|endoftext|>"),
            tokenizer(folder / "alignment", [], eos_token="<|endoftext|>", pad_token="<|endoftext|>"),
            chat_template=NEMOTRON,
            default_transcription_prompt="Formatting: punctuation. Output: transcript only.",
        )
    made.save_pretrained(folder)
    return folder


def examples(bundle, seconds=(0.7, 5.3, 9.1)):
    rng, rate = np.random.default_rng(0), bundle.processor.sample_rate
    audios = [(0.1 * rng.standard_normal(round(s * rate))).astype(np.float32) for s in seconds]
    return [Example(str(i), a, "one two", extra={"turns": TURNS}) for i, a in enumerate(audios)]
