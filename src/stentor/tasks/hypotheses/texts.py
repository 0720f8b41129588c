"""Hypotheses of a training batch that are texts, which the model writes for its clips."""

from __future__ import annotations

import copy
import zlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import torch
from torch.nn.utils.rnn import pad_sequence

from stentor.data.batch import Batch, Example, HypothesisSearch, num_samples
from stentor.losses.sequence import PolicyGradient, SequenceLoss
from stentor.metrics.wer import REFERENCE, count_errors, normalized_pairs
from stentor.models.base import Bundle
from stentor.models.decoding.rescoring import IGNORED
from stentor.models.pretrained.lora import without_adapters

PROMPT = ("input_ids", "audio_index", "audio_rows", "attention_mask", "position_ids")
"""Inputs of generation that are not those of training, which has the answer in them."""
Drawn = tuple[tuple[int, ...], bool]
"""The tokens of a hypothesis, and whether it came to its end."""
Written = tuple[dict[str, Any], torch.Tensor, torch.Tensor]
"""Inputs of hypotheses, their errors as `count_errors` says them, and how often each was drawn."""


def item_seed(example: Example) -> int:
    """Return the random seed of an item's hypotheses, without advancing its generator."""
    if example.rng is None:
        return zlib.crc32(example.id.encode())
    return int(copy.deepcopy(example.rng).integers(1 << 62))


def prepare(batch: Batch, examples: Sequence[Example], seeds: Sequence[int], processor: Any) -> HypothesisSearch:
    """Return the inputs for generating hypotheses of a training batch, given its examples and their seeds. The audio is
    the same as in training."""
    usable = range(len(examples)) if batch.usable is None else batch.usable
    examples, seeds = [examples[i] for i in usable], [seeds[i] for i in usable]
    inputs = processor.collate(examples, labels=False).inputs
    return HypothesisSearch(
        inputs={name: inputs[name] for name in PROMPT if name in inputs},
        shared=tuple(name for name in inputs if name not in PROMPT and name in batch.inputs),
        limits=[processor.max_new_tokens(num_samples(e) / processor.sample_rate) for e in examples],
        seeds=seeds,
        references=[e.text or "" for e in examples],
        languages=[e.language for e in examples],
    )


def add_hypotheses(bundle: Bundle, batch: Batch, loss: SequenceLoss, scoring: Mapping[str, Any]) -> None:
    """Have the model write hypotheses for a batch. `scoring`: arguments of `normalized_pairs`."""

    def write(search: HypothesisSearch) -> Written:
        counted = [Counter(answers) for answers in _write(bundle, batch, search, loss)]
        items = [list(counts) for counts in counted]
        temperature = loss.temperature if loss.search == "sampled" else 1.0
        inputs = {**search.inputs, **_inputs(bundle, items), "temperature": temperature}
        copies = torch.tensor([count for counts in counted for count in counts.values()])
        return inputs, _errors(bundle, search, items, loss.unit, scoring), copies

    attach(bundle, batch, loss, write)


@torch.no_grad()
def attach(bundle: Bundle, batch: Batch, loss: SequenceLoss, write: Callable[[HypothesisSearch], Written]) -> None:
    """Generate hypotheses for a batch on its device with `write`, with the model in evaluation mode. They become its
    input `hypotheses`, and the facts for the loss become `batch.search.facts`."""
    search, model = batch.search, bundle.model
    assert search is not None
    training = model.training
    model.eval()
    try:
        inputs, errors, copies = write(search)
        device = inputs["clips"].device
        batch.inputs["hypotheses"] = inputs  # type: ignore[assignment]
        search.facts = {
            "clips": inputs["clips"],
            "copies": copies.to(device),
            "errors": errors[:, :REFERENCE].sum(1).float().to(device),
            "units": errors[:, REFERENCE].float().to(device),
        }
        if isinstance(loss, PolicyGradient) and loss.kl:
            with without_adapters(model):
                search.facts["start_log_probs"] = model(**batch.inputs)["hypotheses"]["log_probs"].float()
    finally:
        model.train(training)


def _write(bundle: Bundle, batch: Batch, search: HypothesisSearch, loss: SequenceLoss) -> list[list[Drawn]]:
    """The hypotheses of each item."""
    model, count = bundle.model, loss.hypotheses
    device = next(model.parameters()).device
    inputs = {**search.inputs, **{name: batch.inputs[name] for name in search.shared}}
    limits = search.limits
    options: dict[str, Any] = {"max_new_tokens": limits, "eos_ids": {bundle.processor.eos_id}, "num_answers": count}
    if loss.search == "best":
        outputs = model.generate(inputs, beams=count, **options)
    else:
        seeds = [seed + sample for seed in search.seeds for sample in range(count)]
        generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        outputs = model.generate(inputs, temperature=loss.temperature, generators=generators, **options)
    rows = zip(outputs, limits, strict=True)
    return [[(tuple(a.ids), len(a.ids) < limit) for a in output.alternatives] for output, limit in rows]


def _inputs(bundle: Bundle, items: Sequence[Sequence[Drawn]]) -> dict[str, torch.Tensor]:
    """`clips` and `targets` of the hypotheses of each item, see `stentor.models.decoding.rescoring`."""
    device = next(bundle.model.parameters()).device
    end = [bundle.processor.eos_id] if bundle.capabilities.ends_text else []
    rows = [torch.tensor([*ids, *(end if ended else [])], dtype=torch.long) for item in items for ids, ended in item]
    targets = pad_sequence([*rows, torch.tensor([IGNORED])], batch_first=True, padding_value=IGNORED)[:-1]
    clips = torch.arange(len(items)).repeat_interleave(torch.tensor([len(item) for item in items]))
    return {"clips": clips.to(device), "targets": targets.to(device)}


def _errors(
    bundle: Bundle,
    search: HypothesisSearch,
    items: Sequence[Sequence[Drawn]],
    unit: Literal["word", "character"],
    scoring: Mapping[str, Any],
) -> torch.Tensor:
    """As `count_errors`, of each hypothesis."""
    rows = [(item, _text(bundle, ids)) for item, hypotheses in enumerate(items) for ids, _ in hypotheses]
    pairs = normalized_pairs(
        [search.references[item] for item, _ in rows],
        [text for _, text in rows],
        languages=[search.languages[item] for item, _ in rows],
        unit=unit,
        **scoring,
    )
    return torch.from_numpy(count_errors(pairs))


def _text(bundle: Bundle, ids: Sequence[int]) -> str:
    """The text of an answer; what stands before a marker is about it."""
    marker = bundle.capabilities.language_marker
    return str(bundle.processor.decode(list(ids[ids.index(marker) + 1 :] if marker in ids else ids))).strip()
