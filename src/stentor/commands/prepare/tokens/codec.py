"""Codec of the shards: opened by its name, or fitted on the data first."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.commands.prepare.tokens.worker import read_audio
from stentor.data.atomic_write import atomic_path
from stentor.data.storage import is_remote
from stentor.errors import AudioError
from stentor.models.codecs.base import Codec, at_peak, find, open_codec

if TYPE_CHECKING:
    from stentor.commands.prepare.tokens.plan import ShardPlan
    from stentor.commands.prepare_options import TokensOptions

FITTED_ON = 3600.0
"""Seconds of audio that a codec is fitted on."""


def is_fitted_here(options: TokensOptions) -> bool:
    """Whether --codec names a kind that is fitted on the data, and no folder."""
    kind = Codec.choices().get(options.codec)
    return kind is not None and issubclass(kind, Codec) and kind.fits and not Path(options.codec).is_dir()


def ready_codec(options: TokensOptions, plan: ShardPlan) -> str:
    """The name for `open_codec`: --codec itself, or TO/codec, which is fitted on the data unless it is there. Raises
    ConfigError, and DataError when no audio could be read."""
    if not is_fitted_here(options):
        return options.codec
    folder = options.to / "codec"
    if not (folder / "config.json").is_file():
        codec = Codec.choices()[options.codec].model_validate({"type": options.codec})
        assert isinstance(codec, Codec)
        print(f"{options.codec} is fitted on the data, into {folder}.", flush=True)
        fitted = codec.fit(_audios(plan, codec.rate), options.seed)
        with atomic_path(folder) as part:
            fitted.save(part)
    return str(folder)


def _audios(plan: ShardPlan, rate: int) -> Iterator[np.ndarray]:
    """The first hour of the shards, as it will be encoded; what cannot be read is counted later."""
    seconds = 0.0
    for shard in plan.shards:
        for group in shard:
            for _, cut in group.samples:
                if seconds > FITTED_ON:
                    return
                try:
                    yield at_peak(read_audio(cut, rate))
                except AudioError:
                    continue
                seconds += cut.duration


def codec_facts(name: str) -> dict[str, Any]:
    """Format of the codec, of a folder with a digest of its files. Raises ConfigError when there is none."""
    codec = open_codec(name)
    codec.require_tokens()
    facts = {key: getattr(codec, key) for key in ("type", "sample_rate", "frame_rate", "codebooks", "vocabulary")}
    if is_remote(name) or Path(name).is_dir():
        digest = hashlib.sha256()
        for file in sorted(find(name).iterdir()):
            if file.suffix in (".json", ".safetensors"):
                digest.update(file.name.encode() + file.read_bytes())
        facts["sha256"] = digest.hexdigest()
    return facts
