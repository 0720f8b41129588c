"""Stentor: one training pipeline for speech models.

The public Python API is the names in this module and, for plug-ins, those in `stentor.extend`. Everything else may
change. Most names are imported on first use, so `import stentor` does not import torch.

    stentor.load("runs/digits").transcribe("a.wav").text
"""

import importlib
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError as AudioError
from stentor.errors import ConfigError as ConfigError
from stentor.errors import DataError as DataError
from stentor.errors import StentorError as StentorError
from stentor.version import __version__ as __version__

if TYPE_CHECKING:
    from stentor.inference.diarize import Diarization as Diarization
    from stentor.inference.load import load as load
    from stentor.inference.model import Model as Model
    from stentor.inference.options import DecodingOptions as DecodingOptions
    from stentor.inference.speak.speaker import Speaker as Speaker
    from stentor.inference.speak.utterance import Speech as Speech
    from stentor.inference.speak.utterance import Utterance as Utterance
    from stentor.inference.speak.voice import Voice as Voice
    from stentor.inference.stream.speakers import OnlineDiarizer as OnlineDiarizer
    from stentor.inference.stream.speakers import SpeakerStream as SpeakerStream
    from stentor.inference.stream.stream import Stream as Stream
    from stentor.inference.transcribe import Transcriber as Transcriber
    from stentor.inference.transcribe import Transcript as Transcript

MODULES = {
    "load": "stentor.inference.load",
    "Model": "stentor.inference.model",
    "Transcript": "stentor.inference.transcribe",
    "Transcriber": "stentor.inference.transcribe",
    "DecodingOptions": "stentor.inference.options",
    "Diarization": "stentor.inference.diarize",
    "OnlineDiarizer": "stentor.inference.stream.speakers",
    "Stream": "stentor.inference.stream.stream",
    "SpeakerStream": "stentor.inference.stream.speakers",
    "Speech": "stentor.inference.speak.utterance",
    "Utterance": "stentor.inference.speak.utterance",
    "Speaker": "stentor.inference.speak.speaker",
    "Voice": "stentor.inference.speak.voice",
}
"""Modules of the names that are imported on first use."""

__all__ = ["AudioError", "ConfigError", "DataError", "StentorError", "__version__", *MODULES]


def __getattr__(name: str) -> Any:
    if name not in MODULES:
        raise AttributeError(f"module 'stentor' has no attribute {name!r}")
    return vars(importlib.import_module(MODULES[name]))[name]
