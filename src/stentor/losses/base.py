"""Base of losses. A loss is a sum over targets, never a mean: the engine divides once, by global counts.

Losses of frame labels are called with `logits` float [B, T, C] (or [N, C]) and `targets`: either one class per frame,
int64 [B, T], or one number per output, float [B, T, C]. -100 marks what is left out, padding included; the logits
there, NaN included, change neither the sum nor a gradient.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import Field, PrivateAttr

from stentor.errors import ConfigError
from stentor.section import Choice
from stentor.section.contract import place, violation

if TYPE_CHECKING:
    import torch

WILDCARD = -1
"""Target of an alignment for what a model cannot write: any sound."""


Watcher = Callable[["torch.Tensor", Mapping[str, Any]], None]
"""Function of a summed loss and the arguments that it was computed from."""


class Loss(Choice):
    """One term of `losses:`."""

    weight: float = Field(1.0, ge=0)
    """Weight of this term in the total loss."""
    required: ClassVar[tuple[str, ...]] = ("sum",)
    default_type: ClassVar[str | None] = None
    per_token: ClassVar[bool] = False
    """True when a target's loss is the negative log-probability of one token: exp of the mean is then a perplexity."""
    scores: ClassVar[str] = "logits"
    """The output that is scored, of a model that labels frames: `logits`, `embeddings`, `hidden` or `weights`."""
    per_frame: ClassVar[bool] = False
    """The count that the sum is divided by, for a model that labels frames. True: frames that are not -100. False:
    entries of the targets that are not -100."""

    reads: ClassVar[str | None] = None
    """The key under which a model's forward returns the arguments of `sum`. None: the name of the term."""
    evaluated: ClassVar[bool] = True
    """Whether evaluation measures the term too."""
    _watcher: Watcher | None = PrivateAttr(None)

    def incompatible_with(self, task: Any, family: Any) -> tuple[str, str] | None:
        """Return the reason why a task with a model of this family's settings cannot be trained with this term, as (key
        of the section, sentence). None when it can."""
        return None

    def terms(self, name: str, codebooks: int | None) -> dict[str, Loss]:
        """The terms that the engine counts and divides separately for the term `name`: by default the term itself.
        `codebooks`: of the codec whose tokens the model predicts, None for other models. Raises ConfigError when they
        do not fit."""
        return {name: self}

    def unregularised(self) -> Loss:
        """Return the term that evaluation measures, without parts for training only, such as label smoothing."""
        smooths = "label_smoothing" in type(self).model_fields
        return self.model_copy(update={"label_smoothing": 0.0}) if smooths else self

    def sum(self, *args: Any, **prediction: Any) -> torch.Tensor:
        """The summed loss, a scalar tensor, from what the model's forward returned for this term. Targets equal to -100
        and padding are left out."""
        raise NotImplementedError

    def watch(self, watcher: Watcher | None) -> None:
        """Call `watcher` with each sum of training, and with what it was computed from; None: no longer."""
        self._watcher = watcher

    def checked_sum(self, outputs: Mapping[str, Mapping[str, Any]], key: str) -> torch.Tensor:
        """`sum` of the model's outputs under `key`. Raises ConfigError without outputs, or when `sum` does not fit."""
        import torch

        if key not in outputs:
            raise ConfigError(
                f"The model returned nothing under '{key}', which {place(self, 'sum')} needs; there is "
                f"{', '.join(map(str, outputs))}."
            )
        try:
            value = self.sum(**outputs[key])
        except TypeError as error:
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise  # from inside `sum`
            expected = f"take what the model returned under '{key}' ({', '.join(outputs[key])})"
            raise ConfigError(f"{place(self, 'sum')} must {expected}: {error}.") from None
        if not isinstance(value, torch.Tensor) or value.dim() or not value.is_floating_point():
            raise violation(self, "sum", "return the sum over all targets, a scalar tensor", value)
        if self._watcher is not None and torch.is_grad_enabled():
            self._watcher(value, outputs[key])
        return value


def measured(losses: Mapping[str, Loss]) -> dict[str, Loss]:
    """The terms as evaluation measures them: see `Loss.evaluated` and `Loss.unregularised`."""
    return {term: loss.unregularised() for term, loss in losses.items() if loss.evaluated}


def expanded(
    losses: Mapping[str, Loss], codebooks: int | None, parts: Mapping[str, float] | None = None
) -> dict[str, Loss]:
    """All terms that a model's forward returns and the engine divides, from those of the section `losses:`; `parts` are
    `Processor.loss_parts`."""
    terms = {term: part for name, loss in losses.items() for term, part in loss.terms(name, codebooks).items()}
    if not parts:
        return terms
    return {
        f"{term}_{part}": loss.model_copy(update={"weight": weight * loss.weight})
        for term, loss in terms.items()
        for part, weight in parts.items()
    }
