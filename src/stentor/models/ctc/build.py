"""Building and exporting the family `ctc`: what transformers' AutoModelForCTC and AutoProcessor load by themselves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from stentor.data.atomic_write import follow_umask
from stentor.errors import ConfigError
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.ctc.config import CTCFamily
from stentor.models.ctc.modeling import CTCModel, encoder_of, head_of
from stentor.models.ctc.processor import CTCProcessor
from stentor.models.encoders.encode import adjust
from stentor.models.encoders.geometry import WAVE, LogMel, check_streaming, geometry
from stentor.models.pretrained.builder import PretrainedBuilder
from stentor.models.pretrained.load import load_pretrained, part_config
from stentor.models.pretrained.lora import lora_targets
from stentor.models.pretrained.weights import export_folder, read_json, write_json
from stentor.models.text.spelling import from_transcripts, from_vocabulary

KINDS = (*WAVE, "parakeet_ctc")
SWITCHED_OFF = {"apply_spec_augment": False, "layerdrop": 0.0}
"""Settings that training does without, see `quiet`; an export has them as they were."""


class CTCBundle(Bundle):
    """Counts parameters by the parts of the transformers model."""

    def parts(self) -> dict[str, nn.Module]:
        recogniser: nn.Module = self.model.recogniser
        return {n: m for n, m in recogniser.named_children() if any(True for _ in m.parameters())}


def assemble(family: CTCFamily, alphabet: str | None, make: Callable[[], Any], where: str) -> Bundle:
    """Model and processor, without freezing and LoRA. `make`: returns the tokenizer of a new head."""
    from transformers import AutoModelForCTC

    config = part_config(family, where)
    if config.model_type not in KINDS:
        raise ConfigError(
            f"{where}: models of the kind {config.model_type} are not served by the family ctc; known are "
            f"{', '.join(KINDS)}."
        )
    if config.to_dict().get("add_adapter"):
        raise ConfigError(f"{where}: models with `add_adapter` (convolutions behind the encoder) are not served.")
    has_head = any(name.endswith("ForCTC") for name in config.architectures or ())
    has_tokenizer = family.source is not None and (alphabet == "own" or (alphabet is None and has_head))
    fresh = not has_tokenizer or (family.adapter is not None and family.adapter.new)
    if has_tokenizer and not has_head:
        raise ConfigError(f"{where}: {family.source} has no CTC head: set `model.alphabet: transcripts`.")
    tokenizer = make() if fresh else _tokenizer(family, where)
    inner = config.encoder_config if config.model_type == "parakeet_ctc" else config
    before = quiet(inner)
    if fresh:
        config.vocab_size = len(tokenizer)
        config.pad_token_id = tokenizer.pad_token_id
        config.bos_token_id, config.eos_token_id = tokenizer.bos_token_id, tokenizer.eos_token_id
    if family.source is None:
        recogniser = AutoModelForCTC.from_config(config, trust_remote_code=False, dtype=torch.float32)
    else:
        recogniser = _pretrained(family, config, fresh, where)
    if config.vocab_size < max(tokenizer.get_vocab().values()) + 1 and not fresh:
        raise ConfigError(f"{where}: the tokenizer of {family.source} has more classes than the model's head.")
    extractor = _extractor(family, config)
    check_streaming(family.streaming, inner, f"{where}.streaming")
    log_mel: LogMel | None = None if family.streaming is None else "fixed"
    shape = geometry(inner, normalize=extractor.to_dict().get("do_normalize"), log_mel=log_mel)
    # Batch norms of untrained models keep their first statistics too: an export must be what transformers builds.
    adjust(encoder_of(recogniser), pretrained=True, streaming=family.streaming)
    model = CTCModel(recogniser, shape)
    model.before = before
    processor = CTCProcessor(shape, extractor, tokenizer, model.blank, family.accents)
    processor.streaming = family.streaming
    return CTCBundle(model, processor, family)


def quiet(config: Any) -> dict[str, Any]:
    """Switch off an encoder's own SpecAugment (ours is per item, from the item's seed) and layers that are left out at
    random (they get no gradient, which data-parallel training waits for). Returns what was set."""
    before = {key: value for key, value in config.to_dict().items() if key in SWITCHED_OFF}
    config.update({key: SWITCHED_OFF[key] for key in before})
    return before


def _pretrained(family: CTCFamily, config: Any, fresh: bool, where: str) -> Any:
    from transformers import AutoModelForCTC

    def read(name: str, options: dict[str, Any]) -> Any:
        if family.adapter is not None and not fresh:
            options = {**options, "target_lang": family.adapter.language}
        return AutoModelForCTC.from_pretrained(
            name,
            trust_remote_code=False,
            config=config,
            dtype=torch.float32,
            use_safetensors=True,
            ignore_mismatched_sizes=fresh or family.adapter is not None,
            **options,
        )

    if family.adapter is not None and config.to_dict().get("adapter_attn_dim") is None:
        raise ConfigError(f"model.adapter: {family.source} has no language adapters; they are for MMS models.")
    recogniser = load_pretrained(family, where, read)
    if fresh:
        if family.adapter is not None:
            recogniser.init_adapter_layers()
        head = head_of(recogniser)
        nn.init.normal_(head.weight, std=config.initializer_range)
        nn.init.zeros_(head.bias)
    return recogniser


def _tokenizer(family: CTCFamily, where: str) -> Any:
    from transformers import AutoTokenizer, Wav2Vec2CTCTokenizer

    tokenizer = load_pretrained(
        family, where, lambda name, options: AutoTokenizer.from_pretrained(name, trust_remote_code=False, **options)
    )
    nested = tokenizer.vocab if isinstance(tokenizer, Wav2Vec2CTCTokenizer) else {}
    if not nested or not all(isinstance(v, dict) for v in nested.values()):
        return tokenizer
    language = family.adapter.language if family.adapter is not None else tokenizer.target_lang
    if language not in nested:
        some = ", ".join(sorted(nested)[:10])
        raise ConfigError(
            f"model.adapter.language: {family.source} has no {language}; it has {len(nested)} languages, such as "
            f"{some}. For another one set `new: true`."
        )
    return from_vocabulary(nested[language])


def _extractor(family: CTCFamily, config: Any) -> Any:
    """The model's own feature extractor; of models without one that which transformers gives their kind."""
    from transformers import AutoFeatureExtractor, ParakeetFeatureExtractor, Wav2Vec2FeatureExtractor

    if family.source is not None:
        try:
            options = {"revision": family.revision} if family.revision else {}
            return AutoFeatureExtractor.from_pretrained(family.source, trust_remote_code=False, **options)
        except (OSError, ValueError):  # it holds none
            pass
    if config.model_type == "parakeet_ctc":
        return ParakeetFeatureExtractor(feature_size=config.encoder_config.num_mel_bins)
    layer_norm = config.to_dict().get("feat_extract_norm", "layer") == "layer"
    return Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=layer_norm)


class RecogniserBuilder(PretrainedBuilder):
    """Models that are a `recogniser` of transformers with settings that training does without."""

    inside = "recogniser"

    def write_whole(self, bundle: Bundle, weights: dict[str, Tensor], folder: Path) -> None:
        bundle.model.recogniser.save_pretrained(folder, state_dict=weights, max_shard_size="5GB")
        follow_umask(*folder.glob("model*.safetensors"))

    def write_configs(self, bundle: Bundle, folder: Path) -> None:
        """Write the config.json with the settings that training did without."""
        file = folder / "config.json"
        bundle.model.recogniser.config.save_pretrained(folder)
        config = read_json(file)
        config.get("encoder_config", config).update(bundle.model.before)
        write_json(file, config)

    def facts(self, bundle: Bundle, to_base: bool) -> dict[str, Any]:
        streaming = bundle.family.streaming
        return {} if streaming is None else {"streaming": streaming.model_dump(mode="json")}


class CTCBuilder(RecogniserBuilder):
    """LoRA adapters are always folded in: the head is trained with them, mostly with an alphabet of its own, so that a
    folder of adapters would fit no base as it is, and encoders of this kind are small enough (95 M to 1.1 B parameters)
    for everybody to load the export by itself."""

    def new(self, family: CTCFamily, requirements: TaskRequirements) -> Bundle:
        if requirements.terms != ("ctc",):
            raise ConfigError(
                "A model of type ctc is trained with one loss term named `ctc`, not "
                f"{', '.join(requirements.terms) or 'none'}: write `losses: {{ctc: ctc}}`."
            )
        texts, resumed = requirements.texts or (lambda: ()), requirements.resumed_export

        def make() -> Any:
            if resumed is None:
                return from_transcripts(texts(), family.accents)
            return _tokenizer(CTCFamily(source=str(resumed)), "model")

        if family.init is not None:  # an export: its alphabet and its adapter are its own
            own = {"source": family.init, "config": None, "revision": None, "adapter": None}
            export_folder(family.init)
            bundle = assemble(family.model_copy(update=own), "own", make, "model.init")
        else:
            bundle = assemble(family, family.alphabet, make, "model")
        bundle.family = family
        if family.adapter is not None and family.adapter.only:
            for name, parameter in bundle.model.recogniser.named_parameters():
                parameter.requires_grad_("adapter_layer." in name or name.startswith("lm_head."))
        return bundle

    def open(self, family: CTCFamily, folder: Path, facts: dict[str, Any]) -> Bundle:
        return assemble(family, "own", lambda: (), "model")

    def lora(self, bundle: Bundle) -> Any:
        """The section with its targets. Raises ConfigError for layers whose weights are read past an adapter."""
        section, recogniser = bundle.family.lora, bundle.model
        if section is None:
            return None
        wavlm = recogniser.config.model_type == "wavlm"
        usual = ["*.intermediate_dense", "*.output_dense"] if wavlm else ["*.q_proj", "*.v_proj"]
        targets = section.targets or usual
        attention = ("q_proj", "k_proj", "v_proj", "out_proj")
        if wavlm and (past := [n for n in lora_targets(recogniser, targets) if n.endswith(attention)]):
            raise ConfigError(
                f"model.lora.targets: WavLM reads the weights of {past[0]} past any adapter, so it would learn "
                f"nothing; use {' and '.join(usual)}."
            )
        return section.model_copy(update={"targets": targets})

    def apply_memory_options(self, bundle: Bundle) -> None:
        model, family = bundle.model, bundle.family
        if family.gradient_checkpointing:
            model.recogniser.gradient_checkpointing_enable({"use_reentrant": False})
        layers = model.encoder.layers if model.shape.kind == "mel" else model.encoder.encoder.layers
        if model.shape.kind == "wave":
            front = model.encoder.feature_extractor
            if not any(p.requires_grad for p in front.parameters()):
                front._freeze_parameters()  # it would ask for gradients of the audio
        bundle.part_layers = tuple(sorted({type(layer).__name__ for layer in layers}))
        model.train()


builder = CTCBuilder()
