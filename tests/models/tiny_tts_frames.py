"""Tiny models of the family `tts` whose processors hold a tokenizer and a codec alone: Higgs Audio v2, Pocket TTS and
Phonon. Their chat templates are of the published layout."""

import json
import sys
from pathlib import Path

import numpy as np
import torch
from tiny_omnivoice import enlarge

from stentor.data.batch import Example
from stentor.data.conditions import Spoken, draw
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.tasks.speak.task import Speak

sys.path.insert(0, str(Path(__file__).parents[1] / "audio"))  # for tiny_codecs

LETTERS = "abcdefghijklmnopqrstuvwxyzG .,'\n"
TEXTS = ("one two three", "four", "five six", "seven eight nine zero")
SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
HIGGS = {"model_type": "higgs_audio_v2", **SIZES, "intermediate_size": 96, "head_dim": 16}
HIGGS |= {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}
FLOW = {"hidden_size": 64, "num_hidden_layers": 2, "frequency_embedding_size": 32}
POCKET = {"model_type": "pocket_tts", **SIZES, "intermediate_size": 128, "flow_head_config": FLOW}
PHONON = {**POCKET, "model_type": "gradium_phonon_tts", "audio_prompt_dim": 16}
CONFIGS = {"higgs_audio_v2": HIGGS, "pocket_tts": POCKET, "gradium_phonon_tts": PHONON}
LATENTS = 8

HIGGS_TOKENS = {"audio": "<|AUDIO_OUT|>", "audio_bos": "<|audio_out_bos|>", "audio_eos": "<|audio_eos|>"}
HIGGS_TOKENS |= {"audio_delay": "<|reserved_special_token_6|>"}
HIGGS_CHAT = """{{- bos_token }}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' + messages[0]['content'][0]['text'] | trim }}
{%- set messages = messages[1:] %}
{%- if messages[0]['role'] == 'scene' %}
{{- '\n\n<|scene_desc_start|>\n' + messages[0]['content'][0]['text'] | trim + '\n<|scene_desc_end|>' }}
{%- set messages = messages[1:] %}
{%- endif %}
{{- '<|eot_id|>' }}
{%- for message in messages %}
{{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' }}
{%- if message['role'] == 'assistant' %}
{{- '<|audio_out_bos|><|AUDIO_OUT|><|audio_eos|>' }}
{%- else %}
{{- message['content'][0]['text'] | trim }}
{%- endif %}
{{- '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n<|audio_out_bos|>' }}
{%- endif %}"""
POCKET_TOKENS = ("audio_prompt", "audio_latent", "audio_bos", "audio_prompt_bos")
POCKET_CHAT = """{%- for message in messages %}{%- for part in message['content'] %}
{%- if part['type'] == 'text' %}{{ part['text'] }}
{%- elif message['role'] == 'user' %}{{ '<|audio_prompt_bos|><|audio_prompt|>' }}
{%- else %}{{ '<|audio_prompt|>' }}{%- endif %}{%- endfor %}
{%- if message['role'] == 'user' %}{{ '<|audio_bos|>' }}{%- endif %}{%- endfor %}"""


def tokenizer_of(chat: str, special: list[str], **keys):
    """A tokenizer of letters."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate(["<unk>", "<pad>", *special, *LETTERS])}
    letters = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    letters.pre_tokenizer, letters.decoder = pre_tokenizers.Split("", "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=letters, unk_token="<unk>", pad_token="<pad>", padding_side="left", **keys
    )
    tokenizer.add_special_tokens({"additional_special_tokens": special})
    tokenizer.chat_template = chat
    return tokenizer


def write(kind: str, folder: Path) -> Path:
    """The files of a processor, and its codec beside."""
    if kind == "higgs_audio_v2":
        return write_higgs(folder)
    return write_pocket(folder, POCKET_TOKENS if kind == "pocket_tts" else POCKET_TOKENS[:3])


def write_higgs(folder: Path) -> Path:
    from tiny_codecs import build

    names = ["start_header_id", "end_header_id", "scene_desc_start", "scene_desc_end"]
    special = [*HIGGS_TOKENS.values(), *(f"<|{n}|>" for n in names), "<|begin_of_text|>", "<|eot_id|>"]
    tokenizer = tokenizer_of(HIGGS_CHAT, special, bos_token="<|begin_of_text|>", eos_token="<|eot_id|>")
    tokenizer.save_pretrained(folder)
    build("higgs_audio_v2", folder / "audio_tokenizer")
    settings = {f"{key}_token": token for key, token in HIGGS_TOKENS.items()}
    settings |= {"audio_stream_bos_id": 1024, "audio_stream_eos_id": 1025, "processor_class": "HiggsAudioV2Processor"}
    return write_settings(folder, settings, "HiggsAudioV2TokenizerModel")


def write_settings(folder: Path, settings: dict, codec: str) -> Path:
    where = {"audio_tokenizer_class": codec, "audio_tokenizer_name_or_path": str(folder / "audio_tokenizer")}
    (folder / "processor_config.json").write_text(json.dumps({**settings, "audio_tokenizer": where}))
    return folder


def pocket_codec():
    from transformers import PocketTTSAudioTokenizerConfig, PocketTTSAudioTokenizerModel

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_filters": 4, "upsample_groups": 32, "num_hidden_layers": 1, "latent_dim": LATENTS}
    sizes |= {"intermediate_size": 32, "num_attention_heads": 2, "num_key_value_heads": 2, "sliding_window": 50}
    return PocketTTSAudioTokenizerModel(PocketTTSAudioTokenizerConfig(layer_scale_initial_scale=0.5, **sizes)).eval()


def write_pocket(folder: Path, names: tuple[str, ...]) -> Path:
    from transformers import PocketTTSFeatureExtractor, PocketTTSProcessor

    tokens = {f"{name}_token": f"<|{name}|>" for name in names}
    tokenizer = tokenizer_of(POCKET_CHAT, list(tokens.values()), extra_special_tokens=tokens)
    codec = pocket_codec()
    codec.save_pretrained(folder / "audio_tokenizer")
    codec.name_or_path = str(folder / "audio_tokenizer")
    PocketTTSProcessor(PocketTTSFeatureExtractor(), tokenizer, codec, POCKET_CHAT).save_pretrained(folder)
    return folder


def build(kind: str, folder: Path, **keys) -> Bundle:
    """A bundle with weights as large as trained ones, so that differences show."""
    torch.manual_seed(0)
    bundle = Family.model_validate({"type": "tts", "config": CONFIGS[kind], "tokenizer": str(folder), **keys}).build(
        TaskRequirements("speak", ("codes",))
    )
    enlarge(bundle.model)
    return bundle


def codes_of(bundle: Bundle, seed: int, frames: int) -> np.ndarray:
    rng, processor = np.random.default_rng(seed), bundle.processor
    if processor.vocabulary is None:
        return rng.standard_normal((processor.codebooks, frames)).astype(np.float32)
    return rng.integers(0, processor.vocabulary, (processor.codebooks, frames)).astype(np.int16)


def examples(bundle: Bundle, frames=(17, 5, 30, 11)) -> list[Example]:
    """Items with codes at random."""
    items = []
    for number, (count, text) in enumerate(zip(frames, TEXTS)):
        conditions = draw(Spoken(text), Speak(drop_cond_ratio=0.0), np.random.default_rng(number))
        extra = {"codes": codes_of(bundle, 100 + number, count), "instruct": None, "conditions": conditions}
        items.append(Example(f"item{number}", text=text, rng=np.random.default_rng(number), extra=extra))
    return items


def clip(seed: int, seconds: float, rate: int = 24000) -> np.ndarray:
    """A glide with noise: float32 [samples]."""
    time = np.arange(round(seconds * rate)) / rate
    noise = np.random.default_rng(seed).standard_normal(len(time))
    glide = np.sin(2 * np.pi * (200 + 90 * seed) * time * (1 + 0.3 * time))
    return (0.3 * glide + 0.05 * noise).astype(np.float32)
