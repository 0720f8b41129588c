"""Sessions: what a client sends over the socket `/v1/realtime`, event by event, and what it is answered; and
`POST /v1/realtime/client_secrets` for pages."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Literal

import numpy as np
from fastapi import APIRouter, Request, WebSocket, WebSocketDisconnect
from pydantic import Field
from pydantic_core import from_json

from stentor.audio.activity import FRAME
from stentor.errors import StentorError
from stentor.inference.stream.stream import BLOCK
from stentor.inference.vad import Detector, Endpointer
from stentor.serve.errors import ApiError, api_error, report
from stentor.serve.openapi import Fields, body_schema
from stentor.serve.realtime.item import Hearing, Item
from stentor.serve.realtime.settings import Audio, AudioInput, Settings, Transcription, TurnDetection
from stentor.serve.service import Service
from stentor.web.body import read

router, sockets = APIRouter(tags=["realtime"]), APIRouter()
BODY_BYTES = 2**20
APPEND_BYTES = 15 * 2**20
"""Limit of audio in one event."""
AHEAD = 2**20
"""Bytes of messages that are read while others are answered; who sends more waits."""
MESSAGE = 500
"""Bytes of an empty message."""
SHORTEST = 0.1
"""Seconds of the shortest item."""
IDLE = 600.0
"""Seconds for which a client may send nothing."""
UNREAD = 60.0
"""Seconds for which it may leave an event unread."""
ONSET = 0.08
"""Seconds of speech after which an utterance has begun."""
Part = Literal["silence", "begin", "speech", "end"]


class SessionOver(Exception):
    """The server ends the session; `code` is that of the socket."""

    def __init__(self, code: int, message: str, kind: str):
        super().__init__(message)
        self.code, self.kind = code, kind


class Session:
    """One client's. Events are answered in their order."""

    def __init__(self, socket: WebSocket, service: Service, settings: Settings, hearing: Hearing | None):
        """`hearing` is that of the settings."""
        self.socket, self.service, self.settings, self.hearing = socket, service, settings, hearing
        self.item: Item | None = None
        self.seconds = 0.0
        """Seconds of audio that arrived."""
        self._turns = self._new_turns()
        self._previous: str | None = None
        """The last item."""
        self._inbox: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        self._answered = asyncio.Event()
        self._bytes = 0
        """Bytes of messages that were read and not answered."""
        self._expires = time.time() + service.limits.audio_seconds
        self._id = f"sess_{secrets.token_hex(12)}"

    async def run(self) -> None:
        """Until the client goes, or its time is over."""
        tasks = [asyncio.create_task(part) for part in (self._read(), self._answer(), self._stop())]
        try:
            await asyncio.wait(tasks[:2], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            results = await asyncio.gather(*tasks, return_exceptions=True)
            self._hold(-self._bytes)
        await self._end(next((r for r in results if isinstance(r, Exception)), None))

    async def _end(self, error: Exception | None) -> None:
        """Says why, where the client has not gone."""
        if error is None or isinstance(error, WebSocketDisconnect):
            return
        if not isinstance(error, SessionOver):
            report(error)
            error = SessionOver(1011, str(api_error(error)), "server_error")
        try:
            async with asyncio.timeout(UNREAD):
                await self._tell_error(ApiError(400 if error.code == 1008 else 503, str(error), code=error.kind), None)
                await self.socket.close(error.code, str(error))
        except (TimeoutError, RuntimeError, WebSocketDisconnect, SessionOver):
            pass

    async def _read(self) -> None:
        while True:
            try:
                async with asyncio.timeout(IDLE):
                    message = dict(await self.socket.receive())
            except TimeoutError:
                raise SessionOver(1008, f"Nothing came for {IDLE:g} s.", "session_idle") from None
            if message["type"] == "websocket.disconnect":
                return
            self._hold(_size(message))
            if self.service.held.left < 0:
                raise SessionOver(1013, "Too much audio is waiting: try again later.", "rate_limit_exceeded")
            self._inbox.put_nowait(message)
            while self._bytes > AHEAD and not self._inbox.empty():  # where it is empty a client that goes is noticed
                self._answered.clear()
                await self._answered.wait()

    def _hold(self, size: int) -> None:
        self._bytes += size
        self.service.held.left -= size

    async def _stop(self) -> None:
        over = SessionOver(1001, "The server is stopping: connect again in a minute.", "server_stopping")
        try:
            async with asyncio.timeout(self.service.limits.audio_seconds):
                await self.service.stopping.wait()
        except TimeoutError:
            over = SessionOver(1008, "The session's time is over: open another one.", "session_expired")
        self._inbox.put_nowait({"type": "stop", "over": over})

    async def _answer(self) -> None:
        await self.send("session.created", session=self._shown())
        while True:
            message = await self._inbox.get()
            self._answered.set()
            if message["type"] == "stop":
                await self._stop_with(message["over"])
            await self._handle(message)
            self._hold(-_size(message))
            self._answered.set()

    async def _stop_with(self, over: SessionOver) -> None:
        """End the session, after what was said."""
        if self.item is not None:
            await self._close_item(self.item)
        raise over

    async def send(self, event: str, **fields: Any) -> None:
        """Send an event. Raises SessionOver where the client does not read."""
        body = {"type": event, "event_id": f"event_{secrets.token_hex(12)}", **fields}
        try:
            async with asyncio.timeout(UNREAD):
                await self.socket.send_text(json.dumps(body, ensure_ascii=False, allow_nan=False))
        except TimeoutError:
            raise SessionOver(1008, f"Events were not read for {UNREAD:g} s.", "slow_reader") from None
        except RuntimeError:  # what came was no message, and uvicorn has closed the connection
            raise WebSocketDisconnect(1006) from None

    async def _handle(self, message: dict[str, Any]) -> None:
        event_id = None
        try:
            event = _event(message)
            event_id = event.get("event_id") if isinstance(event.get("event_id"), str) else None
            kind = event["type"]
            if kind not in _HANDLERS:
                sentence = f"A session for transcription has no event {kind[:100]!r}; known: {', '.join(_HANDLERS)}."
                raise ApiError(400, sentence, "type", "unknown_event")
            await _HANDLERS[kind](self, event)
        except (ApiError, StentorError) as error:
            await self._tell_error(error, event_id)

    async def _tell_error(self, error: Exception, event_id: str | None) -> None:
        await self.send("error", error={**api_error(error).body()["error"], "event_id": event_id})

    async def _update(self, event: dict[str, Any]) -> None:
        await self._set(Settings.read(event.get("session")))
        await self.send(event["type"] + "d", session=self._shown())

    async def _set(self, update: Settings) -> None:
        settings = self.settings.updated(update)
        hearing = await asyncio.to_thread(Hearing.of, self.service, settings)
        before, after = self.settings.input, settings.input
        if (before.format, before.turn_detection) != (after.format, after.turn_detection):
            if self.item is not None:
                message = "The audio buffer is not empty: commit or clear it before format or turn detection change."
                raise ApiError(400, message, "session.audio.input")
            self.settings = settings
            self._turns = self._new_turns()
        self.settings, self.hearing = settings, hearing

    async def _append(self, event: dict[str, Any]) -> None:
        if self.hearing is None:
            message = "There is no model: send it in session.update, or connect with ?model=NAME."
            raise ApiError(400, message, "session.audio.input.transcription.model")
        try:
            data = base64.b64decode(event.get("audio", 0), validate=True)
            samples = self.settings.input.format.samples(data)
        except (TypeError, ValueError):
            raise ApiError(400, "audio is no base64 of whole samples in the session's format.", "audio") from None
        if len(data) > APPEND_BYTES:
            raise ApiError(400, f"audio is larger than {APPEND_BYTES // 2**20} MiB: send it in parts.", "audio")
        rate = self._rate
        if self.seconds + len(samples) / rate > self.service.limits.audio_seconds:
            over = SessionOver(1008, "The session is too long: open another one.", "session_expired")
            await self._stop_with(over)
        for piece in np.split(samples, range(rate, len(samples), rate)):
            await self._hear(piece)
            await asyncio.sleep(0)

    async def _hear(self, samples: np.ndarray) -> None:
        if self._turns is None:
            self.item = self.item or self._new_item(self.seconds)
            self.seconds += len(samples) / self._rate
            await self.item.hear(samples)
            return
        self.seconds += len(samples) / self._rate
        for part, block in self._turns.split(samples):
            if part == "begin":
                self.item = self._new_item(self._turns.seconds - len(block) / self._rate)
                start = round(1000 * self.item.begin)
                await self.send("input_audio_buffer.speech_started", audio_start_ms=start, item_id=self.item.id)
            if self.item is not None:
                await self.item.hear(block)
            if part == "end" and self.item is not None:
                stopped = {"audio_end_ms": round(1000 * self._turns.seconds), "item_id": self.item.id}
                await self.send("input_audio_buffer.speech_stopped", **stopped)
                await self._close_item(self.item)

    async def _commit(self, event: dict[str, Any]) -> None:
        rest = np.zeros(0, np.float32) if self._turns is None else self._turns.rest
        seconds = 0.0 if self.item is None else self.item.seconds + len(rest) / self._rate
        if self.item is None or seconds < SHORTEST:
            message = f"The audio buffer has {1000 * seconds:.0f} ms: at least {1000 * SHORTEST:.0f} ms are an item."
            raise ApiError(400, message, code="input_audio_buffer_commit_empty")
        await self.item.hear(rest)
        self._turns = self._new_turns()
        await self._close_item(self.item)

    async def _clear(self, event: dict[str, Any]) -> None:
        self.item, self._turns = None, self._new_turns()
        await self.send("input_audio_buffer.cleared")

    async def _close_item(self, item: Item) -> None:
        previous, self.item, self._previous = self._previous, None, item.id
        await self.send("input_audio_buffer.committed", item_id=item.id, previous_item_id=previous)
        shown = {"id": item.id, "object": "realtime.item", "type": "message", "status": "completed", "role": "user"}
        shown["content"] = [{"type": "input_audio", "transcript": None}]  # type: ignore[assignment]
        for event in ("conversation.item.added", "conversation.item.done"):
            await self.send(event, item=shown, previous_item_id=previous)
        await item.end()

    def _new_item(self, begin: float) -> Item:
        assert self.hearing is not None
        return Item(self.hearing, begin, self.send)

    def _new_turns(self) -> Turns | None:
        vad = self.settings.input.turn_detection
        if vad is None:
            return None
        return Turns(self._rate, vad, self.seconds, self.service.detector_at(vad.threshold))

    @property
    def _rate(self) -> int:
        return self.settings.input.format.rate or 0

    def _shown(self) -> dict[str, Any]:
        warnings = {"warnings": self.hearing.warnings} if self.hearing is not None and self.hearing.warnings else {}
        return {"id": self._id, "expires_at": int(self._expires), **self.settings.shown(), **warnings}


def _size(message: dict[str, Any]) -> int:
    return MESSAGE + len(message.get("text") or message.get("bytes") or "")


def _event(message: dict[str, Any]) -> dict[str, Any]:
    """A message as an event. Raises ApiError."""
    try:
        event = from_json(message.get("text") or "", allow_inf_nan=False)
    except ValueError:
        event = None
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise ApiError(400, "An event is a JSON object with a `type`, in a text message.", code="invalid_event")
    return event


class Turns:
    """Finds where utterances begin and end. Where they are does not depend on the pieces."""

    def __init__(self, rate: int, vad: TurnDetection, seconds: float, detector: Detector):
        """`seconds`: of the session before it; `detector`: what finds speech, with the threshold of `vad`."""
        self.seconds = seconds
        """Position in the session, up to the end of the last block."""
        self._rate = rate
        self._endpointer = Endpointer(detector.live(rate), vad.silence_duration_ms / 1000)
        self._block = round(BLOCK / FRAME) * self._endpointer.hop
        before = math.ceil((vad.prefix_padding_ms / 1000 + ONSET) / BLOCK)
        self._before: deque[np.ndarray] = deque(maxlen=before)
        self.rest = np.zeros(0, np.float32)
        """Rest that is shorter than a block."""
        self._speaking = False

    def split(self, samples: np.ndarray) -> Iterator[tuple[Part, np.ndarray]]:
        """Float32 [samples] in blocks, each with what it is; `begin` has what came just before as well."""
        self.rest = np.concatenate([self.rest, samples])
        while len(self.rest) >= self._block:
            block, self.rest = self.rest[: self._block], self.rest[self._block :]
            self.seconds += self._block / self._rate  # not BLOCK: of some rates it is not a whole number of samples
            ended = self._endpointer.add(block)
            if self._speaking:
                self._speaking = not ended
                yield "end" if ended else "speech", block
                continue
            self._before.append(block)
            self._speaking = self._endpointer.speaking
            if self._speaking:
                block = np.concatenate(self._before)
                self._before.clear()
            yield "begin" if self._speaking else "silence", block


_HANDLERS: dict[str, Callable[[Session, dict[str, Any]], Awaitable[None]]] = {
    "session.update": Session._update,
    "transcription_session.update": Session._update,
    "input_audio_buffer.append": Session._append,
    "input_audio_buffer.commit": Session._commit,
    "input_audio_buffer.clear": Session._clear,
}


class ExpiresAfter(Fields):
    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(600, ge=10, le=7200)


class ClientSecretForm(Fields):
    """A key for a page."""

    expires_after: ExpiresAfter = ExpiresAfter()
    """Sessions that have begun continue."""
    session: Settings = Settings()
    """With which its sessions begin."""


@sockets.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """A session, as long as the socket is open."""
    service: Service = socket.app.state.service
    query, settings = socket.query_params, socket.scope.get("stentor.settings") or Settings()
    if query.get("intent", "transcription") != "transcription":
        raise ApiError(400, "This server transcribes: connect with ?intent=transcription.", "intent")
    if "model" in query:
        named = AudioInput(transcription=Transcription.read({"model": query["model"]}))
        settings = settings.updated(Settings(audio=Audio(input=named)))
    hearing = await asyncio.to_thread(Hearing.of, service, settings)
    await socket.accept("realtime" if "realtime" in socket.scope["subprotocols"] else None)
    await Session(socket, service, settings, hearing).run()


@router.post("/v1/realtime/client_secrets", openapi_extra=body_schema(ClientSecretForm))
async def client_secrets(request: Request) -> dict[str, Any]:
    """A key of a short life, for the socket alone."""
    service: Service = request.app.state.service
    form = ClientSecretForm.read(await read(request, BODY_BYTES, timed=True))
    await asyncio.to_thread(Hearing.of, service, form.session)
    value, secret = service.client_secrets.add(form.expires_after.seconds, request.scope["stentor.key"], form.session)
    session = {"id": f"sess_{secrets.token_hex(12)}", **form.session.shown()}
    return {"value": value, "expires_at": int(secret.expires), "session": session}
