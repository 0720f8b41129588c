"""Weight averages: over time (EMA) and over the best checkpoints; and the trained tensors of a model by name."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence, Set
from pathlib import Path

import torch
from torch import nn

from stentor.engine.checkpoint import load_tensors
from stentor.engine.sharding import assign_zero_parameter, gather_full, is_zero_sharded, shard_like, trained_by_zero
from stentor.models.base import Bundle, RandomFeatures


def trained_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """What training changes: trainable parameters and persistent buffers, by name, as they lie on this rank."""
    persistent = set(model.state_dict().keys())
    # Of a parameter that ZeRO-3 divides, the data is empty.
    tensors = {n: p if is_zero_sharded(p) else p.data for n, p in model.named_parameters() if p.requires_grad}
    return tensors | {n: b for n, b in model.named_buffers() if n in persistent}


def random_buffers(model: nn.Module) -> set[str]:
    """Names of the buffers that are a random draw. A mean of two draws would be none: averaged weights go with one."""
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, RandomFeatures)]
    return {f"{name}.{b}".lstrip(".") for name, m in modules for b, _ in m.named_buffers(recurse=False)}  # type: ignore[attr-defined]


def exported_frozen_tensors(bundle: Bundle) -> dict[str, torch.Tensor]:
    """What an export holds besides the trained tensors (frozen weights that cannot be had from elsewhere)."""
    names = bundle.family.exported_tensor_names(bundle) - set(trained_tensors(bundle.model))
    state_dict = bundle.model.state_dict(keep_vars=True)
    return {n: state_dict[n] for n in sorted(names) if n in state_dict}


def gather_full_tensors(tensors: Mapping[str, torch.Tensor], copy: bool = True) -> dict[str, torch.Tensor]:
    """Unsharded copies on the CPU. All ranks must call; those with `copy` False get nothing."""
    full_tensors = {}
    for name, tensor in tensors.items():
        full = gather_full(tensor, copy)
        if copy:
            full_tensors[name] = full.clone()
    return full_tensors


@torch.no_grad()
def assign_tensors(model: nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Copy whole tensors into the model's (possibly sharded) parameters and buffers."""
    targets = trained_tensors(model)
    parameters = dict(model.named_parameters())
    for name, value in tensors.items():
        if name in parameters and trained_by_zero(parameters[name]):
            assign_zero_parameter(parameters[name], value)
        else:
            targets[name].copy_(shard_like(value, targets[name]))


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

    @torch.no_grad()
    def load(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restore the average from whole tensors of a checkpoint."""
        for name, value in tensors.items():
            self.shadow[name].copy_(shard_like(value, self.shadow[name]))

    @contextlib.contextmanager
    @torch.no_grad()
    def applied(self) -> Iterator[None]:
        """The model holds the average inside the block."""
        tensors = trained_tensors(self.model)
        weights = {n: t.clone() for n, t in tensors.items()}
        for name, tensor in tensors.items():
            tensor.copy_(self.shadow[name])
        try:
            yield
        finally:
            # Looked up again: listing them also drops the gathered copies that a sharded model still holds.
            for name, tensor in trained_tensors(self.model).items():
                tensor.copy_(weights[name])


def average_checkpoints(checkpoints: Sequence[Path], from_first: Set[str] = frozenset()) -> dict[str, torch.Tensor]:
    """The mean of the checkpoints' exported weights (of their EMA where there is one); counters and the names in
    `from_first` (random draws) are those of the first checkpoint."""
    total: dict[str, torch.Tensor] = {}
    averaged: set[str] = set()
    for number, folder in enumerate(checkpoints):
        for name, tensor in load_tensors(exported_weights(folder)).items():
            if number == 0:
                if tensor.is_floating_point() and name not in from_first:
                    averaged.add(name)
                total[name] = tensor.double() if name in averaged else tensor
            elif name in averaged:
                total[name] += tensor.double()
    return {n: t / len(checkpoints) if n in averaged else t for n, t in total.items()}


def exported_weights(checkpoint: Path) -> Path:
    """The weights that the checkpoint was evaluated with: the EMA's if there is one."""
    ema = checkpoint / "resume" / "ema.safetensors"
    return ema if ema.exists() else checkpoint / "resume" / "weights.safetensors"
