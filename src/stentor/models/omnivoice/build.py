"""Building an OmniVoice model: backbone, tokenizer, codec, adapters, freezing."""

import contextlib
import hashlib
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoTokenizer

from stentor.audio.synth import phonemes
from stentor.data.codec_tokens import has_codes
from stentor.data.cut import field_of
from stentor.data.load_audio import load_audio
from stentor.data.speaking_rate import fit_speaking_rate
from stentor.errors import AudioError, ConfigError
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.codec_processor import check_codec, check_terms
from stentor.models.codecs.base import INSIDE, AudioCodec, at_peak, open_codec
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.omnivoice.export import initialise, read
from stentor.models.omnivoice.modeling import OmniVoiceModel
from stentor.models.omnivoice.parts import (
    CODEBOOKS,
    ENTRIES,
    backbone,
    backbone_config,
    base,
    base_model,
    bundle_of,
    download,
    finish,
    make_bidirectional,
    resize,
    tokenizer_of,
)
from stentor.models.omnivoice.processor import OmniVoiceProcessor
from stentor.models.omnivoice.text import ABSENT, add_special
from stentor.models.packing import flex
from stentor.models.pretrained.load import part_config
from stentor.models.pretrained.lora import adapt
from stentor.models.pretrained.weights import SECTION_FILE, export_folder, load_adapters, read_json
from stentor.models.text.tokenizers import made_tokenizer

FIT_SECONDS = 3600.0
"""Audio that a codec is fitted on at most."""
MOST_INSTRUCTS = 1000
"""Most different values of `instruct` that are stored."""


def build(family: OmniVoice, requirements: TaskRequirements) -> Bundle:
    """Return a model ready to train, with bases, tokenizer, codec, `init`, adapters and frozen parameters."""
    check_terms(family.type, requirements, "codebook")
    before = export_folder(family.init) if family.init else None
    if family.source is not None:
        bundle = read(family, download(family), "model.from")
    else:
        bundle = new(family, requirements, requirements.resumed_export or before)
    processor: Any = bundle.processor
    processor.instruct_from = requirements.instruct_from
    if family.source is not None:
        processor.codec = codec_override(family, processor.codec)
    check_codec(processor.codec, processor.codebooks, processor.vocabulary, "model.codec")
    bundle.model.weights = requirements.codebook_weights or bundle.model.weights  # type: ignore[assignment]
    require_codec(processor, requirements)
    if family.source is None and requirements.cuts is not None:
        processor.pace = fit_speaking_rate(requirements.cuts())
    note_training(family, processor, requirements, before)
    adapters = initialise(bundle, before) if before else {}
    adapt(bundle.model, family.lora, family.freeze)
    if adapters:
        load_adapters(bundle.model, adapters)
    finish(bundle)
    return bundle


def note_training(
    family: OmniVoice, processor: OmniVoiceProcessor, requirements: TaskRequirements, before: Path | None
) -> None:
    """Set the processor's `letters` (letters, digits and full stops; None for phonemes) and `instructs` (None for more
    than `MOST_INSTRUCTS`) to those of the training records and of those that the model `before`, or of `from`, was
    trained on. None where these are not known."""
    facts: dict[str, Any] = {"letters": "", "instructs": ()}
    if before is not None:
        facts = read_json(before / SECTION_FILE) if (before / SECTION_FILE).is_file() else {}
    elif family.source is not None:
        facts = {"letters": processor.letters, "instructs": processor.instructs}
    processor.letters = processor.instructs = None
    if requirements.cuts is None or not requirements.complete:
        return
    if (letters := facts.get("letters")) is not None and not processor.phonemes:
        keys = ("text", "text_pinyin")
        texts = (str(value) for cut in requirements.cuts() for key in keys if (value := field_of(cut, key)))
        known = {c for text in texts for c in text if c.isalnum() or c in ".。"}.union(letters)
        processor.letters = "".join(sorted(known))
    if (instructs := facts.get("instructs")) is not None:
        fields = [key for key in ("instruct", requirements.instruct_from) if key]
        values = (next(filter(None, (field_of(cut, key) for key in fields)), None) for cut in requirements.cuts())
        told = {str(value) for value in values if value is not None}.union(instructs)
        processor.instructs = sorted(told) if len(told) <= MOST_INSTRUCTS else None


def require_codec(processor: OmniVoiceProcessor, requirements: TaskRequirements) -> None:
    """Raises ConfigError when the training data is audio that nothing can encode."""
    first = next(iter(requirements.cuts()), None) if requirements.cuts is not None else None
    if first is not None and processor.codec is None and not has_codes(first):
        missing = processor.codec_missing or (
            "there is no codec to make tokens of it: set `model.codec`, such as `{type: mel_rvq}`, or train on token "
            "shards (`stentor prepare tokens`)."
        )
        raise ConfigError(f"model.codec: the training data is audio, and {missing}")


def new(family: OmniVoice, requirements: TaskRequirements, before: Path | None) -> Bundle:
    """A model with the backbone of `llm` and untrained audio embeddings and heads."""
    assert family.llm is not None
    part = family.llm
    config = backbone_config(part_config(part, "model.llm"), family, "model.llm")
    if family.text is None:
        tokenizer = base(part, AutoTokenizer)
    elif before is not None:  # the weights have a row for each of its tokens
        tokenizer = tokenizer_of(before, config)
    else:
        tokenizer = train_tokenizer(family, requirements)
    add_special(tokenizer)
    if family.text is not None:
        config.vocab_size = len(tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    codec = codec_of(family, requirements, before)
    codebooks = family.codebooks or (codec.codebooks if codec else CODEBOOKS)
    entries = family.entries or (codec.require_tokens() if codec else ENTRIES)
    if part.source is None:
        llm = backbone(config, "model.llm")
    else:
        llm = base_model(part, config=config, attn_implementation=flex.NAME)
    make_bidirectional(llm, "model.llm")
    model = OmniVoiceModel(llm, codebooks, entries + 1, entries)
    bundle = bundle_of(family, model, tokenizer, codec)
    if family.text is not None:
        bundle.processor.phonemes = family.text.phonemes  # type: ignore[attr-defined]
    if part.source is not None:
        names = {n for n in model.state_dict() if n.startswith("llm.")}
        bundle.origin = Origin(names, vars(config).get("_commit_hash"))
        resize(bundle)
    return bundle


# Tokenizer and codec, from the training data


def train_tokenizer(family: OmniVoice, requirements: TaskRequirements) -> Any:
    """A tokenizer with what the training texts, and their languages and instructs, are written with."""
    assert family.text is not None
    voice = family.text.phonemes

    def lines() -> Iterator[str]:
        yield ABSENT
        texts = requirements.texts() if requirements.texts is not None else ()
        yield from (phonemes(text, voice) for text in texts) if voice else texts
        if voice:  # names of later voices
            yield string.ascii_letters + string.digits
        yield from styles(requirements)

    return made_tokenizer(family.text, lines())


def styles(requirements: TaskRequirements) -> Iterator[str]:
    """Languages, instructs and texts with pinyin of the training records."""
    keys = ["language", "instruct", "text_pinyin"]
    if requirements.instruct_from:
        keys.append(requirements.instruct_from)
    for cut in requirements.cuts() if requirements.cuts is not None else ():
        yield from (str(value) for key in keys if (value := field_of(cut, key)) not in (None, ""))


def codec_of(family: Any, requirements: TaskRequirements, before: Path | None) -> AudioCodec | None:
    """The codec of the section `codec`: opened, that of an earlier stage, or fitted on the training audio. None where
    there is no such section."""
    section = family.codec
    if section is None:
        return open_codec(str(before / INSIDE)) if before is not None and (before / INSIDE).is_dir() else None
    if section.source is None and section.fits:
        if before is not None and (before / INSIDE).is_dir():
            return open_codec(str(before / INSIDE))
        if before is not None:
            raise ConfigError(
                f"model.codec: {before} has no {INSIDE} folder, and a new {section.type} would give codes that it was "
                "not trained on: give the folder of its codec as `from`."
            )
        with one_thread():  # sums in one order: the same codec on each process, and when the run is resumed
            return section.fit(training_audio(section.type, section.rate, requirements))  # type: ignore[no-any-return]
    return section.open()


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """Inside, torch computes on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def codec_override(family: Any, codec: AudioCodec | None) -> AudioCodec | None:
    """The codec of a model of `from`: that of the section `codec`, or its own. Raises ConfigError for one that would be
    fitted: its codes would mean something else."""
    section = family.codec
    if section is None or (
        section.source is None and section.fits and codec is not None and codec.type == section.type
    ):
        return codec
    if section.source is None and section.fits:
        raise ConfigError(
            f"model.codec: a new {section.type} would give codes that the model of `from` was not trained on: leave it "
            "out, or give the folder of the model's codec as `from`."
        )
    return section.open()


def training_audio(codec: str, rate: int, requirements: TaskRequirements) -> Iterator[np.ndarray]:
    """Audio at a rate for a type of codec, of at most `FIT_SECONDS` of the training records, in an order that is theirs
    alone. Raises ConfigError where there is none."""
    cuts = list(requirements.cuts() if requirements.cuts is not None else ())
    tokens = sum(map(has_codes, cuts))
    if 0 < tokens < len(cuts):
        raise ConfigError(
            f"model.codec: {tokens:,} training records are codec tokens already, which a {codec} that is fitted "
            "on the others would not know: give the folder of their codec as `from`."
        )
    cuts = cuts if not tokens else []
    seconds = 0.0
    for cut in sorted(cuts, key=lambda cut: hashlib.blake2b(cut.id.encode(), digest_size=8).digest()):
        try:
            audio = load_audio(cut, rate)
        except AudioError:  # counted where it is read for training
            continue
        if len(audio) >= rate // 10:
            seconds += cut.duration
            yield at_peak(audio)
        if seconds >= FIT_SECONDS:
            return
    if not seconds:
        raise ConfigError(
            f"model.codec: {codec} is fitted on training audio, and there is none: give `from`, the folder of a "
            "codec made by `stentor prepare codec DATA --to FOLDER`."
        )
