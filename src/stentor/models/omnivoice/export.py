"""Exports of OmniVoice: published checkpoints and exports, which have the same layout.

config.json                  as published: model_type omnivoice, audio_vocab_size, audio_mask_id, num_audio_codebook,
                             audio_codebook_weights, llm_config
model.safetensors            all weights (sharded above 5 GB); with adapters those that no base has
adapter_model.safetensors    LoRA adapters and, whole, audio embeddings and heads (`modules_to_save`), named as by PEFT
tokenizer.json ...           the text tokenizer with the special tokens
audio_tokenizer/             the codec
stentor.json                 the family section and the commit of the base
"""

import json
import logging
from pathlib import Path
from typing import Any

from torch import Tensor
from transformers import AutoConfig
from transformers.initialization import no_init_weights

from stentor.data.speaking_rate import SpeakingRate
from stentor.errors import ConfigError
from stentor.losses.codebook import default_weights
from stentor.models.base import Bundle
from stentor.models.codec_processor import check_codec
from stentor.models.codecs.base import INSIDE, open_codec
from stentor.models.omnivoice.config import OmniVoice
from stentor.models.omnivoice.modeling import OmniVoiceModel
from stentor.models.omnivoice.parts import (
    backbone,
    backbone_config,
    base_model,
    bundle_of,
    download,
    finish,
    make_bidirectional,
    resize,
    tokenizer_of,
    usual_codec,
)
from stentor.models.omnivoice.text import SPECIAL
from stentor.models.pretrained.load import NotAtHand
from stentor.models.pretrained.lora import ADAPTER, base_name, freeze_parameters, is_adapter
from stentor.models.pretrained.weights import (
    ADAPTER_FILE,
    SECTION_FILE,
    continue_adapters,
    exported_names,
    fold,
    merged_state,
    put_adapters,
    read_json,
    read_weights,
    standalone,
    tied_copies,
    write_adapters,
    write_json,
    write_weights,
)
from stentor.version import __version__

log = logging.getLogger("stentor")

SAVED_MODULES = ("audio_embeddings", "audio_heads")
"""Modules that are trained in full, in addition to adapters."""


def exported_tensor_names(bundle: Bundle) -> set[str]:
    """Names of the tensors that an export holds; see `Family.exported_tensor_names`."""
    return exported_names(bundle.model, left_to_base(bundle))


def left_to_base(bundle: Bundle) -> set[str]:
    """Names of frozen weights of the backbone that the base has, of models with adapters. Others are written whole."""
    if bundle.family.lora is None:
        return set()
    return {name for name in bundle.origin.from_base if name.partition(".")[0] not in SAVED_MODULES}


def save(bundle: Bundle, state: dict[str, Tensor], folder: Path) -> None:
    """Write an export. `state` has the model's full names; see `Family.save`."""
    folder.mkdir(parents=True, exist_ok=True)
    skip = tied_copies(bundle.model) | left_to_base(bundle)
    plain = {base_name(n): t for n, t in state.items() if not is_adapter(n) and base_name(n) not in skip}
    if any(map(is_adapter, state)):
        base: Any = bundle.family if bundle.family.source else bundle.family.llm  # type: ignore[attr-defined]
        bundle.model.peft_config[ADAPTER].base_model_name_or_path = base.source  # type: ignore[index,union-attr]
        write_adapters(bundle.model, state, folder, trained_modules=SAVED_MODULES)
        plain = {n: t for n, t in plain.items() if n.partition(".")[0] not in SAVED_MODULES}
    if any(name.startswith("llm.") for name in plain):
        write_weights(plain, folder)
    bundle.processor.save(folder)
    _write_configs(bundle, folder)


def save_merged(bundle: Bundle, folder: Path) -> None:
    """Write an export that needs nothing else: adapters folded in, weights of the base included."""
    whole = Bundle(bundle.model, bundle.processor, standalone(bundle.family), origin=bundle.origin)
    save(whole, merged_state(bundle), folder)


def _write_configs(bundle: Bundle, folder: Path) -> None:
    model: Any = bundle.model
    processor: Any = bundle.processor
    llm = json.loads(model.llm.config.to_json_string(use_diff=False))
    llm = {k: v for k, v in llm.items() if k not in ("is_causal", "_attn_implementation", "dtype")}
    config = {
        "architectures": ["OmniVoice"],
        "model_type": "omnivoice",
        "audio_vocab_size": model.vocabulary,
        "audio_mask_id": model.mask_id,
        "num_audio_codebook": model.codebooks,
        "audio_codebook_weights": model.weights or default_weights(model.codebooks),
        "dtype": "float32",
        "llm_config": llm,
    }
    write_json(folder / "config.json", config)
    facts = {
        "stentor_version": __version__,
        "family": bundle.family.model_dump(mode="json", by_alias=True),
        "commit": bundle.origin.commit,
        "pace": processor.pace,
        "letters": processor.letters,
        "instructs": processor.instructs,
        "phonemes": processor.phonemes,
    }
    write_json(folder / SECTION_FILE, facts)


def read(family: OmniVoice, folder: Path, key: str) -> Bundle:
    """The model of a folder in float32, its adapters folded in. Raises ConfigError for a folder that holds none, or one
    that is damaged."""
    bundle, adapters = _read(family, folder, key)
    if adapters:
        fold(bundle, adapters, folder)
    return bundle


def _read(family: OmniVoice, folder: Path, key: str) -> tuple[Bundle, dict[str, Tensor]]:
    """The plain model of a folder, and its adapters."""
    from safetensors import SafetensorError

    config = _read_config(folder, key)
    llm_config = backbone_config(AutoConfig.for_model(**config["llm_config"]), family, key)
    with no_init_weights():  # of real sizes it takes many seconds, and all of them are read below
        llm = backbone(llm_config, key)
    model = OmniVoiceModel(llm, config["num_audio_codebook"], config["audio_vocab_size"], config["audio_mask_id"])
    model.weights = config.get("audio_codebook_weights")
    try:
        tokenizer = tokenizer_of(folder, llm_config)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{key}: the tokenizer of {folder} cannot be read ({error}).") from None
    check_tokenizer(tokenizer, llm, folder, key)
    codec = open_codec(str(folder / INSIDE)) if (folder / INSIDE).is_dir() else None
    check_codec(codec, model.codebooks, model.vocabulary - 1, key)
    bundle = bundle_of(family, model, tokenizer, codec)
    if codec is None and family.codec is None:
        usual_codec(bundle, folder)
    if (folder / SECTION_FILE).is_file():
        facts, processor = read_json(folder / SECTION_FILE), bundle.processor
        processor.letters, processor.instructs = facts.get("letters"), facts.get("instructs")
        processor.phonemes = facts.get("phonemes")
        processor.pace = SpeakingRate(*facts["pace"]) if facts.get("pace") else None
    try:
        weights, adapters = read_weights(folder)
    except SafetensorError:
        raise ConfigError(
            f"{key}: the weights of {folder} (*.safetensors) cannot be read: a file is damaged or cut short. Get it "
            "again."
        ) from None
    weights |= {n: t for n, t in adapters.items() if ".lora_" not in n}
    adapters = {n: t for n, t in adapters.items() if ".lora_" in n}
    state_dict = model.state_dict()
    required = state_dict.keys() - tied_copies(model) - {"codebook_layer_offsets"}
    missing = required - weights.keys()
    if missing and adapters:
        weights = {n: t for n, t in _base_of(folder).items() if n in missing} | weights
        missing = required - weights.keys()
    if mismatched := _mismatched(missing | (weights.keys() - state_dict.keys()), weights, state_dict):
        raise ConfigError(
            f"{key}: {len(mismatched)} weights of {folder} do not fit its config.json, for example {mismatched[0]}; "
            "the model is damaged or was edited."
        )
    model.load_state_dict(weights, strict=False)
    make_bidirectional(model.llm, key)
    bundle.origin.from_base = set(model.state_dict())
    return bundle, adapters


def _mismatched(names: set[str], weights: dict[str, Tensor], state_dict: dict[str, Tensor]) -> list[str]:
    """Sorted `names` of weights that only one side has; where there are none, of weights of another shape."""
    return sorted(names) or sorted(n for n, t in weights.items() if t.shape != state_dict[n].shape)


def check_tokenizer(tokenizer: Any, llm: Any, folder: Path, key: str) -> None:
    """Raises ConfigError for a tokenizer that is not OmniVoice's, or has more tokens than there are embeddings."""
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in SPECIAL if token not in vocabulary]:
        raise ConfigError(
            f"{key}: the tokenizer of {folder} has no {missing[0]}: it is not that of an OmniVoice model."
        )
    rows = len(llm.get_input_embeddings().weight)
    if rows <= max(vocabulary.values()):
        raise ConfigError(
            f"{key}: the tokenizer of {folder} has {max(vocabulary.values()) + 1} tokens and the model {rows} text "
            "embeddings: they do not belong together."
        )


def _read_config(folder: Path, key: str) -> dict[str, Any]:
    """The config.json of an OmniVoice model."""
    path = folder / "config.json"
    if not path.is_file():
        inside = folder / "export"
        hint = f"; did you mean {inside}?" if (inside / "config.json").is_file() else "."
        # Of a run, the export is taken when the model is built.
        error = NotAtHand if (folder / "resolved.yaml").is_file() else ConfigError
        raise error(f"{key}: {folder} holds no model: it has no config.json{hint}")
    try:
        config = read_json(path)
        kind = config.get("model_type")
    except (ValueError, AttributeError):
        raise ConfigError(f"{key}: {path} is damaged.") from None
    if kind != "omnivoice":
        raise ConfigError(
            f"{key}: {folder} holds a model of the type {kind}, not omnivoice. A language model to start from goes "
            "into `model.llm: {from: ...}`."
        )
    required = ("num_audio_codebook", "audio_vocab_size", "audio_mask_id", "llm_config")
    if missing := [name for name in required if name not in config]:
        raise ConfigError(f"{key}: {path} has no {missing[0]}: it is not that of an OmniVoice model.")
    return config  # type: ignore[no-any-return]


def _base_of(folder: Path) -> dict[str, Tensor]:
    """Weights of the model that the adapters of an export were added to."""
    path = folder / SECTION_FILE
    if not path.is_file():
        raise ConfigError(
            f"{folder}: the export holds adapters alone and does not say of what (it has no {SECTION_FILE})."
        )
    facts = read_json(path)
    section = facts["family"]
    part = section if section.get("from") is not None else section["llm"]
    if facts["commit"] and not Path(part["from"] or "").is_dir():
        part["revision"] = facts["commit"]
    family = OmniVoice.model_validate(section)
    if family.source is not None:
        base = read(family.model_copy(update={"lora": None}), download(family), "model.from")
        return base.model.state_dict()
    # A pretrained language model, resized for the tokenizer of the export, under our names.
    llm = base_model(family.llm)
    model = OmniVoiceModel(llm, 1, 2, 1)
    resize(bundle_of(family, model, tokenizer_of(folder, llm.config), None))
    return {n: t for n, t in model.state_dict().items() if n.startswith("llm.")}


def load(family_class: type[OmniVoice], folder: Path, trainable: bool = False) -> Bundle:
    """The bundle of an export folder or a published model; see `Family.load`. Without `trainable` adapters are folded
    in."""
    family = OmniVoice.model_validate({"type": "omnivoice", "from": str(folder)})
    commit = None
    if (folder / SECTION_FILE).is_file():
        facts = read_json(folder / SECTION_FILE)
        family, commit = OmniVoice.model_validate(facts["family"]), facts["commit"]
    bundle, adapters = _read(family, folder, str(folder))
    if not (folder / ADAPTER_FILE).is_file():
        bundle.origin.from_base = set()
    bundle.origin.commit = commit
    model = bundle.model
    if trainable:
        freeze_parameters(model, family.freeze)
    if adapters and trainable:
        put_adapters(model, adapters, family.lora)
    elif adapters:
        fold(bundle, adapters, folder)
    if not trainable:
        model.requires_grad_(False)
    finish(bundle)
    model.train(trainable)
    return bundle


def initialise(bundle: Bundle, folder: Path) -> dict[str, Tensor]:
    """Start from the weights of an export; before adapters are added.

    Returns the export's adapters when the same `model.lora` continues with them; otherwise they are folded in. Raises
    ConfigError when the export is of another model.
    """
    family: Any = bundle.family
    before = OmniVoice.model_validate({"type": "omnivoice", "from": str(folder), "attention": family.attention})
    init, adapters = _read(before, folder, "model.init")
    weights, state_dict = init.model.state_dict(), bundle.model.state_dict()
    if mismatched := _mismatched(state_dict.keys() ^ weights.keys(), weights, state_dict):
        raise ConfigError(
            f"model.init: {len(mismatched)} weights of {folder} do not fit this model, for example {mismatched[0]}: "
            "`model` must describe the model that the export was trained with."
        )
    bundle.model.load_state_dict(weights)
    bundle.model.weights = init.model.weights
    if not adapters or any(folder.glob("model*.safetensors")):  # the export holds the backbone's weights as well
        bundle.origin.from_base = set()
    else:
        bundle.origin.from_base -= {f"{name}.weight" for name in SAVED_MODULES}
    if not adapters:
        return {}
    continued = continue_adapters(bundle, adapters, folder, read_json(folder / SECTION_FILE)["family"]["lora"])
    if not continued:
        log.info("model.init: the adapters of %s are folded into the weights.", folder)
    return continued
