"""Training backend: runs, shards and steps the model, in one process, with DDP or with FSDP2."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard, register_fsdp_forward_method
from torch.distributed.tensor import DTensor

from stentor.data.batch import Batch
from stentor.engine.optim import build, load_optimizer_state, optimizer_state
from stentor.engine.section import Optim, Train
from stentor.engine.setup import TrainingSetup
from stentor.engine.sharding import TensorShard, check_shardable, own_shards
from stentor.engine.tensor_files import StoredTensors
from stentor.errors import ConfigError

if TYPE_CHECKING:
    from accelerate import Accelerator


class Backend:
    """A model and its optimizer on this process's device: one process, DDP or FSDP2. All ranks must make the same
    calls.

    `model`: the model as the losses call it (wrapped, sharded, compiled); `description`: processes, sharding and
    device, for the log. `sharded`: whether the weights are sharded, so that no rank can run the model alone and all
    ranks score the same batches together.
    """

    def __init__(self, optim: Optim, train: Train, setup: TrainingSetup, accelerator: Accelerator):
        self.accelerator, self.task, self.losses, self.clip = accelerator, setup.task, setup.losses, train.clip
        self.bundle, layers = setup.bundle, setup.bundle.wrap_layers
        self.sharded = train.shard
        if self.sharded:
            check_shard_options(layers, setup.bundle.family.type)
            self.model: nn.Module = setup.bundle.model
            self.description = shard(self.model, accelerator, layers, train.compile)
        else:
            self.model, self.description = replicate(setup.bundle.model, train, accelerator)
        self.optimizers = [accelerator.prepare_optimizer(o) for o in build(optim, setup.bundle.model)]

    def loss_sums(self, batch: Batch) -> dict[str, Tensor]:
        """Return the summed loss of each term, under autocast."""
        batch = batch.to(self.accelerator.device)
        with self.accelerator.autocast():  # one of its own, whose copies of the weights have no gradient
            self.task.add_hypotheses(self.bundle, batch, self.losses)
        with self.accelerator.autocast():
            return self.task.loss_sums(self.model, batch, self.losses)

    def backward(self, loss: Tensor) -> None:
        """Add the gradients of a micro-batch."""
        self.accelerator.backward(loss)

    @contextlib.contextmanager
    def synced(self, is_last: bool) -> Iterator[None]:
        """Context of a micro-batch: gradients are synchronized in the last one of a step."""
        if isinstance(self.model, nn.parallel.DistributedDataParallel) and not is_last:
            with self.model.no_sync():
                yield
            return
        if isinstance(self.model, FSDPModule):
            self.model.set_requires_gradient_sync(is_last)
        yield

    def trial(self, batch: Batch) -> None:
        """Run the forward and backward pass of the dry run; the gradients are discarded."""
        sums = self.loss_sums(batch)
        torch.stack([s.float() / max(batch.counts[t], 1) for t, s in sums.items()]).sum().backward()

    def optimizer_step(self, lr_factor: float, on_gradients: Callable[[], None]) -> float:
        """Clip the gradients and step with the peak learning rates times `lr_factor`, unless a gradient is not finite.
        Returns the norm before clipping. `on_gradients` is called when the parameters hold the complete gradients."""
        scaler = self.accelerator.scaler  # of fp16
        for optimizer in self.optimizers:
            self.accelerator.unscale_gradients(optimizer)
        on_gradients()
        parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        total = torch.nn.utils.clip_grad_norm_(parameters, self.clip or float("inf"))
        # The one point of a step at which the host waits for the device: an update with NaN cannot be taken back.
        norm = float(total.full_tensor() if isinstance(total, DTensor) else total)
        if math.isfinite(norm):
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * lr_factor
                if scaler is None:
                    optimizer.optimizer.step()
                else:
                    scaler.step(optimizer.optimizer)
        if scaler is not None:
            scaler.update()  # once for all optimizers; after a skipped step it lowers the loss scale
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return norm

    def optimizer_state(self) -> tuple[dict[str, TensorShard], dict[str, Any]]:
        """Return (this rank's part of the tensors, plain values) by `PARAMETER|KEY`. The tensors are not copied: the
        next optimizer step changes them."""
        tensors, plain = optimizer_state([o.optimizer for o in self.optimizers], self.bundle.model)
        return own_shards(tensors), plain

    def load_optimizer_state(self, stored: StoredTensors, plain: Mapping[str, Any]) -> None:
        load_optimizer_state([o.optimizer for o in self.optimizers], self.bundle.model, stored, plain)


def replicate(model: nn.Module, train: Train, accelerator: Accelerator) -> tuple[nn.Module, str]:
    """Return the whole model on this process's device, compiled and wrapped in DDP if set, and a description."""
    model.to(accelerator.device)
    if train.compile:
        model = torch.compile(model, dynamic=True)  # type: ignore[assignment]
    if accelerator.num_processes == 1:
        return model, f"one process on {accelerator.device}"
    ids = [accelerator.device.index] if accelerator.device.type == "cuda" else None
    wrapped = nn.parallel.DistributedDataParallel(
        model, device_ids=ids, gradient_as_bucket_view=True, find_unused_parameters=train.find_unused
    )
    return wrapped, f"{accelerator.num_processes} processes (DDP) on {accelerator.device.type}"


def check_shard_options(layers: Sequence[str], family: str) -> None:
    """Raise ConfigError for settings that cannot be combined with `train.shard`."""
    if not layers:
        raise ConfigError(
            f"`train.shard` is set, but model family '{family}' names no layers to shard by: use "
            "`train.shard: false` (DDP)."
        )


def shard(model: nn.Module, accelerator: Accelerator, layers: Sequence[str], compile: bool = False) -> str:
    """Shard the model in place (FSDP2), each layer of these class names by itself; returns a description. With
    `compile` each of these layers is compiled, so that what gathers its weights stays between the graphs.

    torch's `fully_shard` does it, the same way on CPU and GPU: Accelerate ignores an FSDP plugin on CPU without a word.
    """
    check_shardable(model)
    mesh = init_device_mesh(accelerator.device.type, (accelerator.num_processes,))
    compute_dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(accelerator.mixed_precision)
    # Autocast chooses the compute type of each operation; the policy only lowers the weights that travel between
    # devices. Gradients are added up in float32 as without shards, and inputs stay as they are: some are times.
    policy = MixedPrecisionPolicy(
        param_dtype=compute_dtype if accelerator.device.type == "cuda" else None,
        reduce_dtype=torch.float32,
        cast_forward_inputs=False,
    )
    # Layer by layer each is moved to its device and divided: the whole model need not fit into one.
    units = [module for module in model.modules() if type(module).__name__ in layers]
    for module in units if compile else ():
        module.compile(dynamic=True)
    for module in [*units, model]:
        fully_shard(module, mesh=mesh, mp_policy=policy)
    for method in ("generate", "align", "ctc_classes", "label_frames", "speak"):  # what tasks call besides forward
        if hasattr(model, method):
            register_fsdp_forward_method(model, method)
    count, device = len(units), accelerator.device.type
    return f"{accelerator.num_processes} processes (FSDP2, {count} layers sharded) on {device}"
