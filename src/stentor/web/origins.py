"""Origins: which addresses only this machine reaches, and which requests another site's page made a browser send."""

import ipaddress
import os
import socket
from collections.abc import Mapping
from urllib.parse import urlsplit

from stentor.errors import ConfigError


def is_local(host: str) -> bool:
    """Whether only this machine reaches the address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def secret(host: str, variable: str | None, server: str, kind: str, option: str) -> str | None:
    """The passwords or keys (`kind`) in the environment variable that `option` names; None where only this machine
    reaches the server and none is named. Raises ConfigError where one is needed."""
    if variable is not None:
        return os.environ.get(variable, "").strip()
    if is_local(host):
        return None
    raise ConfigError(
        f"The {server} would be open to everybody who reaches {host}: put a {kind} into an environment variable and "
        f"name it with {option}, or leave --host away."
    )


def from_elsewhere(headers: Mapping[str, str], local: bool, navigates: bool) -> bool:
    """Whether a request was made by a page elsewhere, or came under a name that is none of this machine.

    A page elsewhere can make a browser send requests here, but not without telling its origin; and a host name that
    was made to point here (DNS rebinding) is no name of a loopback address.

    Args:
        headers: by their names in small letters.
        local: whether the server listens on a loopback address, without a password or key.
        navigates: whether somebody followed a link to what may be opened from anywhere.
    """
    host, origin = headers.get("host", ""), headers.get("origin")
    if headers.get("sec-fetch-site") in ("cross-site", "same-site") and not navigates:
        return True
    try:
        if origin is not None and urlsplit(origin).netloc.lower() != host.lower():
            return True
        return local and not is_local(urlsplit(f"//{host}").hostname or "")
    except ValueError:  # an address in brackets that is none
        return True


def listen(host: str, port: int, server: str) -> socket.socket:
    """A socket that listens, for the server of this name. Raises ConfigError where that cannot be."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(1024)
        except OSError:
            opened.close()
            raise
        return opened
    except OSError as error:
        fix = f"another {server} may be open there; close it or choose another --port"
        if isinstance(error, socket.gaierror):
            fix = "this machine knows no such address; choose another --host"
        message = f"The {server} cannot listen on {host}:{port} ({error.strerror or error}): {fix}."
        raise ConfigError(message) from None


def shown(host: str) -> str:
    """The host as an address has it."""
    return f"[{host}]" if ":" in host.strip("[]") else host
