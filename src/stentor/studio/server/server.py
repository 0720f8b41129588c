"""Studio server: the ASGI app that every request passes.

It answers from the first moment, while Gradio is still being loaded (an import of seconds); it refuses what another
site's page makes a browser send; it asks for the password where there is one; and it puts the person's projects into
the request, so that nothing behind it can mix people up.
"""

import asyncio
import contextlib
import ipaddress
import json
from collections import Counter
from collections.abc import AsyncIterator, Callable
from importlib import resources
from typing import Any
from urllib.parse import parse_qs
from weakref import WeakValueDictionary

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route

from stentor.studio.server.accounts import STAYS, Accounts
from stentor.studio.server.gradio_allowlist import GradioAllowlist
from stentor.studio.server.routes import PROJECTS
from stentor.studio.texts import render, say, texts
from stentor.web.body import TooLarge, read
from stentor.web.origins import from_elsewhere

USER = "stentor.user"
"""Where a request's scope holds the person's name."""
KINDS = {".js": "text/javascript", ".mjs": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
MOST_SIGN_IN = 4096
"""Bytes of a sign-in."""
SLOWEST = 5.0
"""Seconds that an answer to a wrong password waits at most."""
SLOTS = 4
"""Sign-ins from one address, and passwords in all, that are looked at together."""
# "no-referrer" would make browsers hide the origin of the sign-in form from the studio itself ("Origin: null").
GUARDS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"same-origin"),
    (b"x-frame-options", b"SAMEORIGIN"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class StudioServer:
    """Lets requests in. `studio` (Gradio's app) is None until `load` has made it."""

    def __init__(self, accounts: Accounts, local: bool, port: int, routes: list[Route], load: Callable[[], Any]):
        """`load` builds Gradio's app, in a thread; `local`: whether only this machine reaches the address."""
        self.accounts, self.local, self.load = accounts, local, load
        self.cookie = f"stentor_{port}"
        self.studio: Any = None
        self.failed: Exception | None = None
        self.leave: Callable[[], None] = lambda: None
        """Ends the server, when the page cannot be made."""
        self.narrow = GradioAllowlist()
        self._wrong: Counter[str] = Counter()
        self._slots: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()
        """By address: guesses from one do not make others wait."""
        self._hashing = asyncio.Semaphore(SLOTS)
        pages = [
            Route("/studio/texts.json", lambda request: JSONResponse(texts())),
            Route("/studio/page/{file}", _file),
        ]
        self.ours = Starlette(routes=[*routes, *pages], lifespan=self._live)

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self.ours(scope, receive, send)
        elif not self._ours(scope):
            await _refuse(scope, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _guarded(send))
        else:
            await self._pass(scope, receive, send)

    def _ours(self, scope: Any) -> bool:
        """Whether a request comes from the studio's own page, under a name of this machine."""
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        return not from_elsewhere(headers, self.local, _navigates(scope, headers))

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        request = Request(scope, receive)
        path = scope["path"]
        if path == "/studio/ready":
            await JSONResponse({"ready": self.studio is not None})(scope, receive, send)
        elif path == "/" and "token" in request.query_params:
            await self._enter(request)(scope, receive, send)
        elif path in ("/studio/sign-in", "/studio/sign-out") and request.method == "POST":
            answer = await (self._sign_in(request) if path.endswith("in") else self._sign_out(request))
            await answer(scope, receive, send)
        elif path == "/favicon.ico":
            await Response(page_files()["icon.svg"], media_type=KINDS[".svg"])(scope, receive, send)
        elif path == "/manifest.json":  # browsers ask for it without their cookies
            await JSONResponse({"name": say("title")})(scope, receive, send)
        elif path.startswith("/studio/page/") or path == "/studio/texts.json":  # the same for everybody
            await self.ours(scope, receive, send)
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Any, receive: Any, send: Any) -> None:
        """Hand on to the studio what comes from a person who may use it."""
        person = self.accounts.who(HTTPConnection(scope).cookies.get(self.cookie))
        web = scope["type"] == "http"
        if person is None:
            if not web:
                await _refuse(scope, send)
            elif scope["path"] == "/":
                await HTMLResponse(self._sign_in_page(), 401)(scope, receive, send)
            else:
                await PlainTextResponse("Sign in first.", 401)(scope, receive, send)
            return
        scope[USER], scope[PROJECTS] = person, self.accounts.projects(person)
        if not web:  # neither our page nor Gradio's uses sockets
            await _refuse(scope, send)
        elif scope["path"].startswith("/studio/"):
            await self.ours(scope, receive, send)
        elif not self.narrow.lets(scope, person):
            await PlainTextResponse("There is nothing here.", 404)(scope, receive, send)
        elif self.studio is not None:
            await self.studio(scope, receive, self.narrow.noting(scope, person, send))
        elif scope["path"] == "/":
            await HTMLResponse(render("opening"), headers={"Cache-Control": "no-store"})(scope, receive, send)
        else:
            await PlainTextResponse(say("opening"), 503, headers={"Retry-After": "2"})(scope, receive, send)

    def _enter(self, request: Request) -> Response:
        """The answer to the address that was printed. A script leads on, so that the address with the token does not
        stay in the browser, and so that the cookie is sent even where a link of another site led here."""
        onward = HTMLResponse(render("entered"))
        onward.headers["Cache-Control"] = "no-store"
        token = request.query_params["token"]
        if self.accounts.who(token) and not self.accounts.guarded:
            self._signed_in(request, onward, token)
        return onward

    async def _sign_in(self, request: Request) -> Response:
        try:
            form = await read(request, MOST_SIGN_IN)
        except TooLarge:
            return PlainTextResponse("Too large.", 413)
        fields = parse_qs(form.decode("utf-8", "replace"))
        name, password = (fields.get(key, [""])[0] for key in ("name", "password"))
        # Guesses wait for each other, longer with each one that was wrong. They are counted for each person: who knows
        # one password has no faster way to another.
        person = self.accounts.meant(name.strip())
        slots = self._slots.setdefault(_network(request), asyncio.Semaphore(SLOTS))
        async with slots:
            if self._wrong[person]:
                await asyncio.sleep(min(SLOWEST, 0.25 * self._wrong[person]))
            async with self._hashing:
                session = await asyncio.to_thread(self.accounts.sign_in, name.strip(), password)
        if session is None:
            self._wrong[person] += 1
            return HTMLResponse(self._sign_in_page(wrong=True), 401)
        self._wrong[person] = 0
        return self._signed_in(request, RedirectResponse("/", 303), session)

    def _signed_in(self, request: Request, answer: Response, session: str) -> Response:
        """The answer, which gives the browser its session."""
        secure = request.url.scheme == "https"
        answer.set_cookie(self.cookie, session, max_age=int(STAYS), httponly=True, samesite="strict", secure=secure)
        return answer

    def _sign_in_page(self, wrong: bool = False) -> str:
        return render("sign_in", self.accounts.named, wrong) if self.accounts.guarded else render("address_needed")

    async def _sign_out(self, request: Request) -> Response:
        self.accounts.sign_out(request.cookies.get(self.cookie, ""))
        answer = RedirectResponse("/", 303)
        answer.delete_cookie(self.cookie)
        return answer

    @contextlib.asynccontextmanager
    async def _live(self, app: Starlette) -> AsyncIterator[None]:
        """The server's life: Gradio is loaded after it has begun to answer."""
        lives = contextlib.AsyncExitStack()
        loading = asyncio.create_task(self._open(lives))
        yield
        loading.cancel()
        with contextlib.suppress(asyncio.CancelledError, Exception):
            await loading
        with contextlib.suppress(Exception):
            await lives.aclose()

    async def _open(self, lives: contextlib.AsyncExitStack) -> None:
        try:
            studio = await asyncio.to_thread(self.load)
            await lives.enter_async_context(studio.router.lifespan_context(studio))
        except Exception as error:
            self.failed = error
            self.leave()
            return
        self.studio = studio


def page_files() -> dict[str, str]:
    """Text of the page's own scripts and styles, by file name."""
    files = resources.files("stentor.studio").joinpath("page").iterdir()
    return {f.name: f.read_text(encoding="utf-8") for f in files if f.name[f.name.rfind(".") :] in KINDS}


def _file(request: Request) -> Response:
    name = request.path_params["file"]
    content = page_files().get(name)
    if content is None:
        return PlainTextResponse("There is no such file.", 404)
    return Response(content, media_type=KINDS[name[name.rfind(".") :]], headers={"Cache-Control": "no-cache"})


def _navigates(scope: Any, headers: dict[str, str]) -> bool:
    """Whether somebody followed a link or typed the address: the page may be opened from anywhere, and does nothing."""
    return scope.get("method") == "GET" and scope["path"] == "/" and headers.get("sec-fetch-mode") == "navigate"


def _network(request: Request) -> str:
    """The address that a request comes from; of IPv6 the network, in which one machine has as many as it likes."""
    host = request.client.host if request.client else ""
    with contextlib.suppress(ValueError):
        if (address := ipaddress.ip_address(host)).version == 6:
            return str(ipaddress.ip_network((address, 64), strict=False))
    return host


def _guarded(send: Any) -> Any:
    async def with_headers(message: Any) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            message["headers"] = [*message.get("headers", []), *(pair for pair in GUARDS if pair[0] not in present)]
        await send(message)

    return with_headers


async def _refuse(scope: Any, send: Any) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1008})
        return
    await PlainTextResponse("Requests from another site are refused.", 403)(scope, None, _guarded(send))  # type: ignore[arg-type]


def head(files: dict[str, str]) -> str:
    """Content of the page's head: the studio's scripts and styles, and the person's texts for them. Scripts are in it,
    not loaded by it: Gradio puts the head in when it starts, and its first events call them."""
    sentences = json.dumps(texts()).replace("<", "\\u003c")
    parts = [f"<script>window.stentorTexts = {sentences};</script>"]
    for name in sorted(files):
        if name.endswith(".css") and name != "door.css":
            parts.append(f'<link rel="stylesheet" href="/studio/page/{name}">')
        if name.endswith(".js"):
            parts.append(f"<script>{files[name]}</script>")
    return "\n".join(parts)
