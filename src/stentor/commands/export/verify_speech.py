"""Verification of models that speak: codec tokens of utterances, and the waveforms that their codecs make."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.batch import Example
from stentor.data.cut import cut_from_record
from stentor.data.seeding import rng
from stentor.models.base import Bundle
from stentor.tasks.base import Task

STEPS = 4


def speak(bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
    """The utterances as a model says them in a few steps and without chance: `codes` int16 [codebooks, frames], and
    `sound`, float32 [samples], what its codec makes of the recording's own tokens (None without one)."""
    processor: Any = bundle.processor
    codes = [processor.codes(e) for e in examples]
    utterances = [
        processor.utterance(e.text, language=e.language, instruct=e.extra["instruct"], frames=c.shape[1])
        for e, c in zip(examples, codes, strict=True)
    ]
    spoken = bundle.model.speak(
        utterances, seeds=[0] * len(utterances), steps=STEPS, position_temperature=0.0, class_temperature=0.0
    )
    waveforms = processor.codec.decode(codes) if processor.codec is not None else [None] * len(codes)
    return [{"codes": c, "sound": s} for c, s in zip(spoken, waveforms, strict=True)]


def same_speech(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two outputs of `speak` are the same, sounds but for what nobody hears."""
    codes = one["codes"], other["codes"]
    if codes[0].dtype.kind == "f":  # each frame is made from those before, and carries their rounding on
        codes = codes[0][:, :1], codes[1][:, :1]
        if not np.allclose(*codes, rtol=1e-2, atol=1e-3):
            return False
    elif not np.array_equal(*codes):
        return False
    a, b = one["sound"], other["sound"]
    if a is None or b is None:
        return a is b
    return a.shape == b.shape and bool(np.allclose(a, b, atol=1e-2))


def random_examples(task: Task, bundle: Bundle, texts: Sequence[str]) -> list[Example]:
    """The texts with codec tokens that mean nothing: two models answer them alike or not."""
    processor: Any = bundle.processor
    examples = []
    for number, text in enumerate(texts):
        record = {"id": f"{text!r} with codec tokens at random", "audio_path": "-", "duration": 1.0, "text": text}
        example = task.example(cut_from_record(record, Path(), "the probe"), None, None)  # type: ignore[arg-type]
        shape = (processor.codebooks, 20 + 10 * number)
        example.extra["codes"] = rng("probe", number).integers(0, processor.vocabulary, shape).astype("int16")
        examples.append(example)
    return examples
