"""Residual k-means: codebooks and nearest entries."""

import torch
from torch import Tensor

BLOCK = 4096
"""Vectors whose distances are computed at a time."""


def nearest(vectors: Tensor, codebook: Tensor) -> Tensor:
    """int64 [N]: the nearest row (squared Euclidean distance) of [K, D] to each of [N, D], the first one of equals."""
    half = codebook.square().sum(1) / 2
    parts = [(half - part @ codebook.T).argmin(1) for part in vectors.split(BLOCK)]
    return torch.cat(parts) if parts else torch.zeros(0, dtype=torch.long, device=vectors.device)


def kmeans(vectors: Tensor, entries: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Lloyd's algorithm from random vectors: centres [entries, D] of [N, D].

    Entries that lose all their vectors start again from the vectors that are worst off. Of fewer different vectors than
    entries, the entries repeat: `nearest` then always answers the first.
    """
    order = torch.randperm(len(vectors), generator=generator)
    centres = vectors[order[torch.arange(entries) % len(vectors)]].clone()
    for _ in range(rounds):
        codes = nearest(vectors, centres)
        counts = torch.bincount(codes, minlength=entries)
        sums = torch.zeros_like(centres).index_add_(0, codes, vectors)
        used = counts > 0
        empty = (~used).nonzero()[:, 0]
        if len(empty):
            distances = (vectors - centres[codes]).square().sum(1)
            worst = distances.argsort(descending=True, stable=True)[: len(empty)]
            worst = worst[distances[worst] > 0]
            centres[empty[: len(worst)]] = vectors[worst]
        centres[used] = sums[used] / counts[used, None]
    return centres


def residual_kmeans(vectors: Tensor, codebooks: int, entries: int, rounds: int, generator: torch.Generator) -> Tensor:
    """Codebooks [codebooks, entries, D], each of what the ones before leave over (Juang and Gray 1982)."""
    books = []
    residual = vectors
    for _ in range(codebooks):
        books.append(kmeans(residual, entries, rounds, generator))
        residual = residual - books[-1][nearest(residual, books[-1])]
    return torch.stack(books)


def residual_nearest(vectors: Tensor, codebooks: Tensor) -> Tensor:
    """Codes int64 [codebooks, N] of vectors [N, D], each codebook's nearest entry to what is left over."""
    codes = []
    for centres in codebooks:
        codes.append(nearest(vectors, centres))
        vectors = vectors - centres[codes[-1]]
    return torch.stack(codes)
