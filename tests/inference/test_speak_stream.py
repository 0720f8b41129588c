"""Long texts piece by piece: what is held, how the pieces meet, and streams into files and pipes."""

import gc
import io
import multiprocessing
import os
import sys
import weakref
from types import SimpleNamespace

import numpy as np
import pytest
import soundfile
from speaking import RATE, TEXTS, voiced

import stentor
from stentor.audio.io import write
from stentor.audio.writer import open_writer
from stentor.inference.speak.pieces import TOGETHER, Synthesizer
from stentor.inference.speak.postprocess import LEVEL, Joiner, loudness, shorten_silence, trim_silence
from stentor.inference.speak.utterance import Utterance
from stentor.models.base import Bundle
from stentor.tasks.speak.chunks import MOST
from stentor.tasks.speak.generation import Generation

SENTENCE = "The quick brown fox jumps over the lazy dog, and nobody knows what Dr. Smith said at 5 p.m. about it. "
SMALL = {"chunk_duration": 2.9, "chunk_threshold": 0.0, "steps": 1}
"""Settings by which a stream has the same pieces as what is spoken at once."""
TEXT = " ".join([". ".join(TEXTS) + "."] * 2)


@pytest.fixture(scope="module")
def model(talker):
    return stentor.load(talker, "cpu")


def bundle_of(codec, codes):
    """A model that speaks what `codes` makes of a prompt: its text, frames and reference."""

    def utterance(text, **options):
        return SimpleNamespace(text=text, **options)

    processor = SimpleNamespace(codec=codec, pace=None, knows=lambda c: True, utterance=utterance)
    speaks = SimpleNamespace(speak=lambda prompts, **_: [codes(prompt) for prompt in prompts])
    return Bundle(speaks, processor, None)


def chapters(characters: int) -> str:
    chapter = SENTENCE * (characters // 3 // len(SENTENCE))
    return "\n\n".join(f"Chapter {name}\n\n{chapter}" for name in ("One", "Two", "Three"))


class Noise:
    """A codec whose audio is noise; it counts the arrays that somebody holds."""

    sample_rate, hop, frame_rate = 800, 32, 25.0

    def __init__(self):
        self.alive = self.most = 0

    def count(self, array):
        self.alive += 1
        self.most = max(self.most, self.alive)
        weakref.finalize(array, self.forget)
        return array

    def forget(self):
        self.alive -= 1

    def decode(self, codes):
        noise = np.random.default_rng(0).standard_normal
        return [self.count((0.1 * noise(c.shape[1] * self.hop)).astype(np.float32)) for c in codes]


@pytest.mark.parametrize("early", [False, True])
def test_three_chapters_are_spoken_in_flat_memory(early):
    """20,000 characters: 24 minutes of speech, of which one piece's audio and a few pieces' codes are held."""
    audio, codes = Noise(), Noise()
    bundle = bundle_of(audio, lambda prompt: codes.count(np.zeros((2, prompt.frames), np.int16)))
    text, seconds, texts, longest = chapters(20_000), 0.0, [], 0.0
    assert len(text) > 19_000
    for piece in Synthesizer(bundle, Generation()).stream(Utterance(text), early=early):
        seconds += piece.seconds
        longest = max(longest, piece.codes.shape[1] / 25)
        texts += piece.texts
        del piece
    gc.collect()
    assert seconds > 1100 and len(texts) > 70 and longest <= 15 * MOST
    assert " ".join(texts) == " ".join(text.split())
    assert audio.most <= 2 and codes.most <= (2 if early else TOGETHER) + 2


def test_the_audio_of_a_stream_is_that_of_the_whole(model):
    voice = {"reference": voiced(2.0), "reference_rate": RATE, "reference_text": "one two"}
    for options in ({"finish": True}, {"finish": False}, {"instruct": "quick", **voice}, {"duration": 9.0}):
        whole = model.speak(TEXT, **SMALL, **options)
        pieces = list(model.speak_stream(TEXT, **SMALL, **options))
        assert len(pieces) == len(whole.texts) >= 3 and {rate for _, rate in pieces} == {RATE}
        assert np.array_equal(np.concatenate([audio for audio, _ in pieces]), whole.audio)


def test_a_stream_begins_before_the_rest_is_made(model, monkeypatch):
    made, real = [], type(model.bundle.model).speak

    def counted(self, prompts, **options):
        made.extend(prompts)
        return real(self, prompts, **options)

    monkeypatch.setattr(type(model.bundle.model), "speak", counted)
    stream = model.speak_stream(" ".join([TEXT] * 3), steps=1)
    assert not made
    audio, rate = next(stream)
    assert len(made) == 1 and len(audio) / rate < 6 and made[0].frames < 6 * 50
    lengths = [prompt.frames / 50 for _ in stream for prompt in made[-1:]]
    assert max(lengths) <= 15 * MOST and len(made) == len(lengths) + 1
    with pytest.raises(stentor.errors.ConfigError, match="empty"):
        model.speak_stream(" ")  # at once, and not with the first piece


def test_a_described_voice_goes_on_in_its_first_piece():
    codec, prompts = Noise(), []
    bundle = bundle_of(codec, lambda p: prompts.append(p) or np.full((2, p.frames), len(prompts), np.int16))
    list(Synthesizer(bundle, Generation()).speak([Utterance(SENTENCE * 12, instruct="female, low pitch")]))
    first, *others = prompts
    assert first.reference is None and others and {p.instruct for p in prompts} == {"female, low pitch"}
    assert all(p.reference[1] == first.text and (p.reference[0] == 1).all() for p in others)


def test_a_model_that_learned_no_recording_beside_an_instruct_goes_on_by_the_instruct(model, monkeypatch):
    references, real = [], type(model.bundle.processor).utterance

    def seen(self, text, **options):
        references.append(options["reference"])
        return real(self, text, **options)

    monkeypatch.setattr(type(model.bundle.processor), "utterance", seen)
    for ratio, alone in ((0.5, False), (1.0, True)):
        speaker = model.speaker({**SMALL, "chunk_threshold": 3.0})
        speaker.task = speaker.task.model_copy(update={"only_instruct_ratio": ratio})
        whole = next(speaker.speak([speaker.prepare(Utterance(TEXT, instruct="quick"))]))
        assert len(references) == len(whole.texts) > 1 and all(r is None for r in references[1:]) == alone
        references.clear()
        list(speaker.stream(speaker.prepare(Utterance(TEXT)), early=False))
        assert all(r is not None for r in references[1:]), "without an instruct the first piece is the voice"
        references.clear()


def test_a_text_without_weight_takes_its_duration():
    """A tatweel only lengthens the letter before it."""
    bundle = bundle_of(Noise(), lambda prompt: np.zeros((3, prompt.frames), np.int16))
    (speech,) = Synthesizer(bundle, Generation()).speak([Utterance("\u0640", duration=2.0)])
    assert speech.codes.shape[1] == 2 * Noise.frame_rate


def test_no_level_step_and_no_click_where_pieces_of_real_speech_meet():
    """Built-in voices through a fitted codec, each piece up to 6 dB louder or softer than it should be."""
    from stentor.audio.synth import say
    from stentor.models.codecs.base import Codec

    section = {"type": "mel_rvq", "codebooks": 4, "entries": 32, "rounds": 2, "iterations": 2}
    codec = Codec.model_validate(section).fit([say(SENTENCE, v).audio for v in ("en-us", "en-us+f3")], seed=0)
    rng = np.random.default_rng(0)
    bundle = bundle_of(
        codec, lambda p: codec.encode([say(p.text, "en-us+f3").audio * 0.5 * 10 ** rng.uniform(-0.3, 0.3)])[0]
    )
    generation = Generation(chunk_duration=5, chunk_threshold=5)
    pieces = list(Synthesizer(bundle, generation).stream(Utterance(chapters(900))))
    levels = [20 * np.log10(loudness(piece.audio)) for piece in pieces]
    untouched = [20 * np.log10(loudness(codec.decode([piece.codes])[0])) for piece in pieces]
    assert len(pieces) >= 8 and np.abs(np.diff(untouched)).max() > 3
    assert np.abs(np.diff(levels)).max() < 1.0
    audio = np.concatenate([piece.audio for piece in pieces])
    ends = np.cumsum([len(piece.audio) for piece in pieces])[:-1]
    steps = np.abs(np.diff(audio))
    assert steps[ends - 1].max() < np.quantile(steps, 0.9) and np.abs(audio).max() < 0.96


def test_pauses_go_by_how_a_text_ends():
    speech = voiced(1.0)
    alone = len(Joiner(RATE).add(speech, "", True)) / RATE

    def pause(end):
        joiner = Joiner(RATE)
        both = [joiner.add(speech, end, False), joiner.add(speech, ".", True)]
        return sum(map(len, both)) / RATE - 2 * alone + 0.2

    ends = {"now.\n": 0.6, 'now."': 0.35, "今。": 0.35, "now,": 0.2, "now": 0.1}
    assert {end: round(pause(end), 3) for end in ends} == ends


def test_where_a_sentence_goes_on_the_cut_is_crossfaded():
    joiner, hum = Joiner(RATE), np.full(RATE, 1e-4, np.float32)
    hum[4000:12000] += voiced(0.5)
    audio = np.concatenate([joiner.add(hum, "and", False), joiner.add(hum, "so.", True)])
    middle = len(audio) // 2
    gain = joiner.gain * 1e-4
    assert np.abs(audio[middle - 700 : middle + 700] - gain).max() < 0.05 * gain, "two fades add up to one"


@pytest.mark.parametrize(("silence", "expected"), [(0.3, 2.5), (0.9, 3.1), (2.0, 3.2), (4.0, 3.2)])
def test_long_silences_are_shortened_as_omnivoice_does(silence, expected):
    """Seconds that `remove_silence(mid_sil=500, lead_sil=100, trail_sil=100)` of k2-fsa/OmniVoice leaves of these."""
    tone = (0.2 * np.sin(2 * np.pi * 220 * np.arange(RATE) / RATE)).astype(np.float32)
    parts = [np.zeros(RATE // 2), tone, np.zeros(round(silence * RATE)), tone, np.zeros(RATE)]
    audio = trim_silence(shorten_silence(np.concatenate(parts).astype(np.float32), RATE), RATE)
    assert len(audio) / RATE == pytest.approx(expected, abs=0.13)


def test_a_quiet_voice_stays_quiet_and_peaks_are_no_reason_for_a_step():
    joiner = Joiner(RATE, level=LEVEL / 2)
    assert loudness(joiner.add(voiced(1.0), "a.", False)) == pytest.approx(LEVEL / 2, rel=0.05)
    peaky = voiced(1.0)
    peaky[8000] = 30 * loudness(peaky)
    following = joiner.add(peaky, "b.", True)
    assert loudness(following) == pytest.approx(LEVEL / 2, rel=0.03) and np.abs(following).max() <= 0.95 + 1e-6
    rough = Joiner(RATE, level=2 * LEVEL)
    steady, bursts = voiced(1.0), voiced(1.0) * np.where(np.arange(RATE) % 800 < 80, 1.0, 0.1)
    levels = [loudness(rough.add(a.astype(np.float32), "a.", i == 2)) for i, a in enumerate((steady, bursts, steady))]
    assert 20 * np.log10(max(levels) / min(levels)) < 0.5, "what the limiter takes is made good"
    silent = Joiner(RATE)
    assert not silent.add(np.zeros(RATE, np.float32), "a.", True).any()


def test_a_stream_into_files(talker, run, tmp_path):
    settings = ("--chunk-duration", 2.9, "--chunk-threshold", 0, "--steps", 1)
    for suffix in ("wav", "flac", "ogg"):
        assert run("speak", talker, TEXT, "--out", tmp_path / f"a.{suffix}", *settings)[0] == 0
        code, printed, err = run("speak", talker, TEXT, "--out", tmp_path / f"b.{suffix}", *settings, "--stream")
        assert (code, err) == (0, "") and "the first after" in printed
        at_once, streamed = (soundfile.read(tmp_path / f"{name}.{suffix}")[0] for name in "ab")
        assert np.array_equal(at_once, streamed) and len(streamed) > 3 * RATE
    assert {p.stem for p in tmp_path.glob("[!.]*")} == {"a", "b"}


def test_a_wav_can_be_read_while_it_grows_and_is_complete_after(tmp_path):
    audio = voiced(0.5)
    with open_writer(tmp_path / "a.wav", RATE, "wav") as put:
        put(audio)
        assert np.abs(soundfile.read(io.BytesIO((tmp_path / "a.wav").read_bytes()))[0] - audio).max() <= 1 / 32768
        put(audio)
    write(tmp_path / "b.wav", np.concatenate([audio, audio]), RATE)
    assert (tmp_path / "a.wav").read_bytes() == (tmp_path / "b.wav").read_bytes()


def test_a_pipe_holds_audio_and_nothing_else(talker, tmp_path, capfdbinary):
    from stentor.cli import main

    arguments = [str(talker), TEXT, "--steps", "1", "--stream", "--out", "-"]
    assert main(["speak", *arguments]) == 0
    wav, err = capfdbinary.readouterr()
    audio, rate = soundfile.read(io.BytesIO(wav))
    assert rate == RATE and len(wav) == 44 + 2 * len(audio) and b"s of speech in" in err
    assert main(["speak", *arguments, "--format", "pcm"]) == 0
    assert capfdbinary.readouterr()[0] == wav[44:]


def test_a_listener_who_leaves_ends_it_quietly(talker, tmp_path):
    from stentor.cli import main

    arguments = ["speak", str(talker), " ".join([TEXT] * 5), "--stream", "--out", "-", "--steps", "1"]
    ear, mouth = os.pipe()
    errors = (tmp_path / "errors").open("w+")

    def speak():
        for number, file in ((1, mouth), (2, errors.fileno())):
            os.dup2(file, number)
        os.close(ear), os.close(mouth)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        sys.exit(main(arguments))

    process = multiprocessing.get_context("fork").Process(target=speak)
    process.start()
    os.close(mouth)
    assert os.read(ear, 100)[:4] == b"RIFF"
    os.close(ear)
    process.join()
    assert (process.exitcode, (tmp_path / "errors").read_text()) == (1, "")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            ("--from", "texts.jsonl", "--stream", "--out", "a"),
            "--stream is for one TEXT, not for the lines of --from: leave it out.",
        ),
        (("one", "--out", "-", "--format", "flac"), "Unknown --format flac; known: wav, pcm."),
        (
            ("one", "--out", "a.wav", "--format", "pcm"),
            "--format is for a pipe (--out -) and the lines of --from, not for one TEXT: leave it out.",
        ),
        (("one", "--out", "a.wav", "--chunk-duration", 0.5), "Invalid value for '--chunk-duration'"),
    ],
)
def test_what_does_not_go_together_is_refused(run, options, problem):
    code, printed, err = run("speak", "no-model", *options)
    assert code == 2 and problem in err and not printed
