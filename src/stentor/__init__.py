"""Stentor: one training pipeline for speech models.

The names of `__init__.pyi` are the public Python API, and `stentor.extend` has those for plug-ins; everything else may
move. They are imported on first use: `import stentor` imports no torch.

    stentor.load("runs/digits").transcribe("a.wav").text
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
