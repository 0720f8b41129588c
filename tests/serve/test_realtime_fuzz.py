"""Broken sequences of events: a session answers what it can, and the server is afterwards as it was before."""

import base64
import json
import logging
import socket

import numpy as np
from realtime import Client, encoded, silence, speech, text_of, until
from websockets.exceptions import ConnectionClosed, WebSocketException

KINDS = [
    "session.update",
    "transcription_session.update",  # of the beta
    "input_audio_buffer.append",
    "input_audio_buffer.commit",
    "input_audio_buffer.clear",
]
OTHERS = ["response.create", "conversation.item.create", "conversation.item.delete", "", "x" * 5000, "\u0000"]
VALUES = [None, True, -1, 1e308, "", "model", "ä", [], {}, [[[]]], {"type": "transcription"}, "A" * 70_000]
FIELDS = ["format", "transcription", "turn_detection", "noise_reduction", "model", "type", "rate", "language", "delay"]
AUDIO = [speech(0.3), silence(0.5), speech(0.05), np.zeros(0, "<i2")]


def value(random, depth=0):
    """Anything that JSON can say."""
    if depth < 3 and random.random() < 0.4:
        return {str(random.choice(FIELDS)): value(random, depth + 1) for _ in range(random.integers(1, 4))}
    return VALUES[random.integers(len(VALUES))]


def settings(random):
    """Settings of which one may be wrong."""
    vad = {"type": "server_vad", "silence_duration_ms": int(random.choice([100, 300]))}
    kinds = [*({"type": f"audio/{name}"} for name in ("pcm", "pcmu", "pcma")), {"type": "audio/pcm", "rate": 16000}]
    fields = {
        "format": kinds[random.integers(4)],
        "turn_detection": vad if random.random() < 0.5 else None,
        "transcription": {"model": "model", "delay": str(random.choice(["minimal", "xhigh"]))},
    }
    chosen = {name: field for name, field in fields.items() if random.random() < 0.5}
    if random.random() < 0.3:
        chosen[str(random.choice(FIELDS))] = value(random)
    return {"type": "transcription", "audio": {"input": chosen}}


def message(random):
    """An event, right or broken in one of many ways."""
    kind = str(random.choice(KINDS if random.random() < 0.85 else OTHERS))
    event = {"type": kind}
    if kind == "input_audio_buffer.append":
        event["audio"] = encoded(AUDIO[random.integers(len(AUDIO))])
    elif kind.endswith("session.update"):
        event["session"] = settings(random)
    way = random.integers(10)
    if way == 0:
        event[str(random.choice(["audio", "session", "type", "event_id"]))] = value(random)
    elif way == 1:
        event["audio"] = base64.b64encode(random.bytes(int(random.integers(0, 3000)))).decode()[random.integers(3) :]
    elif way == 2:
        return random.bytes(int(random.integers(0, 300)))
    text = json.dumps(event, ensure_ascii=bool(random.integers(2)))
    if way == 3:
        return text[: random.integers(len(text))]
    if way == 4:
        return str(random.choice(["", "null", "[]", "[" * 3000, '"\\ud800"', '{"type": NaN}', "1e999", text + text]))
    return text


def broken_sequence(live, seed):
    """Events in any order, and one of several ends."""
    random = np.random.default_rng([7, seed])
    with Client(live, str(random.choice(["", "model=model", "intent=transcription"]))) as client:
        try:
            for _ in range(random.integers(1, 12)):
                client.socket.send(message(random))
            end = random.integers(5)
            if end == 0:
                client.socket.socket.sendall(b"\x81\xfe\xff")  # a frame that does not go on
            elif end == 1:
                client.socket.socket.sendall(random.bytes(40))  # none at all
            elif end == 2:
                client.send("nonsense", event_id="last")
                while client.events("error")[-1]["error"]["event_id"] != "last":
                    pass
            if end < 2 or end == 3:
                client.socket.socket.shutdown(socket.SHUT_RDWR)
        except (ConnectionClosed, OSError) as error:
            code = getattr(getattr(error, "rcvd", None), "code", None)
            assert code in (None, 1002, 1007, 1008, 1009), (seed, error)
        except WebSocketException as error:
            raise AssertionError(seed) from error


def text(live):
    with Client(live) as client:
        client.configure(turn_detection=None)
        client.append(speech(1.0))
        client.commit()
        return text_of(client.events(".completed"))


def test_broken_sequences(live, caplog):
    expected, service = text(live), live.service
    with caplog.at_level(logging.WARNING):
        for seed in range(100):
            broken_sequence(live, seed)
        until(lambda: service.active == 0)
    assert not [r for r in caplog.records if r.name in ("stentor.serve", "uvicorn.error")], caplog.text
    assert len(service.registry.models["model"].queue) == 0 and service.held.left == type(service.held).left
    assert text(live) == expected != ""
