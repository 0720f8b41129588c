"""Language modelling task.

A family that supports this task has a processor whose `collate` takes only texts, and a model whose forward returns the
arguments of `CrossEntropy.sum` for the term `text`, with the same number of consecutive rows for each item.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from stentor.data.batch import Example, Prediction
from stentor.data.cut import Cut, language_of, text_of
from stentor.losses.token import CrossEntropy
from stentor.metrics.score import Direction, Score
from stentor.tasks.base import Task

if TYPE_CHECKING:
    import numpy as np

    from stentor.losses.base import Loss
    from stentor.models.base import Bundle


class Language(Task):
    """Language modelling: predict the next token of a text."""

    type: Literal["language"] = "language"
    audio: ClassVar[bool] = False

    def losses(self) -> dict[str, Loss]:
        return {"text": CrossEntropy()}

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        return None if (text_of(cut) or "").strip() else ("empty_text", cut.id)

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        return Example(id=cut.id, text=text_of(cut), language=language_of(cut), rng=rng)

    def predict(self, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return outputs with `log_prob`, the natural logarithm of the probability of the text and its end, and
        `tokens`, their number including the end token."""
        import torch

        device = next(bundle.model.parameters()).device
        batch = bundle.processor.collate(examples, labels=True).to(device)
        with torch.no_grad():
            outputs = bundle.model(**batch.inputs)["text"]
            targets = outputs["targets"].view(len(examples), -1)
            counts = (targets != -100).sum(1).tolist()
            width = targets.shape[1]
            losses = []
            for first in range(0, len(examples) * width, width):
                # A row per token, except `weight` and `bias` of the output layer.
                rows = {k: outputs[k][first : first + width] for k in ("hidden", "logits", "targets") if k in outputs}
                losses.append(CrossEntropy().sum(**{**outputs, **rows}))
        return [
            {"log_prob": round(-loss, 4), "tokens": count} for loss, count in zip(torch.stack(losses).tolist(), counts)
        ]

    def sample(
        self, bundle: Bundle, seeds: Sequence[int], temperature: float = 1.0, max_tokens: int = 200
    ) -> list[str | None]:
        """Return a sampled text for each seed; None for one without an end after `max_tokens`."""
        import torch

        processor: Any = bundle.processor
        device = next(bundle.model.parameters()).device
        start = torch.full((len(seeds), 1), processor.bos_id, device=device)
        generators = [torch.Generator(device).manual_seed(seed) for seed in seeds]
        model: Any = bundle.model
        results = model.generate(
            {"tokens": start},
            max_new_tokens=max_tokens,
            eos_ids={processor.eos_id},
            temperature=temperature,
            generators=generators,
        )
        return [processor.decode(ids) if len(ids) < max_tokens else None for ids, *_ in results]

    def reference(self, cut: Cut) -> dict[str, Any]:
        return {"text": text_of(cut) or "", "language": language_of(cut)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return `perplexity` per token, including the end token, over the whole set, and `bits_per_character`, which
        is comparable between tokenizers (the end of a text counts as a character)."""
        nats = -sum(p.output["log_prob"] for p in predictions)
        tokens = sum(p.output["tokens"] for p in predictions)
        characters = sum(len(p.reference["text"]) + 1 for p in predictions)
        if not predictions:
            return {name: Score(math.nan) for name in ("perplexity", "bits_per_character")}
        mean = nats / tokens
        perplexity = math.exp(mean) if mean < 700 else math.inf
        return {
            "perplexity": Score(perplexity, details={"tokens": tokens}),
            "bits_per_character": Score(nats / math.log(2) / characters, details={"characters": characters}),
        }

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        return {"perplexity": "min", "bits_per_character": "min"}
