"""Speech recognition task.

A family that serves this task gives, besides what every family gives:

* processor: `ids(text)`, `decode(ids)`, `eos_id`, `max_new_tokens(seconds)`, `max_seconds` (longest clip, None for any
  length) and `ctc` (the alphabet of a CTC head with `decode(classes per frame)`, None without a head); where clips are
  to be given as they were in training, `trained_speech` (see `stentor.data.trained_speech`); for its targets it may use
  `Example.extra["times"]`, the record's word times `{"word", "start", "end"}` in seconds;
* model: `stentor.models.contracts.Recognizer`, which declares its `capabilities`; with a CTC head also
  `ctc_classes(**inputs)`, the likeliest class of each frame.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr

from stentor.data.batch import Example, Prediction
from stentor.data.cut import RATE, Cut, field_of, language_of, set_translation, speaker_of, text_of, words_of
from stentor.data.storage import StoragePath
from stentor.losses.sequence import SequenceLoss, sequence_terms
from stentor.losses.token import CrossEntropy
from stentor.metrics.score import Score
from stentor.models.contracts import GenerationOutput, Recognizer
from stentor.tasks.base import Task
from stentor.tasks.decode_checks import Checks, compression_ratio, token_spans, word_confidences
from stentor.text.normalize import Normalizer

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Batch
    from stentor.losses.base import Loss
    from stentor.metrics.wer import Unit
    from stentor.models.base import Bundle, Family, TaskRequirements
    from stentor.models.contracts import Processor

_MEND = "leave `translate` out, or take a model that translates (stentor models --can translation)"


class Transcribe(Task):
    """Write down what is said."""

    type: Literal["transcribe"] = "transcribe"
    metric: Literal["wer", "cer"] = "wer"
    """The metric that picks the best checkpoint: word or character error rate. For languages written without spaces
    (Japanese, Chinese, Thai, ...) both count characters; take `cer`."""
    normalizer: Normalizer = "whisper_basic"
    """Text normaliser for references and answers before scoring. `whisper_english` is what English leader
    boards used until 2026 (numbers become digits, so that "one two" is the one word 12); `whisper_basic` drops case and
    punctuation; `open_asr` is that of the Open ASR Leaderboard (take it with `scoring: open_asr`); `none` scores the
    texts as they are."""
    spelling: str | None = None
    """Path of a Whisper `normalizer.json` with British and American spellings, for `whisper_english`. Null: Whisper's
    own, without a few slips."""
    scoring: Literal["levenshtein", "open_asr"] = "levenshtein"
    """Counting of word errors: by the shortest edit script, or as the Open ASR Leaderboard does (with `normalizer:
    open_asr`): words written apart match the same written together. `open_asr` needs `stentor[evaluate]`."""
    translate: bool = False
    """Write down what is said in the other language that the model translates to (Whisper: English), for families that
    can. The target is then each record's `translation`, a record without one is dropped (`no_translation`), and chrF
    takes the place of error rates. The record's `language` is the one that is spoken."""
    context: str | None = None
    """Free text given to the model with every item, such as names and terms that may be heard. An item's own `context`
    comes before it."""
    beams: int = Field(1, ge=1)
    """Hypotheses kept while decoding. 1: greedy."""
    hotwords: list[str] = []
    """Names and terms that are favoured while decoding, for models that write token by token or by CTC."""
    hotword_strength: float = Field(1.5, gt=0)
    """Bonus added to the log-probability of each hotword token. Too much writes them where they are not
    said."""
    language_model: StoragePath | None = None
    """Path of texts, one sentence a line, whose n-grams bias decoding (shallow fusion): they show which
    words there are where little transcribed speech does. For the models that favour hotwords, and not beside them.
    Lines with letters that the model cannot write are left out."""
    language_model_weight: float = Field(0.5, gt=0)
    """Weight of the log-probability of a token in these texts, relative to the recogniser's."""
    checks: Checks = Checks()
    """Hallucination checks, with decoding again when one fails."""
    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")
    _sequence: dict[str, SequenceLoss] = PrivateAttr(default_factory=dict)
    """The sequence loss among the terms."""

    def incompatible_with(self, family: Family) -> tuple[str, str] | None:
        if self.hotwords and "hotwords" not in family.decoding_options():
            return "hotwords", f"a model of the family {family.type} cannot favour words: leave them out"
        if self.language_model and "hotwords" not in family.decoding_options():
            return "language_model", f"a model of the family {family.type} cannot listen to it: leave it out"
        if self.language_model and self.hotwords:
            return "hotwords", "hotwords and a language model cannot be combined: leave out one"
        if not self.translate or family.translates():
            return None
        return "translate", f"a model of the family {family.type} with these settings writes only what is said: {_MEND}"

    def losses(self) -> dict[str, Loss]:
        return {"text": CrossEntropy()}

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        self._sequence = sequence_terms(losses)
        return super().requirements({name: loss for name, loss in losses.items() if name not in self._sequence})

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """With a sequence loss also what hypotheses are written from."""
        if not self._sequence:
            return super().collate(examples, processor, packed)
        from stentor.tasks.hypotheses.texts import item_seed, prepare

        seeds = [item_seed(e) for e in examples]
        batch = super().collate(examples, processor, packed)
        if batch.ids:
            batch.search = prepare(batch, examples, seeds, processor)
            batch.counts |= dict.fromkeys(self._sequence, len(batch.ids))
        return batch

    def add_hypotheses(self, bundle: Bundle, batch: Batch, losses: Mapping[str, Loss]) -> None:
        from stentor.tasks.hypotheses.texts import add_hypotheses

        scoring = {"normalizer": self.normalizer, "spelling": self.spelling}
        for name in self._sequence.keys() & losses.keys():
            add_hypotheses(bundle, batch, self._sequence[name], scoring)

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        # Every record passes here before its cost is counted: a translation becomes its text, for all that follows.
        if self.translate and not set_translation(cut):
            return "no_translation", f"{cut.id}: no `translation` (docs/data.md)"
        return None if (text_of(cut) or "").strip() else ("empty_text", cut.id)

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        # The audio may have been played faster or slower. Models that read word times take RATE samples a second.
        scale = 1.0 if audio is None else len(audio) / RATE / cut.duration
        words = [] if self.translate else words_of(cut)
        times = [w | {k: w[k] * scale for k in ("start", "end")} for w in words]
        return Example(
            id=cut.id,
            audio=audio,
            text=text_of(cut),
            language=language_of(cut),
            context=field_of(cut, "context") or self.context,
            rng=rng,
            extra={**({"times": times} if times else {}), **({"translate": True} if self.translate else {})},
        )

    def predict(self, bundle: Bundle, examples: Sequence[Example], checked: bool | None = None) -> list[dict[str, Any]]:
        """Decode; `checked` overrides `checks.evaluate` (transcribing files follows `checks.on`).

        Each output: `text`; `words` with `confidence`, of models that time their tokens with `start` and `end` in
        seconds as well (see `word_confidences`); `log_prob`, the mean over the tokens
        (0 for an empty answer); `compression_ratio`; `no_speech_prob`, where the model knows it; `temperature`;
        `failed`, the names of checks that the answer fails; `ctc`, the text of the CTC head, where the model has one;
        where `Example.extra["tokens"]` is true, `tokens`: `{"token", "logprob"}` of each token that was written, in
        order, `token` being what it adds to the text.
        """
        coldest, *hotter = self.checks.temperatures
        outputs = self._decode(bundle, examples, coldest, ctc=True)
        if not (self.checks.evaluate if checked is None else checked):
            return outputs
        seconds = [seconds_of(e, bundle.processor.sample_rate) for e in examples]
        for output, length in zip(outputs, seconds, strict=True):
            output["failed"] = self.checks.failed(output, length)
        best = list(outputs)
        for temperature in hotter:
            again = [i for i, output in enumerate(best) if output["failed"] and "no_speech" not in output["failed"]]
            if not again:
                break
            for i, output in zip(again, self._decode(bundle, [examples[i] for i in again], temperature), strict=True):
                output["failed"] = self.checks.failed(output, seconds[i])
                best[i] = min(best[i], output, key=lambda o: (len(o["failed"]), -o["log_prob"]))
        return [{**output, **{k: v for k, v in first.items() if k == "ctc"}} for first, output in zip(outputs, best)]

    def _decode(
        self, bundle: Bundle, examples: Sequence[Example], temperature: float, ctc: bool = False
    ) -> list[dict[str, Any]]:
        import torch

        from stentor.data.trained_speech import with_room
        from stentor.models.decoding.bias import biasing
        from stentor.models.decoding.ngram import language_model

        processor: Any = bundle.processor
        model: Any = bundle.model
        device = next(model.parameters()).device
        before = [seconds_of(e, processor.sample_rate) for e in examples]
        examples, earlier = with_room(bundle.traits.trained_speech, processor, examples)
        batch = processor.collate(examples, labels=False).to(device)
        # Sampling is seeded by the audio, not by its name: a transcript repeats exactly wherever the file lies and
        # whatever is in its batch, and training's randomness is left alone.
        seeds = []
        for example in examples:
            assert example.audio is not None
            seeds.append(zlib.crc32(example.audio.data, zlib.crc32(str(temperature).encode())))
        sampled = temperature > 0
        options: dict[str, Any] = {}
        if self.hotwords:
            options["bias"] = biasing(processor, tuple(self.hotwords), self.hotword_strength)
        elif self.language_model:
            options["bias"] = language_model(processor, self.language_model, self.language_model_weight)
        with torch.no_grad(), bundle.cache_encoder():
            generated = model.generate(
                batch.inputs,
                max_new_tokens=[processor.max_new_tokens(seconds_of(e, processor.sample_rate)) for e in examples],
                eos_ids={processor.eos_id},
                beams=1 if sampled else self.beams,
                temperature=temperature,
                generators=[torch.Generator(device).manual_seed(seed) for seed in seeds] if sampled else None,
                **options,
            )
            ctc_texts = None
            if ctc and processor.ctc is not None:
                ctc_texts = [processor.ctc.decode(classes) for classes in model.ctc_classes(**batch.inputs)]
        calibration = model.confidence_map() if isinstance(model, Recognizer) else None
        timing: dict[str, Any] = {} if calibration is None else {"calibration": calibration}
        outputs = []
        for i, output in enumerate(GenerationOutput(*fields) for fields in generated):
            ids, log_probs = output.ids, output.log_probs
            if output.spans is not None:
                in_clip = partial(within, seconds=before[i], earlier=earlier[i])
                timing["spans"] = [(in_clip(start), in_clip(end)) for start, end in output.spans]
            answer = self.answer(processor, ids, log_probs, before[i], **timing)
            listed = {"tokens": _tokens(ids, log_probs, processor.decode)} if examples[i].extra.get("tokens") else {}
            outputs.append(
                {
                    **answer,
                    "log_prob": round(sum(log_probs) / max(len(log_probs), 1), 4),
                    "compression_ratio": round(compression_ratio(answer["text"]), 3),
                    **({} if output.no_speech is None else {"no_speech_prob": round(output.no_speech, 4)}),
                    **({} if output.language is None else {"language": processor.named_language(output.language)}),
                    "temperature": temperature,
                    "failed": [],
                    **listed,
                    **({"ctc": ctc_texts[i].strip()} if ctc_texts is not None else {}),
                }
            )
        return outputs

    def answer(
        self, processor: Any, ids: list[int], log_probs: list[float], seconds: float, **timing: Any
    ) -> dict[str, Any]:
        """Transcript of generated tokens for so much audio: `text` and `words`; `timing` as for `word_confidences`."""
        words = word_confidences(ids, log_probs, processor.decode, **timing)
        return {"text": processor.decode(ids).strip(), "words": words}

    def reference(self, cut: Cut) -> dict[str, Any]:
        return {"text": text_of(cut) or "", "language": language_of(cut), "speaker": speaker_of(cut)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """`wer` and `cer` (the main metric first), `ctc_wer` where the model has a CTC head; of translations `chrf`."""
        from stentor.metrics.wer import chrf, score

        references = [p.reference["text"] for p in predictions]
        hypotheses = [p.output["text"] for p in predictions]
        if self.translate:
            return {"chrf": chrf(references, hypotheses)}
        options = self._scoring(predictions)
        groups = {"language": options["languages"], "speaker": [p.reference.get("speaker") for p in predictions]}
        scores = {
            "wer": score(references, hypotheses, unit=self._word_unit(), groups=groups, **options),
            "cer": score(references, hypotheses, unit="character", groups=groups, **options),
        }
        if self.metric == "cer":
            scores = {"cer": scores["cer"], "wer": scores["wer"]}
        if predictions and all("ctc" in p.output for p in predictions):
            scores["ctc_wer"] = score(
                references, [p.output["ctc"] for p in predictions], unit=self._word_unit(), **options
            )
        return scores

    def change(self, before: Sequence[Prediction], after: Sequence[Prediction]) -> dict[str, Score]:
        """Names among `wer` and `cer`, the main metric first; none of translations, which have no errors to count."""
        from stentor.metrics.wer import relative_change

        if self.translate:
            return {}
        references = [p.reference["text"] for p in after]
        texts_before, texts_after = ([p.output["text"] for p in side] for side in (before, after))
        options = {**self._scoring(after), "speakers": [p.reference.get("speaker") for p in after]}
        units: dict[str, Unit] = {"wer": self._word_unit(), "cer": "character"}
        changes = {}
        for metric in sorted(units, key=lambda name: name != self.metric):
            change = relative_change(references, texts_before, texts_after, unit=units[metric], **options)
            if change is not None:
                changes[metric] = change
        return changes

    def _scoring(self, predictions: Sequence[Prediction]) -> dict[str, Any]:
        """Text normalisation, as keyword arguments of the metrics."""
        languages = [p.reference.get("language") for p in predictions]
        return {"normalizer": self.normalizer, "languages": languages, "spelling": self.spelling}

    def _word_unit(self) -> Unit:
        return "compound" if self.scoring == "open_asr" else "word"

    def main_metric(self) -> tuple[str, str]:
        return ("chrf", "max") if self.translate else (self.metric, "min")


def _tokens(ids: list[int], log_probs: list[float], decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    text, spans = token_spans(ids, decode)
    return [{"token": text[a:b], "logprob": round(p, 4)} for (a, b), p in zip(spans, log_probs, strict=True)]


def within(time: float, seconds: float, earlier: float) -> float:
    """A time in audio that began earlier, as one in the first `seconds` of the audio itself."""
    return min(max(time - earlier, 0.0), seconds)


def seconds_of(example: Example, rate: int) -> float:
    """Length of an example's audio at `rate` Hz."""
    assert example.audio is not None
    return len(example.audio) / rate
