"""Check of a loss against the labels of frames, tried on made-up speakers before training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from stentor.losses.base import Loss
    from stentor.tasks.diarize.labels.base import Labels


def check_loss(term: str, loss: Loss, labels: Labels) -> None:
    """Raise ConfigError for a loss that does not take these labels, and for one that compares each output with a fixed
    speaker where outputs are speakers in no fixed order: what it learns depends on the order, which has no meaning."""
    import numpy as np
    import torch

    from stentor.tasks.diarize.frames import checked_targets

    speakers = labels.slots or 3
    ids = [f"speaker {s}" for s in range(speakers)]
    turns = np.repeat(np.arange(speakers), np.arange(1, speakers + 1))  # one after the other, of different lengths
    logits = torch.randn(1, len(turns), labels.classes, generator=torch.Generator().manual_seed(0))

    def targets(order: list[int]) -> torch.Tensor:
        activity = np.eye(speakers, dtype=bool)[turns][:, order]
        return torch.from_numpy(checked_targets(labels, labels.targets(activity, ids), len(turns)))[None]

    orders = [*range(speakers)], [*range(1, speakers), 0]
    try:
        in_orders = [targets(order) for order in orders]
    except Exception:  # labels of a plug-in that are not made for these speakers: real records show what is wrong
        return
    try:
        values = [float(loss.sum(logits=logits.clone(), targets=t)) for t in in_orders]
    except ConfigError:
        raise
    except Exception:  # as before, of a loss
        return
    if labels.permutes and abs(values[0] - values[1]) > 1e-3 * abs(values[0]):
        usual = " or ".join(f"`{usual.type}`" for usual in labels.losses().values())
        raise ConfigError(
            f"losses.{term}: `{loss.type}` compares each output with one speaker, but the outputs of the labels "
            f"`{labels.type}` are speakers in no fixed order, so it would learn their mean. Use {usual}, which takes "
            "the order that fits best."
        )
