"""Normalisers: Whisper's, and its table of American spellings."""

import json

import pytest

from stentor.errors import ConfigError
from stentor.text.normalize import characters, normalize, words
from stentor.text.open_asr import american


def test_whisper_english_is_transformers_own_with_its_spellings():
    from transformers.models.whisper.english_normalizer import EnglishTextNormalizer

    text = "Mr. O'Neill won't pay twenty-one dollars (he said) — uh, $5 [noise] for the colour grey!"
    assert normalize(text, "whisper_english") == EnglishTextNormalizer(american())(text).strip()
    assert normalize("The colour is grey.", "whisper_english") == "the color is gray"
    assert normalize("one two three", "whisper_english") == "123"


def test_whisper_english_leaves_other_languages_to_the_basic_rules():
    assert normalize("Zwei Hände, DREI!", "whisper_english", "de") == "zwei hände drei"
    assert normalize("won't", "whisper_english", "en-GB") == "will not"
    assert normalize("won't", "whisper_basic", "en") == "won t"


def test_none_only_joins_white_space():
    assert normalize("  Hello,\tWorld \n", "none") == "Hello, World"


def test_unknown_normalizer_is_named():
    with pytest.raises(ConfigError, match=r"unknown normalizer 'whisper'.*whisper_english"):
        normalize("x", "whisper")


def test_a_spelling_table_replaces_the_built_in_one(tmp_path):
    table = tmp_path / "normalizer.json"
    table.write_text(json.dumps({"gaol": "jail"}))
    assert normalize("the gaol colour", "whisper_english", spelling=str(table)) == "the jail colour"
    table.write_text("[]")
    with pytest.raises(ConfigError, match="JSON object"):
        normalize("again", "whisper_english", "en-US", str(table.rename(tmp_path / "other.json")))
    with pytest.raises(ConfigError, match="cannot be used"):
        normalize("x", "whisper_english", spelling=str(tmp_path / "none.json"))


@pytest.mark.parametrize(
    ("british", "us"),
    [
        ("colour", "color"),
        ("favourites", "favorites"),
        ("honourable", "honorable"),
        ("organisation", "organization"),
        ("realised", "realized"),
        ("analysing", "analyzing"),
        ("travelled", "traveled"),
        ("jeweller", "jeweler"),
        ("centred", "centered"),
        ("theatres", "theaters"),
        ("defence", "defense"),
        ("saviour", "savior"),
        ("armoury", "armory"),
        ("programmes", "programs"),
        ("kilometre", "kilometer"),
        ("grey", "gray"),
    ],
)
def test_american_spellings(british, us):
    assert american()[british] == us


def test_no_american_spelling_is_mapped_on():
    table = american()
    assert not set(table) & set(table.values())
    plain = (
        "four hour your our pour tour contour exercise surprise advise rise wise promise compelled controlled fire acre"
    )
    assert not [word for word in plain.split() if word in table]


def test_units():
    assert words("a  b", "en") == ["a", "b"]
    assert words("今日 は", "ja") == characters("今日 は", "ja") == ["今", "日", "は"]
    assert characters("a  b", "en") == ["a", " ", "b"]
