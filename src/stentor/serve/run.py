"""`stentor serve`: loads the models, listens, and stops when it has answered what it took."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import time
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.web.origins import listen, shown

if TYPE_CHECKING:
    from stentor.commands.server_options import ServeOptions
    from stentor.serve.service import Service

PACKAGES = ("fastapi", "uvicorn", "websockets", "python_multipart", "prometheus_client")
MESSAGE = 21 * 2**20
"""Bytes of the largest message of a socket: 15 MiB of audio as base64, and what is around it."""
KEEP_ALIVE = 75
"""Seconds that a connection may be idle, as in nginx. Clients and load balancers close theirs earlier (httpx after 5 s,
AWS's balancers after 60 s). A server that closes first, as uvicorn's 5 s make it, closes connections on which a request
is on its way: its client reads that the server disconnected without a response."""


def serve(options: ServeOptions) -> None:
    """Serve until a signal. Raises ConfigError for models that cannot be served, a missing key and a taken port."""
    if missing := [name for name in PACKAGES if importlib.util.find_spec(name) is None]:
        raise ConfigError(f"`stentor serve` needs {', '.join(missing)}: pip install 'stentor[serve]'.")
    from stentor.serve.app import build_app
    from stentor.serve.guard import read_keys

    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    for noisy in ("httpx", "transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    keys = read_keys(options.host, options.api_key_env)
    for origin in options.allow_origin:
        if origin != "*" and not re.fullmatch(r"https?://[^/]+/?", origin):
            raise ConfigError(f"--allow-origin {origin}: write scheme and host, such as https://app.example.org, or *.")
    if options.ray is not None:
        from stentor.serve.on_ray import serve_on_ray

        serve_on_ray(options, keys)
        return
    opened = listen(options.host, options.port, "server")
    app = build_app(options, keys)
    service = app.state.service
    registry = service.registry
    names = ", ".join(registry.names)
    print(
        f"Serving {names} at http://{shown(options.host)}:{opened.getsockname()[1]}/v1 (Ctrl-C stops it).", flush=True
    )
    drained(app, service).run(sockets=[opened])


def drained(app: Any, service: Service) -> Any:
    """A server of uvicorn that, at the first signal, refuses new requests and answers those it has; at the second one,
    or after `DRAIN` seconds, it ends."""
    import uvicorn

    from stentor.serve.app import DRAIN

    class DrainingServer(uvicorn.Server):
        deadline = math.inf

        def handle_exit(self, sig: int, frame: Any) -> None:
            if service.draining:
                super().handle_exit(sig, frame)
            service.draining, self.deadline = True, time.monotonic() + DRAIN

        async def on_tick(self, counter: int) -> bool:
            if service.draining:
                service.stopping.set()
                self.should_exit |= not service.active or time.monotonic() > self.deadline
            return await super().on_tick(counter)

    quiet: dict[str, Any] = {"log_level": "warning", "access_log": False, "server_header": False}
    # Audio does not shrink. A client may send faster than it is heard, and its pong comes after its audio.
    sockets: dict[str, Any] = {"ws_max_size": MESSAGE, "ws_per_message_deflate": False, "ws_ping_timeout": None}
    return DrainingServer(
        uvicorn.Config(app, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=5, **quiet, **sockets)
    )
