"""The codec that the shards are made with: found, or fitted on the data first."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import AudioError

if TYPE_CHECKING:
    import numpy as np

    from stentor.commands.prepare.tokens import Request
    from stentor.commands.prepare.tokens.plan import Plan

FITTED_ON = 3600.0
"""Seconds of audio that a codec is fitted on."""


def is_fitted_here(request: Request) -> bool:
    """Whether --codec names a kind that is fitted on the data, and no folder."""
    from stentor.models.codecs.base import Codec

    kind = Codec.choices().get(request.codec)
    return kind is not None and kind.fits and not Path(request.codec).is_dir()


def ready(request: Request, planned: Plan) -> str:
    """What `open_codec` is to open: --codec as given, or DIR/codec, fitted on the data unless it is there.

    Raises ConfigError, and DataError when no audio could be read.
    """
    from stentor.models.codecs.base import Codec

    if not is_fitted_here(request):
        return request.codec
    folder = request.to / "codec"
    if not folder.is_dir():
        codec = Codec.choices()[request.codec].model_validate({"type": request.codec})
        print(f"{request.codec} is fitted on the data, into {folder}.", flush=True)
        fitted = codec.fit(_audios(planned, codec.rate), request.seed)
        part = folder.with_name(f".codec.{os.getpid()}.part")
        try:
            fitted.save(part)
            part.rename(folder)
        except OSError:
            if not folder.is_dir():  # another machine was faster: its codec is the one
                raise
        finally:
            shutil.rmtree(part, ignore_errors=True)
    return str(folder)


def _audios(planned: Plan, rate: int) -> Iterator[np.ndarray]:
    """The first hour of the shards, as it will be encoded; what cannot be read is counted later."""
    from stentor.commands.prepare.tokens.worker import heard
    from stentor.models.codecs.base import at_peak

    seconds = 0.0
    for shard in planned.shards:
        for group in shard:
            for _, cut in group.samples:
                if seconds > FITTED_ON:
                    return
                try:
                    yield at_peak(heard(cut, rate))
                except AudioError:
                    continue
                seconds += cut.duration


def facts(name: str) -> dict[str, Any]:
    """What the codec is, of a folder with a digest of its files. Raises ConfigError when there is none."""
    from stentor.models.codecs.base import find, open_codec

    codec = open_codec(name)
    found = {
        "type": codec.type,
        "sample_rate": codec.sample_rate,
        "frame_rate": codec.frame_rate,
        "codebooks": codec.codebooks,
        "vocabulary": codec.vocabulary,
    }
    if Path(name).is_dir():
        digest = hashlib.sha256()
        for file in sorted(find(name).iterdir()):
            if file.suffix in (".json", ".safetensors"):
                digest.update(file.name.encode() + file.read_bytes())
        found["sha256"] = digest.hexdigest()
    return found
