"""CTC chunk by chunk: letters stay as they are heard, and words when the next one begins or speech ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from stentor.inference.stream.chunked import ChunkedHypothesis, ChunkedRecogniser
from stentor.inference.stream.words import Token, TokenWords
from stentor.models.base import Bundle
from stentor.models.encoders.streaming.encoder_stream import AudioStream, encode_chunks


class CTCHypothesis(ChunkedHypothesis):
    """The most likely path of a CTC head, of which it keeps the word that is being said."""

    def __init__(self, audio: AudioStream, spell: Callable[[list[int]], str], blank: int = 0):
        super().__init__(audio, TokenWords(spell, self._seconds))
        self.blank = self._last = blank
        self._frame = 0

    def read(self, classes: Sequence[int], log_probs: Sequence[float]) -> None:
        """The most likely class of each of the next frames, and its log-probability."""
        for c, log_prob in zip(classes, log_probs, strict=True):
            self._frame, tokens = self._frame + 1, self.writer.tokens
            if c == self._last != self.blank and tokens:
                before = tokens[-1]
                tokens[-1] = before._replace(end=self._frame, log_prob=max(before.log_prob, log_prob))
            elif c not in (self._last, self.blank):
                self.writer.add(Token(c, log_prob, self._frame - 1, self._frame))
            self._last = c
        self.after_chunk(self._frame)

    def _seconds(self, spans: Sequence[tuple[int, int]]) -> list[tuple[float, float]]:
        step = self.audio.encoder.frame_seconds
        return [(start * step, end * step) for start, end in spans]


class CTCRecogniser(ChunkedRecogniser):
    """A model whose CTC head writes, trained with `streaming`."""

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        return hasattr(bundle.processor, "spell_classes")

    def open(self) -> CTCHypothesis:
        return CTCHypothesis(AudioStream(self.encoder), self.processor.spell_classes, self.processor.eos_id)

    @torch.no_grad()
    def advance(self, hypotheses: Sequence[Any]) -> None:
        for hypothesis, hidden in zip(hypotheses, encode_chunks([h.audio for h in hypotheses], self.encoder)):
            best, classes = self.model.ctc_log_probs(hidden[None])[0].max(-1)
            hypothesis.read(classes.tolist(), best.tolist())


class CTCHeadRecogniser(CTCRecogniser):
    """The CTC head beside what else a model writes with: sooner done, and a figure to compare with."""

    policy = "CTC head"

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        return getattr(bundle.processor, "ctc", None) is not None

    def open(self) -> CTCHypothesis:
        return CTCHypothesis(AudioStream(self.encoder), self.processor.ctc.spell)
