"""Whether an ONNX export says what the model says: the same clips through both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stentor.errors import StentorError

if TYPE_CHECKING:
    from stentor.data.batch import Example
    from stentor.inference.load import Model

ROUNDING = 0.001
"""Seconds that times are rounded to."""
LOG_PROB = 0.01
"""Most that the mean log-probability of an answer's tokens may differ by. Float32 in another order differs by 1e-4."""
SURE = 0.02
"""Most that a word's probabilities may differ by."""


class Different(StentorError):
    """The export does not do what the model does."""


@dataclass
class Agreement:
    """What was compared, with the largest differences found."""

    clips: int
    seconds: float
    words: int
    """Words whose times were compared."""
    time: float = 0.0
    """Seconds between word times."""
    log_prob: float = 0.0
    """Between mean log-probabilities of answers."""

    def __str__(self) -> str:
        times = f", {self.words} words with times at most {1000 * self.time:.0f} ms apart" if self.words else ""
        return f"{self.clips} clips ({self.seconds:.0f} s): the same text{times}"


def compare(model: Model, exported: Model, examples: Sequence[Example]) -> Agreement:
    """Decode the clips with both, without fallbacks. Raises `Different` unless texts are the same, word times at most
    one point of the aligner's grid apart, and probabilities equal up to rounding.

    Where nothing is recognised (a model that has hardly been trained), the times of the clips' own texts are compared.
    """
    from stentor.tasks.words import Words

    bundle, other = model.bundle, exported.bundle
    rate = bundle.processor.sample_rate
    agreement = Agreement(len(examples), sum(len(e.audio) for e in examples) / rate, 0)
    task: Any = model.for_transcription()
    aligner = bundle.model.aligner
    if aligner is not None and not isinstance(task, Words):
        task = Words()
    answers, others = (task.predict(b, examples, checked=False) for b in (bundle, other))
    for example, answer, again in zip(examples, answers, others, strict=True):
        for key, what in (("text", "text"), ("ctc", "text of the CTC head")):
            if answer.get(key) != again.get(key):
                raise Different(
                    f"The ONNX export is wrong: the {what} of {example.id} is {again.get(key)!r} with onnxruntime and "
                    f"{answer.get(key)!r} with torch. {KEPT}"
                )
        apart = abs(answer["log_prob"] - again["log_prob"])
        if not apart <= LOG_PROB:
            raise Different(
                f"The ONNX export is wrong: the tokens of {example.id} have the mean log-probability "
                f"{again['log_prob']:.3f} with onnxruntime and {answer['log_prob']:.3f} with torch. {KEPT}"
            )
        agreement.log_prob = max(agreement.log_prob, apart)
    if aligner is None:
        return agreement
    found, again = ([a["words"] for a in given] for given in (answers, others))
    if not any(found):
        found, again = (task.align(b, examples) for b in (bundle, other))
    for example, words, same in zip(examples, found, again, strict=True):
        for word, twin in zip(words, same, strict=True):
            apart = max(abs(word[edge] - twin[edge]) for edge in ("start", "end"))
            unsure = max(abs(a - b) for a, b in zip(word["signs"], twin["signs"]))
            if not (apart <= aligner.step + ROUNDING and unsure <= SURE):
                raise Different(
                    f"The ONNX export is wrong: in {example.id} the word {word['word']!r} lies at {twin['start']:.3f} "
                    f"to {twin['end']:.3f} s with onnxruntime and at {word['start']:.3f} to {word['end']:.3f} s with "
                    f"torch (one frame is {aligner.step:g} s, their probabilities differ by {unsure:.3f}). {KEPT}"
                )
            agreement.words += 1
            agreement.time = max(agreement.time, apart)
    return agreement


KEPT = "Nothing was written. Please report this with the versions that `stentor doctor` prints."
