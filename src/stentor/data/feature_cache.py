"""Feature cache: features that a processor stores, so that training reads (or generates) the audio only once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from stentor.data.augment import Augment

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut


class CachedFeatures(NamedTuple):
    """Features of one record."""

    features: np.ndarray
    """As the processor's `collate` takes them from `Example.extra["features"]`."""
    samples: int
    """Length of the audio at the processor's sample rate."""


class FeatureCache:
    """Base of processors that can store the features of a record.

    In training the loader asks for the items whose audio stays unchanged (see `Augment.keeps`). Their examples are made
    without audio: `Task.example` is called with None for it, `Example.audio` stays None, and `extra["features"]` and
    `extra["samples"]` come from `CachedFeatures`.
    """

    def cached_features(self, cut: Cut) -> CachedFeatures | None:
        """The features of a record, computed from its audio and stored where they are not there yet. None: nothing is
        stored, read the audio. Raises AudioError for audio that cannot be used."""
        raise NotImplementedError

    def check_cache(self, cuts: Sequence[Cut], augment: Augment) -> list[str]:
        """Lines for the user, before training on `cuts`: how much is stored already. Raises ConfigError when nothing of
        it could be used, or there is no room."""
        raise NotImplementedError
