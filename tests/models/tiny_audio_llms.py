"""Tiny models of the family `audio_llm`, with their tokenizers and processors made offline. A further model is one
entry of `TINY`."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import tiny_audio_llm
import tiny_qwen3_asr
import tiny_voxtral
import torch

from stentor.models.audio_llm.config import AudioLLM

TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "max_position_embeddings": 4096,
    "initializer_range": 0.2,
}
# Turns in ChatML, `AUDIO` where the content says so; a language and a wish are written out.
TEMPLATE = """\
{%- for m in messages -%}
<|im_start|>{{ m.role }}
{% if m.content is string %}{{ m.content }}{% else %}{% for part in m.content -%}
{%- if part.type == "audio" %}AUDIO{% elif part.type == "language" %} in {{ part.language }}{% else %}{{ part.text }}\
{% endif -%}
{%- endfor %}{% endif %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt -%}
<|im_start|>assistant
{% endif -%}
"""
GLM_AUDIO = "<|begin_of_audio|><|pad|><|end_of_audio|>"


def bytes_tokenizer(audio: str, *more: str, template: str = TEMPLATE, surround: str | None = None):
    """A tokenizer of bytes and few words, ending answers with <|im_end|>; `audio` is the placeholder in `template`,
    or in what `surround`s it."""
    from transformers import PreTrainedTokenizerFast

    words = "one two three four five six nine eight seven transcribe the speech audio into text " * 4
    return PreTrainedTokenizerFast(
        tokenizer_object=tiny_audio_llm.byte_pairs(words, 300),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=["<|im_start|>", audio, *more],
        chat_template=template.replace("AUDIO", surround or audio),
    )


def write_glmasr(folder: Path) -> Path:
    from transformers import GlmAsrProcessor, WhisperFeatureExtractor

    tokenizer = bytes_tokenizer("<|pad|>", "<|begin_of_audio|>", "<|end_of_audio|>", surround=GLM_AUDIO)
    extractor = WhisperFeatureExtractor(feature_size=128)
    GlmAsrProcessor(extractor, tokenizer, chat_template=tokenizer.chat_template).save_pretrained(folder)
    return folder


def write_files(audio: str, processor: str) -> Callable[[Path], Path]:
    """Writes a tokenizer and the settings of a processor that needs torchaudio."""

    def write(folder: Path) -> Path:
        bytes_tokenizer(audio).save_pretrained(folder)
        facts = {"processor_class": processor, "audio_token": audio}
        (folder / "processor_config.json").write_text(json.dumps(facts))
        return folder

    return write


QFORMER = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
QFORMER |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
GRANITE = {
    "model_type": "granite_speech",
    "encoder_config": {
        "dropout": 0.0,
        "num_layers": 2,
        "hidden_dim": 16,
        "num_heads": 2,
        "context_size": 50,
        "max_pos_emb": 64,
    },
    "projector_config": {**QFORMER, "initializer_range": 0.2},
    "text_config": TEXT,
    "has_lora_adapter": False,
}
GLM_TOWER = {"hidden_size": 16, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
FUN_TOWER = {"num_hidden_layers": 2, "num_timestamp_prediction_layers": 1, "num_attention_heads": 2}
FUN_TOWER |= {"hidden_size": 16, "intermediate_size": 32, "max_position_embeddings": 8192}
FUN_TOWER |= {"hidden_dropout": 0.0, "attention_dropout": 0.0}
CONFIGS = {
    "glmasr": {"model_type": "glmasr", "audio_config": {**GLM_TOWER, "initializer_range": 0.2}, "text_config": TEXT},
    "granite_speech": GRANITE,
    "granite_speech_plus": {
        **GRANITE,
        "model_type": "granite_speech_plus",
        "encoder_config": {**GRANITE["encoder_config"], "cat_hidden_layers": [1]},
    },
    "fun_asr_nano": {
        "model_type": "fun_asr_nano",
        "audio_config": FUN_TOWER,
        "adaptor_config": {"num_attention_heads": 2, "num_hidden_layers": 1, "projector_hidden_size": 32},
        "text_config": {**TEXT, "head_dim": 16},
        "initializer_range": 0.2,
    },
}


@dataclass
class Tiny:
    """A tiny model, with what tests need to know of it."""

    config: dict
    write: Callable[[Path], Path]
    """Writes what `model.tokenizer` names."""
    tower: str = "audio_tower"
    queries: tuple[str, ...] = ("*.q_proj",)
    """Globs on layers in the tower and the language model."""

    @property
    def architecture(self) -> str:
        return AudioLLM.kinds()[self.config["model_type"]].architecture

    def build(self, tokenizer: Path | None, /, **keys):
        return tiny_audio_llm.build(self.config, tokenizer, **keys)

    def model_class(self) -> type:
        import transformers

        return getattr(transformers, self.architecture)

    def reference_loss(self, model, bundle, items) -> float:
        """Summed loss of transformers' model, on its own way, with labels at our positions."""
        total = 0.0
        for item in items:
            inputs = bundle.processor.collate([item]).inputs
            audio = {name: inputs[name] for name in ("input_features", "input_features_mask") if name in inputs}
            with torch.no_grad():
                mean = model(input_ids=inputs["input_ids"], labels=tiny_audio_llm.labels_of(inputs), **audio).loss
            total += mean.item() * len(inputs["targets"])
        return total


GRANITE_WRITE = write_files("<|audio|>", "GraniteSpeechProcessor")
GRANITE_QUERIES = ("*.q_proj", "*.to_q")
TINY = {
    "voxtral": Tiny(tiny_voxtral.CONFIG, tiny_voxtral.write_tokenizer),
    "qwen3_asr": Tiny(tiny_qwen3_asr.CONFIG, tiny_qwen3_asr.write_processor),
    "glmasr": Tiny(CONFIGS["glmasr"], write_glmasr),
    "granite_speech": Tiny(CONFIGS["granite_speech"], GRANITE_WRITE, "encoder", GRANITE_QUERIES),
    "granite_speech_plus": Tiny(CONFIGS["granite_speech_plus"], GRANITE_WRITE, "encoder", GRANITE_QUERIES),
    "fun_asr_nano": Tiny(CONFIGS["fun_asr_nano"], write_files("<|object_ref_start|>", "FunAsrNanoProcessor")),
}
