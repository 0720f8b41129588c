"""Live: what a trained model hears while one speaks at the page (page/live.mjs), piece by piece over routes.

A page opens a stream and gets its name, sends pieces of audio one after the other, each answered with the events that
it brought (`stentor.inference.stream`), and sends a last one when it stops or goes. A page that goes without a word is
forgotten after `IDLE` seconds.
"""

import secrets
import threading
import time
from dataclasses import dataclass, field

import numpy as np
from starlette.requests import Request

from stentor.errors import ConfigError
from stentor.inference.stream.base import Event
from stentor.inference.stream.stream import Stream
from stentor.studio.projects import Projects
from stentor.studio.runs import try_model
from stentor.studio.server.routes import RouteResult, body, json_body, route
from stentor.studio.texts import say

IDLE = 60.0
"""Seconds without a piece after which a stream is forgotten."""
MOST = 8
"""Streams at a time; beyond them the one that was silent longest is forgotten."""
MOST_BYTES = 4_000_000
"""Of a piece: 40 s at 48 kHz. A page sends what it has gathered, up to a quarter of this."""
RATES = range(8000, 192_001)


@dataclass
class LiveStream:
    """One page that listens."""

    person: Projects
    stream: Stream
    last: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)


class LiveStreams:
    """The streams of all pages, by their names."""

    def __init__(self) -> None:
        self.streams: dict[str, LiveStream] = {}
        self._lock = threading.RLock()
        self._timer: threading.Timer | None = None

    def add(self, live: LiveStream) -> str:
        with self._lock:
            self._forget(MOST - 1)
            name = secrets.token_urlsafe(16)
            self.streams[name] = live
            if self._timer is None:
                self._look()
        return name

    def get(self, name: str, person: Projects, remove: bool) -> LiveStream:
        """A person's own stream. Raises ConfigError where it is none or forgotten."""
        with self._lock:
            live = self.streams.get(name)
            if live is None or live.person is not person:
                raise ConfigError(say("live_gone"))
            live.last = time.monotonic()
            if remove:
                del self.streams[name]
        return live

    def _forget(self, most: int) -> None:
        newest = sorted(self.streams.items(), key=lambda item: -item[1].last)[:most]
        late = time.monotonic() - IDLE
        self.streams = {name: live for name, live in newest if live.last >= late or live.lock.locked()}

    def _look(self) -> None:
        """Look again while there is a stream."""
        with self._lock:
            self._forget(MOST)
            self._timer = threading.Timer(IDLE, self._look) if self.streams else None
            if self._timer is not None:
                self._timer.daemon = True
                self._timer.start()


STREAMS = LiveStreams()
"""Of this process."""


def _open(request: Request, projects: Projects) -> RouteResult:
    fields = json_body(request, 10_000, say("live_gone"))
    run, language, rate = (fields.get(key) for key in ("run", "language", "rate"))
    if not isinstance(run, str) or not isinstance(language, str | None) or rate not in RATES:
        raise ConfigError(say("live_gone"))
    trial = try_model.trial(projects, run)
    models = try_model.MODEL_CACHE
    with models.lock:
        stream = models.get(trial.export, try_model.device(projects)).stream(int(rate), language or None)
    return {"name": STREAMS.add(LiveStream(projects, stream)), "policy": stream.recogniser.policy}


def _feed(request: Request, projects: Projects) -> RouteResult:
    """The events of a piece, 16-bit little-endian samples of one channel; `last` ends the stream."""
    last = "last" in request.query_params
    live = STREAMS.get(request.path_params["name"], projects, last)
    data = body(request, MOST_BYTES)
    samples = np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 2**15
    # One model computes at a time, as with clips.
    with live.lock, try_model.MODEL_CACHE.lock:
        events: list[Event] = live.stream.feed(samples)
        if last:
            events += live.stream.finish()
        live.last = time.monotonic()
    return {"events": events}


ROUTES = [route("/studio/live", _open, ["POST"]), route("/studio/live/{name}", _feed, ["POST"])]
