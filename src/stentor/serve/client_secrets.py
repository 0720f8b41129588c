"""Client secrets: keys of a short life, which pages have instead of a key of the server."""

from __future__ import annotations

import secrets
import time
from typing import Any, NamedTuple

from stentor.serve.errors import ApiError

MOST, MOST_OF_A_KEY = 10_000, 1000
"""Secrets at a time."""


class ClientSecret(NamedTuple):
    expires: float
    key: int
    """The number of the key that asked for it, for which its sessions count."""
    settings: Any
    """Those with which its sessions begin."""


class ClientSecrets:
    """Those that are valid; a restart ends them."""

    def __init__(self) -> None:
        self._secrets: dict[str, ClientSecret] = {}

    def add(self, seconds: float, key: int, settings: Any) -> tuple[str, ClientSecret]:
        """A new one with its value. Raises ApiError where there are too many."""
        self._secrets = {value: secret for value, secret in self._secrets.items() if secret.expires > time.time()}
        if len(self._secrets) >= MOST or sum(s.key == key for s in self._secrets.values()) >= MOST_OF_A_KEY:
            raise ApiError(429, "Too many client secrets are valid: try again later.", retry_after=60)
        value, secret = f"ek_{secrets.token_hex(24)}", ClientSecret(time.time() + seconds, key, settings)
        self._secrets[value] = secret
        return value, secret

    def get(self, value: str) -> ClientSecret | None:
        """The secret of a value, while it is valid."""
        secret = self._secrets.get(value)
        return secret if secret is not None and secret.expires > time.time() else None
