"""CTC chunk by chunk: letters stay as they are heard, and words when the next one begins or speech ends."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp
from typing import Any

import numpy as np
import torch

from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.models.base import Bundle
from stentor.models.transformer.encoder_stream import AudioStream, encode_chunks


class CTCHypothesis(Hypothesis):
    """The most likely path of a CTC head, of which it keeps the word that is being said."""

    def __init__(self, audio: AudioStream, characters: str, frame_seconds: float):
        self.audio, self.characters, self.frame_seconds = audio, characters, frame_seconds
        self.words: list[Event] = []
        self._letters: list[tuple[str, int, int, float]] = []  # letter, its first frame, the one after its last, log p
        self._last = 0
        self._frame = 0
        self._flush = False

    @property
    def partial(self) -> str:  # type: ignore[override]
        return "".join(letter for letter, *_ in self._letters)

    def add(self, samples: np.ndarray) -> None:
        self.audio.add(samples)

    def flush(self) -> None:
        self._end_word()

    def finish(self) -> None:
        self.audio.finish()

    @property
    def ready(self) -> bool:
        return self.audio.ready

    def read(self, classes: Sequence[int], log_probs: Sequence[float]) -> None:
        """The most likely class of each of the next frames, and its log-probability."""
        for c, log_prob in zip(classes, log_probs, strict=True):
            self._frame += 1
            if c == self._last and c and self._letters:
                letter, first, _, best = self._letters[-1]
                self._letters[-1] = (letter, first, self._frame, max(best, log_prob))
            elif c and c != self._last:
                letter = self.characters[c - 1]
                if letter.isspace():
                    self._end_word()
                else:
                    self._letters.append((letter, self._frame - 1, self._frame, log_prob))
            self._last = c
        if self.audio.ended and not self.audio.ready:
            self._end_word()

    def _end_word(self) -> None:
        if not self._letters:
            return
        start, end = (frame * self.frame_seconds for frame in (self._letters[0][1], self._letters[-1][2]))
        confidence = exp(sum(log_prob for *_, log_prob in self._letters) / len(self._letters))
        times: dict[str, Any] = {"start": round(start, 3), "end": round(end, 3), "confidence": round(confidence, 4)}
        self.words.append({"word": self.partial, **times})
        self._letters = []


class CTCRecogniser(Recogniser):
    """A transformer's encoder with a CTC head, trained with `model.streaming`."""

    def __init__(self, bundle: Bundle, chunk: float, reach: float):
        """`chunk` and `reach` in seconds; see `stentor.models.transformer.streaming`."""
        self.model: Any = bundle.model
        self.processor: Any = bundle.processor
        self.rate = self.processor.sample_rate
        step = self.processor.frame_seconds
        self.chunk, self.reach = max(1, round(chunk / step)), max(1, round(reach / step))

    def open(self) -> CTCHypothesis:
        audio = AudioStream(self.model, self.processor.features, self.chunk, self.reach)
        return CTCHypothesis(audio, self.processor.ctc.characters, self.processor.frame_seconds)

    @torch.no_grad()
    def advance(self, hypotheses: Sequence[Any]) -> None:
        for hypothesis, hidden in zip(hypotheses, encode_chunks(self.model, [h.audio for h in hypotheses])):
            best, classes = self.model.ctc_log_probs(hidden).max(-1)
            hypothesis.read(classes.tolist(), best.tolist())
