"""Speech recognition with word times.

Models with token times (see `transcribe`) support this task unchanged; it scores their times. They also align if they
have a method `align_tokens(inputs, ids)` (log-probabilities and seconds of the known tokens of one item, None if they
do not fit) and their processor has `spell(text)` (these tokens, and the characters of the text that each writes).
Another family has, in addition to what `transcribe` needs:

* processor: `collate(examples, labels=True)` takes `Example.extra["words"]`, the words of the text as dicts with `span`
  (characters [start, end) of the text) and, if known, `start` and `end` in seconds, and counts the term `alignment`;
* model: `aligner` (None if it was built without), `align(**inputs)` of such a batch: times in seconds [B, W, 2],
  their certainty [B, W] and the lowest token log-probability of each word [B, W];
* aligner: `points(feature lengths)`, one more than the maximum number of words, and the buffer `calibration` [3], the
  logistic map to confidences (see `stentor.metrics.calibration`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.data.batch import Prediction
from stentor.data.cut import RATE, Cut, language_of, text_of, words_of
from stentor.data.word_faults import timed_and_untimed
from stentor.data.word_units import timed_units, units
from stentor.errors import ConfigError, DataError
from stentor.losses.alignment import Alignment
from stentor.losses.base import WILDCARD
from stentor.metrics.score import Direction, Score
from stentor.tasks.decode_checks import word_confidences
from stentor.tasks.transcribe import Transcribe, seconds_of, within

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Example
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle, Family

UNWRITTEN_WORD = {"confidence": 0.0, "signs": [0.0, 0.0], "unwritten": True}
"""Fields of a word that the model cannot write."""


class Words(Transcribe):
    """Speech recognition with the start and end time of every word."""

    type: Literal["words"] = "words"  # type: ignore[assignment]  # a kind of its own
    hypotheses: ClassVar[tuple[str, ...]] = ()

    def incompatible_with(self, family: Family) -> tuple[str, str] | None:
        if self.translate:
            return "translate", "the words of a translation are not in the recording and have no times: leave it out"
        return super().incompatible_with(family)

    def losses(self) -> dict[str, Loss]:
        return {**super().losses(), "alignment": Alignment()}

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """In addition to the reasons of `transcribe`: `no_words` without word times, and `words_differ` if fewer than
        half of the words have one."""
        if reason := super().drop_reason(cut):
            return reason
        words = words_of(cut)
        if not words:
            return "no_words", cut.id
        text_words = timed_units(text_of(cut) or "", words, language_of(cut))
        has_few = 2 * sum("start" in w for w in text_words) < len(text_words)
        return ("words_differ", cut.id) if has_few else None

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        example = super().example(cut, audio, rng)
        # The audio may have been played faster or slower. Models that read word times take RATE samples a second.
        scale = seconds_of(example, RATE) / cut.duration
        words = timed_units(example.text or "", words_of(cut), example.language)
        example.extra["words"] = [w | {k: w[k] * scale for k in ("start", "end") if k in w} for w in words]
        return example

    def predict(
        self, bundle: Bundle, examples: Sequence[Example], checked: bool | None = None, words: bool = True
    ) -> list[dict[str, Any]]:
        """Like `Transcribe.predict`; the dicts of `words` also have `start` and `end` in seconds, the calibrated
        `confidence`, and `signs`, the two features that it is computed from: the lowest probability of the word's
        tokens and the aligner's certainty of its times.

        Times come from a second, teacher-forced pass over the text. A text with more words than fit into the audio gets
        no words and fails the check `no_room`. The pass is skipped without `words` and for models with token times.
        """
        if not words or bundle.capabilities.times_tokens:
            return super().predict(bundle, examples, checked)
        with bundle.cache_encoder():
            outputs = super().predict(bundle, examples, checked)
            hypotheses = [dataclasses.replace(e, text=o["text"]) for e, o in zip(examples, outputs, strict=True)]
            times = self.align(bundle, hypotheses)
        for output, words_with_times in zip(outputs, times, strict=True):
            output["words"] = words_with_times or []
            if words_with_times is None:
                output["failed"] = [*output["failed"], "no_room"]
        return outputs

    def align(self, bundle: Bundle, examples: Sequence[Example]) -> list[list[dict[str, Any]] | None]:
        """Align known texts: return the words of each example in order, as `predict` does; None if they do not fit into
        the audio.

        Words are separated by spaces, or are characters in languages written without spaces. Parts that are not spoken,
        such as a dash, are left out.
        """
        import torch

        from stentor.data.trained_speech import with_room
        from stentor.metrics.calibration import confidence

        model: Any = bundle.model
        processor: Any = bundle.processor
        aligns = bundle.capabilities.aligns
        if aligns == "tokens":
            with bundle.cache_encoder():
                return [self._token_times(bundle, example) for example in examples]
        if aligns is None:
            raise ConfigError("This model has no alignment module: train it with the task `words` and `model.aligner`.")
        words_of_texts = [units(e.text or "", e.language) for e in examples]
        if not any(words_of_texts):
            return [[] for _ in examples]
        targets = [
            dataclasses.replace(e, rng=None, extra={"words": words}) for e, words in zip(examples, words_of_texts)
        ]
        device = next(model.parameters()).device
        targets, earlier = with_room(bundle.traits.trained_speech, processor, targets)
        with torch.no_grad():
            batch = processor.collate(targets, labels=True).to(device)
            if batch.dropped:
                raise DataError(batch.dropped[0][2])
            times, certainties, log_probs = (t.float().cpu() for t in model.align(**batch.inputs))
            capacities = (model.aligner.points(batch.inputs["feature_lengths"]) - 1).tolist()
            calibration = model.aligner.calibration.tolist()
        alignments: list[list[dict[str, Any]] | None] = []
        for row, (example, words) in enumerate(zip(examples, words_of_texts)):
            if len(words) > capacities[row]:
                alignments.append(None)
                continue
            length = seconds_of(example, processor.sample_rate)
            columns = zip(words, times[row].tolist(), certainties[row].tolist(), log_probs[row].exp().tolist())
            alignments.append(
                [
                    {
                        "word": word["word"],
                        "start": round(min(max(start - earlier[row], 0.0), length), 3),
                        "end": round(min(max(end - earlier[row], 0.0), length), 3),
                        "confidence": round(confidence((probability, certainty), calibration), 4),
                        "signs": [round(probability, 6), round(certainty, 6)],
                    }
                    for word, (start, end), certainty, probability in columns
                ]
            )
        return alignments

    def _token_times(self, bundle: Bundle, example: Example) -> list[dict[str, Any]] | None:
        """Return the words of an example with the times of their tokens. A word that the model cannot write is
        `unwritten`, with the time of its wildcards and confidence 0."""
        import torch

        from stentor.data.trained_speech import with_room

        model: Any = bundle.model
        processor: Any = bundle.processor
        text, seconds = example.text or "", seconds_of(example, processor.sample_rate)
        words = units(text, example.language)
        ids, places = processor.spell(text)
        if not words:
            return []
        if len(ids) > processor.max_new_tokens(seconds):
            return None
        plain = dataclasses.replace(example, rng=None)
        (roomy,), (earlier,) = with_room(bundle.traits.trained_speech, processor, [plain])
        batch = processor.collate([roomy], labels=False).to(next(model.parameters()).device)
        with torch.no_grad():
            path = model.align_tokens(batch.inputs, ids)
        if path is None:
            return None
        log_probs, spans = path
        spans = [tuple(within(time, seconds, earlier) for time in span) for span in spans]
        aligned: list[dict[str, Any]] = []
        for word in words:
            positions = _tokens_of(text, places, *word["span"])
            known = [i for i in positions if ids[i] != WILDCARD]
            wild = [tuple(round(time, 3) for time in spans[i]) for i in positions if ids[i] == WILDCARD]
            if processor.decode([ids[i] for i in known]).strip():
                group, calibration = [(word["word"], known)], model.confidence_map()
                aligned += word_confidences(ids, log_probs, processor.decode, spans, calibration, group)
            else:
                start, end = wild[0] if wild else 2 * (aligned[-1]["end"] if aligned else 0.0,)
                aligned.append({"word": word["word"], "start": start, "end": end, **UNWRITTEN_WORD})
            for start, end in wild:  # also of a word that is written in part
                aligned[-1] |= {"start": min(aligned[-1]["start"], start), "end": max(aligned[-1]["end"], end)}
        return aligned

    def reference(self, cut: Cut) -> dict[str, Any]:
        return {**super().reference(cut), "words": timed_and_untimed(cut)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return the word time metrics (see `stentor.metrics.word_time`), then those of `transcribe`."""
        from stentor.metrics.word_time import score

        times = score(
            [p.reference["words"] for p in predictions],
            [p.output["words"] for p in predictions],
            normalizer=self.normalizer,
            languages=[p.reference.get("language") for p in predictions],
            ids=[p.id for p in predictions],
        )
        return {**times, **super().score(predictions)}

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        from stentor.metrics.word_time import DIRECTIONS

        return {**DIRECTIONS, **super().metrics(losses)}


def _tokens_of(text: str, places: Sequence[tuple[int, int]], start: int, end: int) -> list[int]:
    """Return the positions of the tokens that write characters [start, end) of a text and the space before them."""
    return [
        i
        for i, (first, after) in enumerate(places)
        if first < end and (after > start or (after == start and text[first:after].isspace()))
    ]
