"""Delayed streams: models that write one token per frame of audio; a word is final when it is complete."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.stream.words import tokens_before_last_word
from stentor.models.base import Bundle
from stentor.models.delayed.modeling import Row, read_position
from stentor.tasks.decode_checks import word_confidences


class DelayedHypothesis(Hypothesis):
    """Output so far; keeps the tokens of the current word."""

    def __init__(self, recogniser: DelayedRecogniser):
        self.recogniser = recogniser
        self.audio = recogniser.open_audio()
        self.row = Row(recogniser.conditions)
        self.words: list[Event] = []
        self._written: int | None = None
        """Last written token."""
        self._before = 0.0
        """The moment of the last word (see `FrameGrid.moment`)."""
        self._begun: float | None = None
        """Moment of the current word."""
        self._word: list[tuple[int, float]] = []
        """Tokens of the current word and their log-probabilities."""
        self._paused = 0.0
        """Time of the last pause in seconds."""

    @property
    def partial(self) -> str:  # type: ignore[override]
        return self.recogniser.processor.decode([token for token, _ in self._word]).strip()

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return 1 / self.recogniser.grid.rate

    def add(self, samples: np.ndarray) -> None:
        self.audio.add(samples)

    def pause(self) -> None:
        self._paused = self.audio.samples / self.recogniser.rate

    @property
    def words_ended(self) -> bool:  # type: ignore[override]
        return not self._word and self._moment >= self._paused

    def finish(self) -> None:
        self.audio.finish()

    @property
    def frame(self) -> int:
        """Frame of the last written token; negative before the first one."""
        return self.row.position - len(self.recogniser.start)

    @property
    def _moment(self) -> float:
        return self.recogniser.grid.moment(self.frame) if self.frame >= 0 else 0.0

    @property
    def readable(self) -> bool:
        """Whether there is a frame for the next position. No position follows the last frame."""
        return len(self.audio.frames) > (self.audio.ended and not self.audio.ready)

    @property
    def ready(self) -> bool:
        return self.readable or self.audio.ready

    @property
    def token(self) -> int:
        """Input token of the next position."""
        start = self.recogniser.start
        return start[self.row.position] if self.row.position < len(start) else self._written  # type: ignore[return-value]

    def read(self, token: int, log_prob: float) -> None:
        """Take the token that was written after the last position."""
        if self.frame < 0:
            return
        self._written = token
        grid, decode = self.recogniser.grid, self.recogniser.processor.decode
        if token == grid.word_id:
            self.end()
            self._begun = self._moment
        elif token == grid.pause_id:
            self.end()
        else:
            self._begun = self._moment if self._begun is None else self._begun
            self._word.append((token, log_prob))
            if count := tokens_before_last_word([earlier for earlier, _ in self._word], decode):
                self.end(count)  # the next word is late, and has no word-start token

    def end(self, count: int | None = None) -> None:
        """Make the current word final, or the words of its first `count` tokens."""
        written, self._word = self._word[:count], [] if count is None else self._word[count:]
        if not written:
            return
        ids, log_probs = ([*column] for column in zip(*written))
        assert self._begun is not None
        spans = self.recogniser.grid.spans(len(ids), (self._before, self._begun, self._moment))
        for word in word_confidences(ids, log_probs, self.recogniser.processor.decode, spans):
            self.words.append({key: word[key] for key in ("word", "start", "end", "confidence")})
        self._before, self._begun = self._begun, self._moment if self._word else None


class DelayedRecogniser(Recogniser):
    """A model on the frame grid, which writes each word with a delay after it was said."""

    policy = "delay"

    def __init__(self, bundle: Bundle, delay: float | None = None):
        """`delay`: seconds; None: the delay of transcripts. Raises ConfigError for an unsupported delay."""
        self.model: Any = bundle.model
        self.processor: Any = bundle.processor
        self.rate, self.grid = self.processor.sample_rate, self.processor.grid
        self.frames, self.delays = self.processor.asked_delay(delay), self.processor.known_delays
        self.delay = self.frames / self.grid.rate
        self.open_audio = self.model.audio_opener(self.processor, self.frames)
        self.start = self.processor.start(self.frames)
        self.conditions = self.model.conditions(self.frames)

    @classmethod
    def serves(cls, bundle: Bundle) -> bool:
        """Return whether it supports this model."""
        return bundle.capabilities.writes_along

    def open(self) -> DelayedHypothesis:
        return DelayedHypothesis(self)

    def advance(self, hypotheses: Sequence[Any]) -> None:
        if waiting := [h.audio for h in hypotheses if not h.readable]:
            self.model.encode(waiting)
        if readable := [h for h in hypotheses if h.readable]:
            self._read_position(readable)
        for hypothesis in hypotheses:
            if hypothesis.audio.ended and not hypothesis.ready:
                hypothesis.end()

    def _read_position(self, hypotheses: Sequence[DelayedHypothesis]) -> None:
        tokens, rows = [h.token for h in hypotheses], [h.row for h in hypotheses]
        log_probs = read_position(self.model, tokens, [h.audio.frames.popleft() for h in hypotheses], rows)
        best, written = log_probs.max(-1)
        for hypothesis, token, log_prob in zip(hypotheses, written.tolist(), best.tolist()):
            hypothesis.read(token, log_prob)
