"""What the server is: its models, its health, its metrics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from stentor.serve.openapi import Health, Model, ModelList
from stentor.serve.registry import ServedModel
from stentor.serve.service import Service

router = APIRouter()


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
    return FileResponse(Path(__file__).parents[1] / "docs.html")
