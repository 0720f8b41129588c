"""The built-in voice: the same samples everywhere, the right words at the right times, honest refusals."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from stentor.audio import synth
from stentor.audio.synth import ACCENTS, SynthesizedSpeech, accents, check_voice, languages, say, variants, voices
from stentor.errors import ConfigError

# A plain voice, one with flutter and echo, and two that draw noise from the C library's generator.
VOICES = ("en-us", "en-gb-x-rp+f3", "en-us+klatt4", "en-gb-scotland+whisper")
TEXT = "She was one of the people, in the house - is here."


def same(one: SynthesizedSpeech, other: SynthesizedSpeech) -> bool:
    return np.array_equal(one.audio, other.audio) and one.words == other.words


def test_same_arguments_give_the_same_samples_whatever_was_said_before():
    first = [say(TEXT, v) for v in VOICES]
    say("Something quite different, 42 times!", "de+Demonic", speed=300, pitch=90)
    time.sleep(1.1)  # espeak seeds its generator with the second of the day
    again = [say(TEXT, v) for v in reversed(VOICES)]
    assert all(map(same, first, again[::-1]))
    assert len({speech.audio.tobytes() for speech in first}) == len(VOICES)


@pytest.mark.parametrize("method", multiprocessing.get_all_start_methods())
def test_same_samples_in_other_processes(method):
    with multiprocessing.get_context(method).Pool(2) as pool:
        there = pool.starmap_async(say, [(TEXT, v) for v in VOICES]).get(timeout=60)
    assert all(same(say(TEXT, v), speech) for v, speech in zip(VOICES, there))


def test_same_samples_in_threads():
    with ThreadPoolExecutor(4) as pool:
        there = list(pool.map(say, [TEXT] * 12, VOICES * 3))
    assert all(same(say(TEXT, v), speech) for v, speech in zip(VOICES * 3, there))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_child_forked_while_another_thread_speaks_can_speak():
    before = say(TEXT, "en-us+f3")
    with synth._lock, synth._Library() as library:
        library.speak("half way through", "en-us+klatt2", 165, 50)
        context = multiprocessing.get_context("fork")
        results = context.Queue()
        child = context.Process(target=lambda: results.put(say(TEXT, "en-us+f3")))
        child.start()
        assert same(results.get(timeout=30), before)
        child.join()


@pytest.mark.parametrize(
    "text",
    [
        "one of the people in the house is here",  # espeak joins "of the", "in the", "is here"
        "In 1998, Dr. Smith's naïve café paid $20. Then... it's 3.5% off.",
        "and/or 12:30 pm well-known NASA e.g. C++ 1,000,000 U.S.A.",
        "Hello\n\nworld,\t again",
        "a `quoted' \u201cword\u201d (here) <b>bold</b> [[h@loU]] &amp; 5 + 6",
    ],
)
def test_words_are_the_words_of_the_text_in_order_and_do_not_overlap(text):
    speech = say(text, "en-us+f2")
    assert [w["word"] for w in speech.words] == text.split()
    edges = [t for w in speech.words for t in (w["start"], w["end"])]
    assert edges == sorted(edges) and edges[0] >= 0 and edges[-1] <= speech.seconds + 1e-4
    assert all(w["end"] - w["start"] > 0.01 for w in speech.words)


def test_what_is_not_spoken_is_not_a_word():
    assert [w["word"] for w in say("yes - no -- \u2014 maybe").words] == ["yes", "no", "maybe"]


def test_a_pause_does_not_belong_to_the_word_before():
    first, second = say("Stop. Go").words
    assert second["start"] - first["end"] > 0.2


@pytest.mark.parametrize("voice", ["en-us", "en+m3", "en-gb-x-gbclan+klatt2", "de", "fr+f1"])
def test_there_is_sound_in_words_and_silence_in_pauses(voice):
    speech = say("bravo, mama, nine. Lima, number", voice, speed=130)

    def level(start: float, end: float) -> float:
        return float(np.sqrt(np.mean(speech.audio[round(start * 16000) : round(end * 16000)] ** 2)))

    inside = [level(w["start"], w["end"]) for w in speech.words]
    between = [level(a["end"] + 0.02, b["start"]) for a, b in zip(speech.words, speech.words[1:])]
    assert min(inside) > 10 * max(between)


def test_speed_pitch_and_rates():
    slow, fast = say("one two three", speed=80), say("one two three", speed=450)
    assert slow.seconds > 2 * fast.seconds
    speech = say("one two three", pitch=99)
    assert speech.audio.dtype == np.float32 and np.abs(speech.audio).max() <= 1
    assert speech.audio_at(16000) is speech.audio
    for rate in (8000, 24000):
        other = speech.audio_at(rate)
        assert other.dtype == np.float32 and len(other) / rate == pytest.approx(speech.seconds, abs=2e-3)
    band = np.abs(np.fft.rfft(speech.audio_at(24000)))
    assert band[len(band) * 9 // 12 :].max() > 1  # what lies above 8 kHz does not pass through 16 kHz


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"text": " \n"}, "empty"),
        ({"text": "..."}, "nothing to speak"),
        ({"text": "a", "speed": 79}, "80 to 450"),
        ({"text": "a", "speed": 451}, "80 to 450"),
        ({"text": "a", "pitch": 100}, "0 to 99"),
        ({"text": "a", "voice": "en-gb"}, r"Unknown voice 'en-gb'.*did you mean 'en-gb-x-rp'"),
        ({"text": "a", "voice": "en-us+f33"}, r"no variant 'f33' \(did you mean 'f3'"),
        ({"text": "a", "voice": "en-us+"}, "no variant ''"),
    ],
)
def test_refusals(arguments, message):
    with pytest.raises(ConfigError, match=message):
        say(**arguments)


def test_control_characters_are_not_commands():
    assert np.array_equal(say("one \x0199S two").audio, say("one 99S two").audio)


def test_variants_differ_from_each_other_and_accents_too():
    assert len(accents()) == 7 and len(variants()) >= 90 and set(ACCENTS) <= set(languages())
    names = [f"en-us+{variant}" for variant in variants()]
    spoken = [say("hello", name) for name in ["en-us", *names]]
    assert len({speech.audio.tobytes() for speech in spoken}) == len(spoken)
    sentence = "The coffee and the bath water were hot, more or less."
    assert len({say(sentence, accent).audio.tobytes() for accent in ACCENTS}) == 7


@pytest.mark.parametrize("accent", ACCENTS)
def test_every_accent_is_audible_in_every_variant(accent):
    for variant in variants()[len(accent) % 4 :: 4]:
        speech = say("hello you", f"{accent}+{variant}")
        assert [w["word"] for w in speech.words] == ["hello", "you"]
        for w in speech.words:
            assert np.abs(speech.audio[round(w["start"] * 16000) : round(w["end"] * 16000)]).max() > 0.03


def test_listed_voices_are_known():
    listed = voices()
    assert {"en-us", "en-us+f3", "de", "fr+klatt2", "en-us+whisper"} <= set(listed) and len(set(listed)) == len(listed)
    for name in listed[::997]:
        check_voice(name)


def test_checking_a_voice_does_not_load_torch_or_the_synthesiser():
    code = (
        "import sys; from stentor.audio.synth import check_voice; check_voice('en-us+f3');"
        "assert not {'torch', 'soxr', 'soundfile'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_it_speaks_is_not_lost(number, monkeypatch):
    """It comes while espeak hands over audio, where an exception would be swallowed with that part of it."""
    take = synth._Library._take
    parts = []

    def taken(self, wave, count, events):
        parts.append(signal.raise_signal(number))
        return take(self, wave, count, events)

    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(synth._Library, "_take", taken)
    before = signal.signal(number, stop)
    try:
        with pytest.raises(KeyboardInterrupt):
            say("a text that is spoken in several parts, " * 3, voice="en-us", speed=170, pitch=50)
        assert signal.getsignal(number) is stop and len(parts) > 1
    finally:
        signal.signal(number, before)
    monkeypatch.undo()
    assert len(say("one", voice="en-us", speed=170, pitch=50).audio)
