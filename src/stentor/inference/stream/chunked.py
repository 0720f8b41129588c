"""What recognisers share whose encoder hears chunk by chunk."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.stream.words import TokenWords
from stentor.models.base import Bundle
from stentor.models.encoders.streaming.encoder_stream import AudioStream, ChunkEncoder


class ChunkedHypothesis(Hypothesis):
    """Tokens that stay as they are written, from the chunks of a recording."""

    def __init__(self, audio: AudioStream, writer: TokenWords):
        self.audio, self.writer = audio, writer

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self.audio.encoder.chunk * self.audio.encoder.frame_seconds

    @property
    def words(self) -> list[Event]:  # type: ignore[override]
        return self.writer.done

    @words.setter
    def words(self, words: list[Event]) -> None:
        self.writer.done = words

    @property
    def partial(self) -> str:  # type: ignore[override]
        return self.writer.text

    def add(self, samples: np.ndarray) -> None:
        self.audio.add(samples)

    def pause(self) -> None:
        self.writer.end_at(round(self.audio.seconds / self.audio.encoder.frame_seconds))

    @property
    def words_ended(self) -> bool:  # type: ignore[override]
        return self.writer.words_ended

    def finish(self) -> None:
        self.audio.finish()
        if not self.audio.ready:  # the last chunk came before
            self.writer.end()

    @property
    def ready(self) -> bool:
        return self.audio.ready

    def after_chunk(self, frame: int) -> None:
        """All is written up to this frame. Behind the last chunk the last word has ended."""
        self.writer.advance(frame)
        if self.audio.ended and not self.audio.ready:
            self.writer.end()


class ChunkedRecogniser(Recogniser):
    """A model with an encoder that hears chunk by chunk."""

    def __init__(self, bundle: Bundle, chunk: float, reach: float):
        """`chunk` and `reach` in seconds; see `stentor.models.encoders.streaming`."""
        self.model: Any = bundle.model
        self.processor: Any = bundle.processor
        self.encoder: ChunkEncoder = self.model.chunk_encoder(self.processor, (chunk, reach))
        self.rate, self.delays = self.encoder.rate, self.processor.streaming.chunk
        self.delay = self.encoder.chunk * self.encoder.frame_seconds

    def nearest(self, delay: float) -> float:
        return self.processor.streaming.nearest(delay)  # type: ignore[no-any-return]

    @classmethod
    @abstractmethod
    def serves(cls, bundle: Bundle) -> bool:
        """Whether it is for such a model."""
