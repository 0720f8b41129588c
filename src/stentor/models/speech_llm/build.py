"""Building a speech LLM from its config: parts, tokenizer, adapters, freezing."""

from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.encoders.encode import WAVE, Geometry, adjust, check_streaming, geometry
from stentor.models.pretrained.load import part_config, reach, set_memory_options
from stentor.models.pretrained.lora import adapt, base_name, is_adapter
from stentor.models.pretrained.quantize import quantize
from stentor.models.pretrained.weights import (
    continue_adapters,
    export_folder,
    load_adapters,
    load_by_name,
    read_json,
    read_weights,
    tied_copies,
)
from stentor.models.speech_llm.config import EncoderSection, SpeechLLM, TokenizerSection
from stentor.models.speech_llm.delayed import DelayedSpeechLLM
from stentor.models.speech_llm.delayed_processor import DelayedSpeechProcessor
from stentor.models.speech_llm.modeling import SpeechLLMModel
from stentor.models.speech_llm.processor import SpeechLLMProcessor
from stentor.models.speech_llm.projector import Projector, factor
from stentor.models.text.tokenizers import alphabet, bpe, characters


def build(family: SpeechLLM, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: bases loaded, tokenizer made, `init` applied, adapters added, parameters frozen."""
    _check_terms(family, requirements)
    texts = requirements.texts or (lambda: iter(()))
    encoder_config = part_config(family.encoder, "model.encoder")
    llm_config = part_config(family.llm, "model.llm")
    tokenizer_type = family.tokenizer.type if family.tokenizer else None
    before = SpeechLLMProcessor.load(export_folder(family.init)) if family.init else None
    # What was made from the data of an earlier stage stays: its weights have a row for each token and character.
    tokenizer = before.tokenizer if before and tokenizer_type else _tokenizer(family, texts)
    ctc = None
    if family.ctc:
        ctc = before.ctc.units if before and before.ctc else alphabet(texts())
    shape = encoder_geometry(family.encoder, encoder_config)
    stride = factor(shape.frame_rate, family.projector.rate)
    processor = SpeechLLMProcessor(tokenizer, shape, stride, family.prompt, ctc, tokenizer_type, family.token_rate)
    if before is not None:
        processor.trained_speech = before.trained_speech
    bundle = assemble(family, processor, encoder_config, llm_config)
    adapters = initialise(bundle, Path(family.init)) if family.init else {}
    adapt(bundle.model, family.lora, family.freeze)
    if adapters:
        load_adapters(bundle.model, adapters)
    quantize(bundle.model, family.quantize)
    apply_memory_options(bundle)
    return bundle


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
            "model.aligner would never be trained: take the task `words` with the loss `alignment: {type: alignment}`, "
            "or add `aligner.*` to `model.freeze`."
        )


def initialise(bundle: Bundle, folder: Path) -> dict[str, Tensor]:
    """Start from the weights of an export, by name; before adapters are added.

    Returns the export's adapters when the same `model.lora` goes on with them; otherwise they are folded in. Weights
    that only one side has are named in the log. Raises ConfigError when a weight has another shape.
    """
    weights, adapters = read_weights(folder)
    load_by_name(bundle.model, weights, folder, "same parts", bundle.family._from_base)
    bundle.family._from_base -= set(weights)
    return continue_adapters(bundle, adapters, folder, read_json(folder / "config.json")["family"]["lora"])


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
    llm_base = family.llm.source is not None and _lacks(loaded, "llm", new_llm)
    if llm_base:
        llm = reach(
            family.llm,
            "model.llm",
            lambda name, options: AutoModelForCausalLM.from_pretrained(
                name,
                trust_remote_code=False,
                config=llm_config,
                dtype=torch.float32,
                attn_implementation=attention,
                use_safetensors=True,
                **options,
            ),
        )
    else:
        llm = new_llm()
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
    family._from_base = {
        name
        for name in model.state_dict()
        if (encoder_base and name.startswith("encoder.")) or (llm_base and name.startswith("llm."))
    }
    return bundle


def _check_grid(config: Any, tokens: int) -> None:
    """Raise ConfigError for language models that cannot go on and on, or have no room for the tokens of a stream."""
    if getattr(config, "rope_parameters", None) is None or config._attn_implementation != "sdpa":
        raise ConfigError(
            f"model.llm: `stream` needs a language model with rotary positions and the attention sdpa; a "
            f"{config.model_type} has not both."
        )
    if tokens > config.vocab_size:
        raise ConfigError(
            f"model.llm: its embeddings have {config.vocab_size} rows and none left for the two tokens of `stream`: "
            "take another language model, or one built from `config`."
        )


def _lacks(loaded: set[str] | None, part: str, make: Any) -> bool:
    """Whether an export that has these weights still needs the base of a part."""
    if loaded is None:
        return True
    with torch.device("meta"):
        skeleton = make()
    return not {f"{part}.{name}" for name in set(skeleton.state_dict()) - tied_copies(skeleton)} <= loaded


def apply_memory_options(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family, model = bundle.family, bundle.model
    if family.dtype == "bfloat16":
        for name in ("encoder", "llm"):
            part = {f"{name}.{n}": p for n, p in model.get_submodule(name).named_parameters() if not is_adapter(n)}
            if any(base_name(n) in family._from_base for n in part) and not any(p.requires_grad for p in part.values()):
                for parameter in part.values():
                    if parameter.is_floating_point():  # others are kept in 8 or 4 bits
                        parameter.data = parameter.data.to(torch.bfloat16)
    set_memory_options(bundle, (model.encoder, model.llm))


def _frozen(name: str, globs: list[str]) -> bool:
    return any(fnmatchcase(name, glob) for glob in globs)


def encoder_geometry(section: EncoderSection, config: Any) -> Geometry:
    """The geometry of the section's encoder with its transformers config."""
    check_streaming(section.streaming, config, "model.encoder.streaming")
    log_mel = section.log_mel or (None if section.streaming is None else "fixed")
    return geometry(config, section.window, normalizes(section, config), log_mel)


def encoder_part(section: EncoderSection, config: Any, loaded: set[str] | None = None) -> tuple[Any, bool]:
    """The encoder of the section (see `adjust`), and whether its weights were read from its base: not where they are
    among those `loaded` afterwards."""
    from_base = section.source is not None and _lacks(loaded, "encoder", lambda: new_encoder(config))
    encoder = load_encoder(section, config) if from_base else new_encoder(config)
    return adjust(encoder, section.source is not None, section.streaming), from_base


def made_tokenizer(section: TokenizerSection, lines: Iterable[str]) -> Any:
    """The tokenizer of the section, made from texts."""
    return characters(lines) if section.type == "characters" else bpe(lines, section.size)


def normalizes(part: Any, config: Any) -> bool | None:
    """Whether a pretrained wave encoder wants normalised audio, where its preprocessor_config.json says so."""
    if part.source is None or config.model_type not in WAVE:
        return None
    from transformers import AutoFeatureExtractor

    try:
        extractor = AutoFeatureExtractor.from_pretrained(
            part.source, trust_remote_code=False, revision=part.revision or "main"
        )
    except (OSError, ValueError):  # no such file: the encoder's config decides
        return None
    return getattr(extractor, "do_normalize", None)


def _tokenizer(family: SpeechLLM, texts: Any) -> Any:
    from transformers import AutoTokenizer

    if family.tokenizer is None:
        return reach(
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


def new_encoder(config: Any) -> nn.Module:
    """An untrained encoder."""
    from transformers import AutoModel

    if config.model_type == "whisper":
        from transformers.models.whisper.modeling_whisper import WhisperEncoder

        config._attn_implementation = "sdpa"
        return WhisperEncoder(config)
    return AutoModel.from_config(config, trust_remote_code=False, dtype=torch.float32)


def load_encoder(section: Any, config: Any, where: str = "model.encoder") -> nn.Module:
    """The encoder of a section's pretrained model, of which `config` is the encoder's."""
    from transformers import AutoModel
    from transformers.models.parakeet.modeling_parakeet import ParakeetEncoder
    from transformers.models.whisper.modeling_whisper import WhisperModel

    def load(name: str, options: dict[str, Any]) -> nn.Module:
        options = {**options, "use_safetensors": True}
        if config.model_type == "whisper":
            return WhisperModel.from_pretrained(name, trust_remote_code=False, dtype=torch.float32, **options).encoder
        if config.model_type == "parakeet_encoder":
            return ParakeetEncoder.from_pretrained(
                name, trust_remote_code=False, config=config, dtype=torch.float32, **options
            )
        return AutoModel.from_pretrained(name, trust_remote_code=False, dtype=torch.float32, **options)

    return reach(section, where, load)
