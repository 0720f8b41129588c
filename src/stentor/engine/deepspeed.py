"""DeepSpeed's ZeRO: optimizer state (stage 1), gradients (2) and weights (3) divided over the processes.

The engine keeps what is its own: it plans the batches, divides the sums, steps the schedule, writes and reads the
checkpoints (whole tensors by parameter name, so that a run may go on with another number of processes, or with DDP or
FSDP2). DeepSpeed holds the shards, adds up gradients over micro-batches and processes, clips and steps.
https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stentor.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.config.schema import Config
    from stentor.data.batch import Batch
    from stentor.engine.section import Train
    from stentor.losses.base import Loss
    from stentor.tasks.base import Task

OURS = {
    "optimizer": "optim",
    "scheduler": "schedule",
    "gradient_clipping": "train.clip",
    "gradient_accumulation_steps": "train.accumulate",
    "train_batch_size": "data.batch_tokens",
    "train_micro_batch_size_per_gpu": "data.batch_tokens",
    "fp16": "train.precision",
    "bf16": "train.precision",
    "torch_autocast": "train.precision",
    "amp": "train.precision",
}
"""Keys of a DeepSpeed config that say what a key of ours says."""
ELEMENTWISE = ("adam", "adamw", "sgd", "adagrad", "rmsprop", "adamax")
"""Optimizers that treat each number alone: ZeRO shows them flat pieces of many parameters."""


def deepspeed_config(train: Train) -> dict[str, Any]:
    """The DeepSpeed config of a run from `train.deepspeed`, a mapping or the path of a JSON file. Keys with the value
    "auto" are left out, as in configs written for transformers. Raises ConfigError."""
    given: Any = train.deepspeed
    if isinstance(given, str):
        try:
            given = json.loads(Path(given).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"train.deepspeed: {given} cannot be read as a JSON file ({error}).") from None
    if not isinstance(given, Mapping):
        raise ConfigError("train.deepspeed: a DeepSpeed config is a mapping, such as {zero_optimization: {stage: 2}}.")
    config = _without_auto(given)
    for key, own in OURS.items():
        value = config.get(key)
        set_there = value.get("enabled", "type" in value) if isinstance(value, Mapping) else value is not None
        if set_there:
            raise ConfigError(f'train.deepspeed: `{key}` is set by `{own}` here: leave it out (or say "auto").')
    config = {k: v for k, v in config.items() if k not in OURS}
    sharding = config.setdefault("zero_optimization", {})
    stage = sharding.setdefault("stage", 2)
    if stage not in (1, 2, 3):
        raise ConfigError("train.deepspeed: `zero_optimization.stage` must be 1, 2 or 3; without DeepSpeed it is DDP.")
    for key in ("offload_optimizer", "offload_param"):
        if sharding.get(key, {}).get("device", "none") != "none":
            raise ConfigError(
                f"train.deepspeed: `zero_optimization.{key}` is not supported yet: use more processes, LoRA, or "
                "`optim.type: adamw8bit` without DeepSpeed."
            )
    sharding.pop("offload_optimizer", None)
    sharding.pop("offload_param", None)
    return config | {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": train.clip or 0.0,
        "zero_allow_untested_optimizer": True,
        "steps_per_print": None,
    }


def _without_auto(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {k: _without_auto(v) for k, v in value.items() if v != "auto"}
    return value


def check(train: Train, optim: str, precision: str) -> None:
    """Raises ConfigError for what does not go together with `train.deepspeed`."""
    if train.shard:
        raise ConfigError("`train.deepspeed` and `train.shard` (FSDP2) both divide the model: choose one.")
    if train.compile:
        raise ConfigError("`train.compile` and `train.deepspeed` do not go together yet: leave one out.")
    if optim not in ELEMENTWISE:
        raise ConfigError(
            f"optim.type {optim} works on whole matrices or blocks, which ZeRO cuts up: use one of "
            f"{', '.join(ELEMENTWISE)}, or leave out `train.deepspeed`."
        )
    if precision == "fp16":
        raise ConfigError("`train.precision: fp16` and `train.deepspeed` do not go together: use bf16 or fp32.")
    if not dist.is_initialized():
        raise ConfigError(
            "`train.deepspeed` needs a process group: start with `--processes N`, torchrun or `accelerate launch -m "
            "stentor train ...`, or leave it out in a single process."
        )


class DeepSpeedBackend:
    """A model and its optimizer in the hands of DeepSpeed. All ranks must make the same calls."""

    def __init__(
        self,
        model: nn.Module,
        optimizers: Sequence[torch.optim.Optimizer],
        config: Config,
        accelerator: Accelerator,
        layers: Sequence[str],
        task: Task,
        losses: Mapping[str, Loss],
    ):
        check(config.train, config.optim.type, accelerator.mixed_precision)
        os.environ.setdefault("DS_ACCELERATOR", accelerator.device.type)  # it would take a GPU where there is one
        try:
            import deepspeed
        except ImportError:
            raise ConfigError("`train.deepspeed` needs DeepSpeed: `pip install deepspeed`.") from None

        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        settings = deepspeed_config(config.train)
        if accelerator.mixed_precision == "bf16":
            # No modules whose weights would travel in bf16: what is gathered for checkpoints comes the same way.
            settings["torch_autocast"] = {"enabled": True, "dtype": "bfloat16", "lower_precision_safe_modules": []}
        self.stage: int = settings["zero_optimization"]["stage"]
        if self.stage == 3 and config.train.ema:
            raise ConfigError("`train.ema` does not go together with stage 3 of `train.deepspeed`: use stage 2.")
        self.model = model
        self.scored = Scored(model, task, losses)
        (self.inner,) = optimizers
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.scored, optimizer=self.inner, config=settings, dist_init_required=False
        )
        self.inner = self.optimizer.optimizer
        # As under FSDP2, what is outside of the layers is whole from the forward to the end of the backward: families
        # hand such weights (of the output layer) to the losses.
        self.outer: list[nn.Parameter] = []
        if self.stage == 3:
            inside = {id(p) for m in model.modules() if type(m).__name__ in layers for p in m.parameters()}
            self.outer = [p for p in model.parameters() if id(p) not in inside and not p.ds_persist]  # type: ignore[attr-defined]
            for parameter in self.outer:
                deepspeed.zero.register_external_parameter(self.scored, parameter)
        self.how = f"{accelerator.num_processes} processes (DeepSpeed ZeRO-{self.stage}) on {accelerator.device.type}"

    def loss_sums(self, batch: Batch) -> dict[str, Tensor]:
        """The summed losses of a batch on this device. Gradients stay local until the last micro-batch of a step."""
        self.scored.batch = batch
        return self.engine()

    @contextlib.contextmanager
    def last(self, last: bool) -> Iterator[None]:
        """Around a micro-batch: whether it ends the step."""
        self.engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def step(self, factor: float) -> Tensor:
        """Clip and step with the peak learning rates times `factor`. Returns the gradient norm before clipping; where
        it is not finite, DeepSpeed left the weights alone."""
        for group in self.inner.param_groups:
            group["lr"] = group["peak"] * factor
        self.engine.step()
        norm = self.engine.get_global_grad_norm() if self.engine.was_step_applied() else float("inf")
        return torch.as_tensor(norm, dtype=torch.float32)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, the model may be called bare, by all ranks with the same batches."""
        if self.stage < 3 or not self.outer:
            yield
            return
        self.outer[0].all_gather(param_list=self.outer)  # type: ignore[attr-defined]
        for parameter in self.outer:
            parameter.ds_active_sub_modules.add("evaluation")  # type: ignore[attr-defined]  # not given back in between
        try:
            yield
        finally:
            for parameter in self.outer:
                parameter.ds_active_sub_modules.discard("evaluation")  # type: ignore[attr-defined]
            self.outer[0].partition(param_list=self.outer)  # type: ignore[attr-defined]

    # State of the optimizer, by parameter name -----------------------------------------------------------------------

    def optimizer_state(self, keep: bool = True) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """As `stentor.engine.optim.optimizer_state`."""
        from deepspeed.utils import safe_get_full_optimizer_state

        tensors: dict[str, Tensor] = {}
        plain: dict[str, Any] = {}
        self._link()
        flat = self._flat()[0]
        for key, held in self.inner.state.get(flat, {}).items():
            for name, parameter in self._trained():
                if isinstance(held, Tensor) and held.shape == flat.shape:
                    value = safe_get_full_optimizer_state(parameter, key)
                    if keep:
                        tensors[f"{name}|{key}"] = value.cpu().clone()
                elif isinstance(held, Tensor):
                    tensors[f"{name}|{key}"] = held.cpu().clone()
                else:
                    plain[f"{name}|{key}"] = held
        return tensors, plain

    def load_optimizer_state(self, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
        """Put back what an `optimizer_state` gave, this one or that of another way to train."""
        held: dict[str, dict[str, Any]] = {}
        for place, value in [*tensors.items(), *plain.items()]:
            name, _, key = place.rpartition("|")
            held.setdefault(name, {})[key] = value
        if not held:
            return
        trained = self._trained()
        some = next(held[name] for name, _ in trained if name in held)
        shapes = {name: parameter_shape(p) for name, p in trained}
        moments = {
            k
            for name, s in held.items()
            for k, v in s.items()
            if isinstance(v, Tensor) and v.ndim and v.shape == shapes.get(name)
        }
        for flat in self._flat():
            self.inner.state[flat] = {
                k: torch.zeros_like(flat) if k in moments else v.clone() if isinstance(v, Tensor) else v
                for k, v in some.items()
            }
            for key, value in self.inner.state[flat].items():
                if isinstance(value, Tensor) and key not in moments and self.inner.defaults.get("fused"):
                    self.inner.state[flat][key] = value.to(flat.device)  # counters of fused optimizers
        self._link()
        for name, parameter in trained:
            for key in moments & held.get(name, {}).keys():
                _set_shard(parameter, held[name][key], key)

    def _link(self) -> None:
        """Let parameters find their part of the optimizer's state (stages 1 and 2). DeepSpeed does so after it stepped
        the first of several parameter groups, when the others have no state yet."""
        if self.stage < 3 and self.inner.state:
            self.optimizer._hp_optimizer_states_linked = False
            self.optimizer._lazy_init_hp_params_optimizer_state()

    def _flat(self) -> list[Tensor]:
        """This rank's pieces of the weights in float32, which the optimizer steps."""
        if self.stage == 3:
            return self.optimizer.fp32_partitioned_groups_flat
        return self.optimizer.single_partition_of_fp32_groups

    def _trained(self) -> list[tuple[str, nn.Parameter]]:
        return [(n, p) for n, p in self.model.named_parameters() if p.requires_grad]


class Scored(nn.Module):
    """The model with its losses: they use weights of the model, which stage 3 holds only inside of a forward."""

    def __init__(self, model: nn.Module, task: Task, losses: Mapping[str, Loss]):
        super().__init__()
        self.model, self.task, self.losses = model, task, losses
        self.batch: Batch | None = None

    def forward(self) -> dict[str, Tensor]:
        batch, self.batch = self.batch, None
        assert batch is not None
        return self.task.loss_sums(self.model, batch, self.losses)


def is_divided(tensor: Tensor) -> bool:
    """Whether only a shard of this parameter is here (stage 3)."""
    return hasattr(tensor, "ds_id")


def trains(parameter: Tensor) -> bool:
    """Whether DeepSpeed's optimizer has a copy of this parameter."""
    return is_divided(parameter) or hasattr(parameter, "_hp_mapping")


def parameter_shape(parameter: Tensor) -> torch.Size:
    """The shape of the whole parameter."""
    return torch.Size(parameter.ds_shape) if is_divided(parameter) else parameter.shape  # type: ignore[attr-defined]


def whole(parameter: Tensor) -> Tensor:
    """The whole of a divided parameter. All ranks must call."""
    import deepspeed

    with deepspeed.zero.GatheredParameters([parameter]):
        return parameter.detach().clone()


@torch.no_grad()
def assign(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter that DeepSpeed trains: what the model sees and the optimizer's own copy."""
    if not is_divided(parameter):
        parameter.copy_(value.to(parameter.device, parameter.dtype))
    else:
        own = parameter.ds_tensor  # type: ignore[attr-defined]
        own.copy_(_shard(parameter, value).to(own.device, own.dtype))
        if parameter.numel():  # small ones are whole on each rank besides
            parameter.copy_(value.to(parameter.device, parameter.dtype))
    _set_shard(parameter, value, None)


def _set_shard(parameter: Any, value: Tensor, key: str | None) -> None:
    """Set the optimizer's copy of a parameter (`key` None) or of its state `key` from the whole tensor."""
    from deepspeed.utils import (
        safe_set_full_fp32_param,
        safe_set_full_optimizer_state,
        safe_set_local_fp32_param,
        safe_set_local_optimizer_state,
    )

    value = value.float()
    if is_divided(parameter):  # the whole-tensor calls fail where the last shard is padded
        shard = _shard(parameter, value)
        if key is None:
            safe_set_local_fp32_param(parameter, shard)
        else:
            safe_set_local_optimizer_state(parameter, shard, key)
    elif key is None:
        safe_set_full_fp32_param(parameter, value)
    else:
        safe_set_full_optimizer_state(parameter, value, key)


def _shard(parameter: Any, value: Tensor) -> Tensor:
    """This rank's piece of a whole tensor, padded with zeros as DeepSpeed divides it."""
    size = parameter.ds_tensor.numel()
    rank, world = dist.get_rank(), dist.get_world_size()
    return nn.functional.pad(value.flatten(), (0, size * world - value.numel()))[rank * size : (rank + 1) * size]
