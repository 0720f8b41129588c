"""Seeding: random generators that are functions of their key alone."""

import hashlib

import numpy as np


def rng(*key: int | str) -> np.random.Generator:
    """A random generator that is a function of `key` alone, equal on every rank, worker, machine and Python."""
    digest = hashlib.blake2b(repr(key).encode(), digest_size=16).digest()
    return np.random.Generator(np.random.PCG64(int.from_bytes(digest, "little")))
