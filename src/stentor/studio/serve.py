"""Starts the studio: one server of one process."""

import importlib.util
import logging
import os
from pathlib import Path
from typing import Any

from stentor.data.storage import is_remote, name_of
from stentor.errors import ConfigError
from stentor.studio.dataset import receiving, recorder, review
from stentor.studio.runs import routes
from stentor.studio.server.accounts import Accounts, passwords
from stentor.studio.server.server import StudioServer
from stentor.web.origins import is_local, listen, shown

ROUTES = [*recorder.ROUTES, *receiving.ROUTES, *review.ROUTES, *routes.ROUTES]
"""All of the studio's own, which the server serves beside Gradio."""


def serve(
    host: str,
    port: int,
    folder: Path,
    password_env: str | None = None,
    models: tuple[Path, ...] = (),
    publish: bool = False,
    more_runs: tuple[Path, ...] = (),
) -> None:
    """Open the studio and stay until it is interrupted.

    Raises ConfigError for a missing password, an address that is taken, a folder that cannot be used, and without
    Gradio.
    """
    words = passwords(host, password_env)
    if password_env is not None:  # runs inherit the environment, and need no password
        os.environ.pop(password_env, None)
    if importlib.util.find_spec("gradio") is None:
        raise ConfigError("The studio needs Gradio: pip install 'stentor[studio]'.")
    if is_remote(folder):
        raise ConfigError(f"--folder {name_of(folder)}: the studio keeps its data in a folder on this machine.")
    for option, paths in (("--models", models), ("--runs", more_runs)):
        if missing := [path for path in paths if is_remote(path) or not path.is_dir()]:
            raise ConfigError(f"{option} {name_of(missing[0])} is no folder on this machine.")
    resolved = [tuple(path.resolve() for path in paths) for paths in (models, more_runs)]
    accounts = Accounts(folder, words, resolved[0], publish, resolved[1])
    # Uploads on their way go through here, and nothing is told to anybody.
    place = Path(folder).expanduser().resolve() / "tmp" / "page"
    os.environ["GRADIO_TEMP_DIR"] = str(place)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    door = make_server(accounts, host, port)
    opened = listen(host, port, "studio")
    import uvicorn

    server = uvicorn.Server(
        uvicorn.Config(door, log_level="warning", access_log=False, server_header=False, timeout_graceful_shutdown=2)
    )

    def leave() -> None:
        server.should_exit = True

    door.leave = leave
    # Who leaves in the middle of an upload is no news.
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    token = f"?token={accounts.token}" if accounts.token else ""
    print(
        f"The studio is open: http://{shown(host)}:{opened.getsockname()[1]}/{token} (folder {place.parents[1]}; "
        "Ctrl-C closes it, runs go on).",
        flush=True,
    )
    server.run(sockets=[opened])
    if door.failed is not None:
        raise door.failed


def make_server(accounts: Accounts, host: str, port: int) -> Any:
    """The ASGI app of a studio."""

    def load() -> Any:
        from stentor.studio.app import mounted

        return mounted(accounts)

    # Behind a password a foreign name of this address (that of a proxy) does no harm: no cookie goes with it.
    return StudioServer(accounts, is_local(host) and not accounts.guarded, port, ROUTES, load)
