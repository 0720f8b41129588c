"""`stentor prepare codec`: an audio codec fitted on a data set, or a published one, and how much speech loses in it."""

import hashlib
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import count

import numpy as np

from stentor.audio.io import write
from stentor.commands.prepare_options import CodecOptions
from stentor.config.load import load, parse_source
from stentor.data.atomic_write import atomic_path
from stentor.data.cut import Cut, UnusableRecord, divided
from stentor.data.load_audio import load_audio
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.load import pick_device
from stentor.models.codecs.base import Codec, at_peak
from stentor.models.codecs.resynthesis import resynthesis
from stentor.pipeline.journal import write_json
from stentor.pipeline.runner import first_of, print_reasons, refuse_rejects, reject

HELD_OUT = 20
"""Records (at most a tenth of all) that the codec is not fitted on: they are encoded and decoded for the report."""
SAMPLES = 4
"""Number of them that are written as audio, before and after."""


def prepare_codec(options: CodecOptions) -> None:
    """Write the codec's folder, with resynthesis.json and samples/ in it. Raises ConfigError for wrong options and a
    folder that holds something, and DataError when over 1 % of the records that were read cannot be used."""
    section, device = _section(options), str(pick_device(options.device))
    to = options.to.expanduser()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError(f"--to {options.to} holds something already; name a new folder, or remove it.")
    cuts, rejects = divided(parse_source(options.data).cuts())
    reader = AudioReader(rejects)
    if not cuts:
        reasons = f" {first_of([reject.message for reject in reader.rejects])}" if reader.rejects else ""
        raise DataError(f"{options.data} has no usable records.{reasons}")
    # By a hash, so that each record keeps its part when others come or go.
    cuts.sort(key=lambda cut: hashlib.blake2b(f"codec {options.seed} {cut.id}".encode()).digest())
    held_out = cuts[: max(1, min(HELD_OUT, len(cuts) // 10))]
    fitted_on = cuts[len(held_out) :] or held_out
    if section.fits and section.source is None:
        codec = section.fit(reader.audios(fitted_on, section.rate, options.hours * 3600), options.seed)
        codec.to(device)
        print(f"{section.type} fitted on {reader.read:,} records ({reader.seconds / 3600:.2f} h).", flush=True)
    else:
        codec = section.open(device)
    codec.require_tokens()
    numbers = count(1)

    def sample(original: np.ndarray, decoded: np.ndarray) -> None:
        if (number := next(numbers)) <= SAMPLES:
            write(part / "samples" / f"{number}-original.wav", original, codec.sample_rate)
            write(part / "samples" / f"{number}-decoded.wav", decoded, codec.sample_rate)

    with atomic_path(to) as part:
        codec.save(part)
        clips = (audio for audio in reader.audios(held_out, codec.sample_rate) if len(audio) >= codec.hop)
        report = resynthesis(codec, clips, sample)
        write_json(part / "resynthesis.json", report.as_dict())
    print(report)
    print(
        f"{to}: {codec.type}, {codec.sample_rate} Hz, {codec.frame_rate:g} frames per second, {codec.codebooks} "
        f"codebooks of {codec.vocabulary:,}. Use it as `model.codec.from: {options.to}` or `--codec {options.to}`.",
        flush=True,
    )
    print_reasons(reader.rejects)
    refuse_rejects([reject.message for reject in reader.rejects], reader.read + len(reader.rejects))


def _section(options: CodecOptions) -> Codec:
    types = Codec.choices()
    kind = types.get(options.codec)
    if kind is None:
        close = get_close_matches(options.codec, types, 1)
        hint = f" (did you mean {close[0]}?)" if close else ""
        raise ConfigError(
            f"--codec {options.codec}: no such type{hint}; there are {', '.join(sorted(types))}. A folder or Hub id is "
            "given as --option from=NAME."
        )
    section = load(None, options.option, kind).config
    assert isinstance(section, Codec)
    return section


class AudioReader:
    """Reads the audio of records while it is needed, and collects those that cannot be used."""

    def __init__(self, rejects: list[UnusableRecord]):
        self.rejects = rejects
        self.read, self.seconds = 0, 0.0

    def audios(self, cuts: Sequence[Cut], rate: int, seconds: float = float("inf")) -> Iterator[np.ndarray]:
        """float32 [samples] at `rate` as it will be encoded, until so many seconds were read."""
        self.seconds = 0.0
        for cut in cuts:
            if self.seconds >= seconds and self.seconds > 0:
                return
            try:
                audio = at_peak(load_audio(cut, rate))
            except AudioError as error:
                self.rejects.append(reject(cut, error))
                continue
            self.read += 1
            self.seconds += len(audio) / rate
            yield audio
