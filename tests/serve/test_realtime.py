"""/v1/realtime: what is heard, by a bare client: the words are those of `stentor transcribe --stream`."""

import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import soundfile
from realtime import RATE, SHORT, Client, silence, speech, text_of, until, words_of

import stentor
from stentor.audio.activity import EnergyDetector
from stentor.inference.stream.chunked import CTCRecogniser
from stentor.serve.realtime.session import Turns
from stentor.serve.realtime.settings import G711_RATE, Settings, TurnDetection

MANUAL = {"turn_detection": None}


def heard(live, audio, pieces=1, **settings):
    """Events of audio that is committed."""
    with Client(live) as client:
        client.configure(**MANUAL, **settings)
        client.append(audio, pieces)
        client.commit()
        return client.events(".completed")


def streamed(folder, audio, silence=0.8, delay=None):
    """Words of the stream of samples at 24 kHz."""
    stream = stentor.load(folder, "cpu").stream(RATE, delay=delay, silence=silence)
    samples = audio.astype(np.float32) / 2**15
    return [e for e in [*stream.feed(samples), *stream.finish()] if e["type"] == "word"]


@pytest.mark.parametrize("pieces", [1, 23])
def test_words_are_those_of_the_stream(live, chunks, pieces):
    audio = speech(4.0)
    events, expected = heard(live, audio, pieces), streamed(chunks, audio)
    assert words_of(events) == [{k: e[k] for k in ("word", "start", "end", "confidence")} for e in expected]
    assert text_of(events) == events[-1]["transcript"] == " ".join(e["word"] for e in expected)
    assert events[-1]["words"] == words_of(events) and events[-1]["usage"] == {"type": "duration", "seconds": 4.0}
    kinds = [e["type"].rpartition(".")[2] for e in events]
    first = kinds.index("delta")
    assert kinds[:first] == ["created", "updated"]  # words come before they are committed
    assert [kind for kind in kinds if kind != "delta"][2:] == ["committed", "added", "done", "completed"]
    assert len({e["item_id"] for e in events if "item_id" in e}) == 1


@pytest.mark.parametrize("kind", ["PCM_16", "ULAW", "ALAW"])
def test_formats_give_the_words_of_the_command(live, chunks, tmp_path, run, kind):
    rate, path = RATE if kind == "PCM_16" else G711_RATE, tmp_path / "a.wav"
    soundfile.write(path, speech(3.0, rate), rate, kind)
    content = path.read_bytes()
    data = content[content.index(b"data") + 8 :]
    kinds = {
        "PCM_16": {"type": "audio/pcm", "rate": RATE},
        "ULAW": {"type": "audio/pcmu"},
        "ALAW": {"type": "audio/pcma"},
    }
    events = heard(live, data, 7, format=kinds[kind])
    code, out, _ = run("transcribe", chunks, path, "--stream", "--format", "json", "--device", "cpu")
    printed = [json.loads(line) for line in out.splitlines()]
    words = [e["word"] for e in printed if e["type"] == "word"]
    assert code == 0 and [w["word"] for w in words_of(events)] == words and len(words) > 3


def test_each_utterance_is_an_item(live, chunks):
    parts = [silence(1.0), speech(2.0), silence(1.0), speech(1.5, seed=3), silence(1.0)]
    audio = np.concatenate(parts)
    with Client(live) as client:
        client.configure(turn_detection={"type": "server_vad", "prefix_padding_ms": 200, "silence_duration_ms": 400})
        client.append(audio, 31)
        events = [*client.events(".completed"), *client.events(".completed")]
    of = {
        kind: [e for e in events if e["type"].endswith(kind)] for kind in ("started", "stopped", "committed", ".done")
    }
    for number, (start, end) in enumerate([(1.0, 3.0), (4.0, 5.5)]):
        begun, ended = of["started"][number], of["stopped"][number]
        assert begun["audio_start_ms"] == pytest.approx(1000 * start - 200, abs=60)
        assert ended["audio_end_ms"] == pytest.approx(1000 * end + 400, abs=60)
        item = [e for e in events if e.get("item_id") == begun["item_id"]]
        assert item[0] is begun and item[-1]["type"].endswith(".completed")
        first, last = (round(RATE * ms / 1000) for ms in (begun["audio_start_ms"], ended["audio_end_ms"]))
        expected = streamed(chunks, audio[first:last], None)
        assert item[-1]["transcript"] == " ".join(e["word"] for e in expected) and len(expected) > 3
        for word, other in zip(item[-1]["words"], expected, strict=True):
            assert word["start"] == pytest.approx(other["start"] + first / RATE, abs=0.002)
    ids = [e["item_id"] for e in of["committed"]]
    assert [e["previous_item_id"] for e in of["committed"]] == [None, ids[0]]
    assert [e["item"]["id"] for e in of[".done"]] == ids


@pytest.mark.parametrize("rate", [8025, 22050, 44100])
def test_turns_at_rates_without_whole_blocks(rate):
    audio = np.concatenate([silence(10.0, rate), speech(1.0, rate), silence(1.0, rate)]).astype(np.float32) / 2**15
    turns = Turns(rate, TurnDetection(), 0.0, EnergyDetector(6))
    parts = [part for part, _ in turns.split(audio)]
    assert parts.count("begin") == parts.count("end") == 1
    assert turns.seconds + len(turns.rest) / rate == pytest.approx(len(audio) / rate)


def test_a_commit_that_comes_too_early_changes_nothing(live):
    with Client(live) as client:
        client.configure(turn_detection={"type": "server_vad", "prefix_padding_ms": 0})
        client.append(silence(1.0))
        begun = []
        for block in np.split(speech(1.0), 50):
            client.append(block)
            client.commit()  # nothing is there, or less than 100 ms
            begun += [e for e in client.events("error") if e["type"].endswith("speech_started")]
            if begun:
                break
        client.append(speech(1.0))
        client.commit()
        events = client.events(".completed")
    assert not any(e["type"].endswith("speech_started") for e in events)
    assert events[-1]["item_id"] == begun[0]["item_id"] and events[-1]["usage"]["seconds"] == pytest.approx(1.08)


def test_one_language_by_either_name():
    def settings(**fields):
        return Settings.read({"audio": {"input": {"transcription": fields}}})

    old = settings(model="m", language="en")
    assert old.updated(settings(languages=["de"])).input.transcription.language == "de"
    assert old.updated(settings(prompt="x")).input.transcription.language == "en"


def test_commit_and_clear_within_an_utterance(live):
    with Client(live) as client:
        client.append(np.concatenate([silence(0.5), speech(1.0)]))
        client.send("input_audio_buffer.clear")
        cleared = client.events(".cleared")
        assert any(e["type"].endswith("speech_started") for e in cleared)
        client.commit()  # nothing is there
        assert client.events("error")[-1]["error"]["code"] == "input_audio_buffer_commit_empty"
        client.append(np.concatenate([silence(0.5), speech(1.0)]))
        client.commit()
        completed = client.events(".completed")[-1]
    assert completed["usage"]["seconds"] == pytest.approx(1.3, abs=0.08)
    assert completed["words"][0]["start"] > 1.5  # of the session


def test_delays_prompts_and_log_probabilities(live, chunks):
    audio = speech(3.0)
    for delay, seconds in (("minimal", 0.16), ("xhigh", 2.56), (0.64, 0.64)):
        events = heard(live, audio, transcription={"model": "model", "delay": delay})
        assert [w["word"] for w in words_of(events)] == [e["word"] for e in streamed(chunks, audio, delay=seconds)]
    with Client(live, "intent=transcription") as client:
        include = ["item.input_audio_transcription.logprobs"]
        asked = {"input": {"transcription": {"model": "model", "partials": True}, **MANUAL}}
        client.send("session.update", session={"type": "transcription", "audio": asked, "include": include})
        client.append(audio)
        client.commit()
        events = client.events(".completed")
    partials = [e["partial"] for e in events if e.get("partial")]
    assert len(partials) > 3 and text_of([e for e in events if "partial" not in e]) == events[-1]["transcript"]
    for word, token in zip(events[-1]["words"], events[-1]["logprobs"], strict=True):
        assert np.exp(token["logprob"]) == pytest.approx(word["confidence"]) and token["token"] == word["word"]
    with Client(live) as client:
        client.configure(transcription={"model": "model", "prompt": "ab", "keywords": ["ab"]})
        shown = client.events("session.updated")[-1]["session"]
        assert [" ".join(warning.split()[:5]) for warning in shown["warnings"]] == [
            "This model takes no prompt",
            "This model takes no keywords",
        ]
    wrong = {"delay": 9.0, "language": "klingonish", "languages": ["klingonish"]}
    for field, value in wrong.items():
        with Client(live) as client:
            client.configure(transcription={"model": "model", field: value})
            assert client.events("error")[-1]["error"]["param"].startswith("session.audio.input.transcription")


def test_sessions_share_their_steps(live, monkeypatch):
    """While the model is busy the others wait, and are one batch then; their words are those alone."""
    audios = [speech(2.0, seed=seed) for seed in range(5)]
    alone = [text_of(heard(live, audio)) for audio in audios]
    advance, batches, release = CTCRecogniser.advance, [], threading.Event()

    def counted(self, hypotheses):
        batches.append(len(hypotheses))
        assert release.wait(SHORT)
        return advance(self, hypotheses)

    monkeypatch.setattr(CTCRecogniser, "advance", counted)
    with ThreadPoolExecutor(len(audios)) as pool:
        texts = pool.map(lambda audio: text_of(heard(live, audio)), audios)
        queue = live.service.registry.models["model"].queue
        until(lambda: batches and batches[0] + len(queue) == len(audios))
        release.set()
        assert list(texts) == alone
    assert batches[1] >= len(audios) - batches[0]


def test_copies_of_a_model_share_sessions(serve, chunks):
    """On a CPU a model is there twice: whichever copy does a step, the words are those of one."""
    audios = [speech(1.5, seed=seed) for seed in range(4)]
    expected = [" ".join(e["word"] for e in streamed(chunks, audio)) for audio in audios]
    server = serve(chunks, devices=("cpu", "cpu"))
    with ThreadPoolExecutor(len(audios)) as pool:
        assert list(pool.map(lambda audio: text_of(heard(server, audio, 5)), audios)) == expected
    assert len(server.service.registry.workers) == 2


def test_a_model_that_cannot_stream(worded, tone):
    """By LocalAgreement; a file over HTTP beside it."""
    path = tone("a.wav", (2.0, -20), rate=RATE)
    with Client(worded) as client:
        client.configure(transcription={"delay": 1e-3})  # the model would be asked 50 times a second
        assert "0.1 to 10 s" in client.events("error")[-1]["error"]["message"]
        client.configure(**MANUAL, transcription={"delay": "minimal"})
        client.append(soundfile.read(path, dtype="int16")[0], 5)
        assert worded.client.audio.transcriptions.create(file=path, model="model").text == "level 20"
        client.commit()
        events = client.events(".completed")
    assert text_of(events) == "level 20"
    assert words_of(events)[0]["start"] == 0.1


def test_the_beta_s_update(live):
    """OpenAI's clients of 2025 send it; the answer has their name as well."""
    sent = {"input_audio_format": "g711_ulaw", "input_audio_transcription": {"model": "model"}, "turn_detection": None}
    with Client(live, "intent=transcription") as client:
        client.send("transcription_session.update", session=sent)
        shown = client.events("session.updated")[-1]["session"]["audio"]["input"]
        assert (shown["format"], shown["turn_detection"]) == ({"type": "audio/pcmu", "rate": 8000}, None)
        client.send("transcription_session.update", session={**sent, "input_audio_format": "pcm8"})
        assert "'audio.input.format.type' must be" in client.events("error")[-1]["error"]["message"]
