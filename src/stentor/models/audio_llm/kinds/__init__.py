"""The models of the family `audio_llm`, one module each; a new module is known by being here.

Modules of this folder import torch inside functions only: configs are checked with their classes.
"""

import importlib
import pkgutil

from stentor.models.audio_llm.processor import AudioLLMProcessor


def known_kinds() -> dict[str, type[AudioLLMProcessor]]:
    """The class of each `model_type` of transformers' configs, those of plug-ins included."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return AudioLLMProcessor.kinds
