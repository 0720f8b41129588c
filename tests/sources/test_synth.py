import random

import numpy as np
import pytest

from stentor.data import synth_cache
from stentor.data.cut import UnusableRecord, language_of, speaker_of, text_of, words_of
from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError, DataError
from stentor.sources.base import Source
from stentor.sources.phrases import DIGITS, commands, sentence
from stentor.sources.synth import Voices


def source(**options):
    return Source.model_validate({"type": "synth", **options})


@pytest.fixture
def few_are_many(monkeypatch):
    """Processes of their own speak 16 utterances and more."""
    monkeypatch.setattr(synth_cache, "CHUNK", 4)


def test_durations_and_word_times_are_those_of_the_audio():
    for cut in source(texts="digits", count=6, voices={"count": 6}).cuts():
        audio = load_audio(cut)
        assert audio.dtype == np.float32 and len(audio) == round(cut.duration * 16000)
        assert [w["word"] for w in words_of(cut)] == text_of(cut).split()
        assert words_of(cut)[-1]["end"] <= cut.duration
        assert language_of(cut) == "en" and "+" in speaker_of(cut)


def test_the_same_config_lists_the_same_and_speaks_the_same(monkeypatch):
    config = {"texts": "commands", "count": 5, "voices": {"count": 3}, "seed": 7}
    first, again = list(source(**config).cuts()), list(source(**config).cuts())
    assert [c.to_dict() for c in first] == [c.to_dict() for c in again]
    from_cache = load_audio(first[2])
    monkeypatch.setattr(synth_cache, "_cache", type(synth_cache._cache)())
    assert np.array_equal(from_cache, load_audio(first[2]))
    other = [text_of(c) for c in source(**{**config, "seed": 8}).cuts()]
    assert other != [text_of(c) for c in first]


def test_many_utterances_spoken_by_helpers_are_the_same_as_one_by_one(few_are_many):
    requests = source(texts="digits", count=17, voices={"count": 4}, seed=3).requests()
    together = list(synth_cache.synthesize_all(requests))
    assert together[-3:] == list(synth_cache.synthesize_all(requests[-3:]))


def test_memory_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(synth_cache, "MAX_BYTES", 100_000)
    monkeypatch.setattr(synth_cache, "_cache", type(synth_cache._cache)())
    monkeypatch.setattr(synth_cache, "_num_bytes", 0)
    requests = source(texts="digits", count=12, voices={"count": 2}).requests()
    list(synth_cache.synthesize_all(requests))
    held = sum(pcm.nbytes for pcm, _ in synth_cache._cache.values())
    assert held == synth_cache._num_bytes <= 100_000 and tuple(requests[-1].values()) in synth_cache._cache


def test_train_and_test_voices_share_no_speaker():
    for seed in range(3):
        train = Voices(count=60, part="train", seed=seed).names()
        test = Voices(count=25, part="test", seed=seed).names()
        assert len(set(train)) == 60 and len(set(test)) == 25
        variants = [{name.split("+")[1] for name in names} for names in (train, test)]
        assert len(variants[1]) == 10 and not variants[0] & variants[1]
    assert Voices(part="test", seed=0).names() != Voices(part="test", seed=1).names()
    assert len({name.split("+")[0] for name in Voices(count=7).names()}) == 7


def test_train_and_test_draw_different_texts():
    texts = [
        [text_of(c) for c in source(texts="digits", count=6, voices={"count": 2, "part": part}).cuts()]
        for part in ("train", "test")
    ]
    assert texts[0] != texts[1]


def test_lists_are_spoken_in_each_voice_or_dealt_evenly(tmp_path):
    pairs = [(text_of(c), speaker_of(c)) for c in source(texts=["one", "two"], voices=["en", "de+f3"]).cuts()]
    assert pairs == [("one", "en"), ("one", "de+f3"), ("two", "en"), ("two", "de+f3")]
    (tmp_path / "lines.txt").write_text("good morning\n\n  good night \n")
    cuts = list(source(texts=str(tmp_path / "lines.txt"), voices=["en", "de+f3"], count=4).cuts())
    assert sorted(text_of(c) for c in cuts) == ["good morning"] * 2 + ["good night"] * 2
    assert sorted(speaker_of(c) for c in cuts) == ["de+f3", "de+f3", "en", "en"]
    assert language_of(next(c for c in cuts if speaker_of(c) == "de+f3")) == "de"


def test_digit_strings_have_the_asked_length():
    cuts = list(source(texts={"kind": "digits", "words": [3, 4]}, count=10, voices=["en"]).cuts())
    assert {len(text_of(c).split()) for c in cuts} == {3, 4}
    assert all(set(text_of(c).split()) <= set(DIGITS) for c in cuts)


def test_grammar_has_thousands_of_plain_sentences():
    sentences = list(commands())
    assert len(sentences) == len(set(sentences)) > 2500
    assert all(s.replace(" ", "").isascii() and s == " ".join(s.lower().split()) and "{" not in s for s in sentences)


def test_sentences_are_varied_and_of_the_wanted_length():
    rng = random.Random(0)
    sentences = [sentence(rng, 4, 14) for _ in range(500)]
    assert len(set(sentences)) > 480 and all(4 <= len(s.split()) <= 14 for s in sentences)
    assert {len(s.split()) for s in sentences} >= set(range(5, 15))
    assert all(5 <= len(sentence(rng, 5, 7).split()) <= 7 for _ in range(50))


def test_silence_moves_the_words_and_is_silent():
    (plain,) = source(texts=["one two"], voices=["en"], silence=None).cuts()
    (cut,) = source(texts=["one two"], voices=["en"], silence=[0.25, 0.25]).cuts()
    assert cut.duration == pytest.approx(plain.duration + 0.5)
    audio = load_audio(cut)
    assert len(audio) == round(cut.duration * 16000)
    assert not audio[:4000].any() and not audio[-4000:].any()
    assert np.array_equal(audio[4000:-4000], load_audio(plain))
    assert [w["start"] for w in words_of(cut)] == pytest.approx([w["start"] + 0.25 for w in words_of(plain)])


def test_a_part_of_an_utterance_is_cut_out():
    (cut,) = source(texts=["one two"], voices=["en"]).cuts()
    part = cut.truncate(offset=0.25, duration=0.25)
    assert np.array_equal(load_audio(part), load_audio(cut)[4000:8000])


def test_listing_may_stop_early(few_are_many):
    assert len(list(source(texts="digits", count=30, voices={"count": 2}, limit=2, seed=4).cuts())) == 2


def test_what_cannot_be_spoken_is_counted():
    spoken_, unspoken = source(texts=["one", "—"], voices=["en"]).cuts()
    assert text_of(spoken_) == "one"
    assert isinstance(unspoken, UnusableRecord) and unspoken.reason == "empty"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voices": ["en-uk"]}, "en-uk"),
        ({"voices": {"variants": ["f1", "f99"]}}, "f99"),
        ({"voices": {"count": 5000}}, "count is 5000"),
        ({"voices": {"variants": ["f1", "f2"], "part": "test"}}, "held_out is 10"),
        ({"voices": []}, "no voices"),
    ],
)
def test_wrong_voices_are_refused(options, message):
    with pytest.raises(ConfigError, match=message):
        list(source(**options).cuts())


def test_no_texts_are_refused(tmp_path):
    (tmp_path / "none.txt").write_text("\n")
    with pytest.raises(DataError, match="holds no texts"):
        list(source(texts=str(tmp_path / "none.txt")).cuts())
    with pytest.raises(DataError, match=r"did you mean .*none.txt"):
        list(source(texts=str(tmp_path / "nine.txt")).cuts())
