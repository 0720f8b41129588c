"""Codebook loss: cross entropy of masked codec tokens, one term for each codebook."""

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.losses.token import CrossEntropy

WEIGHTS = (8, 8, 6, 6, 4, 4, 2, 2)
"""OmniVoice's weights of its eight codebooks (arXiv 2604.00688)."""


def default_weights(codebooks: int) -> list[int]:
    """OmniVoice's weights, stretched to a number of codebooks."""
    return [WEIGHTS[c * len(WEIGHTS) // codebooks] for c in range(codebooks)]


class Codebook(Loss):
    """Negative log-probability of the masked codec tokens, weighted by codebook: the first carry most of the sound.

    The engine divides the sum of each codebook by the number of masked cells of that codebook over all micro-batches
    and processes, so that every masked cell of a codebook counts the same in any batch. The terms are named after the
    codebooks: `codes_0`, `codes_1`, ...
    """

    type: Literal["codebook"] = "codebook"
    weights: list[float] | None = Field(None, min_length=1)
    """Weight of each codebook. The weights are scaled to add up to 1. Null: OmniVoice's `[8, 8, 6, 6, 4, 4, 2, 2]`,
    stretched to the number of codebooks (`[8, 6, 4, 2]` for four)."""
    label_smoothing: float = Field(0.0, ge=0, lt=1)
    """Share of the target's probability that is spread evenly over a codebook's entries, in training."""

    @field_validator("weights")
    @classmethod
    def _usable(cls, weights: list[float] | None) -> list[float] | None:
        if weights is not None and (min(weights) < 0 or sum(weights) <= 0):
            raise ValueError("weights must not be negative, and at least one must be more than 0")
        return weights

    def shares(self, codebooks: int) -> list[float]:
        """The weights of so many codebooks, adding up to 1."""
        weights = self.weights or default_weights(codebooks)
        return [w / sum(weights) for w in weights]

    def terms(self, name: str, codebooks: int | None) -> dict[str, Loss]:
        if codebooks is None:
            why = "`codebook` scores the tokens of an audio codec, which this model does not predict"
            raise ConfigError(f"losses.{name}: {why}.")
        if self.weights is not None and len(self.weights) != codebooks:
            raise ConfigError(
                f"losses.{name}.weights: {len(self.weights)} weights for a codec with {codebooks} codebooks; give "
                f"{codebooks}, or leave `weights` out."
            )
        return {
            f"{name}_{c}": CodebookCrossEntropy(weight=self.weight * share, label_smoothing=self.label_smoothing)
            for c, share in enumerate(self.shares(codebooks))
        }


class CodebookCrossEntropy(CrossEntropy):
    """Cross entropy of the masked cells of one codebook. They are not predicted in order: there is no perplexity."""

    per_token: ClassVar[bool] = False
