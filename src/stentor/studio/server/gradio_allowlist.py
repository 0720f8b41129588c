"""Gradio allowlist: the paths that the studio's page needs; all others are not found.

Gradio answers on some seventy paths: a proxy, tools for its own developers, recording, several ways to call a function.
The page uses a dozen. Files it serves to whoever knows their path; here only to the person who sent them.
"""

import json
import re
from collections import OrderedDict
from typing import Any
from urllib.parse import parse_qs

_PAGES = re.compile(
    r"/|/config/?|/theme\.css|/(?:robots\.txt|favicon\.ico|manifest\.json)|/(?:assets|static|svelte)/.+"
)
_CALLS = re.compile(
    r"/gradio_api/(?:startup-events|app_id/?|theme\.css|info/?|login_check/?|queue/(?:data|status)|upload_progress"
    r"|heartbeat/[\w-]+)"
)
_CHANGES = re.compile(r"/gradio_api/(?:queue/join/?|cancel|reset/?|upload)")
_FILE = "/gradio_api/file="
_UPLOAD = "/gradio_api/upload"
_ANSWERS = "/gradio_api/queue/data"
MOST_KNOWN = 10_000
"""Uploaded files, and open pages, whose person is remembered."""
_MOST_ANSWER = 2**20


class GradioAllowlist:
    """Gradio's routes that a person may use."""

    def __init__(self) -> None:
        self._senders: OrderedDict[str, str] = OrderedDict()
        """Person by the path that Gradio gave to their upload."""
        self._pages: OrderedDict[str, str] = OrderedDict()
        """Person by the name of their open page, under which Gradio sends what its events answer."""

    def lets(self, scope: Any, person: str) -> bool:
        """Whether a request (`http`) is passed to Gradio."""
        path, method = scope["path"], scope["method"]
        if path.startswith(_FILE):
            return method in ("GET", "HEAD") and self._senders.get(path.removeprefix(_FILE)) == person
        if method == "POST":
            return bool(_CHANGES.fullmatch(path))
        if path == _ANSWERS:
            return self._own_page(
                parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [""])[0], person
            )
        return method in ("GET", "HEAD") and bool(_PAGES.fullmatch(path) or _CALLS.fullmatch(path))

    def _own_page(self, name: str, person: str) -> bool:
        """Whether no one else listens to this page: it belongs to the first listener, which is its own script."""
        owner = self._pages.setdefault(name, person)
        self._pages.move_to_end(name)
        while len(self._pages) > MOST_KNOWN:
            self._pages.popitem(last=False)
        return owner == person

    def noting(self, scope: Any, person: str, send: Any) -> Any:
        """`send`, which remembers whose the files are that Gradio says it has taken."""
        if scope["path"] != _UPLOAD:
            return send
        answer = bytearray()

        async def noted(message: Any) -> None:
            if message["type"] == "http.response.body" and len(answer) < _MOST_ANSWER:
                answer.extend(message.get("body", b""))
                if not message.get("more_body"):
                    self._note(bytes(answer), person)
            await send(message)

        return noted

    def _note(self, answer: bytes, person: str) -> None:
        try:
            paths = json.loads(answer)
        except ValueError:
            return
        for path in paths if isinstance(paths, list) else ():
            self._senders[str(path)] = person
        while len(self._senders) > MOST_KNOWN:
            self._senders.popitem(last=False)
