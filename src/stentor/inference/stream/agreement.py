"""LocalAgreement: any recogniser, asked again and again about what was said last (Macháček et al. 2023).

A word stays when `n` answers in a row agree on it and on all before it. What was said before is given as the prompt, to
models that read one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import numpy as np

from stentor.data.batch import Example
from stentor.inference.stream.base import Event, Hypothesis, Recogniser
from stentor.inference.transcribe import Transcriber
from stentor.inference.vad import Endpointer
from stentor.text.normalize import bare
from stentor.text.written_words import joined, written_words

PROMPT_WORDS = 30
"""Words before the buffer that are its prompt."""
LEAD = 1.0
"""Seconds of silence before speech that are asked about as well."""


class AgreedHypothesis(Hypothesis):
    """The audio since the last word that was let go, and the last answers about it."""

    def __init__(self, recogniser: AgreementRecogniser):
        self.recogniser = recogniser
        self.words: list[Event] = []
        self.partial = ""
        self.before: list[str] = []
        """The last words before the buffer."""
        self.buffer = np.zeros(0, np.float32)
        self._offset = 0
        """Samples before the buffer."""
        self._answers: list[list[Event]] = []
        self._stable = 0
        """Words of the buffer that stay."""
        self._new = 0
        """Samples since the last answer."""
        self._flush = False
        self._activity = Endpointer(recogniser.detector.live(recogniser.rate))
        self._speech = False
        """Whether anybody speaks in the buffer: models write words for silence, too."""

    def add(self, samples: np.ndarray) -> None:
        self.buffer = np.concatenate([self.buffer, samples])
        self._new += len(samples)
        if len(samples) % self._activity.hop == 0:  # but for the last ones
            self._activity.add(samples)
        self._speech = self._speech or self._activity.speaking
        if not self._speech:
            self._let_go(max(0, len(self.buffer) - round(LEAD * self.recogniser.rate)), ())

    def flush(self) -> None:
        self._flush = self._speech
        self._activity.end()

    def finish(self) -> None:
        self.flush()

    @property
    def ready(self) -> bool:
        r = self.recogniser
        asked = self._new >= r.step * r.rate or len(self.buffer) >= r.longest * r.rate
        return self._speech and (asked or self._flush)

    @property
    def seconds(self) -> float:  # type: ignore[override]
        return len(self.buffer) / self.recogniser.rate

    def read(self, output: dict[str, Any]) -> None:
        """An answer of the model about the buffer."""
        self._new = 0
        answer = self._words_of(output)
        self._answers = [*self._answers, answer][-self.recogniser.n :]
        ends = self._flush or len(self.buffer) >= self.recogniser.longest * self.recogniser.rate
        stable = len(answer) if ends else self._agreed()
        self._commit(answer, stable)
        if ends:
            self._let_go(len(self.buffer), answer)
            self._speech = self._activity.speaking
        else:
            self._trim(answer)
        self._flush = False

    def _agreed(self) -> int:
        if len(self._answers) < self.recogniser.n:
            return self._stable
        same = takewhile(lambda words: len({bare(w["word"]) for w in words}) == 1, zip(*self._answers))
        return max(self._stable, len(list(same)))

    def _commit(self, answer: list[Event], stable: int) -> None:
        self.words += answer[self._stable : stable]
        self._stable = max(stable, self._stable)
        self.partial = joined(word["word"] for word in answer[self._stable :])

    def _trim(self, answer: list[Event]) -> None:
        """Let go of words that stay, once the buffer is long, where the model knows when they end."""
        r = self.recogniser
        stable = answer[: self._stable]
        if len(self.buffer) < r.keep * r.rate or not stable or stable[-1]["end"] is None:
            return
        self._let_go(round(stable[-1]["end"] * r.rate) - self._offset, stable)

    def _let_go(self, samples: int, words: Sequence[Event]) -> None:
        self.before = [*self.before, *(word["word"] for word in words)][-PROMPT_WORDS:]
        self.buffer, self._offset = self.buffer[samples:], self._offset + samples
        self._answers, self._stable = [], 0

    def _words_of(self, output: dict[str, Any]) -> list[Event]:
        r = self.recogniser
        if output.get("failed"):
            return []
        offset = self._offset / r.rate
        timed = output.get("words") or [] if r.transcriber.timed else []
        if timed:
            return [
                {
                    "word": word["word"],
                    "start": round(word["start"] + offset, 3),
                    "end": round(word["end"] + offset, 3),
                    "confidence": word["confidence"],
                }
                for word in timed
            ]
        unknown = {"start": None, "end": None, "confidence": None}
        return [{"word": word, **unknown} for word in written_words(output["text"]) if bare(word)]


class AgreementRecogniser(Recogniser):
    """Any model that transcribes."""

    policy = "LocalAgreement"
    takes_language = True  # as far as its model does, which says so itself

    def __init__(
        self, transcriber: Transcriber, step: float = 1.0, n: int = 2, keep: float = 10.0, longest: float = 25.0
    ):
        """`step`: seconds from one answer to the next; `n`: answers that must agree; `keep`: seconds of audio from
        which on words that stay are let go; `longest`: seconds after which what was heard is let go, agreed or not."""
        self.transcriber, self.rate, self.timed = transcriber, transcriber.rate, transcriber.timed
        self.step, self.delay, self.n, self.keep = step, step, n, keep
        self.longest = min(longest, transcriber.longest)

    def open(self) -> AgreedHypothesis:
        return AgreedHypothesis(self)

    def advance(self, hypotheses: Sequence[Any]) -> None:
        t = self.transcriber
        prompted = "prompt" in t.bundle.family.decoding_options()
        examples = []
        for hypothesis in hypotheses:
            prompt = joined([*filter(None, [t.prompt]), *hypothesis.before]) if prompted else None
            extra: dict[str, Any] = {"prompt": prompt} if prompt else {}
            examples.append(
                Example("stream", hypothesis.buffer, language=t.options.language, context=t.context, extra=extra)
            )
        for hypothesis, output in zip(hypotheses, t.predict(examples), strict=True):
            hypothesis.read(output)
