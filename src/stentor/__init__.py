"""Stentor: one training pipeline for speech models."""

from stentor.version import __version__ as __version__


def load(path, device="auto"):  # type: ignore[no-untyped-def]
    """The model in a run folder, an export folder or a Hub repository, see `stentor.inference.load.load`.

    `stentor.load("runs/digits").transcribe("a.wav").text`
    """
    from stentor.inference.load import load

    return load(path, device)
