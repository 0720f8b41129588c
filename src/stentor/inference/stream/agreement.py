"""LocalAgreement: streaming with any recogniser, by transcribing the last audio repeatedly (Macháček et al. 2023).

A word becomes final when `n` consecutive answers agree on it and on all words before it. The text before the buffer is
the prompt for models that take one.
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
"""Number of words before the buffer in its prompt."""
LEAD = 1.0
"""Seconds of silence kept before speech."""


class AgreedHypothesis(Hypothesis):
    """The audio that has not been discarded, and the last answers for it."""

    def __init__(self, recogniser: AgreementRecogniser):
        self.recogniser = recogniser
        self.words: list[Event] = []
        self.partial = ""
        self.before: list[str] = []
        """Last words before the buffer."""
        self.buffer = np.zeros(0, np.float32)
        self._offset = 0
        """Number of samples before the buffer."""
        self._answers: list[list[Event]] = []
        self._stable = 0
        """Number of final words of the buffer."""
        self._new = 0
        """Number of samples since the last answer."""
        self._flush = False
        self._activity = Endpointer(recogniser.detector.live(recogniser.rate))
        self._speech = False
        """Whether the buffer contains speech, because models also write words for silence."""

    def add(self, samples: np.ndarray) -> None:
        self.buffer = np.concatenate([self.buffer, samples])
        self._new += len(samples)
        if len(samples) % self._activity.hop == 0:  # all but the last ones
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
        """Take an answer of the model for the buffer."""
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
        """Discard the audio of final words once the buffer is long, if the model has word times."""
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
    takes_language = True  # a model that does not take one warns itself

    def __init__(
        self, transcriber: Transcriber, step: float = 1.0, n: int = 2, keep: float = 10.0, longest: float = 25.0
    ):
        """`step`: seconds from one answer to the next; `n`: number of answers that must agree; `keep`: seconds of audio
        after which final words are discarded; `longest`: seconds after which all words become final."""
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
