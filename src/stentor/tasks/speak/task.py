"""Speech synthesis task, by predicting masked codec tokens.

A family that supports this task has, in addition to what every family has:

* bundle: `codebooks`, the number of codebooks of its codec;
* processor: `codec`, an `AudioCodec`; `codes(example)`, the example's codec tokens int16 [codebooks, frames], from
  `Example.extra["codes"]` or encoded from its audio; `collate` takes `Example.extra["conditions"]` (see `Conditions`)
  and draws the mask of the cells from `Example.rng`; `utterance(text, language=, instruct=, reference=, frames=,
  denoise=)`, the model's prompt, where `reference` is (codec tokens, their text);
* model: its forward returns, for each codebook c, as `codes_c` the arguments of `CrossEntropy.sum` for the masked cells
  of that codebook; `speak(utterances, seeds=[...], **generation)` returns codec tokens int16 [codebooks, frames], each
  depending only on its utterance and seed.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, field_validator, model_validator

from stentor.data.audio_base64 import encode_audio
from stentor.data.batch import Example, Prediction
from stentor.data.conditions import Spoken, draw
from stentor.data.cut import Cut, field_of, language_of, speaker_of, text_of
from stentor.errors import ConfigError
from stentor.losses.codebook import Codebook
from stentor.losses.sequence import SequenceLoss, sequence_terms
from stentor.metrics.score import Direction, Score
from stentor.models.base import TaskRequirements
from stentor.section import ConfigConflict
from stentor.tasks.base import Task
from stentor.tasks.speak.evaluator import SpeechEvaluator
from stentor.tasks.speak.generation import Generation

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Batch
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle
    from stentor.models.contracts import Processor

RATE = 16000
"""Sample rate in Hz of the silence that evaluators are tested with."""


class Speak(Task):
    """Speech synthesis: speak a text."""

    type: Literal["speak"] = "speak"
    drop_cond_ratio: float = Field(0.1, ge=0, le=1)
    """Share of training samples without text, style and prompt, which classifier-free guidance needs. Records with a
    noisy beginning (`clean_start_token_idx`) always keep them."""
    prompt_ratio_range: tuple[float, float] = (0.0, 0.3)
    """Minimum and maximum share of a sample's frames that are the prompt with the voice; they have no loss."""
    mask_ratio_range: tuple[float, float] = (0.0, 1.0)
    """Minimum and maximum probability of masking a codec token; drawn for each sample."""
    language_ratio: float = Field(0.8, ge=0, le=1)
    """Share of the samples with a known language that get it as input."""
    use_pinyin_ratio: float = Field(0.3, ge=0, le=1)
    """Share of the samples with `text_pinyin` that get it instead of `text`."""
    instruct_ratio: float = Field(1.0, ge=0, le=1)
    """Share of the samples with an `instruct` (the voice in words) that get it as input."""
    only_instruct_ratio: float = Field(0.5, ge=0, le=1)
    """Share of the samples with an instruct that get no prompt."""
    instruct_from: str | None = None
    """Field of the record, such as `speaker`, to use as the instruct of records without one. Null: none."""
    min_tokens: int | None = Field(None, ge=1)
    """Minimum number of sequence positions (style, text and frames together); shorter records are dropped as
    `too_few_tokens`. OmniVoice's min_sample_tokens. Null: no limit."""
    max_tokens: int | None = Field(None, ge=1)
    """Maximum number of sequence positions; longer records are dropped as `too_many_tokens`. OmniVoice's
    max_sample_tokens. Null: only the limit of `data.batch_tokens`."""
    generation: Generation = Generation()
    """Generation settings, in evaluation and inference."""
    samples: int = Field(4, ge=0)
    """Number of records of each evaluation set that are synthesized at each evaluation, always the same ones. All
    records count in the loss."""
    sample_prompt: float | None = Field(None, ge=0, lt=1)
    """Share of a record's own frames used as the prompt of such a sample. Null: 0.25 for records without an instruct,
    which would otherwise have no voice, and 0 for the others."""
    judges: list[SpeechEvaluator] = []
    """Models that evaluate these samples, such as `{type: recognizer, from: runs/asr}`: the word error rate (or
    quality) is reported at each evaluation, with that of the recordings. Models that compare voices are only used in
    `stentor evaluate`."""

    audible: ClassVar[bool] = True
    hypotheses: ClassVar[tuple[str, ...]] = ("sampled",)
    scores_loss: ClassVar[bool] = True
    _sequence: dict[str, SequenceLoss] = PrivateAttr(default_factory=dict)
    """The sequence loss among the terms."""

    @field_validator("prompt_ratio_range", "mask_ratio_range")
    @classmethod
    def _shares(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 <= value[0] <= value[1] <= 1:
            raise ValueError("must be two shares between 0 and 1, the lower one first")
        return value

    @model_validator(mode="after")
    def _something_is_learned(self) -> Speak:
        if self.mask_ratio_range[1] == 0:
            raise ConfigConflict("mask_ratio_range", "masks nothing, so there is nothing to learn")
        if self.prompt_ratio_range[1] == 1:
            raise ConfigConflict(
                "prompt_ratio_range", "must be below 1: a prompt of all frames leaves nothing to learn"
            )
        if None not in (self.min_tokens, self.max_tokens) and self.min_tokens > self.max_tokens:  # type: ignore[operator]
            raise ConfigConflict("min_tokens", f"is more than `max_tokens` ({self.max_tokens}): no record is left")
        return self

    def check(self) -> None:
        """Load the evaluators of `judges` on the CPU and test them with a second of silence."""
        import numpy as np

        from stentor.tasks.speak.evaluator_scores import evaluate_items

        evaluate_items(self._evaluators_of_clips(), {"synthetic": [np.zeros(RATE, np.float32)]}, RATE, [None])

    # Training

    def losses(self) -> dict[str, Loss]:
        return {"codes": Codebook()}

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        self._sequence = sequence_terms(losses)
        if self._sequence and not self.recognizers():
            raise ConfigError(
                f"losses.{next(iter(self._sequence))}: the reward needs a recogniser: add one to `task.judges`, such "
                "as {type: recognizer, from: runs/asr}."
            )
        losses = {name: loss for name, loss in losses.items() if name not in self._sequence}
        weights = next((loss.weights for loss in losses.values() if isinstance(loss, Codebook)), None)
        return TaskRequirements(
            task=self.type, terms=tuple(losses), codebook_weights=weights, instruct_from=self.instruct_from
        )

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """With a sequence loss, also add the inputs for generating hypotheses."""
        batch = super().collate(examples, processor, packed)
        if self._sequence and batch.ids:
            from stentor.tasks.hypotheses.utterances import prepare

            batch.search = prepare(examples, processor)
            batch.counts |= dict.fromkeys(self._sequence, len(batch.ids))
        return batch

    def add_hypotheses(self, bundle: Bundle, batch: Batch, losses: Mapping[str, Loss]) -> None:
        from stentor.tasks.hypotheses.utterances import add_hypotheses

        for name in self._sequence.keys() & losses.keys():
            add_hypotheses(bundle, batch, self._sequence[name], self.generation, self.recognizers())

    def recognizers(self) -> list[SpeechEvaluator]:
        """Return the `judges` that transcribe."""
        return [judge for judge in self.judges if judge.gives == "text"]

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        return None if (text_of(cut) or "").strip() else ("empty_text", cut.id)

    def length_drop_reason(self, cut: Cut, tokens: Callable[[], int]) -> tuple[str, str] | None:
        """`too_few_tokens` and `too_many_tokens`."""
        if self.min_tokens is None and self.max_tokens is None:
            return None
        count = tokens()
        if self.min_tokens is not None and count < self.min_tokens:
            return "too_few_tokens", f"{cut.id}: {count} positions, fewer than `task.min_tokens` ({self.min_tokens})"
        if self.max_tokens is not None and count > self.max_tokens:
            return "too_many_tokens", f"{cut.id}: {count} positions, more than `task.max_tokens` ({self.max_tokens})"
        return None

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        """`extra` holds the `conditions` that were drawn and the record's `instruct`. Without `rng` (evaluation) they
        are drawn by the record's id alone, and so is what `Example.rng` will give: an evaluation repeats exactly."""
        from stentor.data.seeding import rng as random_of

        record = self.spoken(cut)
        rng = random_of("speak", cut.id) if rng is None else rng
        return Example(
            id=cut.id,
            audio=audio,
            text=record.text,
            language=record.language,
            rng=rng,
            extra={"conditions": draw(record, self, rng), "instruct": record.instruct, "seconds": cut.duration},
        )

    def spoken(self, cut: Cut) -> Spoken:
        """The fields of a record that the task uses."""
        instruct = field_of(cut, "instruct")
        if not instruct and self.instruct_from is not None:
            instruct = field_of(cut, self.instruct_from)
        return Spoken(
            text=text_of(cut) or "",
            language=language_of(cut),
            instruct=None if instruct in (None, "") else str(instruct),
            pinyin=field_of(cut, "text_pinyin") or None,
            clean_from=field_of(cut, "clean_start_token_idx"),
        )

    def data_warnings(self, cuts: Iterable[Cut]) -> list[str]:
        if self.instruct_ratio > 0:
            return []
        described = [cut.id for cut in cuts if self.spoken(cut).instruct is not None]
        return described and [
            f"{len(described):,} training records have an instruct that is not used, because `task.instruct_ratio` is "
            "0. Set it to 1 to train voices by description or name."
        ]

    def learned_style(
        self, language: str | None, instruct: str | None, model: Mapping[str, Any] = MappingProxyType({})
    ) -> dict[str, Any]:
        """`language` and `instruct` of an utterance; None for a kind that the model never had in training, whose tokens
        it has not learned. `model` is the section that it was trained with: a model that this one began from (`from`,
        `init`) may have learned them."""
        return {
            "language": language if self.language_ratio > 0 or _base_learned(model, "language_ratio") else None,
            "instruct": instruct if self.instruct_ratio > 0 or _base_learned(model, "instruct_ratio") else None,
        }

    # Answers

    def prediction_subset(self, ids: Sequence[str]) -> set[str]:
        """Return the `samples` ids with the smallest hash, independent of their order and of the run."""

        def rank(name: str) -> bytes:
            return hashlib.blake2b(f"speak/{name}".encode(), digest_size=8).digest()

        return set(sorted(ids, key=rank)[: self.samples])

    def predict(self, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Speak each text with the duration of its recording.

        Each output has `audio` `{"flac": base64, "rate"}`; `seconds`; `frames`; `seed`; `prompt_seconds`, the seconds
        at the beginning that come from the recording; `codec`, the recording's decoded codec tokens in the form of
        `audio`, which is the best possible result; `heard`, the outputs of the `judges` for both and for the
        recording. Models without a codec only return `silent`, the reason.
        """
        import numpy as np

        processor: Any = bundle.processor
        model: Any = bundle.model
        if processor.codec is None:
            return [{"silent": "the model has no codec"} for _ in examples]
        codes = [processor.codes(e) for e in examples]
        continues = bundle.traits.continues
        prompts = [self._prompt_frames(e, c.shape[1]) * continues for e, c in zip(examples, codes, strict=True)]
        section = bundle.family.model_dump(by_alias=True)
        utterances = [
            processor.utterance(
                e.text,
                **self.learned_style(e.language, e.extra["instruct"], section),
                reference=(c[:, :p], "") if p else None,
                frames=c.shape[1] - p,
            )
            for e, c, p in zip(examples, codes, prompts, strict=True)
        ]
        seeds = [seed_of(self.generation.seed, e.id) for e in examples]
        spoken = model.speak(utterances, seeds=seeds, **self.generation.arguments())
        full = [np.concatenate([c[:, :p], s], axis=1) for c, p, s in zip(codes, prompts, spoken, strict=True)]
        audios = processor.codec.decode([*full, *codes])
        rate = processor.codec.sample_rate
        synthetic, decoded = audios[: len(full)], audios[len(full) :]
        evaluations = self._evaluate(bundle, examples, synthetic, decoded)
        return [
            {
                "audio": encode_audio(audio, rate),
                "seconds": round(len(audio) / rate, 3),
                "frames": tokens.shape[1],
                "seed": seed,
                "prompt_seconds": round(prompt / processor.codec.frame_rate, 3),
                "codec": encode_audio(best, rate),
                **({"heard": evaluation} if evaluation else {}),
            }
            for audio, best, tokens, prompt, seed, evaluation in zip(
                synthetic, decoded, full, prompts, seeds, evaluations, strict=True
            )
        ]

    def _evaluate(
        self, bundle: Bundle, examples: Sequence[Example], synthetic: Sequence[np.ndarray], codec: Sequence[np.ndarray]
    ) -> list[dict[str, Any]]:
        """Return the outputs of the `judges` for each example; empty without judges."""
        from stentor.tasks.speak.evaluator_scores import evaluate_items

        if not (evaluators := self._evaluators_of_clips()):
            return [{} for _ in examples]
        audios = {"synthetic": synthetic, "codec": codec, "real": [e.audio for e in examples]}
        device = str(next(bundle.model.parameters()).device)
        processor: Any = bundle.processor
        rate = processor.codec.sample_rate
        return evaluate_items(evaluators, audios, rate, [e.language for e in examples], device)

    def _evaluators_of_clips(self) -> list[SpeechEvaluator]:
        """Return the judges except those of voices, which need the whole set."""
        return [evaluator for evaluator in self.judges if evaluator.gives != "voice"]

    def _prompt_frames(self, example: Example, frames: int) -> int:
        share = self.sample_prompt
        if share is None:
            share = 0.0 if example.extra["instruct"] else 0.25
        return min(int(frames * share), frames - 1)

    def reference(self, cut: Cut) -> dict[str, Any]:
        record = self.spoken(cut)
        speaker = speaker_of(cut)
        return {"text": record.text, "language": record.language, "speaker": speaker, "instruct": record.instruct}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return the scores of the samples by the `judges`. The engine adds the loss over all records as the first
        score. `stentor evaluate` synthesizes and evaluates every record."""
        from stentor.tasks.speak.evaluator_scores import scores

        evaluated = [p for p in predictions if "heard" in p.output]
        texts, languages, speakers = ([p.reference[k] for p in evaluated] for k in ("text", "language", "speaker"))
        return scores([p.output["heard"] for p in evaluated], texts, languages, speakers)

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        from stentor.tasks.speak.evaluator_scores import directions

        return {"loss": "min", **directions(self._evaluators_of_clips())}


def seed_of(seed: int, name: str) -> int:
    """Return the seed of one record's utterance, from the section's seed and the record's id."""
    return int.from_bytes(hashlib.blake2b(f"{seed}/{name}".encode(), digest_size=4).digest(), "little")


def _base_learned(model: Mapping[str, Any], ratio: str) -> bool:
    """Whether a model that one with the section `model` began from may have learned what the key `ratio` is about: a
    published one, or one of ours that says so."""
    origin = model.get("from") or model.get("init")
    if not origin:
        return False
    try:
        earlier = json.loads((Path(origin) / "training_config.json").read_text("utf-8"))
    except (OSError, ValueError):
        return True
    learned = earlier.get("task", {}).get(ratio, 1.0) > 0
    return learned or _base_learned(earlier.get("model", {}), ratio)
