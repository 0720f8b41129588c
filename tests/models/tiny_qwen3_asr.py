"""A tiny Qwen3-ASR and its processor, made offline: byte-level subwords and the released models' special tokens."""

from functools import partial
from pathlib import Path

import tiny_audio_llm

CONFIG = {
    "model_type": "qwen3_asr",
    "audio_config": {
        "d_model": 16,
        "encoder_layers": 1,
        "encoder_attention_heads": 2,
        "encoder_ffn_dim": 32,
        "downsample_hidden_size": 8,
        "n_window_infer": 400,
        "initializer_range": 0.2,
    },
    "text_config": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 16,
        "max_position_embeddings": 4096,
        "initializer_range": 0.2,
    },
    "initializer_range": 0.2,
}

# One system turn, made of what there is of system messages, then the other turns in order.
TEMPLATE = """\
{%- macro text(message) -%}
{%- for part in message.content -%}
{{- part.text if part.type == "text" else "<|audio_start|><|audio_pad|><|audio_end|>" -}}
{%- endfor -%}
{%- endmacro -%}
<|im_start|>system
{% for m in messages if m.role == "system" %}{{ text(m) }}{% endfor %}<|im_end|>
{% for m in messages if m.role != "system" -%}
<|im_start|>{{ m.role }}
{{ text(m) }}<|im_end|>
{% endfor %}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""


def write_processor(folder: Path, pad: str = "<|endoftext|>") -> Path:
    """A Qwen3ASRProcessor; `pad` may be the end token, <|im_end|>."""
    from transformers import Qwen3ASRFeatureExtractor, Qwen3ASRProcessor

    words = "language English<French None one two three four five six nine eight seven " * 4
    tokenizer = tiny_audio_llm.qwen2_tokenizer(
        folder,
        words,
        300,
        eos_token="<|im_end|>",
        pad_token=pad,
        extra_special_tokens={
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|endoftext|>", "<|im_start|>"]})
    tokenizer.add_tokens(["<asr_text>"])
    processor = Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer, chat_template=TEMPLATE)
    processor.save_pretrained(folder)
    return folder


build = partial(tiny_audio_llm.build, CONFIG)


def request(bundle, item, **options):
    """What transformers' processor makes of one item."""
    return bundle.processor.hf.apply_transcription_request(
        audio=[item.audio], language=item.language, prompt=item.context, **options
    )
