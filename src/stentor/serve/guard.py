"""Guard: what every request passes. Who may ask, from which page, and how many at once."""

import asyncio
import hashlib
import hmac
import os
import secrets
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect
from starlette.routing import Route, WebSocketRoute

from stentor.errors import ConfigError
from stentor.serve.errors import ApiError, QueueClosed, log, report, response
from stentor.serve.service import Service
from stentor.web.origins import from_elsewhere, secret

SHORTEST = 16
"""Characters of the shortest key."""
OPEN_PATHS = ("/health", "/docs", "/openapi.json")
"""Paths without a key: health and the interface's description."""
UNREAD = 60.0
"""Seconds that a client may leave a part of its answer unread."""
SUBPROTOCOL = "openai-insecure-api-key."
"""Prefix of the key of a socket in OpenAI's pages."""
ALWAYS = ("/health", "/metrics")
"""Paths that answer while the server is full or stopping."""
LINGER = 30.0
"""Seconds for which a client that has its answer may keep sending."""


def read_keys(host: str, variable: str | None) -> list[str]:
    """The keys in an environment variable, with spaces, commas or newlines between them; none where no key is needed.
    Raises ConfigError where a key is needed and none, or a short one, is there."""
    words = secret(host, variable, "server", "key", "--api-key-env")
    if words is None or variable is None:
        return []
    os.environ.pop(variable, None)
    keys = words.replace(",", " ").split()
    if not keys or min(map(len, keys)) < SHORTEST:
        raise ConfigError(f"The environment variable {variable} must hold keys of at least {SHORTEST} characters.")
    return keys


class Guard:
    """Lets requests in to `app`; counts and logs them, without what they are about."""

    def __init__(self, app: Any, service: Service, keys: Sequence[str] = (), origins: Sequence[str] = ()):
        """`keys`: of which each request has one; none: only this machine reaches the server. `origins`: of pages
        elsewhere that may use it, such as https://example.org; `*` for all."""
        self.app, self.service, self.origins = app, service, origins
        self._digests = [_digest(key) for key in keys]
        self._active: Counter[int] = Counter()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        began, exchange = time.monotonic(), _Exchange(receive, send)
        try:
            await self._pass(scope, exchange.receive, exchange.send)
        except ClientDisconnect:
            pass
        except (Exception, asyncio.CancelledError) as error:
            stopped = not isinstance(error, Exception)  # the server's time to stop is over
            exchange.read = exchange.read or stopped
            problem = QueueClosed() if stopped else error
            report(problem)
            if not exchange.status:
                await response(problem)(scope, exchange.receive, exchange.send)
        finally:
            seconds, status = time.monotonic() - began, exchange.status or 499
            found = scope.get("route")
            route = found.path if isinstance(found, Route | WebSocketRoute) else "none"
            self.service.metrics.requests.labels(route, status).inc()
            self.service.metrics.seconds.labels(route).observe(seconds)
            log.info("%s %s %s %s %.3f s", exchange.id, scope.get("method", "SOCKET"), route, status, seconds)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        headers = Headers(scope=scope)
        shared = "origin" in headers and bool({headers["origin"], "*"} & {*self.origins})
        navigates = headers.get("sec-fetch-mode") == "navigate"
        if not shared and from_elsewhere(headers, not self._digests, navigates):
            raise ApiError(403, "Requests from another site are refused: allow its origin with --allow-origin.")
        path = scope["path"]
        key = -1 if path in OPEN_PATHS else self._key_of(scope, headers)
        scope["stentor.key"] = key
        if path in (*OPEN_PATHS, *ALWAYS) or scope.get("method") in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        service, limits = self.service, self.service.limits
        if service.draining:
            raise QueueClosed
        if not service.ready:
            raise ApiError(503, "The models are being loaded: send the request again in a moment.", retry_after=5)
        if service.active >= limits.requests:
            raise ApiError(429, f"{service.active} requests are waiting: try again later.", retry_after=self._wait())
        if self._active[key] >= limits.requests_per_key:
            raise ApiError(429, f"{self._active[key]} requests of this key are waiting.", retry_after=self._wait())
        service.active += 1
        self._active[key] += 1
        try:
            await self.app(scope, receive, send)
        finally:
            service.active -= 1
            self._active[key] -= 1

    def _wait(self) -> int:
        """Seconds until there may be room: for what waits, a tenth of its length."""
        return round(max(served.queue.seconds for served in self.service.registry.models.values()) / 10)

    def _key_of(self, scope: Any, headers: Headers) -> int:
        """The number of the key of a request. A page cannot set headers of a socket: it sends it as a protocol."""
        offered = [name.removeprefix(SUBPROTOCOL) for name in scope.get("subprotocols", []) if SUBPROTOCOL in name]
        authorization = headers.get("authorization") or (f"Bearer {offered[0]}" if offered else "")
        if scope["type"] == "websocket":
            secret = self.service.client_secrets.get(authorization.partition(" ")[2].strip())
            if secret is not None:
                scope["stentor.settings"] = secret.settings
                return secret.key
        return self._key(authorization)

    def _key(self, authorization: str) -> int:
        """The number of the key that a request has. Raises ApiError. All are compared, whichever it is."""
        if not self._digests:
            return -1
        kind, _, key = authorization.partition(" ")
        matches = [hmac.compare_digest(_digest(key.strip()), digest) for digest in self._digests]
        if not any(matches) or kind.lower() != "bearer":
            raise ApiError(401, "A key of this server is needed: send it as `Authorization: Bearer KEY`.")
        return matches.index(True)


_STARTS = ("http.response.start", "websocket.http.response.start", "websocket.accept")


class _Exchange:
    """A request and its answer, and how far they are."""

    def __init__(self, receive: Any, send: Any):
        self._receive, self._send = receive, send
        self.id = f"req_{secrets.token_hex(12)}"
        """Request id that a client can report and the log has."""
        self.status = 0
        """Status of the answer; 0 before there is one."""
        self.read = False
        """All that the client sends."""

    async def receive(self) -> Any:
        message = await self._receive()
        self.read = self.read or not message.get("more_body")
        return message

    async def send(self, message: Any) -> None:
        if message["type"] in _STARTS:
            self.status = message.get("status", 101)
            message = {**message, "headers": [*message.get("headers", []), (b"x-request-id", self.id.encode())]}
        early = message["type"] == "http.response.body" and not (message.get("more_body") or self.read)
        async with asyncio.timeout(None if message["type"].startswith("websocket") else UNREAD):  # sessions have theirs
            await self._send({**message, "more_body": True} if early else message)
        if early:  # a connection that is closed while its client sends on would take the answer with it
            with suppress(TimeoutError):
                async with asyncio.timeout(LINGER):
                    while not self.read:
                        await self.receive()
            await self._send({"type": "http.response.body"})


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode()).digest()
