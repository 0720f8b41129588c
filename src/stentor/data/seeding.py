"""Seeding: random generators that are functions of their key alone."""

import hashlib
from typing import Any

import numpy as np


def rng(*key: int | str) -> np.random.Generator:
    """A random generator that is a function of `key` alone, equal on every rank, worker, machine and Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))


def rng_state(generator: np.random.Generator) -> list[int]:
    """How far a generator of `rng` has come, for JSON."""
    state: Any = generator.bit_generator.state
    return [state["state"]["state"], state["has_uint32"], state["uinteger"]]


def set_rng_state(generator: np.random.Generator, state: list[int]) -> None:
    """Put a generator that was made of the same key where `rng_state` was taken."""
    fresh: Any = generator.bit_generator.state
    fresh["state"]["state"], fresh["has_uint32"], fresh["uinteger"] = state
    generator.bit_generator.state = fresh
