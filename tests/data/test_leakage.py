import pytest

from stentor.dataloading.leakage import leakage, summary_lines
from stentor.text.normalize import plain_text


@pytest.fixture
def clip(cut):
    def make(name, text="one", speaker=None, path=None):
        from lhotse import AudioSource, Recording

        record = cut(name, 1.0, text)
        record.supervisions[0].speaker = speaker
        if path:
            record.recording = Recording(path, [AudioSource("file", [0], path)], 16000, 16000, 1.0)
        return record

    return make


def test_what_a_set_shares_is_counted_once(clip):
    train = [
        clip("a", "Good morning.", "ann", "a.wav"),
        clip("b", "Good night", "ben", "b.wav"),
        clip("c", "Good night", "ben", "c.wav"),
    ]
    dev = [clip("x", "good  MORNING", "ben", "x.wav"), clip("y", "good night!", "ben", "b.wav"), clip("c", "?", "cy")]
    overlap = leakage(train, {"dev": dev, "test": [clip("z", "else", "dan", "z.wav")]})
    assert overlap == {
        "dev": {"speakers": [1, 2], "texts": [2, 2], "ids": [1, 3], "recordings": [1, 2]},
        "test": {"speakers": [0, 1], "texts": [0, 1], "ids": [0, 1], "recordings": [0, 1]},
    }
    assert summary_lines(overlap) == [
        "dev shares with the training data: 1 of 2 speakers, 2 of 2 texts, 1 of 3 ids, 1 of 2 recordings.",
        "test shares no speakers and no texts and no ids and no recordings with the training data.",
    ]


def test_joined_clips_share_the_clips_in_them(clip):
    from stentor.sources.synth import chain

    train = chain("join-0", [clip("a", "one", "ann", "a.wav"), clip("b", "two", "ann", "b.wav")], [0.1, 0.1], 0.1)
    same = chain("join-0", [clip("b", "two", "ann", "b.wav"), clip("c", "six", "ben", "c.wav")], [0.0, 0.1], 0.1)
    assert leakage([train], {"dev": [same]})["dev"] == {
        "speakers": [1, 2],
        "texts": [0, 1],
        "ids": [1, 2],
        "recordings": [1, 2],
    }


def test_what_is_unknown_is_no_zero(clip):
    dev = {"dev": [clip("x", "one", "ben")]}
    unnamed = leakage([clip("a", "two")], dev)
    assert unnamed["dev"]["speakers"] == [None, 1]
    assert summary_lines(unnamed) == ["dev shares no texts and no ids with the training data (speakers are not named)."]
    stream = leakage(None, dev)
    assert stream["dev"] == {"speakers": [None, 1], "texts": [None, 1], "ids": [None, 1], "recordings": [None, 0]}
    assert summary_lines(stream) == ["dev: what it shares with the training data is unknown: that is not read whole."]


def test_training_data_is_not_read_for_nothing():
    def unread():
        raise AssertionError("read")
        yield

    assert leakage(unread(), {}) == {}


@pytest.mark.parametrize(
    "text, plain",
    [
        ("It's  Noon \u2014 \u201cnow\u201d!", "its noon now"),
        ("It\u2019s noon", "its noon"),
        ("Stra\u00dfe", "strasse"),
        ("\u0939\u093f\u0928\u094d\u0926\u0940 \u0964", "\u0939\u093f\u0928\u094d\u0926\u0940"),  # vowel signs stay
        ("$5 + 3%", "5 3"),
        ("...", ""),
    ],
)
def test_plain_text(text, plain):
    assert plain_text(text) == plain


def test_a_file_is_the_same_however_its_path_is_written(clip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    overlap = leakage([clip("a", path=f"{tmp_path}/sub/../x.wav")], {"dev": [clip("b", path="x.wav")]})
    assert overlap["dev"]["recordings"] == [1, 1]


def test_an_id_that_names_its_file_is_no_id_of_its_own(clip):
    folders = [clip("001.wav", path="/new/001.wav"), clip("3", path="/new/3.mp3")]
    overlap = leakage([clip("001.wav", path="/old/001.wav"), clip("3", path="/old/3.mp3")], {"dev": folders})
    assert overlap["dev"]["ids"] == [1, 1] and overlap["dev"]["recordings"] == [0, 2]
