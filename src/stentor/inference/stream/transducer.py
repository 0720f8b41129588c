"""Transducers chunk by chunk: greedy label looping that goes on where it was at the end of the last chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from stentor.inference.stream.chunked import ChunkedHypothesis, ChunkedRecogniser
from stentor.inference.stream.words import Token, TokenWords
from stentor.models.base import Bundle
from stentor.models.decoding.transducer import Path, follow, start
from stentor.models.encoders.streaming.encoder_stream import AudioStream, encode_chunks
from stentor.models.transducer.modeling import TransducerModel

NO_LIMIT = 1 << 62


class TransducerHypothesis(ChunkedHypothesis):
    """What was written along the frames so far, of which it keeps the word that is being said."""

    def __init__(self, audio: AudioStream, model: TransducerModel, processor: Any):
        writer = TokenWords(processor.decode, self._seconds, model.confidence_map())
        super().__init__(audio, writer)
        self.model = model
        self.output, self.state = start(model, 1, audio.encoder.device)
        self.ahead = 0
        """Frames of the next chunk that the last token jumped over."""
        self._frame = 0
        """The first of the next chunk."""
        self._distances: Tensor | None = None
        self._first = 0
        """The frame that `_distances` begins with."""

    def read(self, path: Path, distances: Tensor | None) -> None:
        """The path along the next chunk, and what its times head says."""
        if distances is not None:
            self._distances = distances if self._distances is None else torch.cat([self._distances, distances])
        for token, log_prob, (first, last) in zip(path.ids, path.log_probs, path.spans, strict=True):
            self.writer.add(Token(token, log_prob, first + self._frame, last + self._frame))
        self._frame, self.ahead = self._frame + path.frames, path.at - path.frames
        self.after_chunk(self._frame)
        if self._distances is not None:  # medians look at two frames before a token
            needed = max(min([self._frame, *(int(token.start) for token in self.writer.tokens)]) - 2, self._first)
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
