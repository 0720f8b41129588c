"""Rules for texts that are OmniVoice's: lengths by script, frames, clean-ups, punctuation, voice descriptions, tags.

The constants come from k2-fsa/OmniVoice's own functions: `RuleDurationEstimator.calculate_total_weight`,
`_estimate_target_tokens`, `_combine_text`, `add_punctuation`, `_resolve_instruct`.
"""

from pathlib import Path

import pytest

from stentor.data.cut import cut_from_record
from stentor.data.speaking_rate import SpeakingRate, fit_speaking_rate, weight
from stentor.inference.speak.pieces import PACE_TEXT, estimate, frames_of
from stentor.inference.speak.reference import closed
from stentor.models.omnivoice.processor import OmniVoiceProcessor
from stentor.models.omnivoice.text import cleaned, style
from stentor.tasks.speak.instruct import resolve

WEIGHTS = [
    ("latin", "Hello, World 42!", 18.4),
    ("vietnamese", "Chào thế giới", 11.4),
    ("greek", "Γειά σου Κόσμε", 12.4),
    ("cyrillic", "Привет, мир", 9.7),
    ("armenian", "Բարեւ աշխարհ", 11.2),
    ("georgian", "გამარჯობა მსოფლიო", 16.2),
    ("hebrew", "שָׁלוֹם עולם", 12.2),
    ("arabic", "مـــرحبا بالعالم، ١٢", 25.9),
    ("persian", "سلام دنیا", 12.2),
    ("syriac", "ܫܠܡܐ", 6.0),
    ("devanagari", "नमस्ते दुनिया।", 13.3),
    ("bengali", "ওহে বিশ্ব", 9.2),
    ("tamil", "வணக்கம்", 9.0),
    ("sinhala", "ආයුබෝවන්", 9.0),
    ("thai", "สวัสดีชาวโลก", 15.0),
    ("lao", "ສະບາຍດີ", 9.0),
    ("tibetan", "བཀྲ་ཤིས", 7.7),
    ("myanmar", "မင်္ဂလာပါ", 9.0),
    ("khmer", "សួស្តី", 5.4),
    ("hangul", "안녕하세요 세계", 17.7),
    ("jamo", "한글", 5.0),
    ("ethiopic", "ሰላም ልዑል", 18.2),
    ("cherokee", "ᎣᏏᏲ", 3.0),
    ("inuktitut", "ᐊᐃᓐᖓᐃ", 5.0),
    ("ogham", "ᚑᚌᚐᚋ", 4.0),
    ("runic", "ᚠᚢᚦ", 3.0),
    ("tagalog", "ᜊᜌ᜔", 2.0),
    ("mongolian", "ᠮᠣᠩᠭᠣᠯ", 6.0),
    ("limbu", "ᤕᤠᤰᤌᤢᤱ", 3.6),
    ("tai le", "ᥖᥭᥰ", 5.4),
    ("buginese", "ᨅᨔ", 3.6),
    ("tai tham", "ᨲ᩠ᩅᩫ", 3.6),
    ("balinese", "ᬩᬮᬶ", 3.6),
    ("sundanese", "ᮞᮥᮔ᮪ᮓ", 5.4),
    ("batak", "ᯅᯖᯂ᯲", 5.4),
    ("lepcha", "ᰛᰩ", 1.8),
    ("ol chiki", "ᱥᱟᱱᱛᱟᱲᱤ", 12.6),
    ("kana", "こんにちはカタカナ", 19.8),
    ("bopomofo", "ㄅㄆㄇ", 9.0),
    ("han", "你好，世界！三", 16.0),
    ("han extension", "𠮷野家", 9.0),
    ("yi", "ꆈꌠ", 6.0),
    ("lisu", "ꓡꓲ", 2.0),
    ("vai", "ꕙꔤ", 2.0),
    ("syloti", "ꠍꠤꠟ", 3.6),
    ("saurashtra", "ꢱꣃ", 1.8),
    ("kayah li", "ꤊꤢ", 3.6),
    ("rejang", "ꤽꥍ", 1.8),
    ("javanese", "ꦗꦮ", 3.6),
    ("cham", "ꨌꩌ", 1.8),
    ("tai viet", "ꪼꪕ", 3.6),
    ("meetei mayek", "ꯃꯩ", 1.8),
    ("fullwidth", "Ｈｅｌｌｏ１", 8.5),
    ("math", "2 + 2 = ½", 12.3),
    ("emoji", "Hi 🌍", 2.7),
    ("adlam", "𞤆𞤵𞤤𞤢𞤪", 5.0),
    ("polytonic", "ἀρχή", 5.2),
    ("marks", "éä", 2.0),
]


@pytest.mark.parametrize(("script", "text", "expected"), WEIGHTS, ids=[row[0] for row in WEIGHTS])
def test_every_script_has_upstreams_weight(script, text, expected):
    assert weight(text) == pytest.approx(expected)


def test_what_joins_letters_has_no_length():
    """Unlike upstream, which counts a zero-width joiner as a kana."""
    assert weight("می\u200cخواهم") == weight("میخواهم")


LONG = "It is a long sentence that takes more than two seconds to say aloud."


@pytest.mark.parametrize(
    ("text", "reference", "frames", "speed", "expected"),
    [
        ("Hello.", None, None, 1.0, 28),
        ("Hello.", None, None, 1.3, 22),
        (LONG, None, None, 1.0, 101),
        (LONG, None, None, 1.25, 80),
        ("你好，世界。", "早上好，我的朋友。", 60, 1.0, 44),
        ("Hi", "A reference of some length.", 75, 0.8, 31),
        ("नमस्ते दुनिया।", "Good morning, everyone.", 50, 1.0, 43),
    ],
)
def test_as_many_frames_as_upstream(text, reference, frames, speed, expected):
    seconds = estimate(text, reference, None if frames is None else frames / 25, speed)
    assert frames_of(seconds, 25.0) == expected


def test_a_remainder_of_a_frame_is_cut_off():
    assert [frames_of(s, 25.0) for s in (0.001, 0.0799, 0.08, 2.0, 2.2799)] == [1, 1, 2, 50, 56]


def test_the_pace_without_a_reference_is_a_known_sentence_in_one_second():
    long = "abcdefghi " * 10
    assert estimate(long) == pytest.approx(weight(long) / weight(PACE_TEXT))
    assert weight(PACE_TEXT) == pytest.approx(14.1) and estimate("x" * 141) == pytest.approx(10)


def test_a_reference_tells_the_pace():
    assert estimate("x" * 40, "y" * 10, 3.0) == pytest.approx(12.0)
    assert estimate("x" * 40, "y" * 10, 3.0, speed=2.0) == pytest.approx(6.0)
    assert estimate("x" * 60, "...", 0.0) == estimate("x" * 60, "\u0301", 5.0) == estimate("x" * 60)


def test_short_phrases_are_said_slower():
    """Below 50 frames at 25 Hz: 50 (d / 50) ** (1/3)."""
    assert estimate("Nice to meet you.") == pytest.approx(2 * (1 / 2) ** (1 / 3))
    assert estimate("x", "y" * 10, 0.8) == pytest.approx(2 * (0.08 / 2) ** (1 / 3))
    assert estimate("x" * 20, "y" * 10, 1.0) == 2.0
    assert estimate(".") > 0


def records(points):
    return [
        cut_from_record({"id": str(i), "audio_path": "-", "duration": seconds, "text": text}, Path(), str(i))
        for i, (text, seconds) in enumerate(points)
    ]


def test_the_pace_of_records_is_measured():
    points = [("x" * n, 0.3 + 0.07 * n + 0.01 * (-1) ** n) for n in range(4, 60)]
    rate = fit_speaking_rate(records([*points, ("x" * 10, 30.0), ("", 3.0)]))  # one record is far off, one says nothing
    assert rate.start == pytest.approx(0.3, abs=0.02) and rate.unit == pytest.approx(0.07, rel=0.02)
    assert fit_speaking_rate(records(points[:10])) is None  # too few
    assert fit_speaking_rate(records([("x" * n, 5.0 - 0.05 * n) for n in range(4, 60)])) is None
    assert fit_speaking_rate(records([("abc", 1.0)] * 50)) is None
    through = fit_speaking_rate(records([("x" * n, 0.1 * n - 0.2) for n in range(4, 60)]))
    assert through.start == 0 and through.unit == pytest.approx(0.093, abs=0.003)
    assert estimate("x" * 10, pace=SpeakingRate(0.3, 0.07)) == pytest.approx(1.0)  # no short phrases stretched
    assert estimate("x" * 10, pace=SpeakingRate(0.3, 0.07), speed=2.0) == pytest.approx(0.5)
    assert estimate("x" * 10, "y" * 10, 3.0, pace=SpeakingRate(0.3, 0.07)) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("（你好） 世界 abc 中 文", "(你好)世界abc中文"),
        ("A voice. Hello   there\tyou", "A voice. Hello there you"),
        ("你好。 世界 and", "你好。世界and"),
        ("です。 これは", "です。 これは"),
        (" a ( b ) ", "a ( b )"),
        ("one\ntwo", "one two"),  # upstream joins the words
    ],
)
def test_brackets_and_spaces_are_cleaned_up(text, expected):
    assert cleaned(text) == expected


def test_a_references_text_ends_in_punctuation():
    texts = ("Hello", "Hello.", "你好", "你好。", "(aside)", "Mixed 你", "wait…", "", '"Quote"', "x-")
    ended = ("Hello.", "Hello.", "你好。", "你好。", "(aside)", "Mixed 你。", "wait…", "", '"Quote"', "x-.")
    assert tuple(map(closed, texts)) == ended


@pytest.mark.parametrize(
    ("instruct", "text", "expected"),
    [
        ("Male, Low Pitch", "hello", "male, low pitch"),
        ("male，low pitch", "你好", "男，低音调"),
        ("女, 青年", "hello", "female, young adult"),
        ("female,四川话", "hi", "女，四川话"),
        ("indian accent,女", "你好", "indian accent, female"),
        ("whisper, elderly", "你好 world", "耳语，老年"),
        ("河南话, very high pitch", "hello", "河南话，极高音调"),
    ],
)
def test_a_voice_is_described_in_the_language_of_the_text(instruct, text, expected):
    assert resolve(instruct, text) == expected


def test_a_style_names_a_language_by_upstreams_code():
    names = ("English", "en-GB", "eng", "cmn", "Nepali", "ar", "or", "Klingon", None)
    codes = ("en", "en", "en", "zh", "npi", "arb", "ory", "Klingon", "None")
    assert [style(name, None) for name in names] == [
        f"<|lang_start|>{code}<|lang_end|><|instruct_start|>None<|instruct_end|>" for code in codes
    ]


def test_tags_are_tokenised_by_themselves():
    class Words:
        """Tokenises like BPE: a space belongs to what follows it."""

        unk_token_id = unk_token = None
        added_tokens_decoder = {}

        def __init__(self):
            self.parts = []

        def __call__(self, text, add_special_tokens):
            assert not add_special_tokens
            self.parts.append(text)
            return {"input_ids": [len(text)]}

    processor = OmniVoiceProcessor.__new__(OmniVoiceProcessor)
    processor.tokenizer = words = Words()
    assert processor.ids("well [laughter] i [B EY1 S][sigh]") == [5, 10, 12, 6]
    assert words.parts == ["well ", "[laughter]", " i [B EY1 S]", "[sigh]"]
