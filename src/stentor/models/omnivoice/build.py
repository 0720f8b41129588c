"""Building an OmniVoice model: backbone, tokenizer, codec, adapters, freezing."""

import contextlib
import hashlib
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from transformers import AutoModel, AutoTokenizer

from stentor.audio.synth import phonemes
from stentor.data.codec_tokens import has_codes
from stentor.data.cut import field_of
from stentor.data.load_audio import load_audio
from stentor.data.speaking_rate import fit_speaking_rate
from stentor.errors import AudioError, ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.codec_processor import check_codec, check_terms
from stentor.models.codecs.base import INSIDE, AudioCodec, at_peak, open_codec
from stentor.models.codecs.higgs_audio_v2 import HiggsAudioV2
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.omnivoice.modeling import OmniVoiceModel
from stentor.models.omnivoice.processor import OmniVoiceProcessor
from stentor.models.omnivoice.text import ABSENT, add_special
from stentor.models.packing import flex, items
from stentor.models.pretrained.load import part_config, reach, set_memory_options
from stentor.models.pretrained.lora import adapt, is_adapter
from stentor.models.pretrained.weights import SECTION_FILE, check_weights, export_folder, load_adapters, read_json
from stentor.models.text.tokenizers import bpe, characters

FIT_SECONDS = 3600.0
"""Audio that a codec is fitted on at most."""
MOST_INSTRUCTS = 1000
"""That are written down."""
CODEBOOKS, ENTRIES = 8, 1024
"""Of OmniVoice's codec."""


def build(family: OmniVoice, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: bases loaded, tokenizer and codec made, `init` applied, adapters added, parameters
    frozen."""
    from stentor.models.omnivoice.export import initialise, read

    check_terms(family.type, requirements, "codebook")
    before = export_folder(family.init) if family.init else None
    if family.source is not None:
        bundle = read(family, download(family), "model.from")
    else:
        bundle = new(family, requirements, before)
    processor: Any = bundle.processor
    processor.instruct_from = requirements.instruct_from
    if family.source is not None:
        processor.codec = codec_override(family, processor.codec)
    check_codec(processor.codec, processor.codebooks, processor.vocabulary, "model.codec")
    bundle.model.weights = requirements.codebook_weights or bundle.model.weights  # type: ignore[assignment]
    require_codec(processor, requirements)
    if family.source is None and requirements.cuts is not None:
        processor.pace = fit_speaking_rate(requirements.cuts())
    processor.letters = learned_letters(family, processor, requirements, before)
    processor.instructs = learned_instructs(family, processor, requirements, before)
    adapters = initialise(bundle, before) if before else {}
    adapt(bundle.model, family.lora, family.freeze)
    if adapters:
        load_adapters(bundle.model, adapters)
    finish(bundle)
    return bundle


def learned_letters(
    family: OmniVoice, processor: OmniVoiceProcessor, requirements: TaskRequirements, before: Path | None
) -> str | None:
    """Letters, digits and full stops of the training texts and of those that the model `before`, or of `from`, was
    trained on. None where that is not known, and for phonemes."""
    if processor.phonemes:
        return None
    known = _known_before("letters", family, processor, before)
    if known is None or requirements.cuts is None or not requirements.complete:
        return None
    keys = ("text", "text_pinyin")
    texts = (str(value) for cut in requirements.cuts() for key in keys if (value := field_of(cut, key)))
    return "".join(sorted({c for text in texts for c in text if c.isalnum() or c in ".。"}.union(known)))


def learned_instructs(
    family: OmniVoice, processor: OmniVoiceProcessor, requirements: TaskRequirements, before: Path | None
) -> list[str] | None:
    """The same of what the records have as `instruct`; None also for more than `MOST_INSTRUCTS`."""
    known = _known_before("instructs", family, processor, before)
    if known is None or requirements.cuts is None or not requirements.complete:
        return None
    keys = [key for key in ("instruct", requirements.instruct_from) if key]
    values = (next(filter(None, (field_of(cut, key) for key in keys)), None) for cut in requirements.cuts())
    instructs = {str(value) for value in values if value is not None}.union(known)
    return sorted(instructs) if len(instructs) <= MOST_INSTRUCTS else None


def _known_before(key: str, family: OmniVoice, processor: OmniVoiceProcessor, before: Path | None) -> Any:
    """What is known of the training of the model that this one begins from; empty where there is none."""
    if before is None:
        return getattr(processor, key) if family.source is not None else ()
    return read_json(before / SECTION_FILE).get(key) if (before / SECTION_FILE).is_file() else None


def require_codec(processor: OmniVoiceProcessor, requirements: TaskRequirements) -> None:
    """Raises ConfigError when the training data is audio that nothing can encode."""
    first = next(iter(requirements.cuts()), None) if requirements.cuts is not None else None
    if first is not None and processor.codec is None and not has_codes(first):
        missing = processor.codec_missing or (
            "there is no codec to make tokens of it: set `model.codec`, such as `{type: mel_rvq}`, or train on token "
            "shards (`stentor prepare tokens`)."
        )
        raise ConfigError(f"model.codec: the training data is audio, and {missing}")


# Parts


def download(family: OmniVoice) -> Path:
    """The folder of `from`, downloaded when it is a Hub id."""
    from huggingface_hub import snapshot_download

    def load(name: str, options: dict[str, Any]) -> Path:
        if Path(name).is_dir():
            return Path(name)
        return Path(snapshot_download(name, allow_patterns=["*.json", "*.safetensors", "*.txt", "*.model"], **options))

    return reach(family, "model", load)  # type: ignore[no-any-return]


def new(family: OmniVoice, requirements: TaskRequirements, before: Path | None) -> Bundle:
    """A model with the backbone of `llm` and untrained audio embeddings and heads."""
    assert family.llm is not None
    part = family.llm
    config = backbone_config(part_config(part, "model.llm"), family, "model.llm")
    if family.text is None:
        tokenizer = reach(
            part,
            "model.llm",
            lambda name, options: AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options),
        )
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
        load_options = {"config": config, "dtype": torch.float32, "use_safetensors": True}
        load_options["attn_implementation"] = flex.NAME
        llm = reach(
            part,
            "model.llm",
            lambda name, options: AutoModel.from_pretrained(name, trust_remote_code=False, **load_options, **options),
        )
    make_bidirectional(llm, "model.llm")
    model = OmniVoiceModel(llm, codebooks, entries + 1, entries)
    bundle = bundle_of(family, model, tokenizer, codec)
    if family.text is not None:
        bundle.processor.phonemes = family.text.phonemes  # type: ignore[attr-defined]
    if part.source is not None:
        family._from_base = {n for n in model.state_dict() if n.startswith("llm.")}
        family._commit = getattr(config, "_commit_hash", None)
        resize(bundle)
    return bundle


def tokenizer_of(folder: Path, config: Any) -> Any:
    """The tokenizer of a model's folder; `config` is that of its backbone, as transformers knows no type omnivoice."""
    return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, config=config)


def bundle_of(family: OmniVoice, model: OmniVoiceModel, tokenizer: Any, codec: AudioCodec | None) -> Bundle:
    """The model with its processor."""
    processor: Any = OmniVoiceProcessor(tokenizer, model.codebooks, model.vocabulary - 1, model.mask_id, codec)
    processor.flex = family.attention == "flex"
    return Bundle(model, processor, family, codebooks=model.codebooks)


def resize(bundle: Bundle) -> None:
    """Give the text embeddings a row for each token, as OmniVoice does: rows that no token has are dropped, new ones
    start at random."""
    model: Any = bundle.model
    table = model.llm.get_input_embeddings()
    rows, size = len(table.weight), len(bundle.processor.tokenizer)  # type: ignore[attr-defined]
    if rows == size:
        return
    model.llm.resize_token_embeddings(size, mean_resizing=False)
    if size > rows:
        table = model.llm.get_input_embeddings()
        nn.init.normal_(table.weight.data[rows:], std=getattr(model.llm.config, "initializer_range", 0.02))
        bundle.family._from_base.discard("llm.embed_tokens.weight")  # type: ignore[attr-defined]


def backbone_config(config: Any, family: OmniVoice, key: str) -> Any:
    """A backbone's config without its causal mask. Raises ConfigError for backbones that cannot do without."""
    config = config.get_text_config()
    if kind := flex.partial(config):
        raise ConfigError(
            f"{key}: {config.model_type} has layers of the kind `{kind}`, which do not see all of an utterance: take "
            "a backbone whose layers all have full attention, such as qwen3, llama or gemma."
        )
    if family.attention == "flex":
        flex.check(config, "model.attention")
    return config


def backbone(config: Any, key: str) -> nn.Module:
    """An untrained backbone."""
    try:
        return AutoModel.from_config(
            config, trust_remote_code=False, attn_implementation=flex.NAME, dtype=torch.float32
        )
    except ValueError as error:  # sizes that do not go together, no such attention
        raise ConfigError(f"{key}: {' '.join(str(error).split()).partition('. ')[0]}.") from error


@torch.no_grad()
def make_bidirectional(llm: Any, key: str) -> None:
    """Take the causal mask from a decoder, and try on two short items that each position then sees all of its item and
    nothing of the other. Raises ConfigError for a decoder that cannot."""
    check_weights(llm.named_parameters(), key)
    config = llm.config
    config.is_causal = False
    for module in llm.modules():
        if hasattr(module, "is_causal"):
            module.is_causal = False
    training = llm.training
    llm.eval()
    rows = llm.get_input_embeddings().weight
    embeds = torch.randn(1, 6, rows.shape[1], generator=torch.Generator().manual_seed(0)).to(rows)
    two_items = items.table(torch.tensor([0, 0, 0, 1, 1, 1]))
    layout = {"attention_mask": two_items, "position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}
    changed = embeds.clone()
    changed[0, 2] = -embeds[0, 2]

    def outputs(embeds: torch.Tensor, **layout: Any) -> torch.Tensor:
        try:
            return llm(inputs_embeds=embeds, use_cache=False, **layout).last_hidden_state[0].float()
        except (TypeError, ValueError, RuntimeError, AttributeError, KeyError):
            return embeds.new_zeros(6, 1).float()  # takes no such mask: changes nothing below

    packed = (outputs(embeds, **layout) - outputs(changed, **layout)).abs().amax(-1)
    alone = (outputs(embeds[:, :3]) - outputs(changed[:, :3])).abs().amax(-1)
    llm.train(training)
    tolerance = 1e-4 * packed.max()  # experts, for one, round a little differently with other items beside them
    if not (packed[0] > tolerance and packed[3:].max() < tolerance and alone[0] > tolerance):
        raise ConfigError(
            f"{key}: the attention of {config.model_type} cannot be made bidirectional (its layers only look back, "
            "or take no mask): take a decoder with plain attention, such as qwen3, llama or gemma."
        )


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

    return characters(lines()) if family.text.type == "characters" else bpe(lines(), family.text.size)


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
        if family._codec is None:
            with one_thread():  # sums in one order: the same codec on each process, and when the run is resumed
                family._codec = section.fit(training_audio(section.type, section.rate, requirements))
        return family._codec
    return section.open()


def usual_codec(bundle: Bundle, folder: Path) -> None:
    """Give a checkpoint that OmniVoice's own training wrote, which has no codec beside it, the published one, as
    OmniVoice does. Where that cannot be had, the processor's `codec_missing` says why."""
    processor: Any = bundle.processor
    if (folder / SECTION_FILE).is_file() or (processor.codebooks, processor.vocabulary) != (CODEBOOKS, ENTRIES):
        return
    try:
        processor.codec = HiggsAudioV2().open()
    except ConfigError as error:
        reason = str(error).partition(": ")[2]
        processor.codec_missing = f"{folder / INSIDE} is not there, and {reason}"


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


def finish(bundle: Bundle) -> None:
    """Storage and memory options, after adapters and freezing."""
    family: Any = bundle.family
    model: Any = bundle.model
    backbone = {n: p for n, p in model.llm.named_parameters() if not is_adapter(n)}
    if family.dtype == "bfloat16" and not any(p.requires_grad for p in backbone.values()) and family._from_base:
        for parameter in backbone.values():
            parameter.data = parameter.data.to(torch.bfloat16)
    set_memory_options(bundle, (model.llm,))
