"""Streaming recognisers with a chunked encoder: CTC heads and transducers.

Tokens are final when they are written; words are final when the next one begins or speech ends. Greedy label looping of
a transducer continues from its state at the end of the last chunk.
"""

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.inference.stream.base import Hypothesis, Recogniser
from stentor.inference.stream.words import Seconds, Token, TokenWords
from stentor.models.base import Bundle
from stentor.models.decoding.transducer import Path, follow, start
from stentor.models.encoders.streaming.encoder_stream import AudioStream, ChunkEncoder, encode_chunks
from stentor.models.transducer.modeling import TransducerModel

NO_LIMIT = 1 << 62


class ChunkedHypothesis(TokenWords, Hypothesis):  # type: ignore[override]  # what it writes is read only
    """Final tokens from the chunks of a recording."""

    def __init__(
        self,
        audio: AudioStream,
        decode: Callable[[list[int]], str],
        seconds: Seconds,
        calibration: Sequence[float] | None = None,
    ):
        super().__init__(decode, seconds, calibration)
        self.audio = audio

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return self.audio.encoder.chunk * self.audio.encoder.frame_seconds

    def add(self, samples: np.ndarray) -> None:
        self.audio.add(samples)

    def pause(self) -> None:
        self.end_at(round(self.audio.seconds / self.audio.encoder.frame_seconds))

    def finish(self) -> None:
        self.audio.finish()
        if not self.audio.ready:  # the last chunk came before
            self.end()

    @property
    def ready(self) -> bool:
        return self.audio.ready

    def after_chunk(self, frame: int) -> None:
        """Mark everything up to this frame as written. After the last chunk, the last word ends."""
        self.advance(frame)
        if self.audio.ended and not self.audio.ready:
            self.end()


class ChunkedRecogniser(Recogniser):
    """A model with a chunked encoder."""

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
        """Return whether it supports this model."""


class CTCHypothesis(ChunkedHypothesis):
    """Most likely path of a CTC head; keeps the tokens of the current word."""

    def __init__(self, audio: AudioStream, spell: Callable[[list[int]], str], blank: int = 0):
        super().__init__(audio, spell, self._seconds)
        self.blank = self._last = blank
        self._heard = 0

    def read(self, classes: Sequence[int], log_probs: Sequence[float]) -> None:
        """Add the most likely class of each of the next frames, and its log-probability."""
        for c, log_prob in zip(classes, log_probs, strict=True):
            self._heard, tokens = self._heard + 1, self.tokens
            if c == self._last != self.blank and tokens:
                before = tokens[-1]
                tokens[-1] = before._replace(end=self._heard, log_prob=max(before.log_prob, log_prob))
            elif c not in (self._last, self.blank):
                self.write(Token(c, log_prob, self._heard - 1, self._heard))
            self._last = c
        self.after_chunk(self._heard)

    def _seconds(self, spans: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        step = self.audio.encoder.frame_seconds
        return [(start * step, end * step) for start, end in spans]


class CTCRecogniser(ChunkedRecogniser):
    """A CTC model that was trained with `streaming`."""

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        return bundle.traits.writes_classes

    def open(self) -> CTCHypothesis:
        return CTCHypothesis(AudioStream(self.encoder), self.processor.spell_classes, self.processor.eos_id)

    @torch.no_grad()
    def advance(self, hypotheses: Sequence[Any]) -> None:
        for hypothesis, hidden in zip(hypotheses, encode_chunks([h.audio for h in hypotheses], self.encoder)):
            best, classes = self.model.ctc_log_probs(hidden[None])[0].max(-1)
            hypothesis.read(classes.tolist(), best.tolist())


class CTCHeadRecogniser(CTCRecogniser):
    """The CTC head of a model that also has another decoder: faster, and a baseline to compare with."""

    policy = "CTC head"

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        return bundle.traits.ctc is not None

    def open(self) -> CTCHypothesis:
        return CTCHypothesis(AudioStream(self.encoder), self.processor.ctc.spell)


class TransducerHypothesis(ChunkedHypothesis):
    """Output of a transducer so far; keeps the tokens of the current word."""

    def __init__(self, audio: AudioStream, model: TransducerModel, processor: Any):
        super().__init__(audio, processor.decode, self._seconds, model.confidence_map())
        self.model = model
        self.output, self.state = start(model, 1, audio.encoder.device)
        self.ahead = 0
        """Number of frames of the next chunk that the last token skipped."""
        self._heard = 0
        """First frame of the next chunk."""
        self._distances: Tensor | None = None
        self._first = 0
        """First frame of `_distances`."""

    def read(self, path: Path, distances: Tensor | None) -> None:
        """Add the path along the next chunk, and the output of the times head."""
        if distances is not None:
            self._distances = distances if self._distances is None else torch.cat([self._distances, distances])
        for token, log_prob, (first, last) in zip(path.ids, path.log_probs, path.spans, strict=True):
            self.write(Token(token, log_prob, first + self._heard, last + self._heard))
        self._heard, self.ahead = self._heard + path.frames, path.at - path.frames
        self.after_chunk(self._heard)
        if self._distances is not None:  # medians look at two frames before a token
            needed = max(min([self._heard, *(int(token.start) for token in self.tokens)]) - 2, self._first)
            self._distances, self._first = self._distances[needed - self._first :], needed

    def _seconds(self, spans: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        seconds = self.model.seconds(spans, self._distances, self._first) if spans else []
        most = self.audio.seconds
        return [(min(max(begin, 0.0), most), min(max(end, 0.0), most)) for begin, end in seconds]


class TransducerRecogniser(ChunkedRecogniser):
    """A transducer whose encoder was trained with `streaming`."""

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        return isinstance(bundle.model, TransducerModel)

    @torch.no_grad()
    def open(self) -> TransducerHypothesis:
        return TransducerHypothesis(AudioStream(self.encoder), self.model, self.processor)

    @torch.no_grad()
    def advance(self, hypotheses: Sequence[Any]) -> None:
        hidden = encode_chunks([h.audio for h in hypotheses], self.encoder)
        paths = [Path(len(frames), NO_LIMIT, at=h.ahead) for h, frames in zip(hypotheses, hidden)]
        output = torch.cat([h.output for h in hypotheses])
        state = tuple(torch.cat(parts, 1) for parts in zip(*(h.state for h in hypotheses)))
        follow(self.model, self.model.project_encoder(pad_sequence(hidden, batch_first=True)), paths, output, state)
        for i, (hypothesis, frames, path) in enumerate(zip(hypotheses, hidden, paths)):
            hypothesis.output = output[i : i + 1].clone()
            hypothesis.state = tuple(part[:, i : i + 1].clone() for part in state)
            hypothesis.read(path, self.model.word_distances(frames))
