"""Streams of the page's microphone: pieces of audio in, events out, and when a stream is forgotten."""

import numpy as np
import pytest
from stand_in import exported

from stentor.errors import ConfigError
from stentor.inference.stream.base import Hypothesis, Recogniser
from stentor.inference.stream.stream import Stream
from stentor.studio.runs import routes as live
from stentor.studio.runs import try_model
from stentor.studio.texts import texts

RATE = 16000


class Counting(Hypothesis):
    """A word for each second of audio, and how many tenths there are of the next."""

    def __init__(self):
        self.words, self.partial, self._samples, self._known = [], "", 0, 0

    def add(self, samples):
        self._samples += len(samples)

    def flush(self):
        pass

    finish = flush

    @property
    def ready(self):
        return self._samples // (RATE // 10) > self._known

    def read(self):
        self._known = self._samples // (RATE // 10)
        if self._known % 10 == 0:
            second = self._known // 10
            times = {"start": second - 1.0, "end": float(second), "confidence": 0.5}
            self.words.append({"word": f"second-{second}", **times})
        self.partial = "." * (self._known % 10)


class Counter(Recogniser):
    rate = RATE

    def open(self):
        return Counting()

    def advance(self, hypotheses):
        for hypothesis in hypotheses:
            hypothesis.read()


class Listener:
    """A model that streams; `asked` are the rate and language."""

    asked = None

    def stream(self, rate, language):
        self.asked = (rate, language)
        return Stream(Counter(), rate)


@pytest.fixture
def model(client, monkeypatch):
    """The model of the run `mine`."""
    model = Listener()
    exported(client.projects, "mine", {"type": "ctc"})
    monkeypatch.setattr(try_model.MODEL_CACHE, "get", lambda source, device: model)
    streams = live.LiveStreams()
    monkeypatch.setattr(live, "STREAMS", streams)
    yield model
    if streams._timer:
        streams._timer.cancel()


def pcm(seconds, rate):
    return np.zeros(round(seconds * rate), "<i2").tobytes()


def opened(client, rate=RATE):
    done = client.post("/studio/live", json={"run": "mine", "language": "en", "rate": rate})
    assert done.status_code == 200, done.text
    return done.json()["name"]


def look():
    """As the timer does."""
    live.STREAMS._timer.cancel()
    live.STREAMS._look()


@pytest.mark.parametrize("rate", [RATE, 48000])
def test_words_come_with_the_pieces(client, model, rate):
    name = opened(client, rate)
    assert model.asked == (rate, "en")
    events = []
    for _ in range(9):
        done = client.post(f"/studio/live/{name}", content=pcm(0.25, rate))
        events.append(done.json()["events"])
    words = [[e for e in piece if e["type"] == "word"] for piece in events]
    late = rate != RATE  # the resampler holds some samples back
    assert [w["word"] for piece in words[:4] for w in piece] == ([] if late else ["second-1"])
    events.append(client.post(f"/studio/live/{name}?last", content=pcm(1.0, rate)).json()["events"])
    words = [e for piece in events for e in piece if e["type"] == "word"]
    assert [w["word"] for w in words] == ["second-1", "second-2", "second-3"]
    assert words[1] == words[1] | {"start": 1.0, "end": 2.0, "confidence": 0.5} and words[1]["time"] >= 2.0
    assert events[-1][-1] == {"type": "partial", "text": "..", "time": 3.2}
    gone = client.post(f"/studio/live/{name}", content=b"")
    assert (gone.status_code, gone.json()["error"]) == (400, texts()["live_gone"])


def test_a_page_that_went_is_forgotten(client, model, monkeypatch):
    clock = [100.0]
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    first = opened(client)
    live.STREAMS.streams[first].last = clock[0]
    clock[0] += live.IDLE - 1
    second = opened(client)
    live.STREAMS.streams[second].last = clock[0]
    assert set(live.STREAMS.streams) == {first, second}
    clock[0] += 2
    look()
    assert set(live.STREAMS.streams) == {second} and live.STREAMS._timer.daemon
    clock[0] += live.IDLE + 1
    look()
    assert not live.STREAMS.streams and live.STREAMS._timer is None
    names = []
    for _ in range(live.MOST + 2):
        clock[0] += 1
        names.append(opened(client))
        live.STREAMS.streams[names[-1]].last = clock[0]
    assert set(live.STREAMS.streams) == set(names[2:])


def test_a_stream_at_work_is_not_forgotten(client, model, monkeypatch):
    """A slow model, or one that another page has, may take longer than a page may be silent."""
    clock, name = [100.0], opened(client)
    monkeypatch.setattr(live.time, "monotonic", lambda: clock[0])
    feed = Stream.feed

    def slow(self, samples):
        clock[0] += live.IDLE + 1
        look()
        return feed(self, samples)

    monkeypatch.setattr(Stream, "feed", slow)
    for _ in range(2):
        assert client.post(f"/studio/live/{name}", content=pcm(0.25, RATE)).status_code == 200
        clock[0] += live.IDLE - 1
        look()


def test_what_is_refused(client, model, people, tmp_path):
    name = opened(client)
    assert client.post("/studio/live", content=b"[]").json()["error"] == texts()["live_gone"]
    for wrong in ({"rate": 0}, {"rate": "16000"}, {"language": 3}, {"run": None}):
        asked = {"run": "mine", "language": "en", "rate": RATE} | wrong
        assert client.post("/studio/live", json=asked).status_code == 400
    unknown = client.post("/studio/live", json={"run": "../mine", "rate": RATE})
    assert unknown.status_code == 400
    large = client.post(f"/studio/live/{name}", content=b"\0" * (live.MOST_BYTES + 1))
    assert large.status_code == 413
    assert client.post(f"/studio/live/{name}", content=b"\0\0\0").json()["events"] == []  # half a sample
    client.headers.pop("X-Stentor")
    assert client.post(f"/studio/live/{name}", content=b"").status_code == 403


def test_nobody_elses_stream(people, model, tmp_path):
    both = people(tmp_path / "two", {"anna": "password-a", "ben": "password-b"})
    anna, ben = (both.accounts.projects(person) for person in ("anna", "ben"))
    name = live.STREAMS.add(live.LiveStream(anna, Stream(Counter())))
    assert live.STREAMS.get(name, anna, remove=False).person is anna
    with pytest.raises(ConfigError, match="begin again"):
        live.STREAMS.get(name, ben, remove=True)
    assert live.STREAMS.get(name, anna, remove=True)


def test_a_model_of_another_task(client, model):
    def refuse(rate, language):
        raise ConfigError("mine was trained for the task diarize, not to transcribe.")

    model.stream = refuse
    done = client.post("/studio/live", json={"run": "mine", "language": None, "rate": RATE})
    assert done.status_code == 400 and "trained for the task diarize" in done.json()["error"]
