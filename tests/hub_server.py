"""A stand-in for the Hugging Face Hub on loopback: the HTTP interface that huggingface_hub 2.4 calls, unmodified.

Two servers run: the Hub itself, and the storage that it sends clients to for large files, on a port of its own because
the client treats another origin differently (it sends no token there, and takes a file's metadata from the redirect).

    hub.repos["user/name"], ["datasets/user/name"], ["spaces/user/name"]   what was stored (see hub_store.Repo)
    hub.requests                                                             what was asked, in order
    hub.fail(503, "/commit/")            the next matching request is answered so; times=None: all of them
    hub.break_after(100_000)             the connection breaks once that much more has been uploaded
    hub.lose_answer("/commit/")          the request is carried out, its answer never arrives
    hub.pull() and hub.plug()            no connection works at all, until it does again

Xet is off in the fixture `hub`, so that large files go over HTTP, which is easier to follow; another process with
HF_HUB_DISABLE_XET=0 uploads over Xet (see hub_xet). Not here: Xet downloads, git itself, discussions,
files of gated repositories, webhooks, tags, pull requests, and what runs in a Space.
"""

import json
import re
import socket
import struct
import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

from hub_routes import ROUTES, STORAGE_ROUTES
from hub_store import Refused, Repo

TOKEN = "hf_standInStandInStandInStandIn042"
READ_TOKEN = "hf_readOnlyReadOnlyReadOnlyReadO7"


@dataclass(frozen=True)
class Request:
    """One request as it came: `path` with its query, `token` (empty without one), and the status it was answered with
    (0: the connection was broken)."""

    method: str
    path: str
    token: str
    status: int


@dataclass
class Fault:
    """A failure to come: which requests (a regular expression on `METHOD path`), how often (None: always)."""

    match: str
    times: int | None
    status: int = 0
    message: str = ""
    headers: tuple[tuple[str, str], ...] = ()

    def strikes(self, request: str) -> bool:
        if self.times == 0 or not re.search(self.match, request):
            return False
        if self.times is not None:
            self.times -= 1
        return True


class Broken(Exception):
    """The connection ends here, in the middle."""


class Hub:
    """The state of the stand-in and the faults it shall show.

    `user` owns everything by default; `organizations` are those it belongs to, with its role. `part_bytes`: files over
    that size are uploaded in parts of it. `regular_bytes`: files over that size go to the large file storage.
    """

    def __init__(self):
        self.user = "tester"
        self.organizations = {"acme": "write", "museum": "read"}
        self.token, self.read_token = TOKEN, READ_TOKEN
        self.tokens = {TOKEN: "write", READ_TOKEN: "read"}
        self.repos: dict[str, Repo] = {}
        self.requests: list[Request] = []
        self.crashes: list[BaseException] = []
        self.part_bytes = 5_000_000
        self.regular_bytes = 10_000_000
        self.lock = threading.RLock()
        self.pieces: dict[str, dict[int, bytes]] = {}
        self.xorbs: dict[str, list[bytes]] = {}
        self.xet_tokens: dict[str, str] = {}
        self.faults: list[Fault] = []
        self.lost: list[Fault] = []
        self.upload_left: int | None = None
        self.pulled = False
        self.server, self.storage_server = Server(self, ROUTES), Server(self, STORAGE_ROUTES)
        self.endpoint, self.storage = self.server.url, self.storage_server.url

    def close(self) -> None:
        for server in (self.server, self.storage_server):
            server.shutdown()
            server.server_close()

    def fail(self, status: int, match: str = "", times: int | None = 1, message: str = "", **headers: str) -> None:
        """Answers `times` requests whose `METHOD path` matches with `status`; headers with `_` for `-`."""
        named = tuple((name.replace("_", "-"), value) for name, value in headers.items())
        self.faults.append(Fault(match, times, status, message or f"The stand-in was told to say {status}.", named))

    def lose_answer(self, match: str = "", times: int | None = 1) -> None:
        self.lost.append(Fault(match, times))

    def break_after(self, uploaded: int) -> None:
        """Breaks the connection once, after so many more bytes of file content or commits have come in."""
        self.upload_left = uploaded

    def pull(self) -> None:
        """Ends the network: every request, begun ones too, ends in a broken connection."""
        self.pulled = True

    def plug(self) -> None:
        """The network works again; what was begun before is broken."""
        self.pulled = False

    def asked(self, match: str) -> list[Request]:
        """The requests whose `METHOD path` matches."""
        return [r for r in self.requests if re.search(match, f"{r.method} {r.path}")]

    def environment(self, home: str) -> dict[str, str]:
        """The environment of a process that shall take this for the Hub; `home` is its HF_HOME."""
        return {
            "HF_ENDPOINT": self.endpoint,
            "HF_TOKEN": self.token,
            "HF_HOME": home,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_OFFLINE": "0",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def may_write(self, namespace: str) -> bool:
        return namespace == self.user or self.organizations.get(namespace) in ("write", "admin")


class Server(ThreadingHTTPServer):
    """One of the two listeners, on loopback and nowhere else."""

    daemon_threads, block_on_close = True, False

    def __init__(self, hub: Hub, routes: list):
        super().__init__(("127.0.0.1", 0), Handler)
        self.hub, self.routes = hub, [(method, re.compile(f"^{path}$"), answer) for method, path, answer in routes]
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def handle_error(self, request, client_address):
        pass  # a client that went away; what goes wrong in an answer is in `hub.crashes`


class Handler(BaseHTTPRequestHandler):
    """Finds the route, reads the body, carries out the faults, and writes what the route answers."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def handle_any(self):
        self.hub: Hub = self.server.hub
        self.address = urlsplit(self.path)
        self.query = {name: values[-1] for name, values in parse_qs(self.address.query).items()}
        self.token = (self.headers.get("Authorization") or "").removeprefix("Bearer ").strip()
        self.noted, called = False, f"{self.command} {self.path}"
        try:
            self.body = self.read_body()
            self.check_network()
            with self.hub.lock:
                fault = next((f for f in self.hub.faults if f.strikes(called)), None)
            if fault:
                self.say(
                    fault.status, {"error": fault.message}, {"X-Error-Message": fault.message, **dict(fault.headers)}
                )
                return
            answer = self.route()
            with self.hub.lock:
                if any(f.strikes(called) for f in self.hub.lost):
                    raise Broken
            self.say(*answer)
        except Broken:
            self.note(0)
            # A reset instead of an orderly end: what a cable pulled or a crashed proxy looks like.
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.close_connection = True
        except OSError:  # the client went away
            self.note(0)
            self.close_connection = True
        except Exception as error:
            self.hub.crashes.append(error)
            self.say(500, {"error": f"The stand-in failed: {error!r}"})

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = handle_any

    def route(self) -> tuple:
        try:
            known = False
            for method, pattern, answer in self.server.routes:
                # The path is matched as it came, quoted, so that a revision `refs%2Fpr%2F1` is one segment.
                if match := pattern.match(self.address.path):
                    known = True
                    if method == self.command or (method == "GET" and self.command == "HEAD"):
                        with self.hub.lock:
                            return answer(self, **{k: unquote(v or "") for k, v in match.groupdict().items()})
            raise Refused(405 if known else 404, f"The stand-in has no {self.command} {self.address.path}")
        except Refused as refused:
            headers = {"X-Error-Message": refused.message}
            if refused.code:
                headers["X-Error-Code"] = refused.code
            return refused.status, {"error": refused.message, **refused.body}, headers

    def check_network(self) -> None:
        if self.hub.pulled:
            raise Broken

    def read_body(self) -> bytes:
        """The whole body, counted against `break_after` where it brings content."""
        pieces, counts = [], self.command == "PUT" or "/commit/" in self.path or "/xorbs/" in self.path
        if "chunked" in (self.headers.get("Transfer-Encoding") or ""):
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.read(size, counts))
                self.rfile.readline()
            self.rfile.readline()
        else:
            pieces.append(self.read(int(self.headers.get("Content-Length") or 0), counts))
        return b"".join(pieces)

    def read(self, size: int, counts: bool) -> bytes:
        pieces, left = [], size
        while left:
            piece = self.rfile.read1(min(left, 65536))
            if not piece:
                raise ConnectionResetError
            left -= len(piece)
            pieces.append(piece)
            self.check_network()
            with self.hub.lock:
                if counts and self.hub.upload_left is not None:
                    self.hub.upload_left -= len(piece)
                    if self.hub.upload_left <= 0:
                        self.hub.upload_left = None
                        raise Broken
        return b"".join(pieces)

    def say(self, status: int, body: object = None, headers: dict[str, str] | None = None) -> None:
        """Answers with JSON, or with bytes as they are."""
        self.note(status)
        content = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else b""
        headers = {
            "Content-Type": "application/octet-stream" if isinstance(body, bytes) else "application/json",
            "Content-Length": str(len(content)),
            "X-Request-Id": "stand-in",
            **(headers or {}),
        }
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def note(self, status: int) -> None:
        """Writes the request down, once, and before its answer can be seen."""
        if not self.noted:
            self.hub.requests.append(Request(self.command, self.path, self.token, status))
        self.noted = True

    def json(self) -> dict:
        return json.loads(self.body or b"{}")

    def log_message(self, *_):
        pass
