"""torch's Muon with the matrices of one shape orthogonalised together: a small model's step is mostly this. Only the
batched products are ours; torch has none."""

import platform
from collections import defaultdict
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor

TOGETHER = 2**22
"""Most elements of matrices that are stacked: beyond this one matrix alone fills the device."""


class Muon(torch.optim.Muon):
    """The update of `torch.optim.Muon` (Newton-Schulz in bfloat16, learning rate scaled by sqrt(max(1, rows/columns)))
    to the rounding of bfloat16, with batched products. Sharded matrices are left to torch, one by one."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:  # type: ignore[override]
        groups = self.param_groups
        if any(isinstance(p, DTensor) for group in groups for p in group["params"]):
            return super().step(closure)
        for group in groups:
            stacks: dict[tuple[torch.Size, torch.device], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    stacks[p.shape, p.device].append(p)
            for (shape, _), parameters in stacks.items():
                most = max(1, TOGETHER // shape.numel())
                for first in range(0, len(parameters), most):
                    self._update(parameters[first : first + most], group)

    def _update(self, parameters: list[Tensor], group: dict[str, Any]) -> None:
        gradients = [p.grad for p in parameters if p.grad is not None]
        momenta = []
        for p in parameters:
            state = self.state[p]
            if "momentum_buffer" not in state:
                state["momentum_buffer"] = torch.zeros_like(p, memory_format=torch.preserve_format)
            momenta.append(state["momentum_buffer"])
        torch._foreach_lerp_(momenta, gradients, 1 - group["momentum"])
        updates = torch._foreach_lerp(gradients, momenta, group["momentum"]) if group["nesterov"] else momenta
        orthogonal = orthogonalised(torch.stack(updates), group["ns_coefficients"], group["ns_steps"], group["eps"])
        rows, columns = parameters[0].shape
        lr = group["lr"] * max(1, rows / columns) ** 0.5
        torch._foreach_mul_(parameters, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(parameters, list(orthogonal.to(parameters[0].dtype).unbind()), alpha=-lr)


def orthogonalised(x: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """The nearest matrices with singular values near 1 of a stack [n, rows, columns], in bfloat16 (float32 where that
    is many times faster), by the quintic Newton-Schulz iteration (https://kellerjordan.github.io/posts/muon/)."""
    a, b, c = coefficients
    tall = x.size(1) > x.size(2)
    x = x.bfloat16() if x.device.type != "cpu" or multiplies_bf16() else x.float()
    x = x.mT if tall else x
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


@cache
def multiplies_bf16() -> bool:
    """Whether the processor has instructions for products in bfloat16. An x86 processor without them takes seven times
    as long as in float32, and for the steps of a small model thirty times."""
    x86 = platform.machine().lower() in ("x86_64", "amd64")
    return not x86 or torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
