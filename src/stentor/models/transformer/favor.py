"""FAVOR+: linear attention by positive orthogonal random features (Choromanski et al. 2021, "Rethinking Attention with
Performers", arXiv 2009.14794).

With the rows w_j of a random `projection` [m, d], the softmax kernel exp(q.k / sqrt(d)) is the expectation over w of
exp(e(q)) exp(e(k)), where e_j(x) = w_j.x / d^(1/4) - |x|^2 / (2 sqrt(d)). The features of queries and keys are

    phi_j(q) = exp(w_j.q / d^(1/4) - c(q)) + eps        c(q) = max_j w_j.q / d^(1/4)
    phi_j(k) = exp(e_j(k) - c) + eps                    c = max_ij e_j(k_i)

and the attention of all queries is phi(Q) (phi(K)^T V) over phi(Q) sum(phi(K)): linear in time and memory. The
stabilisers keep the exponentials at 1 or below; that of the keys is the largest over features and valid positions of
an item and head. Gradients do not go through them (as in the paper's code). phi of a masked key is 0, eps included, so
padding is neither in the sum nor in its denominator.

|q|^2 is the same in all features of a query and would cancel but for eps, which would then weigh more the longer the
query is. The paper's code has it so, for keys too, whose stabiliser leaves |k|^2 out: its features shrink beside eps
as queries and keys grow, and attention becomes a plain mean. Here eps is a share of a query's largest feature, and of
the largest of all keys. m^(-1/2) before the features cancels too.

**Causal.** Position t sees the keys up to t, with the largest exponent among these, c_t, as their stabiliser: the
answer is that of non-causal attention over the prefix, and does not depend on what comes later. Sums over a prefix are
kept relative to its own c_t and rescaled by exp(c_(t-1) - c_t) <= 1 as it grows, so nothing overflows, and decoding
step by step adds up the same terms as the pass over a whole sequence. eps does not scale with c_t; its share of the
sums, eps sum(v_s), is kept with them.

Exponentials and sums are computed in float32 (float64 for float64 inputs), whatever autocast says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stentor.models.base import RandomFeatures

CHUNK = 64
"""Positions that causal attention takes at a time: it keeps this many scores for each position, and a state for each
chunk."""
SPAN = 1024
"""Positions whose features are in memory at one time. Of longer sequences none are kept for the backward pass, which
computes them again: features take several times the memory of everything else, and little time."""
EMPTY = torch.empty(0)


def orthogonal(features: int, dim: int, generator: torch.Generator) -> Tensor:
    """A random projection [features, dim] in float32, on the CPU: blocks of at most `dim` orthogonal rows, each row in
    a uniformly random direction. Lengths are those of Gaussian vectors, by which the estimate is unbiased."""
    rows = []
    for start in range(0, features, dim):
        q, r = torch.linalg.qr(torch.randn(dim, dim, generator=generator, dtype=torch.float64))
        # QR leaves signs to the implementation; these make the matrix uniform over all rotations (Mezzadri 2007).
        rows.append((q * r.diagonal().sign()).T[: features - start])
    directions = torch.cat(rows)
    lengths = torch.randn(features, dim, generator=generator, dtype=torch.float64).norm(dim=1, keepdim=True)
    return (directions * lengths).float()


class Favor(nn.Module, RandomFeatures):
    """The random features of one layer, shared by its heads.

    Args:
        dim: size of a head, d.
        features: number of features m. None: int(d ln d), at least d.
        fixed: never redrawn; the `redraw` callback leaves it alone.

    `projection` [m, d] is a buffer: checkpoints and exports hold it, for the layer's function depends on it.
    """

    projection: Tensor
    eps = 1e-8
    """Added to every feature, so that no denominator vanishes, where 1 is the largest feature of a query, and of all
    keys (see the module). The paper's code has 1e-4 beside features with another stabiliser; most of ours are far below
    that, and a diarizer learned a little faster with less of it."""

    def __init__(self, dim: int, features: int | None = None, fixed: bool = False):
        super().__init__()
        self.dim, self.fixed = dim, fixed
        self.features = features or max(dim, int(dim * math.log(dim)))
        seed = int(
            torch.randint(2**62, (), device="cpu")
        )  # of the global generator, which also initialises the weights
        generator = torch.Generator().manual_seed(seed)
        self.register_buffer("projection", orthogonal(self.features, dim, generator))

    def redraw(self, generator: torch.Generator) -> None:
        """Draw the projection again, from a CPU generator: the same on every device and rank."""
        self.projection.copy_(orthogonal(self.features, self.dim, generator))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None = None) -> Tensor:
        """Non-causal attention.

        Args:
            query: [B, H, T, d].
            key, value: [B, H, S, d].
            mask: bool [B, S], True where a key is valid. None: all are.
        Returns:
            [B, H, T, d] in the type of `value`; 0 where no key is valid.
        """
        return self.attend(query, self.gather(key, value, mask)).to(value.dtype)

    def gather(self, key: Tensor, value: Tensor, mask: Tensor | None = None) -> LinearState:
        """The state that queries need of these keys and values, for cross-attention in step-by-step decoding."""
        with torch.autocast(key.device.type, enabled=False):
            spans = _spans(key.shape[2])
            parts = [
                _recomputed(self._sums, spans, key[:, :, s], value[:, :, s], None if mask is None else mask[:, s])
                for s in spans
            ]
            sums, values, peak = parts[0]
            peak = peak.detach()
            for part_sums, part_values, part_peak in parts[1:]:
                highest = torch.maximum(peak, part_peak.detach())
                decay, part_decay = ((p - _finite(highest)).exp()[..., None] for p in (peak, part_peak))
                sums, values, peak = sums * decay + part_sums * part_decay, values + part_values, highest
            return LinearState(sums, values, peak, closed=True)

    def attend(self, query: Tensor, state: LinearState) -> Tensor:
        """Queries [B, H, T, d] to everything in the state: [B, H, T, d] in float32."""
        with torch.autocast(query.device.type, enabled=False):
            keys = state.sums + self.eps * state.values[..., None, :]
            spans = _spans(query.shape[2])
            return torch.cat([_recomputed(self._outputs, spans, query[:, :, s], keys) for s in spans], 2)

    def causal(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        state: LinearState | None = None,
        chunk: int = CHUNK,
    ) -> Tensor:
        """Causal attention over a whole sequence or over its next positions.

        Args:
            query, key, value: [B, H, T, d].
            mask: bool [B, T], True where a key is valid. None: all are.
            state: what came before; these positions are added to it. None: nothing came before.
            chunk: positions that are taken at a time; the result does not depend on it.
        Returns:
            [B, H, T, d] in the type of `value`, 0 where no key was valid so far.
        """
        state = LinearState() if state is None else state
        if state.length == 0:
            state.open(key, self.features, value.shape[-1])
        with torch.autocast(query.device.type, enabled=False):
            outputs, spans = [], _spans(query.shape[2])
            for s in spans:
                span = (x[:, :, s] for x in (query, key, value))
                sums = (state.sums, state.values, state.peak.detach())
                output, state.sums, state.values, state.peak = _recomputed(
                    partial(self._causal, chunk), spans, *span, None if mask is None else mask[:, s], *sums
                )
                outputs.append(output)
        state.length += query.shape[2]
        return torch.cat(outputs, 2).to(value.dtype)

    def _sums(self, key: Tensor, value: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        """`sums`, `values` and `peak` of a LinearState of these keys."""
        exponent, shift = self._exponents(key, mask)
        peak = (exponent.detach().amax(-1) + shift.detach()[..., 0]).amax(-1, keepdim=True)
        weights = exponent.add_(shift - _finite(peak)[..., None]).exp_()
        extended = _extended(value, mask)
        return weights.transpose(-1, -2) @ extended, extended.sum(-2), peak

    def _outputs(self, query: Tensor, keys: Tensor) -> Tensor:
        return _divided(self._query(query) @ keys + self.eps * keys.sum(-2, keepdim=True))

    def _causal(
        self,
        chunk: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        sums: Tensor,
        values: Tensor,
        peak: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Outputs [B, H, T, d] in float32, and `sums`, `values` and `peak` after these positions."""
        length = query.shape[2]
        chunk = min(chunk, length)
        queries = self._query(query) + self.eps
        extended = _extended(value, mask)
        exponent, shift = self._exponents(key, mask)
        key_peaks = exponent.detach().amax(-1) + shift.detach()[..., 0]  # the largest exponent of each key
        peaks = torch.maximum(key_peaks.cummax(-1).values, peak)  # c_t
        keys = exponent.add_(shift - _finite(key_peaks)[..., None]).exp_()
        cumulative = values[..., None, :] + extended.cumsum(-2)
        output = self.eps * queries.sum(-1, keepdim=True) * cumulative

        size = (*query.shape[:2], -(-length // chunk), chunk)  # B, H, N, C
        padding = size[2] * chunk - length
        q, k, v = (nn.functional.pad(x, (0, 0, 0, padding)).reshape(*size, -1) for x in (queries, keys, extended))
        key_peaks = nn.functional.pad(key_peaks, (0, padding), value=-math.inf).reshape(size)
        c = torch.cat([peaks, peaks[..., -1:].expand(*peak.shape[:-1], padding)], -1).reshape(size)
        ends = c[..., -1]
        before = torch.cat([peak, ends[..., :-1]], -1)

        # Keys of the same chunk, up to the query's position. An exponent is never above 0: c_t is the largest.
        later = torch.ones(chunk, chunk, dtype=torch.bool, device=query.device).triu(1)
        decay = (key_peaks[..., None, :] - _finite(c)[..., None]).masked_fill(later, -math.inf).exp()
        within = (q @ k.transpose(-1, -2) * decay) @ v
        # Keys of earlier chunks, by the sums at its beginning.
        chunk_sums = k.transpose(-1, -2) @ (v * (key_peaks - _finite(ends)[..., None]).exp()[..., None])
        decays = (before - _finite(ends)).exp()[..., None, None]
        starts = [sums]
        for added, factor in zip(chunk_sums.unbind(2), decays.unbind(2)):  # an index's backward takes a whole tensor
            starts.append(torch.addcmul(added, starts[-1], factor))
        earlier = (q @ torch.stack(starts[:-1], 2)) * (before[..., None] - _finite(c)).exp()[..., None]

        output = output + (within + earlier).flatten(2, 3)[:, :, :length]
        return _divided(output), starts[-1], cumulative[..., -1, :], peaks[..., -1:]

    def _scaled(self, x: Tensor) -> Tensor:
        return x.to(torch.promote_types(x.dtype, torch.float32)) * self.dim**-0.25

    def _query(self, query: Tensor) -> Tensor:
        """phi of queries without eps."""
        exponent = self._scaled(query) @ self.projection.to(_wide(query)).T
        return exponent.sub_(exponent.detach().amax(-1, keepdim=True)).exp_()

    def _exponents(self, key: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """w k / d^(1/4) [B, H, S, m] and -|k|^2 / (2 sqrt(d)) [B, H, S, 1]. The latter is -inf for masked keys, whose
        exponentials are then 0."""
        scaled = self._scaled(key)
        shift = scaled.square().sum(-1, keepdim=True) * -0.5
        if mask is not None:
            shift = shift.masked_fill(~mask[:, None, :, None], -math.inf)
        return scaled @ self.projection.to(_wide(key)).T, shift


@dataclass
class LinearState:
    """State of linear attention: sums over the keys and values so far, all in float32; its size does not grow.

    The last column of `sums` and `values` is that of a value which is 1 everywhere: the denominators.
    """

    sums: Tensor = EMPTY
    """[B, H, m, d + 1]: sum over keys of exp(exponent - peak) times value."""
    values: Tensor = EMPTY
    """[B, H, d + 1]: sum of the values of valid keys, for eps."""
    peak: Tensor = EMPTY
    """[B, H, 1]: the largest exponent so far, -inf before the first valid key."""
    length: int = 0
    """Positions so far: the position of the next step."""
    closed: bool = False
    """Whether this is the state of cross-attention, to which nothing is added."""

    def open(self, key: Tensor, features: int, dim: int) -> None:
        """Begin, for keys [B, H, T, _] and values of size `dim`."""
        shape, kind = key.shape[:2], _wide(key)
        self.sums = key.new_zeros(*shape, features, dim + 1, dtype=kind)
        self.values = key.new_zeros(*shape, dim + 1, dtype=kind)
        self.peak = key.new_full((*shape, 1), -math.inf, dtype=kind)

    def select(self, rows: Tensor) -> LinearState:
        """The state of these items of the batch (int64 [N]), in this order: for beam search."""
        return LinearState(self.sums[rows], self.values[rows], self.peak[rows], self.length, self.closed)


def _wide(x: Tensor) -> torch.dtype:
    return torch.promote_types(x.dtype, torch.float32)


def _finite(peak: Tensor) -> Tensor:
    """0 where there was no valid key: what is subtracted from -inf then leaves -inf, not NaN."""
    return peak.masked_fill(peak == -math.inf, 0.0)


def _extended(value: Tensor, mask: Tensor | None) -> Tensor:
    """Values with a last column of ones [B, H, S, d + 1], 0 at masked keys."""
    value = nn.functional.pad(value.to(_wide(value)), (0, 1), value=1.0)
    return value if mask is None else value * mask[:, None, :, None]


def _spans(length: int) -> list[slice]:
    """The spans of a sequence. One only where torch.compile traces: it sees to memory in its own way."""
    size = length if torch.compiler.is_compiling() else SPAN
    return [slice(start, start + size) for start in range(0, length, size)]


def _recomputed(function: Callable[..., Any], spans: Sequence[slice], *arguments: Tensor | None) -> Any:
    """The function's value; where there are several spans, the backward pass computes it again."""
    if len(spans) == 1:
        return function(*arguments)
    return checkpoint(function, *arguments, use_reentrant=False, preserve_rng_state=False)


def _divided(sums: Tensor) -> Tensor:
    """Sums [..., d + 1] by their last column; 0 where nothing was summed."""
    denominators = sums[..., -1:]
    return sums[..., :-1] / denominators.masked_fill(denominators == 0, 1.0)
