"""Speech to text with the time of every word.

A family that serves this task gives, besides what `transcribe` asks for:

* processor: `collate(examples, labels=True)` takes `Example.extra["words"]`, the words of the text as dicts with `span`
  (characters [start, end) of the text) and where known `start` and `end` in seconds, and counts the term `alignment`;
* model: `aligner` (None when it was built without), `align(**inputs)` of such a batch: times in seconds [B, W, 2],
  how sure they are [B, W] and the lowest token log-probability of each word [B, W];
* aligner: `points(feature lengths)`, one more than the most words that fit, and the buffer `calibration` [3], the
  logistic map to confidences (see `stentor.metrics.calibration`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from stentor.data.batch import Prediction
from stentor.errors import ConfigError, DataError
from stentor.metrics.score import Score
from stentor.tasks.transcribe import Transcribe
from stentor.text.normalize import SPACELESS, language_code

if TYPE_CHECKING:
    import numpy as np
    from lhotse.cut import Cut

    from stentor.data.batch import Example
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle


class Words(Transcribe):
    """Write down what is said, and when each word was said."""

    type: Literal["words"] = "words"

    def losses(self) -> dict[str, Loss]:
        from stentor.losses.alignment import Alignment

        return {**super().losses(), "alignment": Alignment()}

    def drop_reason(self, cut: Cut) -> str | None:
        """Besides what `transcribe` refuses: `no_words` without word times, `words_differ` when fewer than half of the
        text's words have one."""
        from stentor.data.cut import language_of, text_of, words_of

        if reason := super().drop_reason(cut):
            return reason
        words = words_of(cut)
        if not words:
            return "no_words"
        found = timed(text_of(cut) or "", words, language_of(cut))
        return "words_differ" if 2 * sum("start" in w for w in found) < len(found) else None

    def example(self, cut: Cut, audio: np.ndarray, rng: np.random.Generator | None) -> Example:
        from stentor.data.cut import RATE, words_of

        example = super().example(cut, audio, rng)
        # The audio may have been played faster or slower. All processors so far take RATE samples a second.
        scale = len(audio) / RATE / cut.duration
        words = timed(example.text or "", words_of(cut), example.language)
        example.extra["words"] = [w | {k: w[k] * scale for k in ("start", "end") if k in w} for w in words]
        return example

    def predict(
        self, bundle: Bundle, examples: Sequence[Example], checked: bool | None = None, words: bool = True
    ) -> list[dict[str, Any]]:
        """As `Transcribe.predict`; the dicts of `words` also have `start` and `end` in seconds, calibrated `confidence`
        and what it is made of, `signs`: the least probability of the word's tokens and how sure its times are.

        Times come from a second, teacher-forced pass over the text that was written. An answer with more words than
        the audio has room for has no words and fails the check `no_room`. With `words` False the pass is left out.
        """
        if not words:
            return super().predict(bundle, examples, checked)
        with bundle.cache_encoder():
            outputs = super().predict(bundle, examples, checked)
            spoken = [dataclasses.replace(e, text=o["text"]) for e, o in zip(examples, outputs, strict=True)]
            times = self._times(bundle, spoken)
        for output, found in zip(outputs, times, strict=True):
            output["words"] = found or []
            if found is None:
                output["failed"] = [*output["failed"], "no_room"]
        return outputs

    def align(self, bundle: Bundle, examples: Sequence[Example]) -> list[list[dict[str, Any]]]:
        """Word times of known texts: for each example its words in order, as `predict` gives them.

        Words are those between spaces, or characters in languages written without; what is not spoken (a dash alone)
        is left out. An empty text has no words. Raises DataError for a text with more words than the audio can hold.
        """
        found = self._times(bundle, examples)
        for example, words in zip(examples, found):
            if words is None:
                raise DataError(
                    f"{example.id}: the text has {len(units(example.text or '', example.language))} words, more than "
                    f"{len(example.audio) / bundle.processor.sample_rate:.2f} s of audio can hold: text and audio do "
                    "not belong together."
                )
        return [words or [] for words in found]

    def _times(self, bundle: Bundle, examples: Sequence[Example]) -> list[list[dict[str, Any]] | None]:
        """The words of each example with times; None where they do not fit into the audio."""
        import torch

        from stentor.metrics.calibration import confidence

        model, processor = bundle.model, bundle.processor
        if model.aligner is None:
            raise ConfigError(
                "This model has no alignment module: train one with the task `words` and `model.aligner`."
            )
        own = [units(e.text or "", e.language) for e in examples]
        if not any(own):
            return [[] for _ in examples]
        asked = [dataclasses.replace(e, rng=None, extra={"words": words}) for e, words in zip(examples, own)]
        device = next(model.parameters()).device
        with torch.no_grad():
            batch = processor.collate(asked, labels=True).to(device)
            if batch.dropped:
                raise DataError(f"{batch.dropped[0][2]} Cut longer audio into windows first.")
            times, sure, log_probs = (t.float().cpu() for t in model.align(**batch.inputs))
            room = (model.aligner.points(batch.inputs["feature_lengths"]) - 1).tolist()
            calibration = model.aligner.calibration.tolist()
        found: list[list[dict[str, Any]] | None] = []
        for row, (example, words) in enumerate(zip(examples, own)):
            if len(words) > room[row]:
                found.append(None)
                continue
            length = len(example.audio) / processor.sample_rate
            found.append(
                [
                    {
                        "word": word["word"],
                        "start": round(min(start, length), 3),
                        "end": round(min(end, length), 3),
                        "confidence": round(confidence((probability, certain), calibration), 4),
                        "signs": [round(probability, 6), round(certain, 6)],
                    }
                    for word, (start, end), certain, probability in zip(
                        words, times[row].tolist(), sure[row].tolist(), log_probs[row].exp().tolist()
                    )
                ]
            )
        return found

    def reference(self, cut: Cut) -> dict[str, Any]:
        from stentor.data.cut import words_of

        return {**super().reference(cut), "words": words_of(cut)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """The word time metrics (see `stentor.metrics.word_time`), then those of `transcribe`."""
        from stentor.metrics.word_time import score

        times = score(
            [p.reference["words"] for p in predictions],
            [p.output["words"] for p in predictions],
            normalizer=self.normalizer,
            languages=[p.reference.get("language") for p in predictions],
            ids=[p.id for p in predictions],
        )
        return {**times, **super().score(predictions)}

    def main_metric(self) -> tuple[str, str]:
        return "word_time_mean_ms", "min"


def units(text: str, language: str | None) -> list[dict[str, Any]]:
    """The words of a text, each with its `span` of characters [start, end): between spaces, or by character in
    languages written without spaces. What has no letter or digit is not spoken and left out."""
    found = []
    if language_code(language) in SPACELESS:
        pieces = [(i, i + 1) for i in range(len(text))]
        for start, end in pieces:
            if found and not text[start].isspace() and _combining(text[start]):
                found[-1]["span"] = (found[-1]["span"][0], end)  # a vowel sign belongs to its letter
                found[-1]["word"] = text[slice(*found[-1]["span"])]
            elif _bare(text[start]):
                found.append({"word": text[start], "span": (start, end)})
        return found
    at = 0
    for word in text.split():
        start = text.index(word, at)
        at = start + len(word)
        if _bare(word):
            found.append({"word": word, "span": (start, at)})
    return found


def timed(text: str, words: Sequence[Mapping[str, Any]], language: str | None) -> list[dict[str, Any]]:
    """The `units` of the text, with `start` and `end` where one of the timed words, in order, is the same word.

    Case and punctuation may differ. In languages without spaces the words may have several characters, which then
    share their time evenly.
    """
    from stentor.metrics.wer import matches

    own = units(text, language)
    given = [dict(w) for w in words if _bare(w["word"])]
    if language_code(language) in SPACELESS:
        given = [
            {"word": unit["word"], "start": w["start"] + i * part, "end": w["start"] + (i + 1) * part}
            for w in given
            for pieces in [units(w["word"], language)]
            for part in [(w["end"] - w["start"]) / len(pieces)]
            for i, unit in enumerate(pieces)
        ]
    for i, k in matches([_bare(u["word"]) for u in own], [_bare(w["word"]) for w in given]):
        own[i] |= {"start": given[k]["start"], "end": given[k]["end"]}
    return own


def _bare(word: str) -> str:
    """Letters and digits in one case: what must agree between a text and its word times."""
    return "".join(c for c in word.casefold() if c.isalnum())


def _combining(character: str) -> bool:
    import unicodedata

    return unicodedata.category(character).startswith("M")
