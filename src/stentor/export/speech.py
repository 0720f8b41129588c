"""Comparison of the export of a model that speaks: codec tokens, audio, and what a recogniser hears."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from stentor.data.batch import Example
from stentor.data.seeding import rng
from stentor.export.compare import LIMIT, Comparison, Row, size_of
from stentor.export.exporter import Exporter
from stentor.export.probe import CLIPS, FULL, Different, records, same_speech
from stentor.inference.model import Model
from stentor.inference.speak.utterance import Utterance
from stentor.inference.speak.voice import Voice
from stentor.metrics.wer import score
from stentor.tasks.speak.evaluator import evaluate_clips, evaluator_for

AUDIO = 1e-2
"""Most by which a sample of the same codec tokens may differ; full scale is 1."""
ENCODED = 0.01
"""Most of the codec tokens of recordings that may differ."""
WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "zero")
"""Words of the texts where there are no records."""


@dataclass
class SpeechRow(Row):
    """One line of the table. `score` is the word error rate of the judge; without one, the share of tokens that
    differ."""

    audio: float | None = None
    """Largest difference of a sample to the model's, of utterances with the same codec tokens."""
    encoded: float | None = None
    """Share of the codec tokens of recordings that differ; None without an encoder."""


@dataclass
class SpeechComparison(Comparison):
    """Rows of an export of a model that speaks."""

    judge: str | None = None
    """Recogniser that heard the speech."""

    def inputs(self) -> str:
        made_up = f" ({self.built_in} of them digits at random)" if self.built_in else ""
        return f"{self.clips} texts that it was not trained on{made_up}"

    def summary(self) -> str:
        model, *exports = self.rows
        same = f"{self.clips - exports[0].differ} of {self.clips} utterances have the same codec tokens"
        heard = "no recogniser heard them (--judge MODEL)"
        if self.judge is not None:
            figures = ", ".join(f"{row.name} {row.score:.2%}" for row in exports)
            heard = f"WER of {self.judge} {figures}, {model.score:.2%} in Stentor"
        return f"checked in {self.runtime}: {same}; {heard}"

    def markdown(self) -> str:
        columns = ["WER" if self.judge else "tokens that differ", "utterances that differ", "audio", "encoder"]
        lines = [f"| | {' | '.join([*columns, 'size', 'real-time factor'])} |", "|---" * 7 + "|"]
        for row in self.rows:
            assert isinstance(row, SpeechRow)
            audio = "" if row.audio is None else f"{row.audio:.1e}"
            encoded = "" if row.encoded is None else f"{row.encoded:.2%}"
            lines.append(
                f"| {row.name} | {row.score:.2%} | {row.differ} of {self.clips} | {audio} | {encoded} | "
                f"{row.megabytes or 0:.1f} MB | {row.rtf:.3f} |"
            )
        heard = f"The WER is that of {self.judge}" if self.judge else "No recogniser heard the speech (`--judge MODEL`)"
        return "\n".join(lines) + (
            f"\n\n{heard}. `audio`: the largest difference of a sample where the codec tokens are the same. `encoder`: "
            "codec tokens of recordings that differ."
        )


class SpeechReference:
    """Texts, some in the voice of a recording, and what the model in memory makes of them with its own settings."""

    def __init__(self, model: Model, exporter: Exporter, format: str, judge: str | None):
        self.model, self.exporter = model, exporter
        self.judge = None if judge is None else evaluator_for(judge, "text")
        self.examples, built_in = examples_of(model)
        started = time.perf_counter()
        same = exporter.same_inputs(model, self.examples)
        self.outputs = [spoken(model, example) for example in self.examples] if same is None else same
        rtf = (time.perf_counter() - started) / self._seconds(self.outputs)
        self.comparison = SpeechComparison(format, exporter.ran_in(), "wer", len(self.examples), built_in, judge=judge)
        size = sum(p.numel() * p.element_size() for p in model.bundle.model.parameters()) / 1e6
        self.comparison.rows.append(SpeechRow("Stentor (torch)", self._score(self.outputs), size, rtf))

    def _seconds(self, outputs: Sequence[dict[str, Any]]) -> float:
        rate = self.model.bundle.processor.codec.sample_rate  # type: ignore[attr-defined]
        return max(1e-9, sum(len(output["audio"]) for output in outputs) / rate)

    def _score(self, outputs: Sequence[dict[str, Any]]) -> float:
        if self.judge is None:
            return float(np.mean([differing(a["codes"], b["codes"]) for a, b in zip(self.outputs, outputs)]))
        rate = self.model.bundle.processor.codec.sample_rate  # type: ignore[attr-defined]
        languages = [example.language for example in self.examples]
        heard = evaluate_clips(self.judge, [output["audio"] for output in outputs], rate, languages)
        return score([example.text or "" for example in self.examples], heard, languages=languages).value

    def check(self, folder: Path, quantization: str | None, allow: bool) -> None:
        """Run an export in its runtime and add its row. Raises `Different` over the limit, unless `allow` is set."""
        started = time.perf_counter()
        outputs = self.exporter.run(folder, self.model, self.examples)
        seconds = time.perf_counter() - started
        name, rtf = quantization or self.exporter.precision, seconds / self._seconds(outputs)
        row = SpeechRow(name, self._score(outputs), size_of(folder), rtf)
        pairs = list(zip(self.outputs, outputs, strict=True))
        same = [(a, b) for a, b in pairs if same_speech({**a, "sound": None}, {**b, "sound": None})]
        row.differ = len(pairs) - len(same)
        sounds = [(a["audio"], b["audio"]) for a, b in same if a["audio"].shape == b["audio"].shape]
        row.audio = max((float(np.abs(a - b).max()) for a, b in sounds), default=None)
        encoded = [(a["encoded"], b["encoded"]) for a, b in pairs if b.get("encoded") is not None]
        if encoded:
            row.encoded = float(np.mean([differing(a, b) for a, b in encoded]))
        self.comparison.rows.append(row)
        if not allow:
            self._refuse(row, quantization)

    def _refuse(self, row: SpeechRow, quantization: str | None) -> None:
        before, clips = self.comparison.rows[0].score, self.comparison.clips
        runtime = self.comparison.runtime
        limit = LIMIT if quantization is None else self.exporter.quantizations[quantization]
        if self.judge is not None and not 100 * (row.score - before) <= limit:
            raise Different(
                f"the WER of its speech in {runtime} is {row.score:.2%} and not {before:.2%} on {clips} texts, and "
                f"{limit:g} points are allowed"
            )
        if quantization is None and row.differ > FULL.share * clips:
            raise Different(f"{row.differ} of {clips} utterances have other codec tokens in {runtime}")
        # Of continuous codes each frame carries on the rounding of those before; tokens alone give the same sound.
        audio = 0.0 if self.outputs[0]["codes"].dtype.kind == "f" else row.audio or 0.0
        if quantization is None and (audio > AUDIO or (row.encoded or 0.0) > ENCODED):
            raise Different(
                f"its codec in {runtime} differs: {row.audio or 0:.1e} in a sample, {row.encoded or 0:.2%} of the "
                "tokens of recordings"
            )


def differing(one: np.ndarray, other: np.ndarray) -> float:
    """Share of the codes that differ; of continuous ones, by more than a hundredth."""
    if one.shape != other.shape:
        return 1.0
    return float(np.mean(~np.isclose(one, other, rtol=0, atol=AUDIO if one.dtype.kind == "f" else 0)))


def examples_of(model: Model) -> tuple[list[Example], int]:
    """Texts to speak, as `Example.text`, and how many of them are made up. `extra` has `instruct`, `seed` and `voice`,
    the `Voice` that every second one is to be spoken in if the model clones; `audio` is the recording of its text."""
    processor: Any = model.bundle.processor
    found = records(model, CLIPS, math.inf)[0]
    voices = [Voice(processor.codes(e), e.text or "") for e in found] if processor.clones else []
    known: list[str | None] = list(model.bundle.traits.instructs or ()) or [None]
    missing, random = range(len(found), CLIPS), rng("export", "texts")
    texts = [" ".join(random.choice(WORDS, int(random.integers(2, 6)))) for _ in missing]
    more = [Example(f"text {n}", text=t, extra={"instruct": known[n % len(known)]}) for n, t in zip(missing, texts)]
    made = []
    for number, example in enumerate([*found, *more]):
        voice = voices[(number + 1) % len(voices)] if voices and number % 2 else None
        extra = {"instruct": example.extra.get("instruct") if voice is None else None, "voice": voice, "seed": number}
        made.append(Example(example.id, example.audio, example.text, language=example.language, extra=extra))
    return made, len(more)


def spoken(model: Model, example: Example) -> dict[str, Any]:
    """Speech of the model in memory: `codes` [codebooks, frames], `audio` float32 [samples] as the codec gives it, and
    `encoded`, the codes of the example's recording."""
    speaker, processor = model.speaker(), model.bundle.processor
    style = {"instruct": example.extra["instruct"], "language": example.language, "voice": example.extra["voice"]}
    utterance = speaker.prepare(Utterance(example.text or "", seed=example.extra["seed"], **style))
    (speech,) = speaker.speak([utterance], finish=False)
    codec: Any = processor.codec  # type: ignore[attr-defined]
    encoded = None if example.audio is None or not processor.clones else codec.encode([example.audio])[0]  # type: ignore[attr-defined]
    return {"codes": speech.codes, "audio": speech.audio, "encoded": encoded}
