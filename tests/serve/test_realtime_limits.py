"""/v1/realtime: who is let in, what is refused, and what is left when a session ends."""

import gc
import json
import socket
import threading
import weakref

import pytest
from realtime import SHORT, Client, silence, speech, text_of, until
from test_limits import KEYS
from websockets.exceptions import ConnectionClosed, InvalidStatus

from stentor.inference.stream.chunked import CTCRecogniser
from stentor.serve.errors import ApiError
from stentor.serve.realtime import session as module
from stentor.serve.service import MOST_OF_A_KEY, ClientSecrets

MANUAL = {"turn_detection": None}


@pytest.fixture
def gate(monkeypatch):
    """The model waits in each step until it is set; `entered` says that it does."""
    release, entered, advance = threading.Event(), threading.Event(), CTCRecogniser.advance

    def waiting(self, hypotheses):
        entered.set()
        assert release.wait(SHORT)
        return advance(self, hypotheses)

    monkeypatch.setattr(CTCRecogniser, "advance", waiting)
    release.entered = entered
    yield release
    release.set()


def closed(client):
    """Code and reason with which the server closed, and the events before."""
    events = []
    with pytest.raises(ConnectionClosed) as end:
        while True:
            events.append(json.loads(client.socket.recv(timeout=SHORT)))
    return end.value.rcvd.code, end.value.rcvd.reason, events


def refused(server, query="model=model", **options):
    with pytest.raises(InvalidStatus) as refusal:
        Client(server, query, **options)
    response = refusal.value.response
    return response.status_code, json.loads(response.body)["error"]


def nothing_left(service):
    until(lambda: service.active == 0)
    assert len(service.registry.models["model"].queue) == 0 and service.held.left == type(service.held).left


def right_text(live):
    with Client(live) as client:
        client.configure(**MANUAL)
        client.append(speech(1.0))
        client.commit()
        return text_of(client.events(".completed"))


def test_keys_and_origins(serve, chunks):
    server = serve(chunks, keys=KEYS, origins=["https://mine.example"])
    assert refused(server)[1]["code"] == "invalid_api_key"
    assert refused(server, key="a-key-that-is-not-one")[0] == 401
    with Client(server, key=KEYS[1]) as client:
        assert client.events("created")
    with Client(server, subprotocols=["realtime", f"openai-insecure-api-key.{KEYS[0]}"]) as client:
        assert client.events("created") and client.socket.subprotocol == "realtime"
    assert refused(server, key=KEYS[0], origin="https://evil.example")[0] == 403
    with Client(server, key=KEYS[0], origin="https://mine.example") as client:
        assert client.events("created")
    body = {"expires_after": {"anchor": "created_at", "seconds": 10}}
    assert server.http.post("/v1/realtime/client_secrets", json=body).status_code == 401
    value = server.client.realtime.client_secrets.create(**body).value
    with Client(server, key=value) as client:
        assert client.events("created")
    headers = {"authorization": f"Bearer {value}"}
    assert server.http.get("/v1/models", headers=headers).status_code == 401  # it is for sockets alone
    secrets = server.service.client_secrets
    secrets._secrets = {value: secret._replace(expires=0) for value, secret in secrets._secrets.items()}
    assert refused(server, key=value)[0] == 401
    nothing_left(server.service)


def test_connections_that_are_refused(live, monkeypatch):
    assert refused(live, "model=nothing")[1]["code"] == "model_not_found"
    assert refused(live, "intent=conversation")[0] == 400
    assert refused(live, origin="https://evil.example")[0] == 403
    with monkeypatch.context() as patch:
        patch.setattr(live.service.limits, "requests", 0)
        assert refused(live)[0] == 429
    monkeypatch.setattr(live.service.limits, "requests_per_key", 1)
    with Client(live) as client:
        client.events("created")
        assert refused(live)[0] == 429
    until(lambda: live.service.active == 0)
    assert right_text(live)


ODD = {"type": "transcription", "audio": {"input": {"turn_detection": {"type": "semantic_vad"}}}}
WRONG = [
    ('{"type": "session.update"', "type"),
    ("[]", "JSON object"),
    ('{"event_id": "x"}', "type"),
    ('{"type": "response.create", "event_id": "x"}', "response.create"),
    ('{"type": "conversation.item.create", "item": {}}', "no event"),
    ('{"type": "session.update"}', "session"),
    ('{"type": "session.update", "session": {"type": "realtime"}}', "transcribes"),
    (json.dumps({"type": "session.update", "session": ODD}), "session.audio.input.turn_detection"),
    ('{"type": "session.update", "session": {"audio": {"input": {"transcription": {"model": "x"}}}}}', "not exist"),
    ('{"type": "session.update", "session": {"voice": "alloy"}}', "session.voice"),
    ('{"type": "input_audio_buffer.append"}', "base64"),
    ('{"type": "input_audio_buffer.append", "audio": "???"}', "base64"),
    ('{"type": "input_audio_buffer.append", "audio": "QUJD"}', "whole samples"),
    ('{"type": "input_audio_buffer.commit"}', "100 ms"),
]


def test_events_that_are_wrong(live):
    """Each is answered, and the session goes on."""
    expected = right_text(live)
    with Client(live) as client:
        client.events("created")
        for text, sentence in WRONG:
            client.socket.send(text)
            (event,) = client.events("error")
            message = f"{event['error']['message']} {event['error']['param']}"
            assert sentence in message and event["error"]["type"] == "invalid_request_error"
            assert event["error"]["event_id"] == ("x" if "response.create" in text else None)
        client.socket.send(b"\x00\x01")
        assert client.events("error")[-1]["error"]["code"] == "invalid_event"
        client.configure(**MANUAL)
        client.append(speech(0.5))
        client.configure(format={"type": "audio/pcmu"})  # in the middle of an item
        assert "commit or clear" in client.events("error")[-1]["error"]["message"]
        client.send("input_audio_buffer.clear")
        client.events("cleared")
        client.append(speech(1.0))
        client.commit()
        assert text_of(client.events(".completed")) == expected
    with Client(live, "") as client:
        client.append(speech(0.1))
        assert client.events("error")[-1]["error"]["param"].endswith("transcription.model")


def test_a_session_that_is_dropped_leaves_nothing(live, gate, monkeypatch):
    streams = []
    opened = CTCRecogniser.open

    def remembered(self):
        hypothesis = opened(self)
        streams.append(weakref.ref(hypothesis))
        return hypothesis

    monkeypatch.setattr(CTCRecogniser, "open", remembered)
    for count, leave in ((3, lambda s: s.close()), (6, lambda s: s.socket.shutdown(socket.SHUT_RDWR))):
        gate.clear(), gate.entered.clear()
        clients = [Client(live) for _ in range(3)]
        for client in clients:
            client.configure(**MANUAL)
            client.append(speech(2.0), 4)
        assert gate.entered.wait(SHORT)
        until(lambda count=count: live.service.active == 3 and len(streams) == count)
        for client in clients:
            threading.Thread(target=leave, args=(client.socket,), daemon=True).start()
        nothing_left(live.service)
        gate.set()

        def forgotten():
            gc.collect()
            return not any(stream() for stream in streams)

        until(forgotten)
    assert right_text(live)


def test_a_model_that_fails(live, monkeypatch):
    expected, advance = right_text(live), CTCRecogniser.advance

    def failing(self, hypotheses):
        raise RuntimeError("a secret of the model")

    with Client(live) as client:
        client.configure(**MANUAL)
        monkeypatch.setattr(CTCRecogniser, "advance", failing)
        client.append(speech(1.0), 3)
        failed = client.events(".failed")[-1]
        client.commit()
        assert client.events(".done")[-1]["item"]["id"] == failed["item_id"]
        monkeypatch.setattr(CTCRecogniser, "advance", advance)
        client.append(speech(1.0))
        client.commit()
        events = client.events(".completed")
    assert text_of(events) == expected and "secret" not in failed["error"]["message"]


def test_a_client_that_reads_nothing(live, monkeypatch):
    """It is slowed down, then dropped; what is held for it is what the socket holds."""
    monkeypatch.setattr(module, "UNREAD", 0.5)
    client = Client(live, max_queue=1)
    client.configure(**MANUAL)
    client.socket.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    stop = threading.Event()

    def flood():
        while not stop.is_set():
            try:
                client.socket.send('{"type": "nonsense", "event_id": "%s"}' % ("x" * 5000))
            except ConnectionClosed:
                return

    sender = threading.Thread(target=flood, daemon=True)
    sender.start()
    until(lambda: live.service.active == 1)
    until(lambda: live.service.active == 0)
    nothing_left(live.service)
    stop.set()
    client.socket.socket.shutdown(socket.SHUT_RDWR)
    sender.join(SHORT)
    assert not sender.is_alive()
    monkeypatch.undo()
    assert right_text(live)


def test_faster_than_it_is_heard(live, gate, monkeypatch):
    """While the model is busy no more is read than `AHEAD`."""
    monkeypatch.setattr(module, "AHEAD", 2**17)
    with Client(live) as client:
        client.configure(**MANUAL)
        client.events("updated")
        sent = []

        def send():
            for _ in range(20):
                client.append(speech(0.5))
                sent.append(1)

        sender = threading.Thread(target=send, daemon=True)
        sender.start()
        assert gate.entered.wait(SHORT)
        service = live.service
        until(lambda: type(service.held).left - service.held.left > module.AHEAD)
        assert type(service.held).left - service.held.left < module.AHEAD + 40_000
        gate.set()
        sender.join(SHORT)
        assert len(sent) == 20
        client.send("input_audio_buffer.clear")
        client.events("cleared")
    nothing_left(live.service)


def test_times_that_are_over(live, monkeypatch):
    monkeypatch.setattr(module, "IDLE", 0.2)
    with Client(live) as client:
        code, reason, events = closed(client)
    assert code == 1008 and "Nothing came" in reason and events[-1]["error"]["code"] == "session_idle"
    monkeypatch.undo()
    monkeypatch.setattr(live.service.limits, "audio_seconds", 0.5)
    with Client(live) as client:
        code, _, events = closed(client)
    assert code == 1008 and events[-1]["error"]["code"] == "session_expired"
    with Client(live) as client:
        client.append(silence(1.0))
        assert closed(client)[2][-1]["error"]["code"] == "session_expired"
    nothing_left(live.service)


@pytest.mark.parametrize("too_long", [True, False])
def test_the_last_item_of_a_session_that_expires(live, monkeypatch, too_long):
    monkeypatch.setattr(live.service.limits, "audio_seconds", 1.5)
    with Client(live) as client:
        client.configure(**MANUAL)
        client.append(speech(1.0))
        if too_long:
            client.append(speech(1.0))
        code, _, events = closed(client)
    assert code == 1008 and text_of(events)
    assert [e["type"].rpartition(".")[2] for e in events[-2:]] == ["completed", "error"]
    assert events[-1]["error"]["code"] == "session_expired"
    nothing_left(live.service)


def test_secrets_of_a_key_have_an_end():
    secrets = ClientSecrets()
    for _ in range(MOST_OF_A_KEY):
        secrets.add(60, 0, None)
    with pytest.raises(ApiError, match="Too many client secrets"):
        secrets.add(60, 0, None)
    value, _ = secrets.add(60, 1, None)  # of somebody else
    assert secrets.get(value) and len(secrets._secrets) == MOST_OF_A_KEY + 1


def test_large_events(live, monkeypatch):
    with Client(live) as client:
        client.configure(**MANUAL)
        client.events("updated")
        monkeypatch.setattr(module, "APPEND_BYTES", 1000)
        client.append(silence(0.1))
        assert "larger than" in client.events("error")[-1]["error"]["message"]
        monkeypatch.setattr(live.service.held, "left", 1000)
        client.append(silence(0.1))
        assert closed(client)[0] == 1013
    assert live.service.held.left == 1000


def test_a_server_that_stops(serve, chunks):
    server = serve(chunks)
    with Client(server) as client:
        client.configure(**MANUAL)
        client.append(speech(1.0))
        client.events("updated")
        server.server.handle_exit(15, None)
        code, reason, events = closed(client)
    assert code == 1001 and "stopping" in reason
    assert [e["type"].rpartition(".")[2] for e in events[-2:]] == ["completed", "error"] and text_of(events)
    server.thread.join(SHORT)
    assert not server.thread.is_alive()
