"""/v1/realtime by the unmodified client of OpenAI, whose types read every event to the field."""

import json
from functools import cache
from typing import get_args

import numpy as np
import openai
import pytest
from openai.types.realtime import RealtimeServerEvent
from realtime import SHORT, Client, encoded, silence, speech
from websockets.sync.client import connect

SETTINGS = {
    "type": "transcription",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "noise_reduction": {"type": "near_field"},
            "transcription": {"model": "model", "language": "en"},
            "turn_detection": {"type": "server_vad", "threshold": 0.5, "silence_duration_ms": 300},
        }
    },
    "include": ["item.input_audio_transcription.logprobs"],
}
OURS = {"words", "partial"}


@cache
def kinds() -> dict:
    """The client's types of events by what they are called."""
    union = get_args(RealtimeServerEvent)[0]
    return {get_args(kind.model_fields["type"].annotation)[0]: kind for kind in get_args(union)}


def check(event: dict) -> None:
    """An event has every field of its type, with a value of its kind; and nothing else but ours."""
    known = kinds()[event["type"]].model_validate(event, strict=True)
    extra = set(known.model_extra or {})
    assert extra <= OURS, event
    if event["type"].startswith("session."):
        assert set(known.session.model_extra or {}) == {"id", "object", "expires_at"}
        given_back = known.session.audio.input
        parts = (given_back, given_back.format, given_back.transcription, given_back.turn_detection)
        assert not [part.model_extra for part in parts if part is not None and part.model_extra]


def test_a_missing_field_would_be_noticed():
    with pytest.raises(ValueError, match="item_id"):
        check({"type": "input_audio_buffer.committed", "event_id": "e", "previous_item_id": None})


def test_every_event_is_of_its_type(live):
    with Client(live) as client:
        client.send("session.update", session=SETTINGS)
        client.append(np.concatenate([silence(0.5), speech(1.5), silence(0.6)]))
        events = client.events(".completed")
        client.append(np.concatenate([speech(0.5), silence(0.1)]))
        client.commit()
        events += client.events(".completed")
        client.send("input_audio_buffer.clear")
        client.send("input_audio_buffer.commit", event_id="mine")
        events += client.events("error")
    for event in events:
        check(event)
    assert events[-1]["error"]["event_id"] == "mine"
    assert len({e["type"] for e in events}) == 11 and len({e["event_id"] for e in events}) == len(events)


def test_the_client(live):
    deltas, texts = [], []
    with live.client.realtime.connect(model="model") as connection:
        connection.session.update(session=SETTINGS)
        connection.input_audio_buffer.append(audio=encoded(np.concatenate([speech(1.5), silence(0.6)])))
        for event in connection:
            if event.type == "session.updated":
                assert event.session.audio.input.turn_detection.silence_duration_ms == 300
            elif event.type == "conversation.item.input_audio_transcription.delta":
                deltas.append(event.delta)
                assert event.words[0]["end"] > event.words[0]["start"] >= 0
                assert event.logprobs[0].logprob <= 0
            elif event.type == "conversation.item.input_audio_transcription.completed":
                texts.append(event.transcript)
                break
    assert texts == ["".join(deltas)] and len(deltas) > 2


def test_a_page_with_a_client_secret(live):
    session = {**SETTINGS, "include": []}
    secret = live.client.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60}, session=session
    )
    assert secret.session.audio.input.transcription.model == "model" and secret.session.id.startswith("sess_")
    protocols = ["realtime", f"openai-insecure-api-key.{secret.value}"]
    url = f"{live.url.replace('http', 'ws')}/v1/realtime"
    with connect(url, subprotocols=protocols, open_timeout=SHORT, close_timeout=1) as socket:
        assert socket.subprotocol == "realtime"
        created = json.loads(socket.recv(timeout=SHORT))
    assert created["session"]["audio"]["input"]["turn_detection"]["silence_duration_ms"] == 300
    for wrong in ({"session": {"type": "realtime"}}, {"expires_after": {"anchor": "created_at", "seconds": 5}}):
        with pytest.raises(openai.BadRequestError):
            live.client.realtime.client_secrets.create(**wrong)
