"""Starts the studio: one server of one process."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.storage import is_remote, name_of
from stentor.errors import ConfigError
from stentor.studio import downloads
from stentor.studio.dataset import receiving, recorder, review
from stentor.studio.runs import routes
from stentor.studio.server.accounts import Accounts, passwords
from stentor.studio.server.server import StudioServer
from stentor.web.origins import is_local, listen, shown

ROUTES = [*recorder.ROUTES, *receiving.ROUTES, *review.ROUTES, *routes.ROUTES, *downloads.ROUTES]
"""All of the studio's own, which the server serves beside Gradio."""

if TYPE_CHECKING:
    from stentor.commands.server_options import StudioOptions


def serve(options: StudioOptions) -> None:
    """Open the studio and stay until it is interrupted.

    Raises ConfigError for a missing password, an address that is taken and a folder that cannot be used.
    """
    folder = options.folder
    words = passwords(options.host, options.password_env)
    if options.password_env is not None:  # runs inherit the environment, and need no password
        os.environ.pop(options.password_env, None)
    if is_remote(folder):
        raise ConfigError(f"--folder {name_of(folder)}: the studio keeps its data in a folder on this machine.")
    for option, paths in (("--models", options.models), ("--runs", options.runs)):
        if missing := [path for path in paths if is_remote(path) or not path.is_dir()]:
            raise ConfigError(f"{option} {name_of(missing[0])} is no folder on this machine.")
    models, runs = (tuple(path.resolve() for path in paths) for paths in (options.models, options.runs))
    accounts = Accounts(folder, words, models, options.publish, runs)
    # Uploads on their way go through here, and nothing is sent to other hosts.
    place = Path(folder).expanduser().resolve() / "tmp" / "page"
    os.environ["GRADIO_TEMP_DIR"] = str(place)
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    door = make_server(accounts, options.host, options.port)
    opened = listen(options.host, options.port, "studio")
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
        f"The studio is open: http://{shown(options.host)}:{opened.getsockname()[1]}/{token} "
        f"(folder {place.parents[1]}; Ctrl-C closes it, runs continue).",
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
