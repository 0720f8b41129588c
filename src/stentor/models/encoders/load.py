"""Audio encoders built from their section: untrained, or with pretrained weights."""

from typing import Any

import torch
from torch import nn

from stentor.models.encoders.encode import adjust
from stentor.models.encoders.geometry import WAVE, Geometry, check_streaming, geometry
from stentor.models.encoders.section import EncoderSection
from stentor.models.pretrained.load import load_pretrained
from stentor.models.pretrained.weights import tied_copies


def lacks(loaded: set[str] | None, part: str, make: Any) -> bool:
    """Whether an export that has these weights still needs the base of a part."""
    if loaded is None:
        return True
    with torch.device("meta"):
        skeleton = make()
    return not {f"{part}.{name}" for name in set(skeleton.state_dict()) - tied_copies(skeleton)} <= loaded


def encoder_geometry(section: EncoderSection, config: Any) -> Geometry:
    """The geometry of the section's encoder with its transformers config."""
    check_streaming(section.streaming, config, "model.encoder.streaming")
    log_mel = section.log_mel or (None if section.streaming is None else "fixed")
    return geometry(config, section.window, normalizes(section, config), log_mel)


def encoder_part(section: EncoderSection, config: Any, loaded: set[str] | None = None) -> tuple[Any, bool]:
    """The encoder of the section (see `adjust`), and whether its weights were read from its base: not where they are
    among those `loaded` afterwards."""
    from_base = section.source is not None and lacks(loaded, "encoder", lambda: new_encoder(config))
    encoder = load_encoder(section, config) if from_base else new_encoder(config)
    return adjust(encoder, section.source is not None, section.streaming), from_base


def normalizes(part: Any, config: Any) -> bool | None:
    """Whether a pretrained wave encoder wants normalised audio, where its preprocessor_config.json says so."""
    if part.source is None or config.model_type not in WAVE:
        return None
    from transformers import AutoFeatureExtractor, Wav2Vec2FeatureExtractor

    try:
        extractor = AutoFeatureExtractor.from_pretrained(
            part.source, trust_remote_code=False, revision=part.revision or "main"
        )
    except (OSError, ValueError):  # no such file: the encoder's config decides
        return None
    return extractor.do_normalize if isinstance(extractor, Wav2Vec2FeatureExtractor) else None


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

    return load_pretrained(section, where, load)
