"""Audio codecs: audio to a few integers per frame and back. A codec's tokens are what synthesis models are trained on.

`Codec` is the section of a config; `AudioCodec` is the codec itself, opened or fitted.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from difflib import get_close_matches
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar, Self

from pydantic import ConfigDict, Field

from stentor.data.storage import as_path, is_remote
from stentor.data.storage_cache import local_folder
from stentor.errors import AudioError, ConfigError
from stentor.section import Choice

if TYPE_CHECKING:
    import numpy as np

INT16 = 32767
"""Vocabularies up to so many entries are kept as int16 (OmniVoice's token shards), larger ones as int32."""

INSIDE = "audio_tokenizer"
"""Folder in which an exported model keeps its codec, as OmniVoice does."""
PEAK = 0.9
"""Peak of the audio that training data is encoded at, as OmniVoice's shards are: one level for all recordings."""


class AudioCodec:
    """An opened codec. A subclass sets the attributes and implements `_encode`, `_decode`, `to` and `save`.

    May be handed to loader processes, forked or spawned.
    """

    type: str
    """Its kind: the `type` of its section."""
    sample_rate: int
    """Hz of the audio that it takes and gives."""
    hop: int
    """Samples of one frame."""
    codebooks: int
    """Codes of each frame, the most important one first."""
    vocabulary: int | None
    """Entries of each codebook. Codes are 0 ... vocabulary - 1; a model's MASK is not among them. None: there are no
    entries, each "code" is a real number."""
    device: str = "cpu"
    """Where it computes."""

    @property
    def frame_rate(self) -> float:
        """Frames per second."""
        return self.sample_rate / self.hop

    @property
    def dtype(self) -> np.dtype[Any]:
        """Data type of codes: int16, or int32 where a codebook has more entries than int16 can number; of real ones
        float32."""
        import numpy as np

        if self.vocabulary is None:
            return np.dtype(np.float32)
        return np.dtype(np.int16 if self.vocabulary <= INT16 else np.int32)

    def frames(self, samples: int) -> int:
        """Frames of a clip of so many samples at `sample_rate`. The last one may hold less audio than the others."""
        return -(-samples // self.hop)

    def encode(self, audios: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Codes of clips: `dtype` [codebooks, frames] of each, from float32 [samples] at `sample_rate`.

        A clip's codes do not depend on the other clips. Raises AudioError with the reason `too_short` (less than one
        frame) or `not_finite`, naming the clip by its place in `audios`.
        """
        import numpy as np

        for number, audio in enumerate(audios):
            subject = f"Clip {number + 1} of {len(audios)}" if len(audios) > 1 else "The clip"
            if len(audio) < self.hop:
                raise AudioError(
                    f"{subject} has {len(audio)} samples; the codec {self.type} needs {self.hop} "
                    f"({1000 * self.hop / self.sample_rate:.3g} ms) for one frame.",
                    "too_short",
                )
            if not np.isfinite(audio).all():
                raise AudioError(f"{subject} contains NaN or infinite samples.", "not_finite")
        with self._exactly():
            return [codes.astype(self.dtype) for codes in self._encode(audios)] if audios else []

    def decode(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        """Audio of codes: float32 [frames * hop] at `sample_rate` of each, from integers [codebooks, frames].

        The same for a clip alone or among others, and in each call. Raises AudioError with the reason `wrong_shape`
        or `wrong_range`.
        """
        for number, clip in enumerate(codes):
            self.check(clip, f"Codes {number + 1} of {len(codes)}" if len(codes) > 1 else "The codes")
        with self._exactly():
            return self._decode(codes) if codes else []

    def check(self, codes: np.ndarray, subject: str = "The codes") -> None:
        """Raises AudioError as `decode`; `subject` begins its sentence."""
        check_codes(codes, self.codebooks, self.vocabulary, f"the codec {self.type}", subject)

    def require_tokens(self) -> int:
        """Its entries. Raises ConfigError for a codec whose codes are real numbers: shards and other models hold
        integers."""
        if self.vocabulary is None:
            raise ConfigError(
                f"The codec {self.type} makes no tokens, its codes are real numbers: train on the recordings "
                "themselves, which are encoded as they are read, and a model that predicts such."
            )
        return self.vocabulary

    def _exactly(self) -> AbstractContextManager[Any]:
        """No autocast: codes must be the same wherever they are made, also while a model trains in bfloat16."""
        import torch

        return torch.autocast(torch.device(self.device).type, enabled=False)

    def to(self, device: str) -> Self:
        """Move it to a device, such as `cuda:1`."""
        raise NotImplementedError

    def save(self, folder: Path) -> None:
        """Write config.json and the weights, as `open_codec` reads them."""
        raise NotImplementedError

    def _encode(self, audios: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise NotImplementedError

    def _decode(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        raise NotImplementedError


class Codec(Choice):
    """The section `model.codec`: the codec that turns audio into tokens and back."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)
    default_type: ClassVar[str | None] = "mel_rvq"

    source: str | None = Field(None, alias="from")
    """Folder or Hub id of the codec. Null: the usual one of its type; for `mel_rvq`, one fitted on the training
    audio."""
    revision: str | None = None
    """Branch, tag or commit of the Hub model. Null: the default branch."""

    fits: ClassVar[bool] = False
    """True of a kind that is fitted on audio (`fit`) where it has no `from`."""
    model_types: ClassVar[tuple[str, ...]] = ()
    """`model_type` in the config.json of such a codec's folder."""
    default_source: ClassVar[str | None] = None
    """Hub id of its published weights."""

    @property
    def rate(self) -> int:
        """Hz of the audio that `fit` takes."""
        raise NotImplementedError

    def open(self, device: str = "cpu") -> AudioCodec:
        """The codec of `from`. Raises ConfigError when it is not there, or of another kind."""
        source = self.source or self.default_source
        if source is None:
            raise ConfigError(
                f"The codec {self.type} has no published weights: give a folder as `from`, made by `stentor prepare "
                "codec DATA --to FOLDER`."
            )
        folder = find(source, self.revision)
        kind = kind_of(folder, source)
        if kind not in self.model_types:
            raise ConfigError(f"{source} holds a codec of the kind '{kind}', not {self.type}.")
        return self.read(folder).to(device)

    def read(self, folder: Path) -> AudioCodec:
        """The codec in a folder whose config.json is of its kind, on the CPU. Subclasses implement this."""
        raise NotImplementedError

    def fit(self, audios: Iterable[np.ndarray], seed: int = 0) -> AudioCodec:
        """A codec made for such audio, float32 [samples] at `rate`. Only of kinds that can (`fits`)."""
        raise ConfigError(f"A codec of the type {self.type} cannot be fitted: give `from`.")


def at_peak(audio: np.ndarray, peak: float = PEAK) -> np.ndarray:
    """Audio, float32 [samples], scaled to a peak; silence stays as it is.

    Everything that training sees as codes is scaled so before `encode`, and so is a reference to be imitated.
    """
    import numpy as np

    highest = float(np.abs(audio).max(initial=0.0))
    return audio * np.float32(peak / highest) if highest > 0 else audio


def check_codes(
    codes: np.ndarray, codebooks: int, vocabulary: int | None, taker: str, subject: str = "The codes"
) -> None:
    """Raises AudioError for codes that are not [codebooks, frames] of so many entries (None: real numbers); `subject`
    and `taker` ("this model") are parts of its sentence."""
    import numpy as np

    if np.ndim(codes) != 2 or len(codes) != codebooks or not codes.shape[1]:
        raise AudioError(
            f"{subject} have the shape {list(np.shape(codes))}; {taker} takes [{codebooks}, frames].", "wrong_shape"
        )
    if vocabulary is None and not (codes.dtype.kind == "f" and np.isfinite(codes).all()):
        raise AudioError(f"{subject} go beyond those of {taker}, which are finite real numbers.", "wrong_range")
    if vocabulary is not None and (codes.dtype.kind not in "iu" or codes.min() < 0 or codes.max() >= vocabulary):
        raise AudioError(
            f"{subject} go from {codes.min()} to {codes.max()}; those of {taker} are 0 to {vocabulary - 1}.",
            "wrong_range",
        )


def open_codec(name: str, device: str = "cpu") -> AudioCodec:
    """The codec in a folder (or in the `audio_tokenizer` of an exported model), of a Hub id, or of a type's published
    weights; the kind is that of config.json. Raises ConfigError."""
    known: dict[str, Any] = dict(Codec.choices())
    if name in known and not Path(name).is_dir():
        return known[name].model_validate({"type": name}).open(device)
    if "/" not in name and not Path(name).is_dir():
        close = get_close_matches(name, known, 1)
        hint = f" (did you mean {close[0]}?)" if close else f"; the types are {', '.join(sorted(known))}"
        raise ConfigError(f"There is no codec folder {name}, and no type of codec of that name{hint}.")
    folder = find(name)
    kind = kind_of(folder, name)
    for choice in known.values():
        if kind in choice.model_types:
            return choice.model_validate({}).read(folder).to(device)
    raise ConfigError(
        f"{name} holds a model of the kind '{kind}', which is none of the codecs {', '.join(sorted(known))}."
    )


def find(source: str, revision: str | None = None) -> Path:
    """The folder of a codec, downloaded when it is a Hub id; of an exported model, its `audio_tokenizer`.

    Raises ConfigError.
    """
    if is_remote(source):
        source = str(local_folder(as_path(source)))
    section = SimpleNamespace(source=source, revision=revision)
    folder = model_folder(section, "codec")
    if not Path(source).is_dir() and not (folder / INSIDE).is_dir():
        folder = _download(section, "codec", ["*.json", "*.safetensors"], ["*/*"])
    return folder / INSIDE if (folder / INSIDE).is_dir() else folder


def model_folder(section: Any, where: str) -> Path:
    """The folder that `source` of the section `where` names; of a Hub id its `audio_tokenizer` alone, if it has one.

    Raises ConfigError.
    """
    if Path(section.source).is_dir():
        return Path(section.source)
    return _download(section, where, [f"{INSIDE}/*"])


def _download(section: Any, where: str, patterns: list[str], without: list[str] | None = None) -> Path:
    from huggingface_hub import snapshot_download

    from stentor.models.pretrained.load import load_pretrained

    def load(name: str, options: dict[str, Any]) -> Path:
        return Path(snapshot_download(name, allow_patterns=patterns, ignore_patterns=without, **options))

    folder: Path = load_pretrained(section, where, load)
    return folder


def kind_of(folder: Path, name: str) -> str:
    """The `model_type` of a folder. Raises ConfigError where there is none."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{name} holds no codec: it has no config.json.")
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["model_type"])
    except (ValueError, KeyError, TypeError):
        raise ConfigError(f"{path} is damaged, or not that of a codec: it names no model_type.") from None
