"""Quantized linear layer: its weight in 8 or 4 bits."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stentor.errors import require


class QuantizedLinear(nn.Module):
    """A frozen linear layer whose weight [out, in] is kept in 8 or 4 bits.

    Computes what `nn.Linear` would with the rounded weight, in the type of its input or that of autocast. Raises
    ConfigError when bitsandbytes is needed and missing.
    """

    def __init__(self, linear: nn.Linear, bits: str, device: torch.device):
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.bits, self.dtype = bits, linear.weight.dtype
        weight = linear.weight.detach().to(device)
        self.scale: Any  # [out, 1]; of 4 bits the QuantState of bitsandbytes
        if bits == "8bit":
            self.scale = weight.float().abs().amax(1, keepdim=True).clamp(min=1e-30) / 127
            codes = (weight.float() / self.scale).round().to(torch.int8)
        else:
            codes, self.scale = _kernels().quantize_4bit(
                weight.contiguous(), blocksize=64, compress_statistics=True, quant_type="nf4"
            )
        # Listed as a parameter under its old name; whoever asks for the attribute gets the plain weight, below.
        self._parameters["weight"] = nn.Parameter(codes, requires_grad=False)
        self.bias = linear.bias

    @property
    def codes(self) -> Tensor:
        """int8 [out, in], or two codes of 4 bits to a byte, uint8 [out * in / 2, 1]."""
        codes = self._parameters["weight"]
        assert codes is not None
        return codes

    @property
    def weight(self) -> Tensor:
        """The rounded weight [out, in], in the type that the layer was loaded in."""
        return self.expand(self.dtype)

    def expand(self, dtype: torch.dtype) -> Tensor:
        """The rounded weight [out, in] in a type to compute in."""
        if self.bits == "8bit":
            return self.codes.to(dtype) * self.scale.to(dtype)
        self.scale.dtype = dtype
        return _kernels().dequantize_4bit(self.codes, self.scale)

    def _apply(self, fn: Any, recurse: bool = True) -> QuantizedLinear:
        super()._apply(fn, recurse)
        if self.bits == "8bit":
            self.scale = self.scale.to(self.codes.device)
        else:
            self.scale.to(self.codes.device)  # in place
        return self

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        y = _Product.apply(x, self)
        return y if self.bias is None else y + self.bias.to(y.dtype)

    def extra_repr(self) -> str:
        return f"in_features={self.in_features}, out_features={self.out_features}, {self.bits}"


class _Product(torch.autograd.Function):
    """x [..., in] times the transposed weight. Only the codes are there between forward and backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return x @ layer.expand(x.dtype).T

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad @ ctx.layer.expand(grad.dtype), None


def _kernels() -> Any:
    require("quantize", "model.quantize: 4bit", instead="take 8bit")
    import bitsandbytes.functional as kernels

    return kernels
