"""The socket `/v1/realtime`, and `POST /v1/realtime/client_secrets` for pages."""

from __future__ import annotations

import asyncio
import secrets
from typing import Any, Literal

from fastapi import APIRouter, Request, WebSocket
from pydantic import Field

from stentor.serve.errors import ApiError
from stentor.serve.forms import Fields
from stentor.serve.openapi import body_schema
from stentor.serve.realtime.item import Hearing
from stentor.serve.realtime.session import Session
from stentor.serve.realtime.settings import Audio, AudioInput, Settings, Transcription
from stentor.serve.service import Service
from stentor.web.body import read

router, sockets = APIRouter(tags=["realtime"]), APIRouter()
BODY_BYTES = 2**20


class ExpiresAfter(Fields):
    anchor: Literal["created_at"] = "created_at"
    seconds: int = Field(600, ge=10, le=7200)


class ClientSecretForm(Fields):
    """A key for a page."""

    expires_after: ExpiresAfter = ExpiresAfter()
    """Sessions that have begun go on."""
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
        named = AudioInput(transcription=Transcription(model=query["model"]))
        settings = settings.updated(Settings(audio=Audio(input=named)))
    hearing = await asyncio.to_thread(Hearing.of, service, settings)
    await socket.accept("realtime" if "realtime" in socket.scope["subprotocols"] else None)
    await Session(socket, service, settings, hearing).run()


@router.post("/v1/realtime/client_secrets", openapi_extra=body_schema(ClientSecretForm))
async def client_secrets(request: Request) -> dict[str, Any]:
    """A key of a short life, for the socket alone."""
    service: Service = request.app.state.service
    form = ClientSecretForm.model_validate_json(await read(request, BODY_BYTES, timed=True))
    await asyncio.to_thread(Hearing.of, service, form.session)
    value, secret = service.client_secrets.add(form.expires_after.seconds, request.scope["stentor.key"], form.session)
    session = {"id": f"sess_{secrets.token_hex(12)}", **form.session.shown()}
    return {"value": value, "expires_at": int(secret.expires), "session": session}
