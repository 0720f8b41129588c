"""The models of the family `tts`, one module each; a new module is known by being here.

Modules of this folder import torch inside functions only: configs are checked with their classes.
"""

import importlib
import pkgutil

from stentor.models.tts.processor import TTSProcessor


def known_kinds() -> dict[str, type[TTSProcessor]]:
    """The class of each `model_type` of transformers' configs, those of plug-ins included."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return TTSProcessor.kinds
