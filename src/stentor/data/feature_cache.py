"""What a processor keeps of the audio that it has heard, so that training reads (or generates) it only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.data.augment import Augment


class CachedFeatures(NamedTuple):
    """What there is of a record."""

    features: np.ndarray
    """As the processor's `collate` takes it from `Example.extra["features"]`."""
    samples: int
    """Length of the audio at the processor's sample rate."""


class FeatureCache:
    """Base of processors that can keep what they made of a record's audio.

    In training the loader asks for the items whose audio stays as it is (see `Augment.keeps`). Their examples are made
    without audio: `Task.example` is called with None for it, `Example.audio` stays None, and `extra["features"]` and
    `extra["samples"]` are what there was in `CachedFeatures`.
    """

    def cached_features(self, cut: Cut) -> CachedFeatures | None:
        """What is kept of a record; what is not there yet is made of its audio and kept. None: nothing is ever kept,
        read the audio. Raises AudioError for audio that cannot be used."""
        raise NotImplementedError

    def check_cache(self, cuts: Sequence[Cut], augment: Augment) -> list[str]:
        """Lines for a person, before training on `cuts`: what is kept already. Raises ConfigError when nothing of it
        could be used, or there is no room."""
        raise NotImplementedError
