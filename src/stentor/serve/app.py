"""App: the routes of a server over its models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from fastapi import Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from stentor.serve import errors
from stentor.serve.guard import Guard
from stentor.serve.registry import load_models
from stentor.serve.routes import realtime, server, speech, timings, transcriptions
from stentor.serve.service import Limits, Service
from stentor.version import __version__

if TYPE_CHECKING:
    from stentor.commands.server_options import ServeOptions

ROUTERS = (transcriptions.router, realtime.router, speech.router, timings.router, server.router)
DRAIN = 120.0
"""Seconds that requests have to end after a signal."""


def create_app(service: Service, keys: Sequence[str] = (), origins: Sequence[str] = ()) -> FastAPI:
    """The app; `keys` and `origins` as `Guard` takes them. It starts the models' workers when it starts, and ends them
    when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.registry.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Stentor",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # Swagger's page has its scripts from elsewhere; ours is of `routes/server.py`
        redoc_url=None,
        redirect_slashes=False,
        responses=errors.RESPONSES,
        exception_handlers={HTTPException: errors.answer},
    )
    app.state.service = service
    bearer = [Depends(HTTPBearer(auto_error=False))] if keys else []  # for its page; the guard compares them
    for router in ROUTERS:
        app.include_router(router, dependencies=bearer)
    app.include_router(realtime.sockets)
    origins = [origin.rstrip("/") for origin in origins]
    app.add_middleware(Guard, service=service, keys=keys, origins=origins)
    if origins:  # around the guard, so that pages there can read what it refuses
        methods = ["GET", "POST", "DELETE"]
        app.add_middleware(CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"])
    return app


def build_app(options: ServeOptions, keys: Sequence[str]) -> FastAPI:
    """The models, loaded, and the app over them. Raises ConfigError."""
    registry = load_models(
        options.models,
        options.name,
        options.diarizer,
        options.device or ["auto"],
        options.batch_seconds,
        "fifo" if options.fifo else "fair",
    )
    limits = Limits(
        upload_bytes=options.max_upload_mb * 2**20,
        audio_seconds=options.max_minutes * 60,
        characters=options.max_characters,
        requests=options.max_requests,
        requests_per_key=options.max_requests_per_key or options.max_requests,
    )
    return create_app(Service(registry, limits, options.vad), keys, options.allow_origin)
