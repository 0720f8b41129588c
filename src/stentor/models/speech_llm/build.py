"""Building a speech LLM from its config: parts, tokenizer, adapters, freezing."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.encoders.load import encoder_geometry, encoder_part, lacks
from stentor.models.pretrained.load import load_pretrained, part_config, set_memory_options
from stentor.models.pretrained.lora import adapt, base_name, is_adapter
from stentor.models.pretrained.parts import initialise
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import export_folder, load_adapters, read_json, weight_names
from stentor.models.speech_llm.config import SpeechLLM
from stentor.models.speech_llm.delayed import DelayedSpeechLLM
from stentor.models.speech_llm.delayed_processor import DelayedSpeechProcessor
from stentor.models.speech_llm.modeling import Projector, SpeechLLMModel
from stentor.models.speech_llm.processor import SpeechLLMProcessor
from stentor.models.text.tokenizers import alphabet, made_tokenizer
from stentor.section.full_paths import full_path_of


def build(family: SpeechLLM, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: bases loaded, tokenizer made, `init` applied, adapters added, parameters frozen."""
    from transformers import AutoConfig

    _check_terms(family, requirements)
    texts = requirements.texts or (lambda: iter(()))
    encoder_config = part_config(family.encoder, "model.encoder")
    llm_config = part_config(family.llm, "model.llm")
    tokenizer_type = family.tokenizer.type if family.tokenizer else None
    folder = export_folder(family.init) if family.init else None
    before = SpeechLLMProcessor.load(folder) if folder else None
    resumed = SpeechLLMProcessor.load(requirements.resumed_export) if requirements.resumed_export else before
    loaded = weight_names(folder) if folder else set()
    keeps = tokenizer_type is not None
    if folder and family.llm.source and any(name.startswith("llm.") for name in loaded):
        facts = read_json(folder / "config.json")
        if keeps := full_path_of(facts["family"]["llm"]["from"] or "") == full_path_of(family.llm.source):
            llm_config = AutoConfig.for_model(**facts["llm_config"])
    # What was made for an earlier model stays: its weights have a row for each token and character.
    tokenizer = resumed.tokenizer if resumed and keeps else own_tokenizer(family, texts)
    ctc = None
    if family.ctc:
        ctc = resumed.ctc.units if resumed and resumed.ctc else alphabet(texts())
    shape = encoder_geometry(family.encoder, encoder_config)
    stride = frames_per_position(shape.frame_rate, family.projector.rate)
    processor = SpeechLLMProcessor(tokenizer, shape, stride, family.prompt, ctc, tokenizer_type, family.token_rate)
    if before is not None:
        processor.trained_speech = before.trained_speech
    bundle = assemble(family, processor, encoder_config, llm_config, loaded or None)
    adapters = initialise(bundle, Path(family.init)) if family.init else {}
    adapt(bundle.model, family.lora, family.freeze)
    if adapters:
        load_adapters(bundle.model, adapters)
    quantize(bundle.model, family.quantize)
    apply_memory_options(bundle)
    return bundle


def frames_per_position(frame_rate: float, rate: float) -> int:
    """Encoder frames per position. Raises ConfigError when the frame rate is no multiple of the rate."""
    ratio = frame_rate / rate
    if round(ratio) < 1 or abs(ratio - round(ratio)) > 1e-6:
        fits = ", ".join(f"{frame_rate / n:g}" for n in (1, 2, 4, 5, 8))
        raise ConfigError(
            f"model.projector.rate: the encoder's {frame_rate:g} frames a second are not a multiple of {rate:g}: "
            f"use {fits} or another whole fraction."
        )
    return round(ratio)


def _check_terms(family: SpeechLLM, requirements: TaskRequirements) -> None:
    """Raise ConfigError for loss terms that the model has no head for, and for heads that would never be trained."""
    if "ctc" in requirements.terms and family.ctc is None:
        raise ConfigError("losses.ctc needs a CTC head: set `model.ctc: {units: characters}`, or leave the term out.")
    if family.ctc is not None and "ctc" not in requirements.terms and not _frozen("ctc_head.weight", family.freeze):
        raise ConfigError(
            "model.ctc: the head would never be trained: add `ctc: {type: ctc}` to `losses`, or `ctc_head.*` to "
            "`model.freeze`."
        )
    if "alignment" in requirements.terms and family.aligner is None:
        raise ConfigError(
            "losses.alignment needs an alignment module: set `model.aligner: {kind: attention}`, or leave the term out."
        )
    if requirements.task == "words" and family.aligner is None:
        raise ConfigError("The task `words` needs an alignment module: set `model.aligner: {kind: attention}`.")
    untrained = family.aligner is not None and "alignment" not in requirements.terms
    if untrained and not _frozen("aligner.place.weight", family.freeze):
        raise ConfigError(
            "model.aligner would never be trained: use the task `words` with the loss `alignment: {type: alignment}`, "
            "or add `aligner.*` to `model.freeze`."
        )


def assemble(
    family: SpeechLLM,
    processor: SpeechLLMProcessor,
    encoder_config: Any,
    llm_config: Any,
    loaded: set[str] | None = None,
) -> Bundle:
    """The model of the parts; those with `from` get their pretrained weights.

    `loaded` are the names of weights that will be loaded afterwards: a base is not read when they cover its part.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    processor.streaming = family.encoder.streaming
    if family.stream is not None:
        processor = DelayedSpeechProcessor.of(processor, family.stream)
    else:
        sizes = llm_config.to_dict()
        processor.longest = sizes.get("max_position_embeddings") or sizes.get("n_positions")
    attention: str | None = family.llm.attention
    if attention == "flex":
        from stentor.models.packing import flex

        flex.check(llm_config, "model.llm.attention")
        attention, processor.flex = flex.NAME, True

    def new_llm() -> nn.Module:
        try:
            return AutoModelForCausalLM.from_config(
                llm_config, trust_remote_code=False, attn_implementation=attention, dtype=torch.float32
            )
        except ValueError as error:  # no causal model of this kind, sizes that do not go together, no such attention
            raise ConfigError(f"model.llm: {' '.join(str(error).split())}") from error

    if family.tokenizer is not None:
        tokenizer = processor.tokenizer
        llm_config.vocab_size = len(tokenizer)
        llm_config.pad_token_id = tokenizer.pad_token_id
        llm_config.bos_token_id = tokenizer.bos_token_id
        llm_config.eos_token_id = tokenizer.eos_token_id
    # A made tokenizer has its own rows in the embeddings, so a pretrained language model cannot have one.
    encoder, encoder_base = encoder_part(family.encoder, encoder_config, loaded)
    llm_base = family.llm.source is not None and lacks(loaded, "llm", new_llm)
    llm: Any = _pretrained_llm(family, llm_config, attention) if llm_base else new_llm()
    projector = Projector(
        family.projector.type,
        processor.factor,
        encoder.config.hidden_size,
        llm.get_input_embeddings().weight.shape[1],
        family.projector.hidden,
        family.projector.dropout,
    )
    classes = len(processor.ctc) if processor.ctc else None
    if isinstance(processor, DelayedSpeechProcessor):
        model: SpeechLLMModel = DelayedSpeechLLM((encoder, projector, llm), processor, classes)
        _check_grid(llm.config.get_text_config(), len(processor.tokenizer))
    else:
        model = SpeechLLMModel(encoder, processor.shape, projector, llm, classes, family.aligner)
    bundle = Bundle(model, processor, family, model.cache_encoder)
    bundle.origin.from_base = {
        name
        for name in model.state_dict()
        if (encoder_base and name.startswith("encoder.")) or (llm_base and name.startswith("llm."))
    }
    return bundle


def _pretrained_llm(family: SpeechLLM, config: Any, attention: str | None) -> nn.Module:
    from transformers import AutoModelForCausalLM

    return load_pretrained(
        family.llm,
        "model.llm",
        lambda name, options: AutoModelForCausalLM.from_pretrained(
            name,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            attn_implementation=attention,
            use_safetensors=True,
            **options,
        ),
    )


def _check_grid(config: Any, tokens: int) -> None:
    """Raise ConfigError for language models that cannot write without end, or lack room for a stream's tokens."""
    if config.to_dict().get("rope_parameters") is None or config._attn_implementation != "sdpa":
        raise ConfigError(
            f"model.llm: `stream` needs a language model with rotary positions and the attention sdpa; "
            f"{config.model_type} does not have both."
        )
    if tokens > config.vocab_size:
        raise ConfigError(
            f"model.llm: its embeddings have {config.vocab_size} rows and none left for the two tokens of `stream`: "
            "use another language model, or one built from `config`."
        )


def apply_memory_options(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family, model = bundle.family, bundle.model
    if family.dtype == "bfloat16":
        for name in ("encoder", "llm"):
            part = {f"{name}.{n}": p for n, p in model.get_submodule(name).named_parameters() if not is_adapter(n)}
            if any(base_name(n) in bundle.origin.from_base for n in part) and not any(
                p.requires_grad for p in part.values()
            ):
                for parameter in part.values():
                    if parameter.is_floating_point():  # others are kept in 8 or 4 bits
                        parameter.data = parameter.data.to(torch.bfloat16)
    set_memory_options(bundle, (model.encoder, model.llm))


def _frozen(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def own_tokenizer(family: SpeechLLM, texts: Any = None) -> Any:
    from transformers import AutoTokenizer

    if family.tokenizer is None:
        return load_pretrained(
            family.llm,
            "model.llm",
            lambda name, options: AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options),
        )

    def lines() -> Iterable[str]:
        if family.stream is not None:
            yield from (f" {text}" for text in texts())  # the first word as all others
            return
        yield from texts()
        if family.prompt.instruction:
            yield family.prompt.instruction + "\n"

    return made_tokenizer(family.tokenizer, lines())
