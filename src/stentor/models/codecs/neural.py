"""Base of the codecs of transformers: networks with residual codebooks, read from a folder."""

from __future__ import annotations

import copy
import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from stentor.errors import ConfigError
from stentor.models.codecs.base import AudioCodec, Codec

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

SETTINGS = "codec.json"
"""Beside a codec's own config.json: which part of it is used (such as 8 of its 32 codebooks)."""


@dataclass(frozen=True)
class CodecGeometry:
    """Rate and shape of a model's codes, from its config."""

    sample_rate: int
    hop: int
    codebooks: int
    """The number that is used, of those that it has."""
    vocabulary: int | None
    """None: of a codec whose codes are real numbers."""


class Neural(Codec):
    """A codec of transformers. Each kind implements the calls of its model."""

    transformers_class: ClassVar[str]
    """Name of the model's class in transformers."""
    fills: ClassVar[bool] = False
    """Whether the model fills up the last frame by itself; that of others is filled up with silence, as their feature
    extractors in transformers do."""

    def model_class(self) -> Any:
        import transformers

        return getattr(transformers, self.transformers_class)

    def geometry(self, config: Any) -> CodecGeometry:
        """Rate and shape of the codes. Raises ConfigError for settings that the codec does not have."""
        raise NotImplementedError

    def codes(self, model: Any, wave: Tensor, geometry: CodecGeometry) -> Tensor:
        """int [codebooks or more, frames] of a wave [frames * hop], or where the model `fills` of any length."""
        raise NotImplementedError

    def wave(self, model: Any, codes: Tensor) -> Tensor:
        """Samples [about frames * hop] of codes [1, codebooks, frames], int64 or, of real ones, float32."""
        raise NotImplementedError

    def read(self, folder: Path) -> AudioCodec:
        from stentor.models.pretrained.load import load_pretrained

        section = self
        if (folder / SETTINGS).is_file():
            try:
                saved = json.loads((folder / SETTINGS).read_text(encoding="utf-8"))
                overrides = {key: getattr(self, key) for key in self.model_fields_set - {"source"}}
                section = type(self).model_validate({**saved, **overrides}, by_name=True)
            except ValueError as error:
                raise ConfigError(f"{folder / SETTINGS} is damaged ({type(error).__name__}). Get it again.") from None
        local = type(self).model_validate({"from": str(folder)})
        model = load_pretrained(local, "codec", lambda name, _: load(self.model_class(), name))
        return NeuralCodec(section, model, folder)

    def num_codebooks(self, requested: int | None, available: int, default: int | None = None) -> int:
        """Number of codebooks to use: as requested, else the default, else all. Raises ConfigError for too many."""
        if requested is not None and requested > available:
            raise ConfigError(f"codec.codebooks: {requested} are wanted and the {self.type} codec has {available}.")
        return requested or min(default or available, available)


def load(model_class: Any, folder: str) -> Any:
    """The model in float32, for evaluation. Raises ConfigError where weights are missing."""
    import torch
    from transformers.utils import logging

    logging.disable_progress_bar()
    options = {"dtype": torch.float32, "use_safetensors": True, "output_loading_info": True}
    model, info = model_class.from_pretrained(folder, trust_remote_code=False, **options)
    parameters = {name for name, _ in model.named_parameters()}
    missing = sorted({*info["missing_keys"], *(key for key, *_ in info["mismatched_keys"])} & parameters)
    if missing:  # transformers would continue with random ones
        raise ConfigError(
            f"The weights in {folder} do not fit its config.json: {len(missing)} are missing or of another shape, such "
            f"as {missing[0]}. Get it again."
        )
    return model.eval()


class NeuralCodec(AudioCodec):
    """A network of transformers as a codec.

    Clips are computed one by one: in a batch, the padding behind a shorter clip would enter convolutions, and sums of
    other shapes round differently, which changes codes.
    """

    def __init__(self, section: Neural, model: Any, folder: Path):
        self.section, self.model, self.folder, self.type = section, model, folder, section.type
        self.geometry = section.geometry(model.config)
        self.sample_rate, self.hop = self.geometry.sample_rate, self.geometry.hop
        self.codebooks, self.vocabulary = self.geometry.codebooks, self.geometry.vocabulary
        self.device = "cpu"

    def __reduce__(self) -> tuple[Callable[..., NeuralCodec], tuple[Neural, Path, str]]:
        # Modules with weight normalisation refuse to be pickled for a spawned process: it reads the folder again.
        return _reopen, (self.section, self.folder, self.device)

    def to(self, device: str) -> Self:
        self.model.to(device)
        self.device = device
        return self

    def save(self, folder: Path) -> None:
        """Copy the codec's own files, so that other programs find what they know, and write codec.json."""
        folder.mkdir(parents=True, exist_ok=True)
        if folder.resolve() != self.folder.resolve():
            for file in sorted(self.folder.iterdir()):
                if file.suffix in (".json", ".safetensors"):
                    shutil.copyfile(file, folder / file.name)
        self.write_settings(folder)

    def write_settings(self, folder: Path) -> None:
        """Write codec.json."""
        settings = self.section.model_dump(mode="json", exclude={"source", "revision"})
        (folder / SETTINGS).write_text(json.dumps(settings, indent=1) + "\n", encoding="utf-8")

    def _encode(self, audios: Sequence[np.ndarray]) -> list[np.ndarray]:
        import torch

        batch = []
        with torch.inference_mode():
            for audio in audios:
                frames = self.frames(len(audio))
                wave = torch.as_tensor(audio, dtype=torch.float32)
                if not self.section.fills:
                    wave = torch.nn.functional.pad(wave, (0, frames * self.hop - len(wave)))
                codes = self.section.codes(self.model, wave.to(self.device), self.geometry)
                assert codes.shape[1] == frames
                batch.append(codes[: self.codebooks].cpu().numpy())
        return batch

    def _decode(self, codes: Sequence[np.ndarray]) -> list[np.ndarray]:
        import numpy as np
        import torch

        audios = []
        kind = np.int64 if self.vocabulary is not None else np.float32
        with torch.inference_mode():
            for clip in codes:
                ids = torch.as_tensor(clip.astype(kind), device=self.device)[None]
                wave = self.section.wave(self.model, ids)[: clip.shape[1] * self.hop]
                # Transposed convolutions of odd strides end a few samples early.
                missing = clip.shape[1] * self.hop - len(wave)
                audios.append(np.pad(wave.float().cpu().numpy(), (0, missing)))
        return audios


def _reopen(section: Neural, folder: Path, device: str) -> NeuralCodec:
    return NeuralCodec(section, load(section.model_class(), str(folder)), folder).to(device)


class PartCodec(NeuralCodec):
    """A codec that came as a part of a model or of its processor: a copy of its network, on the CPU."""

    def __init__(self, section: Neural, model: Any):
        copied = copy.deepcopy(model).to("cpu").float().eval().requires_grad_(False)
        super().__init__(section, copied, Path())

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _rebuild, (self.section, self.model.config, self.model.state_dict())

    def save(self, folder: Path) -> None:
        """Write config.json, the weights and codec.json."""
        self.model.save_pretrained(folder)
        self.write_settings(folder)


def _rebuild(section: Neural, config: Any, state: dict[str, Tensor]) -> PartCodec:
    model = section.model_class()(config)
    model.load_state_dict(state)
    return PartCodec(section, model)


def part_codec(model: Any, codebooks: int | None = None) -> PartCodec:
    """The codec of a part of transformers' model, of which so many codebooks are used (None: the usual number)."""
    known: dict[str, Any] = dict(Codec.choices())
    kind = next((k for k in known.values() if model.config.model_type in k.model_types), None)
    if kind is None or not issubclass(kind, Neural):
        raise ConfigError(f"model.codec: the model has a codec of the kind '{model.config.model_type}': give another.")
    return PartCodec(kind.model_validate({} if codebooks is None else {"codebooks": codebooks}), model)
