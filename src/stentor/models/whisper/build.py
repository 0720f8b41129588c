"""Building a Whisper from its config section: weights, tokenizer, adapters, freezing."""

from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.peft import adapt
from stentor.models.pretrained import part_config, reach
from stentor.models.quantize import quantize
from stentor.models.weights_io import (
    ADAPTER_FILE,
    SECTION_FILE,
    export_folder,
    load_adapters,
    merged_state,
    read_json,
    read_weights,
)
from stentor.models.whisper import Whisper
from stentor.models.whisper.modeling import WhisperRecogniser
from stentor.models.whisper.processor import FRAMES, WhisperProcessor
from stentor.models.whisper.tokenizer import byte_tokenizer, generation_facts, keep_merges


class WhisperBundle(Bundle):
    """A bundle whose parts are the encoder and the decoder."""

    def parts(self) -> dict[str, nn.Module]:
        return {"encoder": self.model.model.encoder, "decoder": self.model.model.decoder}


def build(family: Whisper, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: weights loaded, `init` applied, adapters added, parameters frozen."""
    if other := sorted(set(requirements.terms) - {"text"}):
        raise ConfigError(f"losses.{other[0]}: Whisper has no such output; it is trained with `text` alone.")
    bundle = pretrained(family) if family.source is not None else fresh(family)
    if family.init is not None:
        initialise(bundle, export_folder(family.init))
    adapt(bundle.model, family.lora, family.freeze)
    quantize(bundle.model, family.quantize)
    apply_memory_options(bundle)
    return bundle


def pretrained(family: Whisper) -> Bundle:
    """Model, tokenizer and generation config of `from`. Raises ConfigError when they cannot be had."""
    from transformers import GenerationConfig, WhisperForConditionalGeneration, WhisperTokenizer
    from transformers.utils import logging

    logging.disable_progress_bar()
    part = SimpleNamespace(source=family.source, revision=family.revision, config=None)
    config = part_config(part, "model")
    if config.model_type != "whisper":
        raise ConfigError(f"model.from: {family.source} is a {config.model_type} model; give a Whisper.")

    def load(name: str, options: dict[str, Any]) -> tuple[nn.Module, Any]:
        whisper = WhisperForConditionalGeneration.from_pretrained(
            name,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            attn_implementation="sdpa",
            use_safetensors=True,
            **options,
        )
        with suppress(OSError):  # older folders have none: transformers made one from the config
            whisper.generation_config = GenerationConfig.from_pretrained(name, trust_remote_code=False, **options)
        return whisper, WhisperTokenizer.from_pretrained(name, trust_remote_code=False, **options)

    whisper, tokenizer = reach(part, "model", load)
    if family.merges is not None:
        keep_merges(tokenizer, family.merges)
    return assemble(family, whisper, tokenizer)


def fresh(family: Whisper) -> Bundle:
    """An untrained model of `config` with a tokenizer of bytes."""
    from transformers import GenerationConfig, WhisperForConditionalGeneration

    tokenizer = byte_tokenizer()
    end = tokenizer.eos_token_id
    facts = generation_facts(tokenizer)
    ids = {
        "vocab_size": facts["no_timestamps_token_id"] + 1 + FRAMES + 1,
        "pad_token_id": end,
        "bos_token_id": end,
        "eos_token_id": end,
        "decoder_start_token_id": facts["decoder_start_token_id"],
    }
    settings = {"model_type": "whisper", **ids, **(family.config or {})}
    config = part_config(SimpleNamespace(source=None, revision=None, config=settings), "model")
    if set(ids) & set(family.config or {}):
        key = sorted(set(ids) & set(family.config or {}))[0]
        raise ConfigError(f"model.config.{key} comes from the tokenizer: leave it out.")
    whisper = WhisperForConditionalGeneration._from_config(config, dtype=torch.float32, attn_implementation="sdpa")
    whisper.generation_config = GenerationConfig(**facts, max_length=config.max_target_positions)
    return assemble(family, whisper, tokenizer)


def assemble(family: Whisper, whisper: Any, tokenizer: Any) -> Bundle:
    """The bundle of a WhisperForConditionalGeneration and a WhisperTokenizer."""
    config, generation = whisper.config, whisper.generation_config.to_dict()
    if config.max_source_positions != FRAMES:
        raise ConfigError(f"model.config.max_source_positions must be {FRAMES}: 30 s of audio, as all Whispers have.")
    # Older generation configs do not say; OpenAI's rule is the size of the vocabulary.
    multilingual = generation.get("is_multilingual")
    multilingual = config.vocab_size >= 51865 if multilingual is None else multilingual
    processor = WhisperProcessor(
        tokenizer,
        config.num_mel_bins,
        config.max_target_positions,
        multilingual,
        family.timestamps,
        family.token_rate,
        family.full_window,
    )
    # Sinusoids, never trained; transformers' `from_pretrained` forgets that.
    whisper.model.encoder.embed_positions.requires_grad_(False)
    languages = sorted(processor.languages.values())
    suppressed, first = generation.get("suppress_tokens") or [], generation.get("begin_suppress_tokens") or []
    vocabulary = tokenizer.get_vocab()
    no_speech = next((vocabulary[t] for t in ("<|nospeech|>", "<|nocaptions|>") if t in vocabulary), None)
    if no_speech is not None and no_speech >= config.vocab_size:
        no_speech = None
    return WhisperBundle(WhisperRecogniser(whisper, languages, suppressed, first, no_speech), processor, family)


def section_of(folder: Path) -> Whisper:
    """The family's section of an export; of any other Whisper folder one that loads it."""
    if (folder / SECTION_FILE).exists():
        return Whisper.model_validate(read_json(folder / SECTION_FILE)["family"])
    return Whisper(source=str(folder))


def with_adapters(family: Whisper, folder: Path) -> Bundle:
    """The base of an export of adapters, with these adapters."""
    bundle = pretrained(family)
    adapt(bundle.model, family.lora, family.freeze)
    load_adapters(bundle.model, read_weights(folder)[1])
    return bundle


def plain(family: Whisper, folder: Path) -> Bundle:
    """The model of an export, or of any Whisper folder, its adapters folded in."""
    if (folder / ADAPTER_FILE).exists():
        bundle = pretrained(family)
        bundle.model.load_state_dict(merged_state(with_adapters(family, folder)))
        return bundle
    bundle = pretrained(family.model_copy(update={"source": str(folder), "revision": None}))
    bundle.family = family
    return bundle


def initialise(bundle: Bundle, folder: Path) -> None:
    """Start from the weights of an export or of any Whisper folder, before adapters are added."""
    state, weights = bundle.model.state_dict(), plain(section_of(folder), folder).model.state_dict()
    for name, tensor in state.items():
        if name not in weights or weights[name].shape != tensor.shape:
            shape = list(weights[name].shape) if name in weights else "missing"
            raise ConfigError(
                f"model.init: {name} is {shape} in {folder} and {list(tensor.shape)} here; `model` must describe the "
                "same Whisper."
            )
    bundle.model.load_state_dict({name: weights[name] for name in state})


def apply_memory_options(bundle: Bundle) -> None:
    """Memory options, after adapters and freezing."""
    if bundle.family.gradient_checkpointing:
        bundle.model.model.gradient_checkpointing_enable({"use_reentrant": False})
    bundle.model.train()
