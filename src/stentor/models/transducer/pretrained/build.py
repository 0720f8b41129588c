"""Building and exporting transformers' transducers: what its AutoModelForTDT, AutoModelForRNNT and AutoProcessor load,
and stentor.json with what only Stentor knows, such as how confidences are calibrated. With LoRA on an untouched `from`,
PEFT's files instead of the weights, and the family section and the commit of the base in stentor.json. Parts that are
trained in addition to adapters, such as the predictor, are saved with them (PEFT's `modules_to_save`)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from stentor.errors import ConfigError
from stentor.models.base import Bundle, Origin, TaskRequirements
from stentor.models.ctc.build import CTCBundle, RecogniserBuilder, quiet
from stentor.models.encoders.encode import adjust
from stentor.models.encoders.geometry import Geometry, check_streaming
from stentor.models.encoders.streaming.chunks import KnownChunks
from stentor.models.pretrained.load import load_pretrained, part_config, set_memory_options
from stentor.models.pretrained.lora import is_adapter
from stentor.models.pretrained.weights import ADAPTER_FILE, add_trained, export_folder, read_section, read_weights
from stentor.models.text.spelling import plain
from stentor.models.text.tokenizers import TokenizerSection, made_tokenizer
from stentor.models.transducer.config import KINDS, TransducerFamily, TransducerKind
from stentor.models.transducer.pretrained.modeling import PretrainedTransducer
from stentor.models.transducer.pretrained.processor import BLANK, PretrainedProcessor

DURATION_SHIFT = 15.0
"""By how much the logits of durations begin below those of tokens."""


class TransducerBuilder(RecogniserBuilder):
    """stentor.json holds everything that our model adds to transformers' `recogniser`."""

    def new(self, family: TransducerFamily, requirements: TaskRequirements) -> Bundle:
        texts, resumed = requirements.texts or (lambda: ()), requirements.resumed_export

        def make(section: TokenizerSection) -> Any:
            from transformers import AutoTokenizer

            if resumed is not None:
                return AutoTokenizer.from_pretrained(resumed, trust_remote_code=False)
            return new_tokenizer(section, map(plain, texts()) if family.accents == "strip" else texts())

        base = family
        if family.init is not None:  # an export: its tokenizer is its own
            nothing = dict.fromkeys(("config", "revision", "tokenizer"))
            base = family.model_copy(update={"source": str(export_folder(family.init)), **nothing})
        bundle = assemble(base, make, "model" if family.init is None else "model.init")
        term = bundle.model.term
        if set(requirements.terms) != {term}:
            raise ConfigError(
                f"A {bundle.model.recogniser.config.model_type} is trained with one loss term named `{term}`, not "
                f"{', '.join(requirements.terms) or 'none'}: write `losses: {{{term}: {term}}}`."
            )
        if base is not family:
            bundle.family, bundle.origin = family, Origin()
        return bundle

    def open(self, family: TransducerFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        bundle = assemble(family, lambda section: new_tokenizer(section, ()), "model")
        buffers = bundle.model.state_dict().keys() & facts.keys()
        bundle.model.load_state_dict({name: torch.tensor(facts[name]) for name in buffers}, strict=False)
        return bundle

    def apply_memory_options(self, bundle: Bundle) -> None:
        set_memory_options(bundle, (bundle.model.recogniser.encoder,))

    def trained_modules(self, model: Any) -> set[str]:
        trained = (n for n, p in model.named_parameters() if p.requires_grad and not is_adapter(n))
        return {name.rpartition(".")[0] for name in trained}

    def left_to_base(self, bundle: Bundle) -> bool:
        """See `PretrainedBuilder.left_to_base`. An encoder that is trained without adapters has parameters in addition
        to modules, which PEFT cannot keep."""
        trained = self.trained_modules(bundle.model.recogniser)
        return super().left_to_base(bundle) and not any(path.startswith("encoder.") for path in trained)

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        bundle.model.recogniser.generation_config.save_pretrained(folder)
        super().write_configs(bundle, folder)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        section = bundle.family.model_dump(mode="json", by_alias=True)
        of_base = {"family": section, "commit": bundle.origin.commit} if to_base else {}
        return of_base | super().facts(bundle, to_base)


def assemble(family: TransducerFamily, make: Callable[[TokenizerSection], Any], where: str) -> Bundle:
    """Model and processor, without freezing and adapters; those of an export are folded in. A model from a config, and
    one whose section has a `tokenizer`, gets the tokenizer that `make` returns for this section."""
    import transformers

    if family.source is not None and (Path(family.source) / ADAPTER_FILE).is_file():
        folder = Path(family.source)
        if family.tokenizer is not None:
            raise ConfigError(
                f"{where}.tokenizer: {folder} holds adapters for another one: write the model with `stentor export "
                "--merge` and start from that."
            )
        bundle = assemble(read_section(TransducerFamily, folder)[0], make, where)
        inner = Bundle(bundle.model.recogniser, bundle.processor, bundle.family, origin=bundle.origin)
        add_trained(inner, read_weights(folder)[1], folder, apart=False)
        bundle.family, bundle.origin = family, Origin()
        return bundle
    config = part_config(family, where)
    kind = KINDS.of(
        config.model_type,
        f"{where}: models of the kind {config.model_type} are not served by the family transducer; known are "
        "{known}. Another encoder goes under `model.encoder`.",
    )
    hf = None if family.source is None else _pretrained_processor(family, kind, where)
    fresh = hf is None or family.tokenizer is not None
    if fresh:
        hf = _new_processor(kind, config, hf, make(family.tokenizer or TokenizerSection()))
        config.vocab_size, config.pad_token_id = len(hf.tokenizer), hf.tokenizer.pad_token_id
        config.blank_token_id = hf.tokenizer.convert_tokens_to_ids(BLANK)
    before = quiet(config.encoder_config)
    auto = getattr(transformers, f"AutoModelFor{kind.head}")
    if family.source is None:
        recogniser = auto.from_config(config, trust_remote_code=False, dtype=torch.float32)
    else:
        options = {"config": config, "dtype": torch.float32, "use_safetensors": True, "ignore_mismatched_sizes": fresh}
        recogniser = load_pretrained(
            family, where, lambda name, at: auto.from_pretrained(name, trust_remote_code=False, **options, **at)
        )
    if fresh:
        # transformers' generate takes the best of all logits: those of durations, on their own scale, must be low.
        recogniser.joint.head.bias.data[config.vocab_size :] -= DURATION_SHIFT
    recogniser.generation_config.decoder_start_token_id = config.blank_token_id
    check_streaming(family.streaming, config.encoder_config, f"{where}.streaming")
    adjust(recogniser.encoder, pretrained=True, streaming=family.streaming)
    shape = _geometry(config.encoder_config, kind)
    model = PretrainedTransducer(recogniser, kind, 1 / shape.frame_rate)
    model.before = before
    processor = PretrainedProcessor(hf, shape, kind, family.accents == "strip")
    if family.streaming is not None:
        processor.streaming = family.streaming
        model.shape = processor.shape = replace(shape, log_mel="fixed")
    elif kind.causal and not processor.prompts:
        processor.streaming = _known_chunks(hf, config.encoder_config, model.frame_seconds)
    origin = Origin() if fresh else Origin(set(recogniser.state_dict()), vars(config).get("_commit_hash"))
    return CTCBundle(model, processor, family, origin=origin)


def new_tokenizer(section: TokenizerSection, texts: Any) -> Any:
    """The section's tokenizer, made from texts, as transformers' processors of these models take it, with the blank as
    the last class."""
    from transformers import ParakeetTokenizer

    tokens = made_tokenizer(section, texts)
    names = {name: getattr(tokens, name) for name in ("pad_token", "bos_token", "eos_token", "unk_token")}
    tokenizer = ParakeetTokenizer(tokenizer_object=tokens.backend_tokenizer, **names)
    tokenizer.add_special_tokens({"additional_special_tokens": [BLANK]})
    return tokenizer


def _pretrained_processor(family: TransducerFamily, kind: TransducerKind, where: str) -> Any:
    import transformers

    processor_class = getattr(transformers, f"{kind.processor}Processor")
    return load_pretrained(
        family, where, lambda name, at: processor_class.from_pretrained(name, trust_remote_code=False, **at)
    )


def _new_processor(kind: TransducerKind, config: Any, base: Any, tokenizer: Any) -> Any:
    """A processor with this tokenizer and the extractor of `base`, a new one without."""
    import transformers

    extractor = getattr(transformers, f"{kind.extractor}FeatureExtractor")
    mels = extractor(feature_size=config.encoder_config.num_mel_bins) if base is None else base.feature_extractor
    return getattr(transformers, f"{kind.processor}Processor")(mels, tokenizer, **kind.options)


def _known_chunks(hf: Any, config: Any, frame_seconds: float) -> KnownChunks:
    """The chunks of a streaming Nemotron: its processor knows how many frames beyond its own one sees at most."""
    usual = config.default_num_lookahead_tokens
    lengths = sorted({usual, *hf.supported_num_lookahead_tokens})
    seconds = tuple(round((frames + 1) * frame_seconds, 4) for frames in (usual, *lengths))
    return KnownChunks(seconds[1:], seconds[0], (config.sliding_window - 1) * frame_seconds)


def _geometry(config: Any, kind: TransducerKind) -> Geometry:
    kernel, stride = config.subsampling_conv_kernel_size, config.subsampling_conv_stride
    # A causal convolution, padded with kernel - 1 frames before and stride - 1 after, gives as many frames as this one.
    conv = (stride, stride, stride - 1) if kind.causal else (kernel, stride, (kernel - 1) // 2)
    layers = config.subsampling_factor.bit_length() - 1
    return Geometry("mel", (conv,) * layers, mels=config.num_mel_bins, max_frames=config.max_position_embeddings)
