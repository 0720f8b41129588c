"""Voice files: the codec tokens of a reference and its text.

A voice file is two: NAME.safetensors with the tensor `codes` and NAME.json with everything else (format version 1).
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.file_modes import follow_umask
from stentor.errors import ConfigError, DataError
from stentor.models.codecs.base import AudioCodec

FORMAT, VERSION = "stentor-voice", 1
SUFFIXES = (".safetensors", ".json")
SAME_CODEC = 0.9
"""Share of a test sound's codes in the first codebook that two devices' versions of one codec have in common."""


@dataclass(frozen=True)
class Voice:
    """A reference: the prompt that a model continues."""

    codes: np.ndarray
    """Integers [codebooks, frames] of the model's codec."""
    text: str
    """Their text."""
    language: str | None = None
    source: str | None = None
    """Where it came from, for people."""

    @property
    def frames(self) -> int:
        return int(self.codes.shape[1])


def save_voice(voice: Voice, path: str | Path, codec: AudioCodec) -> Path:
    """Write a voice for models with this codec; answers the path of the JSON. A folder that is not there is made.

    Raises ConfigError when the files cannot be written.
    """
    from safetensors.numpy import save_file

    base = _base(path)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "text": voice.text,
        "language": voice.language,
        "source": voice.source,
        "frames": voice.frames,
        "seconds": round(voice.frames / codec.frame_rate, 3),
        "codec": {**_shape(codec), "test": _test(codec)},
    }
    try:
        base.parent.mkdir(parents=True, exist_ok=True)
        save_file({"codes": np.ascontiguousarray(voice.codes)}, _with(base, ".safetensors"))
        follow_umask(_with(base, ".safetensors"))
        _with(base, ".json").write_text(json.dumps(metadata, ensure_ascii=False, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"The voice {base} cannot be written: {error.strerror or error}.") from error
    return _with(base, ".json")


def load_voice(path: str | Path, codec: AudioCodec) -> Voice:
    """A voice that `save_voice` wrote, by its name with or without an ending.

    Raises ConfigError when there is none or it is of another codec, and DataError when it is damaged.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    base = _base(path)
    missing = [_with(base, s) for s in SUFFIXES if not _with(base, s).is_file()]
    if missing:
        raise ConfigError(
            f"There is no voice {path}: {' and '.join(map(str, missing))} "
            f"{'is' if len(missing) == 1 else 'are'} missing. --save-voice makes one from a reference."
        )
    try:
        metadata = json.loads(_with(base, ".json").read_text(encoding="utf-8"))
        if metadata["format"] != FORMAT:
            raise ValueError
        version = metadata["version"]
        if version != VERSION:
            raise ConfigError(
                f"The voice {base} is of format version {version}, of a newer Stentor; this one reads {VERSION}."
            )
        codes, codec_record = load_file(_with(base, ".safetensors"))["codes"], metadata["codec"]
        voice = Voice(codes, str(metadata["text"]), metadata["language"], metadata["source"])
        shape = {key: codec_record[key] for key in _shape(codec)}
        test = list(codec_record["test"])
    except (ValueError, KeyError, TypeError, OSError, SafetensorError):
        raise DataError(f"The voice {base} is damaged, or no voice at all: save it again with --save-voice.") from None
    if shape != _shape(codec) or not _alike(test, _test(codec)):
        raise ConfigError(
            f"The voice {base} was made with {_codec_name(shape)}, this model has {_codec_name(_shape(codec))}"
            f"{', fitted on other audio' if shape == _shape(codec) else ''}: save it again for this model, from its "
            f"reference{f' ({voice.source})' if voice.source else ''}."
        )
    good = codes.ndim == 2 and codes.shape[0] == codec.codebooks and codes.shape[1] > 0 and codes.dtype.kind == "i"
    if not good or codes.min() < 0 or codes.max() >= codec.vocabulary:
        raise DataError(f"The voice {base} is damaged: its codes do not fit the codec. Save it again.")
    return voice


def voice_file(path: str | Path) -> Path:
    """The file that tells of a saved voice, by its name with or without an ending."""
    return _with(_base(path), ".json")


def _base(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def _with(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)  # a name may have dots


def _shape(codec: AudioCodec) -> dict[str, Any]:
    return {name: getattr(codec, name) for name in ("type", "sample_rate", "frame_rate", "codebooks", "vocabulary")}


def _codec_name(shape: dict[str, Any]) -> str:
    return (
        f"the codec {shape['type']} ({shape['codebooks']} x {shape['vocabulary']} codes at {shape['frame_rate']:g} Hz)"
    )


def _test(codec: AudioCodec) -> list[int]:
    """First codebook of one second of a fixed test sound: it differs between codecs of one kind that were fitted or
    trained on different audio."""
    time = np.arange(codec.sample_rate) / codec.sample_rate
    noise = np.random.default_rng(0).standard_normal(len(time))
    glide = np.sin(2 * np.pi * (100 * time + 1500 * time**2)) + 0.5 * np.sin(2 * np.pi * 220 * time)
    return codec.encode([(0.1 * (glide + noise * time)).astype(np.float32)])[0][0].tolist()


def _alike(one: list[int], other: list[int]) -> bool:
    same = sum(a == b for a, b in zip(one, other))
    return len(one) == len(other) and same >= SAME_CODEC * len(other)
