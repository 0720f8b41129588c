"""Exponential moving average of the weights (EMA), and the trained tensors of a model by name."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn

from stentor.engine.tensor_files import StoredTensors, read_into
from stentor.models.base import Bundle, RandomFeatures


def trained_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return the tensors that training changes, trainable parameters and persistent buffers, as stored on this rank."""
    persistent = set(model.state_dict().keys())
    tensors = {n: p.data for n, p in model.named_parameters() if p.requires_grad}
    return tensors | {n: b for n, b in model.named_buffers() if n in persistent}


def random_buffers(model: nn.Module) -> set[str]:
    """Return the names of random buffers. They are not averaged, because a mean of two draws is not a draw."""
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, RandomFeatures)]
    return {f"{name}.{b}".lstrip(".") for name, m in modules for b, _ in m.named_buffers(recurse=False)}  # type: ignore[attr-defined]


def exported_frozen_tensors(bundle: Bundle) -> dict[str, torch.Tensor]:
    """Return the other tensors of an export: frozen weights that are not available elsewhere."""
    names = bundle.family.exported_tensor_names(bundle) - set(trained_tensors(bundle.model))
    state_dict = bundle.model.state_dict(keep_vars=True)
    return {n: state_dict[n] for n in sorted(names) if n in state_dict}


@torch.no_grad()
def read_weights(model: nn.Module, stored: StoredTensors) -> None:
    """Read stored tensors into the model's parameters and buffers; each rank reads its rows. Raises KeyError and
    ValueError if they are of another model."""
    targets = trained_tensors(model)
    for name in stored:
        read_into(targets[name], stored, name)


class EMA:
    """Exponential moving average of the trained weights (Polyak averaging), with a warm-up of its decay."""

    def __init__(self, model: nn.Module, decay: float):
        self.model, self.decay, self.random = model, decay, random_buffers(model)
        self.shadow = {n: t.clone() for n, t in trained_tensors(model).items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        for name, tensor in trained_tensors(self.model).items():
            if tensor.is_floating_point() and name not in self.random:
                self.shadow[name].lerp_(tensor, 1 - decay)
            else:
                self.shadow[name].copy_(tensor)

    def load(self, stored: StoredTensors) -> None:
        """Restore the average from a checkpoint."""
        for name in stored:
            read_into(self.shadow[name], stored, name)

    @torch.no_grad()
    def assign(self) -> None:
        """Put the average into the model."""
        for name, tensor in trained_tensors(self.model).items():
            tensor.copy_(self.shadow[name])

    @contextlib.contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """Context in which the model has the averaged weights."""
        weights = {n: t.clone() for n, t in trained_tensors(self.model).items()}
        self.assign()
        try:
            yield
        finally:
            # Listed again, which also drops the gathered copies that a sharded model still holds.
            for name, tensor in trained_tensors(self.model).items():
                tensor.copy_(weights[name])


def exported_weights(checkpoint: Path) -> StoredTensors:
    """Return the weights that the checkpoint was evaluated with: those of the EMA if there is one."""
    return StoredTensors.of(checkpoint / "resume", "ema") or StoredTensors.of(checkpoint / "resume", "weights")
