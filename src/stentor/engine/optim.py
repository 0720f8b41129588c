"""Optimizers with parameter groups by glob, and the learning rate as a function of the step."""

import fnmatch
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from stentor.engine.muon import Muon
from stentor.engine.section import Optim, ParameterGroup, Schedule
from stentor.engine.tensor_files import StoredTensors, read_into
from stentor.errors import ConfigError, require


def build(config: Optim, model: nn.Module) -> list[torch.optim.Optimizer]:
    """The optimizers over the model's trainable parameters: one, or for `muon` Muon and AdamW.

    Each parameter group carries `peak`, the learning rate that the schedule's factor multiplies.
    """
    named = {n: p for n, p in model.named_parameters() if p.requires_grad}
    chosen = choose_groups(config, list(named))
    muon = _muon_names(model, named) if config.type == "muon" else set()
    groups: dict[tuple[bool, int, bool], list[nn.Parameter]] = {}
    for name, parameter in named.items():
        decays = parameter.ndim >= 2
        groups.setdefault((name in muon, chosen.get(name, -1), decays), []).append(parameter)
    first: list[dict[str, Any]] = []
    second: list[dict[str, Any]] = []
    for (is_muon, number, decays), parameters in sorted(groups.items(), key=lambda kv: kv[0]):
        section = config.groups[number] if number >= 0 else ParameterGroup(params=["*"])
        peak = section.lr if section.lr is not None else config.muon_lr if is_muon else config.lr
        decay = section.weight_decay if section.weight_decay is not None else config.weight_decay
        settings = {"params": parameters, "lr": peak, "peak": peak, "weight_decay": decay if decays else 0.0}
        (second if is_muon else first).append(settings)
    optimizers = []
    if first:
        optimizers.append(_optimizer(config, first))
    if second:
        optimizers.append(Muon(second, lr=config.muon_lr, momentum=config.momentum))
    return optimizers


def choose_groups(config: Optim, names: Sequence[str]) -> dict[str, int]:
    """The number of the group of `optim.groups` that each trained parameter belongs to, for those that have one. Raises
    ConfigError for a group without parameters, and when nothing is trained."""
    if not names:
        raise ConfigError("model.freeze: no parameter is trainable: remove from `freeze` what is to be trained.")
    chosen: dict[str, int] = {}
    for number, group in enumerate(config.groups):
        hits = [n for n in names if any(fnmatch.fnmatchcase(n, g) for g in group.params)]
        if not hits:
            raise ConfigError(
                f"optim.groups.{number}: no trainable parameter matches {', '.join(group.params)}. Parameters start "
                f"with: {', '.join(sorted({n.split('.')[0] for n in names}))}."
            )
        for name in hits:
            chosen.setdefault(name, number)
    return chosen


def _optimizer(config: Optim, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    adam: dict[str, Any] = {"lr": config.lr, "betas": config.betas, "eps": config.eps}
    match config.type:
        case "adamw" | "muon":
            return torch.optim.AdamW(groups, **adam, amsgrad=config.amsgrad, fused=True)
        case "adam":
            return torch.optim.Adam(groups, **adam, amsgrad=config.amsgrad, fused=True)
        case "adamax":
            return torch.optim.Adamax(groups, **adam)
        case "sgd":
            return torch.optim.SGD(groups, lr=config.lr, momentum=config.momentum, nesterov=config.nesterov)
        case "adagrad":
            return torch.optim.Adagrad(groups, lr=config.lr, eps=config.eps)
        case "rmsprop":
            return torch.optim.RMSprop(groups, lr=config.lr, momentum=config.momentum, eps=config.eps)
    require("quantize", "optim.type adamw8bit", instead="take adamw")
    from bitsandbytes.optim import AdamW8bit

    return AdamW8bit(groups, **adam)


def _muon_names(model: nn.Module, named: dict[str, nn.Parameter]) -> set[str]:
    """Hidden matrices: not embeddings, not output heads (they map to or from tokens, where Muon does harm)."""
    tables = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding)}
    heads = {n for n in named if any(part.split("_")[-1] in ("head", "heads") for part in n.split("."))}
    return {n for n, p in named.items() if p.ndim == 2 and id(p) not in tables and n not in heads}


def factor(config: Schedule, step: int, total: int) -> float:
    """Learning rate of optimizer step `step` (0-based, of `total`) as a factor of the peak; plateau: warm-up only."""
    warm = config.warmup_steps
    if warm is None:
        ratio = 0.05 if config.warmup_ratio is None else config.warmup_ratio
        warm = round(ratio * total)
    if step < warm:
        return (step + 1) / warm
    past = step - warm
    share = min(past / max(total - warm, 1), 1.0)
    floor = config.min_ratio
    if config.type == "cosine":
        return floor + (1 - floor) * (1 + math.cos(math.pi * share)) / 2
    if config.type == "cosine_restarts":
        return floor + (1 - floor) * (1 + math.cos(math.pi * (share * config.cycles % 1.0 if share < 1 else 1.0))) / 2
    if config.type == "linear":
        return floor + (1 - floor) * (1 - share)
    if config.type == "exponential":
        return max(floor, config.gamma ** (past / config.step_size))
    if config.type == "step":
        return max(floor, config.gamma ** (past // config.step_size))
    if config.type == "inverse_sqrt":
        return max(floor, math.sqrt(max(warm, 1) / max(step + 1, 1)))
    if config.type == "warmup_stable_decay":
        tail = max(round(config.decay_ratio * total), 1)
        return floor + (1 - floor) * min(1.0, max(total - step, 0) / tail)
    return 1.0


class Plateau:
    """Multiplies the learning rate by `gamma` when its metric stops getting better."""

    def __init__(self, config: Schedule):
        self.config = config
        self.best: float | None = None
        self.bad = 0
        self.factor = 1.0

    def see(self, value: float, better: bool) -> None:
        """Take the value of an evaluation, and whether it is better than `best`."""
        self.best, self.bad = (value, 0) if better else (self.best, self.bad + 1)
        if self.bad > self.config.patience:
            self.factor, self.bad = max(self.config.min_ratio, self.factor * self.config.gamma), 0


def optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], model: nn.Module
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """(tensors as they lie on this rank, plain values) by `PARAMETER|KEY`."""
    names = {id(p): n for n, p in model.named_parameters()}
    tensors: dict[str, torch.Tensor] = {}
    plain: dict[str, Any] = {}
    for optimizer in optimizers:
        for parameter, state in optimizer.state.items():
            for key, value in state.items():
                values = tensors if isinstance(value, torch.Tensor) else plain
                values[f"{names[id(parameter)]}|{key}"] = value
    return tensors, plain


def states_by_parameter(values: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Values by `PARAMETER|KEY` as `{parameter: {key: value}}`."""
    states: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        parameter, _, key = name.rpartition("|")
        states.setdefault(parameter, {})[key] = value
    return states


def load_optimizer_state(
    optimizers: Sequence[torch.optim.Optimizer], model: nn.Module, stored: StoredTensors, plain: Mapping[str, Any]
) -> None:
    """Restore what `optimizer_state` returned, of tensors the rows that are on this rank. Raises ValueError where they
    have another shape than their parameter."""
    states = states_by_parameter(dict.fromkeys(stored) | dict(plain))
    names = {id(p): n for n, p in model.named_parameters()}
    for optimizer in optimizers:
        is_fused = bool(optimizer.defaults.get("fused"))
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                name = names[id(parameter)]
                if (state := states.get(name)) is not None:
                    for key in state:
                        if (stored_name := f"{name}|{key}") in stored:
                            state[key] = _placed(stored, stored_name, parameter, is_fused)
                    optimizer.state[parameter] = state


def _placed(stored: StoredTensors, name: str, parameter: nn.Parameter, is_fused: bool) -> torch.Tensor:
    """A stored tensor on the parameter's device, divided like it."""
    shape, dtype = stored.shape(name), stored.dtype(name)
    if shape == parameter.shape and shape:
        target = torch.empty_like(parameter, dtype=dtype)
    else:
        on_host = not shape and name.endswith("|step") and not is_fused
        target = torch.empty(shape, dtype=dtype, device="cpu" if on_host else parameter.device)
    read_into(target, stored, name)
    return target
