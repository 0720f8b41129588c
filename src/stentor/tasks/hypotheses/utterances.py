"""Hypotheses of a training batch of a model that speaks: utterances that a recogniser listens to, for policy gradients.

The probability of codes that were revealed step by step is not known in one forward pass. As in UniGRPO (Yang et al.
2025, arXiv 2505.15809) the log-probability of an utterance is estimated from a training sample made of it, by the mean
over the cells that are masked, which are the same for all utterances of a clip (d1, Zhao et al. 2025, arXiv 2504.12216,
masks all of them).
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from stentor.data.batch import Batch, Example, HypothesisSearch
from stentor.losses.sequence import SequenceLoss
from stentor.metrics.wer import count_errors, normalized_pairs
from stentor.models.base import Bundle
from stentor.tasks.hypotheses.texts import Written, attach, item_seed
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips
from stentor.tasks.speak.generation import Generation
from stentor.text.normalize import DEFAULT


def prepare(examples: Sequence[Example], processor: Any) -> HypothesisSearch:
    """Return the inputs for generating utterances: the examples without their audio, always with their texts."""
    told = []
    for example, codes in processor.encoded(examples)[0]:
        conditions = example.extra["conditions"]
        if conditions.unconditional:
            conditions = dataclasses.replace(conditions, unconditional=False, text=example.text or "")
        extra = {**example.extra, "conditions": conditions, "codes": codes}
        told.append(dataclasses.replace(example, audio=None, extra=extra))
    return HypothesisSearch(
        examples=told,
        seeds=[item_seed(e) for e in told],
        references=[e.text or "" for e in told],
        languages=[e.language for e in told],
    )


def add_hypotheses(
    bundle: Bundle, batch: Batch, loss: SequenceLoss, generation: Generation, recognizers: Sequence[SpeechEvaluator]
) -> None:
    """Have the model speak each item of a batch as often as the loss says, for the recognisers to write down."""

    def write(search: HypothesisSearch) -> Written:
        items = [item for item in range(len(search.examples)) for _ in range(loss.hypotheses)]
        spoken = _speak(bundle, search, loss, generation)
        samples = [bundle.processor.sample(search.examples[i], codes) for i, codes in zip(items, spoken)]
        device = next(bundle.model.parameters()).device
        inputs = {name: value.to(device) for name, value in bundle.processor.padded(samples).items()}
        inputs["clips"] = torch.tensor(items, device=device)
        errors = _errors(recognizers, bundle, search, items, spoken, loss)
        return inputs, errors, torch.ones(len(items), dtype=torch.long)

    attach(bundle, batch, loss, write)


def _speak(bundle: Bundle, search: HypothesisSearch, loss: SequenceLoss, generation: Generation) -> list[np.ndarray]:
    """Codes [C, T] of the utterances, those of the prompt before them. They are drawn without guidance, which would be
    another distribution than the one that is trained."""
    prompts, utterances, seeds = [], [], []
    for example, seed in zip(search.examples, search.seeds, strict=True):
        conditions, codes = example.extra["conditions"], example.extra["codes"]
        given = conditions.prompt_frames(codes.shape[1])
        utterance = bundle.processor.utterance(
            conditions.text,
            language=conditions.language,
            instruct=conditions.instruct,
            reference=(codes[:, :given], "") if given else None,
            frames=codes.shape[1] - given,
            denoise=conditions.denoise,
        )
        for number in range(loss.hypotheses):
            prompts.append(codes[:, :given])
            utterances.append(utterance)
            seeds.append(seed + number)
    options = {**generation.arguments(), "guidance": 0.0, "class_temperature": loss.temperature}
    spoken = bundle.model.speak(utterances, seeds=seeds, **options)
    return [np.concatenate(parts, axis=1) for parts in zip(prompts, spoken, strict=True)]


def _errors(
    recognizers: Sequence[SpeechEvaluator],
    bundle: Bundle,
    search: HypothesisSearch,
    items: Sequence[int],
    spoken: Sequence[np.ndarray],
    loss: SequenceLoss,
) -> torch.Tensor:
    """As `count_errors`, of what the recognisers understand, added up over them."""
    codec, device = bundle.processor.codec, str(next(bundle.model.parameters()).device)
    audios = codec.decode(spoken)
    references, languages = [search.references[i] for i in items], [search.languages[i] for i in items]
    total = np.zeros((len(items), 4), np.int64)
    for recognizer in recognizers:
        heard = evaluate_clips(recognizer, audios, codec.sample_rate, languages, device)
        total += count_errors(normalized_pairs(references, heard, DEFAULT, languages, loss.unit, None))
    return torch.from_numpy(total)
