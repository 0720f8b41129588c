"""`stentor demo`: the page of a demo Space, served on this machine."""

import os
import runpy
import socket
import sys
import tempfile
from pathlib import Path

from stentor.commands.addresses import brought_run
from stentor.commands.server_options import DemoOptions
from stentor.errors import ConfigError
from stentor.publish.space import build_page

HOST = "127.0.0.1"


def serve(options: DemoOptions) -> None:
    """Serve the page until Ctrl-C. Raises ConfigError when there is no such model or the port is taken."""
    with tempfile.TemporaryDirectory(prefix="stentor-demo-") as folder:
        program = build_page(brought_run(options.model), Path(folder), options.title, options.task)
        settings = {"SERVER_NAME": HOST, "SERVER_PORT": str(_free_port(options.port)), "ANALYTICS_ENABLED": "False"}
        # Before Gradio is imported, which then writes only next to the page and contacts no server.
        os.environ.update({f"GRADIO_{key}": value for key, value in {**settings, "TEMP_DIR": folder}.items()})
        sys.path.insert(0, folder)
        try:
            runpy.run_path(str(program), run_name="__main__")
        except SystemExit as error:  # the page's own words about a model that cannot be had
            raise ConfigError(str(error)) from None
        finally:
            sys.path.remove(folder)


def _free_port(port: int) -> int:
    """The port, or a free one for 0. Raises ConfigError when it is taken."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise ConfigError(f"Port {port} cannot be used ({error.strerror}): take another with --port.") from None
        return int(probe.getsockname()[1])
