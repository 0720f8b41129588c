"""Seeding: random generators, and permutations, that are functions of their key alone."""

import hashlib
from typing import Any

import numpy as np


def rng(*key: int | str) -> np.random.Generator:
    """A random generator that is a function of `key` alone, equal on every rank, worker, machine and Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def rng_state(generator: np.random.Generator) -> list[int]:
    """State of a generator of `rng`, for JSON."""
    state: Any = generator.bit_generator.state
    return [state["state"]["state"], state["has_uint32"], state["uinteger"]]


def set_rng_state(generator: np.random.Generator, state: list[int]) -> None:
    """Put a generator that was made of the same key where `rng_state` was taken."""
    fresh: Any = generator.bit_generator.state
    fresh["state"]["state"], fresh["has_uint32"], fresh["uinteger"] = state
    generator.bit_generator.state = fresh


ROUNDS = 6
BLOCK = 100_000
"""Numbers that are looked at together."""


class Permutation:
    """A pseudo-random permutation of 0 ... size - 1, a function of its key.

    A Feistel network (Luby and Rackoff 1988) permutes the numbers of an even number of bits; from a number that is
    `size` or more it walks on to the next one of its cycle, at most four on average (Black and Rogaway 2002).
    """

    def __init__(self, size: int, *key: int | str):
        self.size = size
        self.half = max(1, (max(size - 1, 1).bit_length() + 1) // 2)
        self.keys = rng("permutation", *key).integers(0, 2**64, ROUNDS, dtype=np.uint64)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """Where each of these numbers, int64 [N] in 0 ... size - 1, goes."""
        values = self._network(numbers.astype(np.uint64))
        while len(outside := np.flatnonzero(values >= self.size)):
            values[outside] = self._network(values[outside])
        return values.astype(np.int64)

    def within(self, amounts: np.ndarray, most: float) -> tuple[int, float]:
        """Count of numbers, in this order, whose amounts, [size], add up to at most `most`, and to what;
        at least one."""
        count, total = 0, 0.0
        while count < self.size:
            block = np.arange(count, min(count + BLOCK, self.size))
            totals = total + np.cumsum(amounts[self(block)], dtype=np.float64)
            fitting = max(int(np.searchsorted(totals, most, "right")), 1 - count)
            if fitting:
                count, total = count + fitting, float(totals[fitting - 1])
            if fitting < len(block):
                break
        return count, total

    def _network(self, values: np.ndarray) -> np.ndarray:
        half, mask = np.uint64(self.half), np.uint64(2**self.half - 1)
        left, right = values >> half, values & mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right + key) & mask)
        return (left << half) | right


def _mix(values: np.ndarray) -> np.ndarray:
    """The last step of SplitMix64 (Steele, Lea and Flood 2014): bits that depend on all bits of the value."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
