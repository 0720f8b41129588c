"""`stentor serve`: loads the models, listens, and stops when it has answered what it took; or has replicas of Ray Serve
do so on a cluster, which starts, balances and restarts them."""

from __future__ import annotations

import importlib.util
import logging
import math
import re
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.system import STOP_SIGNALS
from stentor.errors import ConfigError, StentorError
from stentor.version import __version__
from stentor.web.origins import listen, shown

if TYPE_CHECKING:
    from stentor.commands.server_options import ServeOptions
    from stentor.serve.service import Service

PACKAGES = ("fastapi", "uvicorn", "websockets", "python_multipart", "prometheus_client")
MESSAGE = 21 * 2**20
"""Bytes of the largest message of a socket: 15 MiB of audio as base64, and what is around it."""
DRAIN = 120.0
"""Seconds that requests have to end after a signal."""
KEEP_ALIVE = 75
"""Seconds that a connection may be idle, as in nginx. Clients and load balancers close theirs earlier (httpx after 5 s,
AWS's balancers after 60 s). A server that closes first, as uvicorn's 5 s make it, closes connections on which a request
is on its way: its client reads that the server disconnected without a response."""


NAME = "stentor"
"""Name of the application in the cluster."""
REPLICAS = 8
"""Most replicas, unless --max-replicas says otherwise."""
BUSY = 16
"""Requests at a time of each replica, on average, above which Ray starts another one."""


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


def serve_on_ray(options: ServeOptions, keys: Sequence[str]) -> None:
    """Deploy, wait for a signal, let the requests under way end, and leave. Raises ConfigError for options that do not
    go together or a missing cluster, StentorError when no replica starts."""
    from stentor.pipeline.ray_executor import connected

    if options.port == 0 or options.device not in ([], ["auto"], ["cpu"]):
        raise ConfigError("With --ray the cluster places the models, and --port is a number of your own.")
    stop = threading.Event()
    with connected(options.ray or "auto"):
        handlers = {n: signal.signal(n, lambda *_: stop.set()) for n in STOP_SIGNALS}
        try:
            _deploy(options, keys)
            print(f"Serving at http://{shown(options.host)}:{options.port}/v1 on Ray (Ctrl-C stops it).", flush=True)
            while not stop.wait(0.5):  # a wait without an end would not be interrupted by a signal
                pass
            from ray import serve

            serve.delete(NAME)
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)


def _deploy(options: ServeOptions, keys: Sequence[str]) -> None:
    import ray
    from ray import serve

    gpus = options.gpus_per_worker
    if gpus is None:
        gpus = float(options.device != ["cpu"] and ray.cluster_resources().get("GPU", 0) > 0)
    most = options.max_replicas or REPLICAS
    deployment = serve.deployment(
        ray_actor_options={"num_cpus": 1, "num_gpus": gpus},
        autoscaling_config={"min_replicas": 1, "max_replicas": most, "target_ongoing_requests": BUSY},
        max_ongoing_requests=options.max_requests,
        graceful_shutdown_timeout_s=DRAIN,
    )(serve.ingress(_builder(options, keys, gpus > 0))())
    serve.start(http_options={"host": options.host, "port": options.port})
    try:
        serve.run(deployment.bind(), name=NAME)
    except RuntimeError as error:
        status = serve.status().applications.get(NAME)
        serve.delete(NAME)
        raise StentorError(f"The server does not start on the cluster: {status.message if status else error}") from None


def _builder(options: ServeOptions, keys: Sequence[str], on_gpu: bool) -> Callable[[], Any]:
    """Factory of the app in a replica; it is sent there as code, with the plug-ins."""
    plugins = {path.name: path.expanduser().read_text("utf-8") for path in map(Path, options.plugin)}
    version, device = __version__, "cuda" if on_gpu else "cpu"

    def build() -> Any:
        from dataclasses import replace

        import stentor

        if stentor.__version__ != version:
            raise RuntimeError(f"a node has Stentor {stentor.__version__}, and not {version}: install the same on all.")
        from stentor.pipeline.ray_executor import load_sent_plugins
        from stentor.serve.app import build_app

        load_sent_plugins(plugins)
        return build_app(replace(options, device=[device], ray=None), keys)

    return build
