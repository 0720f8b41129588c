"""Serving on a Ray cluster: the same app in replicas of Ray Serve, which starts, balances and restarts them."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError, StentorError
from stentor.pipeline.ray_executor import connected
from stentor.serve.app import DRAIN
from stentor.version import __version__
from stentor.web.origins import shown

if TYPE_CHECKING:
    from stentor.commands.server_options import ServeOptions

NAME = "stentor"
"""Of the application in the cluster."""
REPLICAS = 8
"""Most replicas, unless --max-replicas says otherwise."""
BUSY = 16
"""Requests at a time of each replica, on average, above which Ray starts another one."""


def serve_on_ray(options: ServeOptions, keys: Sequence[str]) -> None:
    """Deploy, wait for a signal, let the requests under way end, and leave. Raises ConfigError for options that do not
    go together or a missing cluster, StentorError when no replica starts."""
    if options.port == 0 or options.device not in ([], ["auto"], ["cpu"]):
        raise ConfigError("With --ray the cluster places the models, and --port is a number of your own.")
    stop = threading.Event()
    with connected(options.ray or "auto"):
        handlers = {n: signal.signal(n, lambda *_: stop.set()) for n in (signal.SIGTERM, signal.SIGINT)}
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
    """What makes the app in a replica; it is sent there as code, with the plug-ins."""
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
