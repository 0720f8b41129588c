"""Memory estimate of training: memory between steps, memory of a batch, and the measured peak.

Sizes are bytes of tensors. The overhead of allocators (fragments, workspaces of kernels, the CUDA context) is not
counted: a few per cent and some hundred MB on a GPU.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from stentor.engine.section import Optim, Train
from stentor.engine.standing_memory import MemoryEstimate, standing


def estimate(
    model: nn.Module,
    optim: Optim,
    train: Train,
    world: int,
    run: Callable[[Any], None],
    tries: Sequence[tuple[float, Any]],
    size: float,
) -> MemoryEstimate:
    """Estimate the memory of training this model; see `standing` and `activations` (None without `tries`)."""
    weights = sum(t.nbytes for t in [*model.parameters(), *model.buffers()])
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    held = None
    with contextlib.suppress(RuntimeError, NotImplementedError):  # kernels that cannot be watched
        held = largest(activations(model, run, tries, size)) if tries else None
    return replace(standing(weights, trained, optim, train, world), activations=held)


def activations(
    model: nn.Module, run: Callable[[Any], None], tries: Iterable[tuple[float, Any]], size: float
) -> np.ndarray:
    """Estimate the `moments` of a batch of `size` positions from smaller ones.

    `run(batch)` runs the forward and backward pass of a batch; `tries` are one or two (positions, batch), from which
    the memory is extrapolated linearly.
    """
    (positions, first), *more = [(positions, moments(model, partial(run, batch))) for positions, batch in tries]
    if not more or more[0][0] == positions:
        return first * size / positions
    slope = (more[0][1] - first) / (more[0][0] - positions)
    return np.maximum(first + slope * (size - positions), first)


def moments(model: nn.Module, run: Callable[[], None]) -> np.ndarray:
    """Bytes of the tensors made inside `run`, a forward and backward pass, without gradients of parameters: [the most
    in the forward pass, what is held at its end, what comes on top of that for moments, late in the forward pass or in
    the backward pass].

    Each grows in its own straight line with positions and with layers; the largest moment of all, see `largest`, may be
    early (convolutions over the audio) or late.
    """
    hooks = [
        p.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", None))
        for p in model.parameters()
        if p.requires_grad
    ]
    try:
        with Live() as live:
            run()
    finally:
        for hook in hooks:
            hook.remove()
    return np.array([live.forward, live.held, max(live.late, live.peak_backward - live.held)], float)


def largest(moments: np.ndarray) -> float:
    """Return the maximum bytes at once, of `moments`."""
    return float(max(moments[0], moments[1] + moments[2]))


class Live(TorchDispatchMode):
    """Counts the bytes of live tensors created inside it: `now`, and the maximum so far, `peak`.

    At the start of the backward pass: `forward`, the maximum until then; `held`, the bytes that are kept; `late`, the
    maximum in addition to what is kept, from the time when half of that existed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.now = self.forward = self.held = self.late = self.peak_backward = 0
        self._backward = False
        self._events: list[tuple[int, int]] = []  # number of the tensor, bytes that came (or went)
        self._count = 0
        self._known: dict[int, weakref.ref] = {}

    @property
    def peak(self) -> int:
        return max(self.forward, self.peak_backward)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not self._backward and torch._C._current_graph_task_id() >= 0:
            self._turn()
        out = func(*args, **(kwargs or {}))
        inputs = {t.untyped_storage()._cdata for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in inputs and storage._cdata not in self._known:
                    self._add(storage)
        return out

    def _turn(self) -> None:
        self._backward = True
        self.held = self.peak_backward = self.now
        gone = {number for number, size in self._events if size < 0}
        now = held = 0
        for number, size in self._events:
            now += size
            held += size if number not in gone else 0
            if 2 * held >= self.held:
                self.late = max(self.late, now - held)

    def _add(self, storage: torch.UntypedStorage) -> None:
        key, size, number = storage._cdata, storage.nbytes(), self._count
        self._count += 1

        def gone(_: Any) -> None:
            self.now -= size
            del self._known[key]
            if not self._backward:
                self._events.append((number, -size))

        self._known[key] = weakref.ref(storage, gone)
        self.now += size
        if self._backward:
            self.peak_backward = max(self.peak_backward, self.now)
        else:
            self.forward = max(self.forward, self.now)
            self._events.append((number, size))


class Peak:
    """Measures the memory of what runs inside, a forward and backward pass, in bytes.

    `bytes`: the most that tensors took at once, `weights` included; on a CPU they are counted one by one, on a GPU the
    allocator knows. `grown`: on a CPU, what the process grew by meanwhile: more for what the C library keeps of freed
    memory, less when it had some left from before.
    """

    def __init__(self, device: torch.device, weights: float, count: bool = True):
        """Without `count`, for what cannot be watched, `bytes` on a CPU is what the process grew by."""
        self.device, self.weights = device, weights
        self._live = Live() if count and device.type != "cuda" else None
        self.bytes = 0.0
        self.grown: float | None = None

    def __enter__(self) -> Peak:
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self.device)
            return self
        import psutil

        self._process = psutil.Process()
        self._before = self._most = self._process.memory_info().rss
        self._over = threading.Event()
        self._watch = threading.Thread(target=self._look, daemon=True)
        self._watch.start()
        if self._live is not None:
            self._live.__enter__()
        return self

    def _look(self) -> None:
        while not self._over.wait(0.01):
            self._most = max(self._most, self._process.memory_info().rss)

    def __exit__(self, *error: Any) -> None:
        if self.device.type == "cuda":
            self.bytes = float(torch.cuda.max_memory_allocated(self.device))
            return
        if self._live is not None:
            self._live.__exit__(*error)
        self._over.set()
        self._watch.join()
        self.grown = float(max(self._most, self._process.memory_info().rss) - self._before)
        self.bytes = self.weights + (self.grown if self._live is None else self._live.peak)


def compared(peak: Peak, expected: MemoryEstimate) -> str:
    """Return the measurement and the estimate, for the log."""
    grown = "" if peak.grown is None else f"; the process grew by {gib(peak.grown)}"
    held = "not estimated" if expected.activations is None else gib(expected.activations)
    return (
        f"peak {gib(peak.bytes)} GiB{grown}. Estimate: {gib(expected.batch)} GiB (weights {gib(expected.weights)}, "
        f"gradients {gib(expected.gradients)}, activations {held}); the optimizer state adds "
        f"{gib(expected.optimizer)} GiB from step 1."
    )


def gib(bytes_: float) -> str:
    """Format bytes in GiB."""
    return f"{bytes_ / 2**30:.{2 if bytes_ >= 2**30 / 10 else 3}f}"


def free(device: torch.device) -> float:
    """Return the bytes that are still available to this process on the device."""
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return float(torch.cuda.mem_get_info(device)[0] + unused)
    import psutil

    return float(psutil.virtual_memory().available)
