"""`stentor prepare codec`: an audio codec fitted on a data set, or a published one, and how much speech loses in it."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

from stentor.errors import AudioError, ConfigError, DataError

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.models.codecs.base import AudioCodec, Codec

HELD_OUT = 20
"""Records (at most a tenth of all) that the codec is not fitted on: they are encoded and decoded for the report."""
SAMPLES = 4
"""Of them, how many are kept as audio."""
NAMED = 20
"""Unusable records that an error names."""


@dataclass(frozen=True)
class Request:
    """The options of the command."""

    data: str
    to: Path
    codec: str = "mel_rvq"
    options: tuple[str, ...] = ()
    hours: float = 2.0
    seed: int = 0
    device: str = "auto"


def prepare_codec(request: Request) -> None:
    """Write the codec's folder, with resynthesis.json and samples/ in it.

    Raises ConfigError for wrong options and a folder that holds something, and DataError when over 1 % of the records
    that were read cannot be used.
    """
    from stentor.config.load import parse_source
    from stentor.data.cut import UnusableRecord
    from stentor.data.dataset_report import MAX_BAD
    from stentor.inference.load import pick_device
    from stentor.models.codecs.resynthesis import resynthesis

    section, device = _section(request), str(pick_device(request.device))
    to = request.to.expanduser()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {request.to} holds something already; name a new folder, or remove it.")
    cuts, lost = [], []
    for cut in parse_source(request.data).cuts():
        if isinstance(cut, UnusableRecord):
            lost.append((cut.reason, cut.message))
        else:
            cuts.append(cut)
    if not cuts:
        raise DataError(f"{request.data} has no usable records.{_named(lost)}")
    # By a hash, so that each record keeps its part when others come or go.
    cuts.sort(key=lambda cut: hashlib.blake2b(f"codec {request.seed} {cut.id}".encode()).digest())
    held_out = cuts[: max(1, min(HELD_OUT, len(cuts) // 10))]
    fitted_on = cuts[len(held_out) :] or held_out
    reader = _Reader(lost)
    if section.fits and section.source is None:
        codec = section.fit(reader.audios(fitted_on, section.rate, request.hours * 3600), request.seed)
        codec.to(device)
        print(f"{section.type} fitted on {reader.read:,} records ({reader.seconds / 3600:.2f} h).", flush=True)
    else:
        codec = section.open(device)
    part = to.with_name(f".{to.name}.{os.getpid()}.part")
    try:
        codec.save(part)
        listener = _Listener(part / "samples", codec)
        usable = (audio for audio in reader.audios(held_out, codec.sample_rate) if len(audio) >= codec.hop)
        report = resynthesis(codec, usable, listener)
        (part / "resynthesis.json").write_text(json.dumps(report.as_dict(), indent=1) + "\n", encoding="utf-8")
        part.rename(to)
    finally:
        shutil.rmtree(part, ignore_errors=True)
    print(report)
    print(
        f"{to}: {codec.type}, {codec.sample_rate} Hz, {codec.frame_rate:g} frames per second, {codec.codebooks} "
        f"codebooks of {codec.vocabulary:,}. Use it as `model.codec.from: {request.to}` or `--codec {request.to}`.",
        flush=True,
    )
    if lost:
        print("unusable: " + ", ".join(f"{n:,} {reason}" for reason, n in Counter(r for r, _ in lost).most_common()))
    if len(lost) > MAX_BAD * (reader.read + len(lost)):
        raise DataError(f"{len(lost):,} of {reader.read + len(lost):,} records cannot be used.{_named(lost)}")


def _section(request: Request) -> Codec:
    """The codec that the options describe."""
    from stentor.config.load import load
    from stentor.models.codecs.base import Codec

    known = Codec.choices()
    kind = known.get(request.codec)
    if kind is None:
        close = get_close_matches(request.codec, known, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"--codec {request.codec}: no such type{hint}; there are {', '.join(sorted(known))}. A folder or Hub id is "
            "given as --option from=NAME."
        )
    section = load(None, request.options, kind).config
    assert isinstance(section, Codec)
    return section


class _Reader:
    """Reads records as they will be encoded, and counts what cannot be used."""

    def __init__(self, lost: list[tuple[str, str]]):
        self.lost = lost
        self.read, self.seconds = 0, 0.0

    def audios(self, cuts: Sequence[Cut], rate: int, seconds: float | None = None) -> Iterator[np.ndarray]:
        """float32 [samples] at `rate`, until so many seconds were read."""
        from stentor.data.load_audio import load_audio
        from stentor.models.codecs.base import at_peak

        self.seconds = 0.0
        for cut in cuts:
            try:
                audio = at_peak(load_audio(cut, rate))
            except AudioError as error:
                self.lost.append((error.reason, f"{cut.id}: {error}"))
                continue
            self.read += 1
            self.seconds += len(audio) / rate
            yield audio
            if seconds is not None and self.seconds >= seconds:
                return


class _Listener:
    """Keeps the first clips as they were and as the codec gives them back."""

    def __init__(self, folder: Path, codec: AudioCodec):
        self.folder, self.rate, self.count = folder, codec.sample_rate, 0

    def __call__(self, original: np.ndarray, decoded: np.ndarray) -> None:
        from stentor.audio.io import write

        self.count += 1
        if self.count <= SAMPLES:
            write(self.folder / f"{self.count}-original.wav", original, self.rate)
            write(self.folder / f"{self.count}-decoded.wav", decoded, self.rate)


def _named(lost: Sequence[tuple[str, str]]) -> str:
    if not lost:
        return ""
    more = f"\n  ... and {len(lost) - NAMED:,} more" if len(lost) > NAMED else ""
    return " The first are:\n  " + "\n  ".join(message for _, message in lost[:NAMED]) + more
