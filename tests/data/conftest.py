"""Cuts without audio: all that mixing and batch sampling ever look at."""

import numpy as np
import pytest

from list_source import ListSource, ListStream, list_source
from stentor.dataloading.section import Data
from stentor.sources.base import Source


@pytest.fixture(scope="session")
def cut():
    """Makes a cut with this id, length in seconds, text and language."""
    from lhotse import MonoCut, SupervisionSegment

    def make(name: str, seconds: float = 1.0, text: str | None = "one", language: str | None = None) -> MonoCut:
        supervision = SupervisionSegment(name, "recording", 0.0, seconds, text=text, language=language)
        return MonoCut(name, 0.0, seconds, 0, [supervision])

    return make


@pytest.fixture(scope="session")
def source():
    """Makes a source of these records; `stream` hides their number."""

    def make(records, stream: bool = False, **fields) -> Source:
        return list_source(records, ListStream if stream else ListSource, **fields)

    return make


@pytest.fixture(scope="session")
def data():
    """Makes a `data:` section over these training sources."""

    def make(*train: Source, **fields) -> Data:
        return Data(train=list(train) or [ListSource(type="given")], **fields)

    return make


@pytest.fixture(scope="session")
def lengths():
    """Draws clip lengths in seconds as they are in well-known corpora."""

    def draw(corpus: str, count: int) -> np.ndarray:
        rng = np.random.default_rng(7)
        if corpus == "librispeech":  # read chapters, cut at pauses: most clips are just under the limit
            seconds = np.where(rng.random(count) < 0.65, rng.normal(14.4, 1.2, count), rng.uniform(1.5, 13, count))
        elif corpus == "commonvoice":  # single sentences
            seconds = rng.lognormal(np.log(4.9), 0.32, count)
        else:  # podcasts, cut into turns
            seconds = rng.gamma(2.2, 3.8, count) + 1.5
        return np.clip(seconds, 1.0, 30.0)

    return draw
