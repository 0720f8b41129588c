"""Untrained recognisers that write various things, as export folders, for tests of exports in other runtimes."""

import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "models"))  # for the tiny models

import tiny_audio_llm
import tiny_audio_llms
import tiny_ctc
import tiny_transducers
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.export.gguf.audio_llm import PROMPT
from stentor.models.base import Family, TaskRequirements
from stentor.models.ctc.modeling import head_of
from tiny_configs import WAVE

WIDE = {**WAVE, "hidden_size": 64, "intermediate_size": 128, "conv_dim": [32] * 3}
LARGE = {**WIDE, **tiny_ctc.LAYER_NORM, "conv_bias": True, "conv_dim": [32] * 7, "conv_kernel": [10, 3, 3, 3, 3, 2, 2]}
LARGE |= {"conv_stride": [5] + [2] * 6, "num_conv_pos_embeddings": 128, "num_conv_pos_embedding_groups": 16}
EIGHTH = {"hidden_size": 64, "subsampling_factor": 8, "subsampling_conv_channels": 32, "num_mel_bins": 80}
TEXT = {"hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "intermediate_size": 128}
CTC = {
    "wav2vec2": {"model_type": "wav2vec2", **WIDE},
    "wav2vec2_large": {"model_type": "wav2vec2", **LARGE},
    "hubert": {"model_type": "hubert", **WIDE},
    "unispeech": {"model_type": "unispeech", **WIDE},
    "data2vec": {"model_type": "data2vec-audio", **WIDE, "num_conv_pos_embeddings": 5},
    "parakeet": {"model_type": "parakeet_ctc", "encoder_config": {**tiny_ctc.MELS, **EIGHTH}},
}


def shake(bundle, size: float) -> None:
    torch.manual_seed(0)
    for parameter in bundle.model.parameters():
        parameter.data.add_(size * torch.randn_like(parameter))


def ctc(kind: str):
    """A model whose classes are about equally frequent, and clearly chosen."""
    torch.manual_seed(0)  # else its weights are those that the tests before left
    family = Family.model_validate({"type": "ctc", "config": CTC.get(kind) or tiny_ctc.CONFIGS[kind]})
    bundle = family.build(TaskRequirements("transcribe", ("ctc",), lambda: iter(tiny_ctc.TEXTS)))
    bundle.model.eval()
    shake(bundle, 0.15)
    clips = [Example(text, say(text).audio, text) for text in ("one two three", "nine eight")]
    batch = bundle.processor.collate(clips, labels=False).inputs
    head = head_of(bundle.model.recogniser)
    with torch.no_grad():
        head.weight.data *= 5
        log_probs, frames = bundle.model.log_probs(batch["features"], batch["lengths"])
        head.bias.data -= torch.cat([row[:n] for row, n in zip(log_probs, frames)]).mean(0)
    return bundle


def transducer(kind: str, folder: Path, **config):
    """A Parakeet or Nemotron that takes one of eight frames."""
    names = {"encoder_config": {**tiny_transducers.CONFIGS[kind]["encoder_config"], **EIGHTH}, **config}
    before = {"ENCODER": tiny_transducers.ENCODER, "CONFIGS": tiny_transducers.CONFIGS}
    tiny_transducers.ENCODER = {**tiny_transducers.ENCODER, **EIGHTH}
    tiny_transducers.CONFIGS = {**tiny_transducers.CONFIGS, kind: {**tiny_transducers.CONFIGS[kind], **names}}
    try:
        source = tiny_transducers.write(kind, folder)
    finally:
        vars(tiny_transducers).update(before)
    bundle = Family.model_validate({"type": "transducer", "from": str(source)}).build(
        TaskRequirements("transcribe", (tiny_transducers.term(kind),))
    )
    if kind == "parakeet_rnnt":  # else it writes at every frame up to the limit of Stentor, which CrispASR has not
        bundle.model.recogniser.joint.head.bias.data[bundle.model.blank] += 5.5
    bundle.model.eval()
    return bundle


def save(bundle, folder: Path) -> Path:
    """The export of a training for the task `transcribe`."""
    bundle.family.save_merged(bundle, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe"}}))
    return folder


def rows(folder: Path) -> list[dict]:
    """The lines of the comparison, the model itself first."""
    return json.loads((folder / "export.json").read_text())["rows"]


def snippet(folder: Path) -> str:
    """The program of the README, and a recording for it."""
    import soundfile

    soundfile.write(folder / "speech.wav", np.asarray(say("one two three").audio), 16000)
    return (folder / "README.md").read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]


def audio_llm(kind: str, folder: Path):
    """An audio language model that writes four tokens a second."""
    tiny = tiny_audio_llms.TINY[kind]
    config = {**tiny.config, "text_config": {**tiny.config["text_config"], **TEXT}}
    return tiny_audio_llm.build(config, tiny.write(folder), token_rate=4.0)


def granite(kind: str, folder: Path):
    """A Granite Speech with the tokens of version 4's prompt, that writes a few of its other tokens."""
    names = "USER : Ġ can Ġyou Ġtrans cribe Ġthe Ġspeech Ġinto Ġa Ġwritten Ġformat ?Ċ ĠASS IST ANT :"
    known = dict(zip([*PROMPT[0], *PROMPT[1]], names.split()))
    inner = Tokenizer(models.BPE({known.get(i, f"x{i}"): i for i in range(50_000)}, [], ignore_merges=True))
    split = [pre_tokenizers.Split(Regex(r), "isolated") for r in ("cribe|IST|ANT", r" ?[A-z]+|\?\n|[^A-z]")]
    inner.pre_tokenizer = pre_tokenizers.Sequence([*split, pre_tokenizers.ByteLevel(False, use_regex=False)])
    inner.decoder, template = decoders.ByteLevel(), "USER: {{ messages[0].content }}\n ASSISTANT:"
    special = {"eos_token": "<|end_of_text|>", "pad_token": "<|pad|>", "additional_special_tokens": ["<|audio|>"]}
    tiny_audio_llms.GRANITE_WRITE(folder)
    PreTrainedTokenizerFast(tokenizer_object=inner, chat_template=template, **special).save_pretrained(folder)
    config = tiny_audio_llms.CONFIGS[kind]
    former = {**config["projector_config"], "cross_attention_frequency": 1, "num_hidden_layers": 2}
    scales = {"embedding_multiplier": 3.0, "attention_multiplier": 0.1, "residual_multiplier": 0.5}
    text = {**config["text_config"], **TEXT, **scales, "logits_scaling": 2.0}
    parts = {"encoder_config": {**config["encoder_config"], "num_layers": 4}, "projector_config": former}
    bundle = tiny_audio_llm.build({**config, **parts, "text_config": text}, folder, seed=1, token_rate=4.0)
    shake(bundle, 0.05)
    for others in (slice(26), slice(200, None)):  # of the prompt's tokens none is written
        bundle.model.lm_head.weight.data[others] *= 0.05
    return bundle
