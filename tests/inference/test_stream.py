"""Streams: events of recordings while they come, with recognisers that are functions, and by the command line."""

import io
import json
import signal
import wave
from itertools import chain, pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import stentor
from stentor.audio.activity import EnergyDetector
from stentor.commands.transcribe_live import read_standard_input
from stentor.data.batch import Example
from stentor.errors import ConfigError, StentorError
from stentor.inference.options import DecodingOptions
from stentor.inference.stream.agreement import AgreementRecogniser
from stentor.inference.stream.chunked import ChunkedHypothesis, CTCHypothesis, CTCRecogniser
from stentor.inference.stream.stream import Stream
from stentor.inference.stream.words import Token, TokenWords
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.decoding.ctc import merge
from stentor.models.transformer.build import assemble, finish, processor_for
from stentor.models.transformer.config import Transformer
from stentor.models.transformer.processor import TransformerProcessor

RATE = 16000
WORD, PAUSE = 0.3, 0.1
"""Seconds of each word and of the silence behind it."""


def spoken(words, silence=0.0):
    """Words of tones, whose amplitudes are their names in hundredths; silence behind the last of them."""
    time = np.arange(round(WORD * RATE)) / RATE
    parts = [np.pad(w / 100 * np.sin(2 * np.pi * 500 * time), (0, round(PAUSE * RATE))) for w in words]
    return np.concatenate([*parts, np.zeros(round(silence * RATE))]).astype(np.float32)


class Listener:
    """A transcriber of such words. Of one that is cut off it says something else."""

    rate, longest, context, prompt, options = RATE, 30.0, None, None, DecodingOptions()

    def __init__(self, timed=True):
        self.timed, self.asked = timed, []
        self.bundle = SimpleNamespace(family=SimpleNamespace(decoding_options=lambda: {"prompt"}))

    def predict(self, examples):
        self.asked += [(len(e.audio) / RATE, e.extra.get("prompt")) for e in examples]
        return [self._words(e.audio) for e in examples]

    def _words(self, audio):
        loud = np.abs(audio) > 0.005
        loud = np.convolve(loud, np.ones(161), "same") > 0
        edges = np.flatnonzero(np.diff(np.concatenate([[0], loud, [0]]))).reshape(-1, 2)
        words = []
        for start, end in edges:
            name = round(100 * np.abs(audio[start:end]).max())
            cut_off = end - start < 0.9 * WORD * RATE
            word = f"{name}{'?' * len(words) if cut_off else ''}{'half' if cut_off else ''}"
            words.append({"word": word, "start": start / RATE, "end": end / RATE, "confidence": 1.0})
        return {"text": " ".join(w["word"] for w in words), "words": words, "failed": []}


def said(events):
    return [e["word"] for e in events if e["type"] == "word"]


@pytest.mark.parametrize("timed", [True, False])
def test_words_that_answers_agree_on(timed):
    names = list(range(10, 90, 5))
    stream = Stream(AgreementRecogniser(Listener(timed), step=0.25))
    events = stream.feed(spoken(names)) + stream.finish()
    assert said(events) == [str(name) for name in names]
    partials = [e["text"] for e in events if e["type"] == "partial"]
    assert any("half" in text for text in partials) and partials[-1] == ""
    words = [e for e in events if e["type"] == "word"]
    for i, word in enumerate(words):
        if timed:
            assert word["start"] == pytest.approx(i * (WORD + PAUSE), abs=0.02)
            assert word["end"] == pytest.approx(i * (WORD + PAUSE) + WORD, abs=0.02)
            assert word["end"] <= word["time"] + 0.02 <= word["end"] + 0.8
        else:
            assert word["start"] is None


def test_the_buffer_of_a_long_recording_is_bounded():
    listener = Listener()
    stream = Stream(AgreementRecogniser(listener, step=1.0, keep=4.0))
    names = [10 + i % 80 for i in range(200)]
    events = stream.feed(spoken(names)) + stream.finish()
    assert said(events) == [str(name) for name in names]
    assert max(seconds for seconds, _ in listener.asked) < 7
    prompt = listener.asked[-1][1]
    assert len(prompt.split()) == 30 and prompt in " ".join(map(str, names))


@pytest.mark.parametrize("level", [0.0, 1e-3])
def test_nothing_is_asked_about_silence(level):
    class Guesser(Listener):
        def _words(self, audio):
            answer = super()._words(audio)
            return answer if answer["text"] else {"text": "you", "words": [], "failed": []}

    listener = Guesser()
    stream = Stream(AgreementRecogniser(listener, step=0.5), silence=0.5)
    noise = np.random.default_rng(0).normal(0, level, 20 * RATE).astype(np.float32)
    assert stream.feed(noise) == [] and not listener.asked
    events = stream.feed(spoken([20, 30, 40], 1.0)) + stream.feed(noise) + stream.finish()
    assert said(events) == ["20", "30", "40"]
    assert next(e for e in events if e["type"] == "word")["start"] == pytest.approx(20.0, abs=0.02)


def test_speech_ends_after_silence():
    stream = Stream(AgreementRecogniser(Listener(), step=5.0), silence=0.5)
    events = stream.feed(np.concatenate([spoken([20, 30], 1.5), spoken([40], 1.5)]))
    assert [e["type"] if e["type"] != "word" else e["word"] for e in events if e["type"] != "partial"] == [
        "20",
        "30",
        "end_of_speech",
        "40",
        "end_of_speech",
    ]
    first = next(e for e in events if e["type"] == "end_of_speech")
    assert first["time"] == pytest.approx(0.7 + 0.5, abs=0.06)
    assert stream.finish() == []


@settings(max_examples=8, deadline=None, derandomize=True)
@given(data=st.data(), rate=st.sampled_from([RATE, 24000, 8000]))
def test_events_do_not_depend_on_the_pieces(data, rate):
    audio = spoken([20, 30, 40, 50], 1.2)
    ends = sorted(data.draw(st.lists(st.integers(0, len(audio)), max_size=8)))
    events = []
    for cuts in (ends, []):
        stream = Stream(AgreementRecogniser(Listener(), step=0.4), rate)
        events.append([e for piece in np.split(audio, cuts) for e in stream.feed(piece)] + stream.finish())
    assert events[0] == events[1] != []


def test_streams_that_are_advanced_together():
    """By another recogniser than theirs, as by that of another thread: their events are those alone."""
    recordings = [spoken(names, 1.2) for names in ([20, 30, 40], [50, 60], [70, 80, 20, 30, 50])]
    recogniser = AgreementRecogniser(Listener(), step=0.4)
    alone = [Stream(recogniser, silence=0.5) for _ in recordings]
    expected = [stream.feed(audio) + stream.finish() for stream, audio in zip(alone, recordings)]
    streams = [Stream(recogniser, silence=0.5) for _ in recordings]
    steps = [chain(s.steps(audio), s.last_steps()) for s, audio in zip(streams, recordings)]
    events, together = [[] for _ in streams], []
    while any(steps):
        ready = []
        for i, step in enumerate(steps):
            while step is not None and (known := next(step, None)) is not streams[i].hypothesis:
                if known is None:
                    step = steps[i] = None
                else:
                    events[i].append(known)
            ready += [known] if step is not None else []
        together.append(len(ready))
        AgreementRecogniser(Listener(), step=0.4).advance(ready)
    assert events == expected and max(together) == 3


PARAKEET = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
PARAKEET |= {"subsampling_factor": 4, "subsampling_conv_channels": 8, "num_mel_bins": 40}


@pytest.fixture(params=["transformer", "ctc"])
def ctc(request):
    torch.manual_seed(0)
    if request.param == "ctc":
        config = {"model_type": "parakeet_ctc", "encoder_config": PARAKEET}
        family = Family.model_validate({"type": "ctc", "config": config, "streaming": {}})
        bundle = family.build(TaskRequirements("transcribe", ("ctc",), lambda: ["a b c d"]))
        head = bundle.model.eval().requires_grad_(False).recogniser.ctc_head
        torch.nn.init.normal_(head.weight, std=9.0)
        noise = bundle.processor.collate([Example("", np.random.default_rng(1).normal(0, 0.1, RATE))], labels=False)
        head.bias -= bundle.model.log_probs(**noise.inputs)[0].mean((0, 1))
        return bundle
    features = {"normalize": "fixed", "stack": 4, "subsample": 4, "num_mel_bins": 40}
    layers = {"d_model": 32, "layers": 2, "conv_kernel": 5}
    family = Transformer.model_validate({"kind": "encoder", "streaming": {}, "features": features, "encoder": layers})
    bundle = finish(assemble(family, processor_for(family, None, " abcd"), None), False)
    torch.nn.init.normal_(bundle.model.ctc_head.weight, std=2.0)
    return bundle


@pytest.mark.parametrize("chunk", [0.08, 0.32, 1.0])
def test_ctc_writes_the_text_of_its_definition(ctc: Bundle, chunk):
    """The greedy path of the pass under the mask."""
    audio = np.random.default_rng(0).normal(0, 0.1, 5 * RATE).astype(np.float32)
    recogniser = CTCRecogniser(ctc, chunk, 2.56)
    stream = Stream(recogniser, silence=60)
    events = [e for piece in np.split(audio, [7, 9000, 9100, 50_000]) for e in stream.feed(piece)] + stream.finish()
    chunks = torch.tensor([[recogniser.encoder.chunk, recogniser.encoder.reach]])
    inputs = ctc.processor.collate([Example("", audio)], labels=False).inputs
    with torch.no_grad():
        if ctc.family.type == "ctc":
            log_probs, _ = ctc.model.log_probs(**inputs, chunks=chunks)
        else:
            log_probs = ctc.model.ctc_log_probs(ctc.model.encode(**inputs, chunks=chunks)[0])
    best, path = log_probs[0].max(-1)
    ids, *_ = merge(path.tolist(), best.tolist(), 0)
    assert said(events) == ctc.processor.decode(ids).split() and len(said(events)) > 3
    words = [e for e in events if e["type"] == "word"]
    assert all(a["end"] <= b["start"] + 1e-9 for a, b in pairwise(words))
    assert all(w["start"] < w["end"] <= w["time"] + chunk and 0 < w["confidence"] <= 1 for w in words)


def test_the_last_word_comes_where_nothing_is_left_behind_the_last_chunk():
    """With `snip_edges` all frames may have come before the end of the audio is known."""
    features = {"normalize": "fixed", "num_mel_bins": 40, "snip_edges": True}
    section = {"kind": "encoder", "streaming": {}, "features": features, "encoder": {"d_model": 32, "layers": 1}}
    family = Transformer.model_validate(section)
    bundle = finish(assemble(family, processor_for(family, None, " a"), None), False)
    head = bundle.model.ctc_head
    head.load_state_dict({"weight": torch.zeros_like(head.weight), "bias": torch.tensor([0.0, 0.0, 1.0])})
    events = []
    for samples in (81 * 320, 82 * 320):  # 160 frames are five chunks of 0.32 s
        stream = Stream(CTCRecogniser(bundle, 0.32, 2.56), silence=60)
        events.append(said(stream.feed(np.zeros(samples)) + stream.finish()))
    assert events == [["a"], ["a"]]


def test_letters_repeat_after_a_blank_and_across_chunks():
    encoder = SimpleNamespace(frame_seconds=0.1)
    hypothesis = CTCHypothesis(
        SimpleNamespace(ended=False, ready=False, encoder=encoder), TransformerProcessor(ctc=" ab").spell_classes
    )
    hypothesis.read([2, 2], [-0.5, 0.0])
    hypothesis.read([2, 0, 2], [0.0, 0.0, 0.0])
    assert hypothesis.partial == "aa" and hypothesis.words == []
    hypothesis.read([1], [0.0])
    assert hypothesis.words == [{"word": "aa", "start": 0.0, "end": 0.5, "confidence": 1.0}]


def as_wav(audio, channels=1):
    file = io.BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setnchannels(channels), writer.setsampwidth(2), writer.setframerate(RATE)
        writer.writeframes(np.repeat(audio, channels).astype("<i2").tobytes())
    return file.getvalue()


def piped(content):
    return io.BufferedReader(io.BytesIO(content))


@pytest.mark.parametrize("kind", ["PCM_U8", "PCM_16", "PCM_24", "PCM_32", "FLOAT", "DOUBLE"])
@pytest.mark.parametrize("container", ["WAV", "WAVEX"])
@pytest.mark.parametrize("length", ["stated", "unknown", "zero"])
def test_a_wav_on_standard_input(kind, container, length):
    audio = 0.5 * np.random.default_rng(0).uniform(-1, 1, (2001, 2))
    soundfile.write(file := io.BytesIO(), audio, 8000, kind, format=container)
    content = file.getvalue()
    if length == "stated":
        content += b"LIST\x04\x00\x00\x00abcd"
    else:  # as they are written into a pipe
        size = b"\xff\xff\xff\xff" if length == "unknown" else bytes(4)
        at = content.index(b"data") + 4
        content = b"RIFF" + size + content[8:at] + size + content[at + 4 :]
    rate, blocks = read_standard_input(piped(content), None, 1, RATE)
    assert rate == 8000
    np.testing.assert_allclose(np.concatenate([*blocks]), audio[:, 1], atol=0.01 if kind == "PCM_U8" else 1e-4)


@pytest.mark.parametrize("kind", ["raw", "wav", "stereo", "file"])
def test_the_command(run, export, tone, monkeypatch, kind):
    path = tone("a.wav", (2.5, -20), (1.5, None), (1.0, -20))
    audio = soundfile.read(path, dtype="int16")[0]
    content = audio.tobytes() if kind == "raw" else as_wav(audio, 2 if kind == "stereo" else 1)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))
    name = path if kind == "file" else "-"
    code, out, err = run("transcribe", export(), name, "--stream", "--format", "json", "--device", "cpu")
    assert (code, err) == (0, "")
    events = [json.loads(line) for line in out.splitlines()]
    assert said(events) == ["level", "20", "level", "20"]
    assert [e["type"] for e in events].count("end_of_speech") == 1
    code, out, _ = run("transcribe", export(path.parent / "b"), path, "--stream", "--device", "cpu")
    assert (code, out) == (0, "level 20\nlevel 20\n")


def test_the_last_words_come_when_it_is_interrupted(run, export, tone, monkeypatch):
    audio = soundfile.read(tone("a.wav", (2.5, -20)), dtype="int16")[0]

    class Microphone(io.BytesIO):
        def readinto(self, buffer):
            if not (count := super().readinto(buffer)):
                raise KeyboardInterrupt
            return count

    model = export()
    for content, expected in ((audio.tobytes(), "level 20\n"), (b"", "")):
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(Microphone(content))))
        code, out, err = run("transcribe", model, "-", "--stream", "--device", "cpu")
        assert (code, out, err) == (130, expected, "")


def test_an_interrupt_ends_no_step_in_its_middle(run, export, tone, monkeypatch):
    """Ctrl-C while the model computes: what it computes is written, and nothing is read after it."""
    audio = soundfile.read(tone("a.wav", (6.0, -20)), dtype="int16")[0]
    answers = []
    real = AgreementRecogniser.advance

    def interrupted(recogniser, hypotheses):
        answers.append(len(hypotheses[0].buffer))
        if len(answers) == 2:
            signal.raise_signal(signal.SIGINT)
        real(recogniser, hypotheses)

    monkeypatch.setattr(AgreementRecogniser, "advance", interrupted)
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(audio.tobytes()))))
    code, out, err = run("transcribe", export(), "-", "--stream", "--device", "cpu")
    assert (code, out, err) == (130, "level 20\n", "")
    assert len(answers) == 3 and answers[2] < 3 * RATE, "a last answer about what had come, and no more"


@pytest.mark.parametrize(
    ("options", "content", "code", "message"),
    [
        (["--format", "srt"], b"", 2, "--stream is for one recording"),
        (["--words"], b"", 2, "--words is for whole files, not for --stream: leave it out."),
        (["--speech-pad", "0.3"], b"", 2, "--speech-pad is for whole files, not for --stream"),
        (["--silence", "0"], b"", 2, "The silence must be above 0 s"),
        (["--delay", "nan"], b"", 2, "above 0 s, such as 0.32"),
        (["--rate", "1"], bytes(99), 2, "such as 16000, not 1"),
        (["--rate", "8000"], as_wav(np.zeros(99)), 2, "leave out --rate"),
        (["--channel", "2"], as_wav(np.zeros(99), 2), 3, "there is no channel 2"),
        ([], b"\x01", 3, "stdin is empty"),
        ([], b"OggS" + bytes(99), 3, "neither a WAV nor bare samples"),
        ([], b"What was said, as a text.", 3, "neither a WAV nor bare samples"),
        (["--delay", "0"], b"", 2, "above 0 s, such as 0.32"),
        (["--delay", "0.05"], b"", 2, "0.1 to 10 s, not 0.05 s"),
        ([], b"", 3, "stdin is empty"),
        ([], b"RIFF....", 3, "no WAV"),
    ],
)
def test_what_the_command_refuses(run, export, monkeypatch, options, content, code, message):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BufferedReader(io.BytesIO(content))))
    result, _, err = run("transcribe", export(), "-", "--stream", "--device", "cpu", *options)
    assert result == code and message in err


def test_the_python_interface(export, tone):
    audio = soundfile.read(tone("a.wav", (2.0, -20)), dtype="float32")[0]
    model = stentor.load(export(), "cpu")
    stream = model.stream(RATE, language="en", delay=0.5)
    assert said(stream.feed(audio) + stream.finish()) == ["level", "20"]
    with pytest.raises(ConfigError, match="above 0 s"):
        model.stream(delay=-1)
    with pytest.raises(ConfigError, match="finished"):
        stream.feed(audio)
    with pytest.raises(ConfigError, match="finished"):
        stream.finish()


@pytest.mark.parametrize("samples", [np.zeros(9, np.int16), np.zeros((9, 2)), np.float32(0), [0.0, np.nan], ["0"]])
def test_samples_that_are_none(samples):
    stream = Stream(AgreementRecogniser(Listener()))
    assert stream.feed([]) == []
    with pytest.raises(StentorError, match=r"floating-point|NaN"):
        stream.feed(samples)
    for figures in ({"rate": 0}, {"rate": 7.5}, {"rate": 10**9}, {"silence": 0}, {"silence": np.nan}):
        with pytest.raises(ConfigError, match="must be"):
            Stream(AgreementRecogniser(Listener()), **figures)


def test_a_word_ends_where_nobody_speaks_and_not_in_what_is_not_written_yet():
    words = TokenWords(lambda ids: "".join(map(chr, ids)), lambda spans: spans)

    def write(text, frame):
        for i, letter in enumerate(text):
            words.write(Token(ord(letter), 0.0, frame + i, frame + i + 1))
        words.advance(frame + len(text))

    write("ye", 0)
    words.end_at(9)  # of frames that come later
    assert not words.words_ended and words.partial == "ye"
    write("s", 2)
    assert not words.words_ended and not words.words
    write("no", 12)
    assert words.words_ended and [w["word"] for w in words.words] == ["yes"] and words.partial == "no"
    words.end_at(14)
    assert words.words_ended and [w["word"] for w in words.words] == ["yes", "no"] and not words.partial


def test_words_end_at_each_silence_of_a_chunk():
    """A long chunk may hold several, of which all are known before anything is written of it."""
    words = TokenWords(lambda ids: "".join(map(chr, ids)), lambda spans: spans)
    words.end_at(10)
    words.end_at(20)
    for letter, frame in zip("onoff", (2, 3, 12, 13, 14)):
        words.write(Token(ord(letter), 0.0, frame, frame + 1))
    assert [w["word"] for w in words.words] == ["on"] and not words.words_ended
    words.advance(30)
    assert [w["word"] for w in words.words] == ["on", "off"] and words.words_ended


@pytest.mark.parametrize("size", [1, 2])
def test_letters_of_scripts_without_spaces_are_words(size):
    """They stay when the next one begins, of tokens of several letters or of a part of one, and nothing grows."""
    text = "東京は、Tokyoです。" * 20
    pieces = [text[i : i + size].encode() for i in range(0, len(text), size)]
    pieces = [
        part for piece in pieces for part in ([piece[:2], piece[2:]] if size == 1 and len(piece) > 1 else [piece])
    ]
    words = TokenWords(lambda ids: b"".join(pieces[i] for i in ids).decode(errors="replace"), lambda spans: spans)
    most = 0
    for i in range(len(pieces)):
        words.write(Token(i, 0.0, i, i + 1))
        most = max(most, len(words.tokens))
    assert most <= 6 and len(words.words) > 110
    words.end()
    assert [w["word"] for w in words.words] == ["東", "京", "は、", "Tokyo", "で", "す。"] * 20
    assert all(a["start"] <= b["start"] for a, b in pairwise(words.words))


def test_answers_without_spaces_agree_letter_by_letter():
    class Reader(Listener):
        def _words(self, audio):
            count = len(super()._words(audio)["words"])
            return {"text": "東京大阪名古屋市中央区"[:count], "words": [], "failed": []}

    stream = Stream(AgreementRecogniser(Reader(timed=False), step=0.25), silence=60)
    events = stream.feed(spoken(range(20, 31)))
    assert "".join(said(events)).startswith("東京大阪名古")
    assert max(len(e["text"]) for e in events if e["type"] == "partial") < 4


def test_speech_that_has_ended_has_ended_at_the_end_too():
    """Though its last chunk comes with it."""
    encoder = SimpleNamespace(frame_seconds=0.01, rate=RATE)
    audio = SimpleNamespace(encoder=encoder, ended=False, ready=False, seconds=0.0)
    audio.add = lambda samples: setattr(audio, "seconds", audio.seconds + len(samples) / RATE)
    audio.finish = lambda: audio.__dict__.update(ended=True, ready=True)
    hypothesis = ChunkedHypothesis(audio, lambda ids: "".join(" ab"[i] for i in ids), lambda spans: spans)
    recogniser = SimpleNamespace(rate=RATE, detector=EnergyDetector(), open=lambda: hypothesis)

    def advance(hypotheses):
        hypothesis.write(Token(1, 0.0, 10, 20))
        audio.ready = False
        hypothesis.after_chunk(round(audio.seconds * 100))

    recogniser.advance = advance
    stream = Stream(recogniser, silence=0.5)
    events = stream.feed(np.pad(spoken([50], 0.6), (RATE // 2, 0))) + stream.finish()
    assert [e["type"] for e in events] == ["word", "end_of_speech"]


def test_the_last_word_stays_before_speech_has_ended():
    """Once nobody has spoken for half the time after which speech has ended: no word goes on behind so long a pause."""
    encoder = SimpleNamespace(frame_seconds=0.01, rate=RATE)
    audio = SimpleNamespace(encoder=encoder, ended=False, ready=False, seconds=0.0)

    def add(samples):
        audio.seconds += len(samples) / RATE
        hypothesis.advance(round(100 * audio.seconds))

    audio.add = add
    hypothesis = ChunkedHypothesis(audio, lambda ids: "".join(" ab"[i] for i in ids), lambda spans: spans)
    stream = Stream(SimpleNamespace(rate=RATE, detector=EnergyDetector(), open=lambda: hypothesis), silence=0.8)
    hypothesis.write(Token(1, 0.0, 10, 20))
    events = stream.feed(np.pad(spoken([50], 1.0), (RATE // 2, 0)))
    assert [(e["type"], round(e["time"], 1)) for e in events if e["type"] != "partial"] == [
        ("word", round(0.5 + WORD + 0.4, 1)),
        ("end_of_speech", round(0.5 + WORD + 0.8, 1)),
    ]
