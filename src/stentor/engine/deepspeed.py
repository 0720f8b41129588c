"""DeepSpeed's ZeRO: optimizer state (stage 1), gradients (2) and weights (3) divided over the processes.

The engine keeps what is its own: it plans the batches, divides the sums, steps the schedule, writes and reads the
checkpoints (tensors by parameter name, so that a run may go on with another number of processes, or with DDP or FSDP2;
the main process gathers what is divided and writes it whole). DeepSpeed holds the shards, adds up gradients over
micro-batches and processes, clips and steps.
https://arxiv.org/abs/1910.02054
"""

from __future__ import annotations

import contextlib
import json
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stentor.data.batch import Batch
from stentor.engine.optim import build, states_by_parameter
from stentor.engine.section import Train
from stentor.engine.setup import TrainingSetup
from stentor.engine.sharding import TensorShard, assign_zero_state, check_shardable, full_shape
from stentor.engine.tensor_files import StoredTensors
from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.tasks.base import Task

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.config.schema import Config

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
    section: Any = train.deepspeed
    if isinstance(section, str):
        try:
            section = json.loads(Path(section).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"train.deepspeed: {section} cannot be read as a JSON file ({error}).") from None
    if not isinstance(section, Mapping):
        raise ConfigError("train.deepspeed: a DeepSpeed config is a mapping, such as {zero_optimization: {stage: 2}}.")
    config = _without_auto(section)
    for key, setting in OURS.items():
        value = config.get(key)
        is_set = value.get("enabled", "type" in value) if isinstance(value, Mapping) else value is not None
        if is_set:
            raise ConfigError(f'train.deepspeed: `{key}` is set by `{setting}` here: leave it out (or say "auto").')
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
    """A model and its optimizer in the hands of DeepSpeed; for its methods see `AccelerateBackend`."""

    sharded = True

    def __init__(self, config: Config, setup: TrainingSetup, accelerator: Accelerator):
        layers = setup.bundle.wrap_layers
        self.accelerator, self.model = accelerator, setup.bundle.model
        check_shardable(self.model, "train.deepspeed")
        self.model.to(accelerator.device)
        optimizers = build(config.optim, self.model)
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
        self.shards_weights = self.stage == 3
        if self.shards_weights and config.train.ema:
            raise ConfigError("`train.ema` does not go together with stage 3 of `train.deepspeed`: use stage 2.")
        self.scored = ScoredModel(self.model, setup.task, setup.losses)
        (optimizer,) = optimizers
        self.engine, self.optimizer, _, _ = deepspeed.initialize(
            model=self.scored, optimizer=optimizer, config=settings, dist_init_required=False
        )
        self.inner = self.optimizer.optimizer
        # As under FSDP2, what is outside of the layers is whole from the forward to the end of the backward: families
        # hand such weights (of the output layer) to the losses.
        self.outer: list[nn.Parameter] = []
        if self.shards_weights:
            inside = {id(p) for m in self.model.modules() if type(m).__name__ in layers for p in m.parameters()}
            self.outer = [p for p in self.model.parameters() if id(p) not in inside and not p.ds_persist]  # type: ignore[attr-defined]
            for parameter in self.outer:
                deepspeed.zero.register_external_parameter(self.scored, parameter)
        processes, device = accelerator.num_processes, accelerator.device.type
        self.description = f"{processes} processes (DeepSpeed ZeRO-{self.stage}) on {device}"

    def loss_sums(self, batch: Batch) -> dict[str, Tensor]:
        self.scored.batch = batch.to(self.accelerator.device)
        with self.accelerator.autocast():
            return self.engine()

    @contextlib.contextmanager
    def synced(self, is_last: bool) -> Iterator[None]:
        self.engine.set_gradient_accumulation_boundary(is_last)
        yield

    def backward(self, loss: Tensor) -> None:
        self.engine.backward(loss)

    def trial(self, batch: Batch) -> None:
        with self.synced(False):  # as one micro-batch more of the first step, with a weight of zero
            sums = self.loss_sums(batch)
            loss = torch.stack([s.float() / max(batch.counts[t], 1) for t, s in sums.items()]).sum()
            self.engine.backward(0.0 * loss)

    def optimizer_step(self, lr_factor: float, on_gradients: Callable[[], None]) -> float:
        """`on_gradients` is never called: DeepSpeed holds the gradients, not the parameters. Where the norm is not
        finite, it left the weights alone."""
        for group in self.inner.param_groups:
            group["lr"] = group["peak"] * lr_factor
        self.engine.step()
        return float(self.engine.get_global_grad_norm()) if self.engine.was_step_applied() else math.inf

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        if not self.outer:
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

    def optimizer_state(self) -> tuple[dict[str, TensorShard], dict[str, Any]]:
        """The tensors are gathered for the main process, which writes them whole."""
        from deepspeed.utils import safe_get_full_optimizer_state

        main = self.accelerator.is_main_process
        tensors: dict[str, TensorShard] = {}
        plain: dict[str, Any] = {}
        self._link()
        flat = self._flat()[0]
        for key, value in self.inner.state.get(flat, {}).items():
            for name, parameter in self._trained():
                if isinstance(value, Tensor) and value.shape == flat.shape:
                    moment = safe_get_full_optimizer_state(parameter, key)
                    if main:
                        tensors[f"{name}|{key}"] = TensorShard(moment.cpu().clone(), moment.shape)
                elif isinstance(value, Tensor):
                    if main:
                        tensors[f"{name}|{key}"] = TensorShard(value.cpu().clone(), value.shape)
                else:
                    plain[f"{name}|{key}"] = value
        return tensors, plain

    def load_optimizer_state(self, stored: StoredTensors, plain: Mapping[str, Any]) -> None:
        states = states_by_parameter({n: stored.rows(n) for n in stored} | dict(plain))
        if not states:
            return
        trained = self._trained()
        first = next(states[name] for name, _ in trained if name in states)
        shapes = {name: full_shape(p) for name, p in trained}
        moments = {
            key
            for name, state in states.items()
            for key, value in state.items()
            if isinstance(value, Tensor) and value.ndim and value.shape == shapes.get(name)
        }
        for flat in self._flat():
            self.inner.state[flat] = {
                k: torch.zeros_like(flat) if k in moments else v.clone() if isinstance(v, Tensor) else v
                for k, v in first.items()
            }
            for key, value in self.inner.state[flat].items():
                if isinstance(value, Tensor) and key not in moments and self.inner.defaults.get("fused"):
                    self.inner.state[flat][key] = value.to(flat.device)  # counters of fused optimizers
        self._link()
        for name, parameter in trained:
            for key in moments & states.get(name, {}).keys():
                assign_zero_state(parameter, states[name][key], key)

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


class ScoredModel(nn.Module):
    """The model with its losses: they use weights of the model, which stage 3 holds only inside of a forward."""

    def __init__(self, model: nn.Module, task: Task, losses: Mapping[str, Loss]):
        super().__init__()
        self.model, self.task, self.losses = model, task, losses
        self.batch: Batch | None = None

    def forward(self) -> dict[str, Tensor]:
        batch, self.batch = self.batch, None
        assert batch is not None
        return self.task.loss_sums(self.model, batch, self.losses)
