"""/v1/realtime: events of a session, by a bare client and by the unmodified one of OpenAI."""

import pytest
from realtime import RATE, Client, speech, streaming_model, text_of, words_of

import stentor

MANUAL = {"turn_detection": None}


@pytest.fixture
def server(serve, tmp_path):
    return serve(streaming_model(tmp_path / "model"))


def test_words_are_those_of_the_stream(server, tmp_path):
    audio = speech(4.0)
    stream = stentor.load(tmp_path / "model", "cpu").stream(RATE)
    samples = audio.astype("f4") / 32768
    expected = [e for e in [*stream.feed(samples), *stream.finish()] if e["type"] == "word"]
    with Client(server) as client:
        client.configure(**MANUAL)
        client.append(audio, 37)
        client.commit()
        events = client.events(".completed")
    print([e["type"] for e in events], events[-1])
    assert [w["word"] for w in words_of(events)] == [w["word"] for w in expected]
    assert text_of(events) == events[-1]["transcript"] == " ".join(w["word"] for w in expected)
