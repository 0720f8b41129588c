"""Building a model that speaks: its codec, then as an audio language model is built."""

from pathlib import Path

from stentor.models.audio_llm.build import build as build_transformers
from stentor.models.base import Bundle, TaskRequirements
from stentor.models.codec_processor import check_terms
from stentor.models.codecs.base import model_folder
from stentor.models.omnivoice.build import codec_of, codec_override, training_audio
from stentor.models.tts.config import TTS


def build(family: TTS, requirements: TaskRequirements) -> Bundle:
    """A model ready to train: codec opened or fitted, weights loaded, `init` applied, adapters added, parameters
    frozen."""
    check_terms(family.type, requirements, "model")
    if family.source is not None:
        family.restore(model_folder(family, "model"))
        family._codec = codec_override(family, family._codec)
    else:
        family._codec = codec_of(family, requirements, Path(family.init) if family.init else None)
    bundle = build_transformers(family, requirements)
    codec = bundle.processor.codec
    if family.source is None and family.init is None and requirements.cuts is not None and codec is not None:
        audios = training_audio(codec.type, codec.sample_rate, requirements)
        bundle.processor.fit(bundle.model.pretrained, audios)
    return bundle
