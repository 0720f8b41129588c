"""Collation shared by the processors: examples that cannot be used, SpecAugment, batches of raw audio."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.augment import SpecAugment
from stentor.data.batch import Batch, Example, num_samples
from stentor.errors import DataError

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.contracts import Processor
    from stentor.models.encoders.geometry import Geometry

HOP = 160
"""Samples of one frame of SpecAugment on raw audio."""
SHORTEST = 1600
"""Samples that clips get silence up to: convolutions make no frame of shorter ones."""


Contents = tuple[dict[str, Any], dict[str, int], int, int]
"""Inputs of a batch, counts of targets, tokens and positions."""


def usable_batch(
    processor: Processor, examples: Sequence[Example], labels: bool, contents: Callable[[list[Example], bool], Contents]
) -> Batch:
    """The batch of the examples without a `Processor.refusal`, which `contents` makes of them and `labels`. A batch for
    generation (not `labels`) drops nothing: raises DataError with the first sentence."""
    reasons = [processor.refusal(example, labels) for example in examples]
    dropped = [(example.id, *reason) for example, reason in zip(examples, reasons) if reason is not None]
    if dropped and not labels:
        raise DataError(dropped[0][2])
    if not (usable := [i for i, reason in enumerate(reasons) if reason is None]):
        return Batch(inputs={}, counts={}, ids=[], dropped=dropped)
    inputs, counts, tokens, num_positions = contents([examples[i] for i in usable], labels)
    return Batch(
        inputs=inputs,
        counts=counts,
        ids=[examples[i].id for i in usable],
        seconds=sum(num_samples(examples[i]) for i in usable) / processor.sample_rate,
        tokens=tokens,
        num_positions=num_positions,
        usable=usable,
        dropped=dropped,
    )


def spec_augment(example: Example) -> SpecAugment | None:
    """The masks that an example asks for; None in evaluation and where there are none."""
    settings = example.extra.get("spec_augment")
    return SpecAugment.model_validate(settings) if settings and example.rng is not None else None


def mask_features(features: Tensor, lengths: Tensor, examples: Sequence[Example]) -> None:
    """Apply each example's SpecAugment, in place, to log-mel [B, mels, T] with lengths [B]."""
    for row, length, example in zip(features, lengths.tolist(), examples):
        masks = spec_augment(example)
        if length and masks is not None and example.rng is not None:
            row[:, :length] = masks.apply(row[:, :length].T, example.rng).T


def mask_audio(clip: np.ndarray, example: Example) -> np.ndarray:
    """Raw audio [samples] under SpecAugment: the time stripes become silence; there are no frequencies to mask."""
    masks = spec_augment(example)
    if masks is None or example.rng is None:
        return clip
    clip = clip.copy()
    for axis, first, last in masks.stripes(len(clip) // HOP, 2, example.rng):
        if axis == 0:
            clip[first * HOP : last * HOP] = 0
    return clip


def pad_shortest(audio: np.ndarray | None) -> np.ndarray:
    """float32 audio with silence added up to `SHORTEST` samples."""
    import numpy as np

    audio = np.asarray(audio, np.float32)
    return np.pad(audio, (0, max(0, SHORTEST - len(audio))))


def audio_batch(clips: Sequence[np.ndarray], examples: Sequence[Example], normalize: bool) -> Tensor:
    """Audio [B, T], zero at padding, of clips under SpecAugment; with `normalize` each has mean 0 and variance 1."""
    import numpy as np
    import torch

    audio = torch.zeros(len(clips), max(map(len, clips)))
    for row, clip, example in zip(audio, clips, examples):
        if normalize:
            clip = (clip - clip.mean()) / np.sqrt(clip.var() + 1e-7)
        row[: len(clip)] = torch.from_numpy(mask_audio(clip, example))
    return audio


def encoder_inputs(shape: Geometry, extractor: Any, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    """Log-mel [B, mels, T] of transformers' `extractor`, or audio [B, T], under SpecAugment and zero at padding, with
    lengths [B] in the same steps."""
    import torch

    clips = [pad_shortest(example.audio) for example in examples]
    lengths = torch.tensor([shape.steps(len(clip)) for clip in clips])
    if shape.kind == "wave":
        return audio_batch(clips, examples, shape.normalize), lengths
    features = torch.zeros(len(clips), shape.mels, int(lengths.max()))
    for row, clip, length in zip(features, clips, lengths.tolist()):  # alone, as the extractor computes padding as well
        if (mel := shape.fixed_features) is not None:
            log_mel = torch.from_numpy(mel.normalized(mel.raw(clip)))
        else:
            log_mel = extractor([clip], sampling_rate=extractor.sampling_rate, return_tensors="pt")["input_features"][0]
        row[:, :length] = log_mel[:length].T
    mask_features(features, lengths, examples)
    return features, lengths
