"""Speech recognition task.

A family that supports this task has, in addition to what every family has:

* processor: `ids(text)`, `decode(ids)`, `eos_id`, `max_new_tokens(seconds)`, `max_seconds` (longest clip, None for any
  length) and `ctc` (the alphabet of a CTC head with `decode(classes per frame)`, None without a head); if clips must be
  presented as in training, `trained_speech` (see `stentor.data.trained_speech`); its targets may use
  `Example.extra["times"]`, the record's word times `{"word", "start", "end"}` in seconds;
* model: `stentor.models.contracts.Recognizer`, which declares its `capabilities`; with a CTC head also
  `ctc_classes(**inputs)`, the most likely class of each frame.
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
from stentor.metrics.score import Direction, Score
from stentor.models.contracts import GenerationOutput, Recognizer
from stentor.section import Effect
from stentor.tasks.base import Task
from stentor.tasks.decode_checks import Checks, compression_ratio, token_spans, word_confidences
from stentor.text.normalize import DEFAULT, Normalizer

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Batch
    from stentor.losses.base import Loss
    from stentor.metrics.wer import Unit
    from stentor.models.base import Bundle, Family, TaskRequirements
    from stentor.models.contracts import Processor

_FIX = "leave `translate` out, or use a model that translates (stentor models --can translation)"


class Transcribe(Task):
    """Speech recognition: transcribe speech."""

    type: Literal["transcribe"] = "transcribe"
    metric: Literal["wer", "cer"] = "wer"
    """Metric that selects the best checkpoint: word or character error rate. For texts written without spaces
    (Japanese, Chinese, Thai, ...) both count characters; use `cer`. The `language` of a record decides, or without one
    the script of its text."""
    normalizer: Normalizer = DEFAULT
    """Normalizer of references and hypotheses before scoring. `multilingual` removes case and punctuation, and keeps
    the marks that are part of letters in any script; `whisper_basic`, which is Whisper's, removes these, too;
    `whisper_english` is the one of English leaderboards until 2026 (numbers become digits, so "one two" becomes the one
    word 12); `open_asr` is that of the Open ASR Leaderboard (use it with `scoring: open_asr`); `none` scores the texts
    unchanged."""
    spelling: str | None = None
    """Path of a Whisper `normalizer.json` with British and American spellings, for `whisper_english`. Null: Whisper's
    own, with a few corrections."""
    scoring: Literal["levenshtein", "open_asr"] = "levenshtein"
    """Method of counting word errors: by Levenshtein distance, or as the Open ASR Leaderboard does (with `normalizer:
    open_asr`), where compounds match their separately written parts. `open_asr` needs `stentor[evaluate]`."""
    translate: bool = False
    """Translate speech to the target language of the model (Whisper: English), for families that support it. The target
    is then each record's `translation`, a record without one is dropped (`no_translation`), and chrF replaces the error
    rates. The record's `language` is the spoken one."""
    context: str | None = None
    """Free text given to the model with every item, such as names and terms. An item's own `context` replaces it."""
    beams: int = Field(1, ge=1)
    """Beam size of decoding. 1: greedy search."""
    hotwords: list[str] = []
    """Names and terms that get a bonus in decoding, for autoregressive and CTC models. A tab and a number behind one
    replace `hotword_strength` for it."""
    hotword_strength: float = Field(1.5, gt=0)
    """Bonus added to the log-probability of each hotword token. If too high, hotwords appear that were not said."""
    language_model: StoragePath | None = None
    """Path of a text file, one sentence per line, to build an n-gram language model from, which is used in decoding
    (shallow fusion). It adds vocabulary if there is little transcribed speech. For models that support hotwords, but
    not together with hotwords. Lines with letters that the model cannot write are skipped."""
    language_model_weight: float = Field(0.5, gt=0)
    """Weight of the language model's log-probability of a token, relative to the recogniser's."""
    checks: Checks = Checks()
    """Hallucination checks, and decoding again if one fails."""
    effects: ClassVar[Mapping[str, Effect]] = dict.fromkeys(
        ("scoring", "beams", "hotwords", "hotword_strength", "language_model", "language_model_weight", "checks"),
        "scores",
    )
    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")
    _sequence: dict[str, SequenceLoss] = PrivateAttr(default_factory=dict)
    """The sequence loss among the terms."""

    def incompatible_with(self, family: Family) -> tuple[str, str] | None:
        if self.hotwords and "hotwords" not in family.decoding_options():
            return "hotwords", f"a model of the family {family.type} does not support hotwords: leave them out"
        if self.language_model and "hotwords" not in family.decoding_options():
            return "language_model", f"a model of the family {family.type} does not support one: leave it out"
        if self.language_model and self.hotwords:
            return "hotwords", "hotwords and a language model cannot be combined: leave one out"
        if not self.translate or family.translates():
            return None
        return "translate", f"a model of the family {family.type} with these settings cannot translate: {_FIX}"

    def losses(self) -> dict[str, Loss]:
        return {"text": CrossEntropy()}

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        self._sequence = sequence_terms(losses)
        return super().requirements({name: loss for name, loss in losses.items() if name not in self._sequence})

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """With a sequence loss, also add the inputs for generating hypotheses."""
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
        # Every record passes here before its cost is counted, so this sets its translation as its text.
        if self.translate and not set_translation(cut):
            return "no_translation", f"{cut.id}: no `translation` (docs/data.md)"
        return None if (text_of(cut) or "").strip() else ("empty_text", cut.id)

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        # The audio may have been played faster or slower. Models that read word times take RATE samples a second.
        scale = 1.0 if audio is None or not cut.duration else len(audio) / RATE / cut.duration
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
        """Decode; `checked` overrides `checks.evaluate` (transcribing files uses `checks.on`).

        Each output has `text`; `words` with `confidence`, and with `start` and `end` in seconds for models with token
        times (see `word_confidences`); `log_prob`, the mean over the tokens (0 for an empty text);
        `compression_ratio`; `no_speech_prob` if the model has it; `temperature`; `failed`, the names of failed checks;
        `ctc`, the text of the CTC head, if any; and, if `Example.extra["tokens"]` is true, `tokens`: `{"token",
        "logprob"}` of each token in order, where `token` is the text that it adds.
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
        # Sampling is seeded by the audio: a transcript does not depend on the path or the batch, and the random state
        # of training is not changed.
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
        """Return `text` and `words` of generated tokens; `timing` as in `word_confidences`."""
        words = word_confidences(ids, log_probs, processor.decode, **timing)
        return {"text": processor.decode(ids).strip(), "words": words}

    def reference(self, cut: Cut) -> dict[str, Any]:
        return {"text": text_of(cut) or "", "language": language_of(cut), "speaker": speaker_of(cut)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return `wer` and `cer` (the main metric first), and `ctc_wer` with a CTC head; for translations `chrf`."""
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
        """Return the change of `wer` and `cer`, the main metric first; empty for translations."""
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
        """Return the settings of normalization, as keyword arguments of the metrics."""
        languages = [p.reference.get("language") for p in predictions]
        return {"normalizer": self.normalizer, "languages": languages, "spelling": self.spelling}

    def _word_unit(self) -> Unit:
        return "compound" if self.scoring == "open_asr" else "word"

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        if self.translate:
            return {"chrf": "max"}
        heads = ["ctc_wer"] if "ctc" in losses and len(losses) > 1 else []
        return dict.fromkeys([self.metric, "wer", "cer", *heads], "min")


def _tokens(ids: list[int], log_probs: list[float], decode: Callable[[list[int]], str]) -> list[dict[str, Any]]:
    text, spans = token_spans(ids, decode)
    return [{"token": text[a:b], "logprob": round(p, 4)} for (a, b), p in zip(spans, log_probs, strict=True)]


def within(time: float, seconds: float, earlier: float) -> float:
    """Convert a time in audio that begins `earlier` seconds before a clip to one in the clip of `seconds`."""
    return min(max(time - earlier, 0.0), seconds)


def seconds_of(example: Example, rate: int) -> float:
    """Return the duration in seconds of an example's audio at `rate` Hz."""
    assert example.audio is not None
    return len(example.audio) / rate
