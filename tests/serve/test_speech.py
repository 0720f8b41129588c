"""Speech by the unmodified openai client: the same samples as `stentor speak`."""

import base64
import io
import json
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
import soundfile
from realtime import until

from stentor.audio.io import read
from stentor.inference.speak.voice import Voice, save_voice

RATE = 16000
SHORT = "one two three."
LONG = " ".join([f"{word} the quick brown fox jumps over a lazy dog, ok." for word in ("one", "two", "three", "four")])


@pytest.fixture(scope="module")
def speaks(voiced, open_server):
    """A server of a model with the voice `anna`, whose long texts have several pieces."""
    folder = voiced("anna")
    path = folder / "training_config.json"
    config = json.loads(path.read_text())
    config["task"]["generation"] = {"steps": 1, "chunk_duration": 2.9, "chunk_threshold": 0.0}
    path.write_text(json.dumps(config))
    server = open_server(folder)
    server.folder, server.ask = folder, asking(server)
    return server


def asking(server):
    """The function that asks a server for speech."""

    def ask(text=SHORT, voice="default", **fields):
        extra = {name: fields.pop(name) for name in ("seed", "language") if name in fields}
        return server.client.audio.speech.create(model="voice", input=text, voice=voice, extra_body=extra, **fields)

    return ask


def samples(content: bytes) -> np.ndarray:
    return soundfile.read(io.BytesIO(content), dtype="int16")[0]


def spoken(run, folder, tmp_path, text, *options) -> np.ndarray:
    out = tmp_path / "alone.wav"
    code, _, err = run("speak", folder, text, "--out", out, "--device", "cpu", "--force", *options)
    assert code == 0, err
    return samples(out.read_bytes())


def test_the_samples_of_the_command(speaks, run, tmp_path):
    alone = spoken(run, speaks.folder, tmp_path, SHORT)
    answer = speaks.ask(response_format="wav")
    assert answer.response.headers["content-type"] == "audio/wav"
    content = answer.content
    assert np.array_equal(samples(content), alone) and soundfile.info(io.BytesIO(content)).samplerate == RATE
    assert int.from_bytes(content[40:44], "little") == len(content) - 44 == 2 * len(alone)

    options = ["--voice", "anna", "--speed", 1.5, "--seed", 7, "--language", "en"]
    alone = spoken(run, speaks.folder, tmp_path, LONG, *options)
    fields = {"speed": 1.5, "seed": 7, "language": "en", "response_format": "wav"}
    for voice in ("anna", {"id": "anna"}):
        content = speaks.ask(LONG, voice, **fields).content
        assert content[40:44] == b"\xff" * 4 and np.array_equal(np.frombuffer(content[44:], "<i2"), alone)


def test_pieces_as_they_are_made(speaks, run, tmp_path):
    """Both ways of a stream, with the first piece as the voice of the others."""
    alone = spoken(run, speaks.folder, tmp_path, LONG, "--stream")
    create = speaks.client.audio.speech.with_streaming_response.create
    fields = {"model": "voice", "input": LONG, "voice": "default", "response_format": "wav"}
    with create(**fields, stream_format="audio") as answer:
        parts = list(answer.iter_bytes())
    assert np.array_equal(np.frombuffer(b"".join(parts)[44:], "<i2"), alone)

    with create(**fields, stream_format="sse") as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [json.loads(line[6:]) for line in answer.iter_lines() if line.startswith("data: ")]
    assert {e["type"] for e in events[:-1]} == {"speech.audio.delta"} and len(events) > 2
    audio = b"".join(base64.b64decode(e["audio"]) for e in events[:-1])
    assert np.array_equal(np.frombuffer(audio[44:], "<i2"), alone)
    usage = events[-1]["usage"]
    assert events[-1]["type"] == "speech.audio.done"
    assert usage["total_tokens"] == usage["input_tokens"] + usage["output_tokens"] > usage["output_tokens"] > 0


@pytest.mark.parametrize("kind", ["mp3", "opus", "flac", "aac", "pcm"])
def test_formats(speaks, kind, tmp_path):
    """Of a text of one piece, which is one file, and of several, which are a stream."""
    if kind == "aac":
        pytest.importorskip("av")
    for text in (SHORT, LONG):
        alone = len(np.frombuffer(speaks.ask(text, response_format="wav").content[44:], "<i2")) / RATE
        content = speaks.ask(text, response_format=kind).content
        (tmp_path / "a").write_bytes(content)
        seconds = len(content) / 2 / 24000 if kind == "pcm" else len(read(tmp_path / "a", RATE)) / RATE
        assert seconds == pytest.approx(alone, abs=0.005 if kind in ("pcm", "flac") else 0.3)


def test_texts_together_are_as_alone(speaks, serve):
    texts = [SHORT, LONG, "seven eight nine.", "the quick brown fox."]
    alone = [speaks.ask(text, response_format="pcm").content for text in texts]
    ask = asking(serve(speaks.folder, devices=["cpu", "cpu"]))
    with ThreadPoolExecutor(len(texts)) as pool:
        assert list(pool.map(lambda text: ask(text, response_format="pcm").content, texts)) == alone


def test_a_short_text_is_not_kept_behind_a_long_one(speaks, monkeypatch):
    """The pieces of a long text that wait, and what is spoken while they do."""
    served = speaks.service.registry.models["voice"]
    monkeypatch.setattr(served.queue, "batch_seconds", 0.1)  # a piece at a time
    entered, release, order = threading.Event(), threading.Event(), []
    real = served.first.speaker.synthesize

    def synthesize(pieces):
        order.extend(piece.text for _, piece in pieces)
        entered.set()
        assert release.wait(30)
        real(pieces)

    monkeypatch.setattr(served.first.speaker, "synthesize", synthesize)
    with ThreadPoolExecutor(2) as pool:
        pool.submit(speaks.ask, LONG, "anna")
        assert entered.wait(30)
        pool.submit(speaks.ask, "yes!", "anna")
        until(lambda: len(served.queue) == 2)
        release.set()
    assert "yes" in order[1] and len(order) > 3


def test_a_client_that_goes_frees_its_place(speaks, monkeypatch):
    served = speaks.service.registry.models["voice"]
    monkeypatch.setattr(served.queue, "batch_seconds", 0.1)
    passed = threading.Semaphore(2)
    real = served.first.speaker.synthesize
    monkeypatch.setattr(served.first.speaker, "synthesize", lambda pieces: passed.acquire() and real(pieces))
    create = speaks.client.audio.speech.with_streaming_response.create
    with create(model="voice", input=LONG, voice="default", response_format="pcm", stream_format="audio") as answer:
        parts = answer.iter_bytes(10)  # the client closes the connection with it
        assert next(parts)
        assert speaks.service.active == 1
    until(lambda: speaks.service.active == 0)
    assert len(served.queue) == 0
    passed.release(100)
    assert speaks.ask(response_format="pcm").content


def test_a_voice_that_is_saved_anew(speaks, tmp_path):
    kept = shutil.copytree(speaks.folder / "voices", tmp_path / "voices")
    before = speaks.ask(voice="anna", response_format="pcm").content
    codec = speaks.service.registry.models["voice"].first.speaker.codec
    codes = codec.encode([np.random.default_rng(1).normal(0, 0.3, 2 * RATE).astype(np.float32)])[0]
    save_voice(Voice(codes, "four five", "en", "anna.wav"), speaks.folder / "voices" / "anna", codec)
    assert speaks.ask(voice="anna", response_format="pcm").content != before
    shutil.copytree(kept, speaks.folder / "voices", dirs_exist_ok=True)
    assert speaks.ask(voice="anna", response_format="pcm").content == before


def test_null_is_what_is_not_set(speaks):
    fields = dict.fromkeys(("instructions", "response_format", "speed", "stream_format", "language", "seed"))
    body = {"model": "voice", "input": SHORT, "voice": "anna", **fields}
    answer = speaks.http.post("/v1/audio/speech", json=body)
    assert answer.status_code == 200 and answer.content == speaks.ask(voice="anna").content


WRONG = [
    ({"text": " "}, "input", "empty"),
    ({"text": "one " * 1100}, "input", "4,096"),
    ({"text": "ящик"}, "input", "knows none of its letters"),
    ({"voice": "alloy"}, "voice", "known: anna, default"),
    ({"voice": {"id": "alloy"}}, "voice", "known: anna, default"),
    ({"voice": "../voices/anna"}, "voice", "no voice"),
    ({"voice": "a low voice", "instructions": "slow"}, "instructions", "not in both"),
    ({"instructions": "low " * 200}, "instructions", "the limit is 500"),
    ({"speed": 5.0}, "speed", "from 0.25 to 4"),
    ({"response_format": "docx"}, "response_format", "'mp3', 'opus'"),
    ({"stream_format": "none"}, "stream_format", "'audio', 'sse'"),
    ({"seed": -1}, "seed", "of at least 0"),
]


def test_what_is_refused(speaks, monkeypatch):
    for fields, param, words in WRONG:
        with pytest.raises(openai.BadRequestError) as refusal:
            speaks.ask(**fields)
        assert refusal.value.param == param and words in refusal.value.message
    with pytest.raises(openai.NotFoundError):
        speaks.client.audio.speech.create(model="tts-1", input=SHORT, voice="alloy")
    with pytest.raises(openai.BadRequestError, match="does not transcribe"):
        speaks.client.audio.transcriptions.create(model="voice", file=("a.wav", b"RIFF"))
    post = speaks.http.post
    assert post("/v1/audio/speech", content=b"{").json()["error"]["type"] == "invalid_request_error"
    assert post("/v1/audio/speech", content=b"x" * (2**22 + 1)).status_code == 413
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(openai.BadRequestError, match=r"stentor\[av\]") as refusal:
        speaks.ask(response_format="aac")
    assert refusal.value.param == "response_format"


def test_a_described_voice(speaks):
    one = speaks.ask(voice="quick fox", response_format="pcm").content
    assert one == speaks.ask(instructions="quick fox", response_format="pcm").content


def test_voices_and_models(speaks):
    (listed,) = speaks.http.get("/v1/audio/voices").json()["data"]
    assert (listed["id"], listed["name"], listed["model"], listed["language"]) == ("anna", "anna", "voice", "en")
    assert listed["object"] == "audio.voice" and listed["text"] == "one two three" and listed["seconds"] == 2.0
    assert openai.types.audio.Voice.model_validate(listed).id == "anna"
    assert speaks.http.get("/health").json()["status"] == "ok"


def test_speech_that_fails_halfway(speaks, monkeypatch):
    served = speaks.service.registry.models["voice"]
    codec = served.first.speaker.codec
    real, calls = codec.decode, []

    def decode(codes):
        calls.append(codes)
        if len(calls) > 1:
            raise RuntimeError("the codec fails")
        return real(codes)

    monkeypatch.setattr(codec, "decode", decode)
    with pytest.raises(openai.APIConnectionError):
        speaks.ask(LONG, response_format="pcm")
    with pytest.raises(openai.InternalServerError):
        speaks.ask(SHORT, response_format="pcm")
    monkeypatch.undo()
    assert speaks.ask(SHORT, response_format="pcm").content
