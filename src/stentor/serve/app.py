"""App: a server over its models, and its routes about itself: models, health, metrics and the page `/docs`."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from stentor.serve import errors, speech, timings, transcriptions
from stentor.serve.guard import Guard
from stentor.serve.openapi import Health, Model, ModelList
from stentor.serve.realtime import session
from stentor.serve.registry import ServedModel, load_models
from stentor.serve.service import Limits, Service
from stentor.serve.streams import WARNING
from stentor.version import __version__

if TYPE_CHECKING:
    from stentor.commands.server_options import ServeOptions

router = APIRouter()
ROUTERS = (transcriptions.router, session.router, speech.router, timings.router, router)


def create_app(service: Service, keys: Sequence[str] = (), origins: Sequence[str] = ()) -> FastAPI:
    """The app; `keys` and `origins` as `Guard` takes them. It starts the models' workers when it starts, and ends them
    when it ends."""

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        for worker in service.registry.workers:
            worker.start()
        try:
            yield
        finally:
            await asyncio.to_thread(service.close)

    app = FastAPI(
        title="Stentor",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # Swagger's page has its scripts from elsewhere; ours is below
        redoc_url=None,
        redirect_slashes=False,
        responses=errors.RESPONSES,
        exception_handlers={HTTPException: errors.answer},
    )
    app.state.service = service
    bearer = [Depends(HTTPBearer(auto_error=False))] if keys else []  # for its page; the guard compares them
    for router in ROUTERS:
        app.include_router(router, dependencies=bearer)
    app.include_router(session.sockets)
    origins = [origin.rstrip("/") for origin in origins]
    app.add_middleware(Guard, service=service, keys=keys, origins=origins)
    if origins:  # around the guard, so that pages there can read what it refuses
        methods = ["GET", "POST", "DELETE"]
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=methods, allow_headers=["*"], expose_headers=[WARNING]
        )
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


@router.get("/v1/models", tags=["models"], response_model=ModelList)
async def list_models(request: Request) -> dict[str, Any]:
    """The models, under each of their names."""
    registry = request.app.state.service.registry
    models = [_model(name, registry.models[of]) for name, of in registry.names.items()]
    return {"object": "list", "data": models}


@router.get("/v1/models/{model:path}", tags=["models"], response_model=Model)
async def get_model(model: str, request: Request) -> dict[str, Any]:
    """One model."""
    return _model(model, request.app.state.service.model(model))


def _model(name: str, served: ServedModel) -> dict[str, Any]:
    about = {"created": served.created, "owned_by": "stentor", "task": served.model.task.type}
    return {"id": name, "object": "model", **about}


@router.get("/health", tags=["server"], responses={200: {"model": Health}, 503: {"model": Health}})
async def health(request: Request) -> JSONResponse:
    """200 when every model has answered and the server takes requests, otherwise 503."""
    service: Service = request.app.state.service
    failed = not all(worker.alive for worker in service.registry.workers)
    states = {"stopping": service.draining, "failed": failed, "loading": not service.ready, "ok": True}
    status = next(state for state, holds in states.items() if holds)
    return JSONResponse({"status": status, "requests": service.active}, 200 if status == "ok" else 503)


@router.get("/metrics", tags=["server"], response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Prometheus' text format."""
    counted = generate_latest(request.app.state.service.metrics.registry)
    return Response(counted, headers={"content-type": CONTENT_TYPE_LATEST})


@router.get("/docs", include_in_schema=False)
async def docs() -> FileResponse:
    """A page that tries every route; nothing of it comes from elsewhere."""
    return FileResponse(Path(__file__).with_name("docs.html"))
