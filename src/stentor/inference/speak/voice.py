"""Voice files: the codec tokens and the transcript of a reference.

A voice is saved as two files: NAME.safetensors with the tensor `codes` and NAME.json with everything else (format
version 1). Voice clone prompts of OmniVoice, NAME.pt, can be read too. Voices in the folder `voices` of an export are
saved with the model and found by name.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.atomic_write import follow_umask
from stentor.errors import AudioError, ConfigError, DataError
from stentor.inference.speak import voice_clone_prompt
from stentor.models.codecs.base import AudioCodec

FORMAT, VERSION = "stentor-voice", 1
SUFFIXES = (".safetensors", ".json")
VOICES = "voices"
"""Folder of an export with the voices of the model."""
SHAPE = ("type", "sample_rate", "frame_rate", "codebooks", "vocabulary")
"""Properties of the codec that are saved."""
SAME_CODEC = 0.9
"""Minimum share of equal codes of a test sound, in the first codebook, for the same codec on two devices."""


@dataclass(frozen=True)
class Voice:
    """A cloned voice: the codes and the transcript of a reference, which the model continues."""

    codes: np.ndarray
    """Codes of the model's codec, integers [codebooks, frames]."""
    text: str
    """Transcript of the reference."""
    language: str | None = None
    """Code of its language, such as `en`."""
    source: str | None = None
    """Origin of the reference, for display."""
    rms: float | None = None
    """Root mean square of the speech in the reference before its level was changed."""

    @property
    def frames(self) -> int:
        """Number of frames of the codes."""
        return int(self.codes.shape[1])


def save_voice(voice: Voice, path: str | Path, codec: AudioCodec) -> Path:
    """Save a voice for models with this codec and return the path of the JSON file. Creates the folder if needed.

    Raises ConfigError if the files cannot be written.
    """
    from safetensors.numpy import save_file

    base = _base(path)
    metadata = {
        "format": FORMAT,
        "version": VERSION,
        "text": voice.text,
        "language": voice.language,
        "source": voice.source,
        "rms": voice.rms,
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


def load_voice(name: str | Path, codec: AudioCodec, folder: Path | None = None) -> Voice:
    """Load a voice of `save_voice` or OmniVoice: one in `folder` by name, or any by path, with or without suffix.

    Raises ConfigError if it does not exist or has another codec, and DataError if it is damaged.
    """
    base = find_voice(name, folder)
    if base.suffix == voice_clone_prompt.SUFFIX:
        return _from_prompt(base, codec)
    codes, metadata = _read(base)
    shape = {key: metadata["codec"][key] for key in SHAPE}
    if shape != _shape(codec) or not _alike(metadata["codec"]["test"], _test(codec)):
        source = metadata["source"]
        raise ConfigError(
            f"The voice {base} was made with {_codec_name(shape)}, but this model has {_codec_name(_shape(codec))}"
            f"{', fitted on other audio' if shape == _shape(codec) else ''}: save it again for this model from its "
            f"reference{f' ({source})' if source else ''}."
        )
    voice = Voice(codes, metadata["text"], metadata["language"], metadata["source"], metadata.get("rms"))
    return _checked(voice, base, codec)


def find_voice(name: str | Path, folder: Path | None = None) -> Path:
    """Return the path of a voice: that of an OmniVoice prompt, or that of a voice file without suffix. A bare name is
    searched for in `folder` first. Raises ConfigError, with the known voices, if there is none."""
    path = Path(name)
    places = [folder / path] if folder is not None and path.name == str(name) else []
    for place in (*places, path):
        prompt = _with(place, voice_clone_prompt.SUFFIX)
        if place.suffix == voice_clone_prompt.SUFFIX and place.is_file():
            return place
        missing = [file for s in SUFFIXES if not (file := _with(_base(place), s)).is_file()]
        if not missing:
            return _base(place)
        if prompt.is_file():
            return prompt
        if len(missing) == 1:
            raise ConfigError(f"The voice {name} is incomplete: {missing[0]} is missing. Save it again.")
    known = dict.fromkeys([*voice_names(folder), *(str(path.parent / n) for n in voice_names(path.parent))])
    raise ConfigError(
        f"There is no voice {name}. {f'Known voices: {join_names(list(known))}' if known else 'No voices are saved'}. "
        "Create one from a reference with --save-voice."
    )


def voice_names(folder: Path | None) -> list[str]:
    """Return the sorted names of the voices in a folder; an empty list if the folder does not exist."""
    if folder is None or not folder.is_dir():
        return []
    saved = {p.stem for p in folder.glob("*.safetensors") if p.with_suffix(".json").is_file()}
    return sorted(saved | {p.stem for p in folder.glob(f"*{voice_clone_prompt.SUFFIX}")})


def describe_voice(path: Path) -> dict[str, Any]:
    """Return `name`, `seconds`, `language`, `codec` and `text` of a voice of any codec, given its path. Raises the
    errors of `load_voice`."""
    base = find_voice(path)
    if base.suffix == voice_clone_prompt.SUFFIX:
        codes, text, _ = _read_prompt(base)
        seconds, codec = round(codes.shape[1] / voice_clone_prompt.FRAME_RATE, 3), voice_clone_prompt.CODEC
        return {"name": base.stem, "seconds": seconds, "language": None, "codec": codec, "text": text}
    facts = _read(base)[1]
    shown = {key: facts[key] for key in ("seconds", "language", "codec", "text")}
    return {"name": base.name, **shown, "codec": facts["codec"]["type"]}


def _read(base: Path) -> tuple[np.ndarray, dict[str, Any]]:
    """Return the codes and the metadata of a voice file."""
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    try:
        metadata = json.loads(_with(base, ".json").read_text(encoding="utf-8"))
        if metadata["format"] != FORMAT:
            raise ValueError
        version = metadata["version"]
        if version != VERSION:
            raise ConfigError(
                f"The voice {base} has format version {version} of a newer Stentor; this version reads {VERSION}."
            )
        codec = metadata["codec"]
        texts = (codec["type"], metadata["text"], metadata["language"] or "", metadata["source"] or "")
        numbers = (metadata["seconds"], metadata.get("rms") or 0.0, *codec["test"])
        types = [isinstance(text, str) for text in texts] + [isinstance(number, (int, float)) for number in numbers]
        if set(SHAPE) - codec.keys() or not all(types):
            raise ValueError
        return load_file(_with(base, ".safetensors"))["codes"], metadata
    except (ValueError, KeyError, TypeError, AttributeError, OSError, SafetensorError):
        raise DataError(f"The voice {base} is damaged or not a voice file: save it again with --save-voice.") from None


def _read_prompt(path: Path) -> tuple[np.ndarray, str, float]:
    try:
        return voice_clone_prompt.read_prompt(path)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror}): check its permissions.") from None
    except ValueError as error:
        raise DataError(f"{path} {error}, or create a voice from a recording with --save-voice.") from None


def _from_prompt(path: Path, codec: AudioCodec) -> Voice:
    codes, text, rms = _read_prompt(path)
    if codec.type != voice_clone_prompt.CODEC:
        raise ConfigError(
            f"{path} is a VoiceClonePrompt of OmniVoice with the codec {voice_clone_prompt.CODEC}, but this model has "
            f"{_codec_name(_shape(codec))}: create a voice from the reference with --save-voice."
        )
    return _checked(Voice(codes[: codec.codebooks], text.strip(), source=str(path), rms=rms), path, codec)


def _checked(voice: Voice, path: Path, codec: AudioCodec) -> Voice:
    """Return the voice with codes of the codec's type. Raises DataError if they do not fit the codec."""
    try:
        codec.check(voice.codes)
    except AudioError as error:
        raise DataError(f"The voice {path} is damaged: its codes do not fit the codec. Save it again.") from error
    return replace(voice, codes=voice.codes.astype(codec.dtype))


def voice_file(path: str | Path) -> Path:
    """Return the JSON file of a saved voice, given its path with or without suffix."""
    return _with(_base(path), ".json")


def _base(path: str | Path) -> Path:
    path = Path(path)
    return path.with_suffix("") if path.suffix in SUFFIXES else path


def _with(base: Path, suffix: str) -> Path:
    return base.with_name(base.name + suffix)  # a name may have dots


def join_names(names: Sequence[str], most: int = 20) -> str:
    return ", ".join([*names[:most], *(["..."] if len(names) > most else [])])


def _shape(codec: AudioCodec) -> dict[str, Any]:
    return {name: getattr(codec, name) for name in SHAPE}


def _codec_name(shape: dict[str, Any]) -> str:
    return (
        f"the codec {shape['type']} ({shape['codebooks']} x {shape['vocabulary']} codes at {shape['frame_rate']:g} Hz)"
    )


def _test(codec: AudioCodec) -> list[int]:
    """Return the first codebook of one second of a fixed test sound, which differs between codecs of one type that were
    fitted or trained on different audio."""
    time = np.arange(codec.sample_rate) / codec.sample_rate
    noise = np.random.default_rng(0).standard_normal(len(time))
    glide = np.sin(2 * np.pi * (100 * time + 1500 * time**2)) + 0.5 * np.sin(2 * np.pi * 220 * time)
    return codec.encode([(0.1 * (glide + noise * time)).astype(np.float32)])[0][0].tolist()


def _alike(one: list[int], other: list[int]) -> bool:
    same = sum(a == b for a, b in zip(one, other))
    return len(one) == len(other) and same >= SAME_CODEC * len(other)
