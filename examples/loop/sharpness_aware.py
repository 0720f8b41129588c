"""A training loop of your own: sharpness-aware minimisation (Foret et al. 2021), which needs two passes a step.

python examples/loop/sharpness_aware.py RUN.yaml train.steps=200
"""

import sys

import torch

from stentor.extend import batches, open_trainer, take_step

RADIUS = 0.05
"""Length of the move towards higher loss, over all weights."""


def add_gradients(trainer, batch):
    """Add the gradients of one batch; returns its mean loss."""
    sums = trainer.backend.loss_sums(batch)
    loss = sum(trainer.losses[term].weight * total / max(batch.counts[term], 1) for term, total in sums.items())
    trainer.backend.backward(loss)
    return float(loss)


with open_trainer(sys.argv[1], sys.argv[2:]) as trainer:
    weights = [p for p in trainer.bundle.model.parameters() if p.requires_grad]
    for batch in batches(trainer):
        loss = add_gradients(trainer, batch)
        with torch.no_grad():
            length = torch.nn.utils.get_total_norm([p.grad for p in weights if p.grad is not None])
            moves = [(p, RADIUS * p.grad / (length + 1e-12)) for p in weights if p.grad is not None]
            for weight, move in moves:
                weight += move
                weight.grad = None
        add_gradients(trainer, batch)
        with torch.no_grad():
            for weight, move in moves:
                weight -= move
        norm = take_step(trainer)
        if trainer.step % 10 == 0:
            trainer.log({"train/loss": loss, "grad_norm": norm, "lr": trainer.lr})
        if trainer.step % 100 == 0:
            trainer.evaluate()
            trainer.save()
