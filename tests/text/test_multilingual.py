"""The default normaliser keeps the marks of letters in every script, and the script of a text decides its units."""

import logging

import jiwer
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from stentor.callbacks.console import scores_text
from stentor.metrics.wer import score, text_errors
from stentor.text import normalize as normalizers
from stentor.text.multilingual import multilingual, unspaced
from stentor.text.normalize import normalize, words

SCRIPTS = {
    "Devanagari": ("मैं घर जा रहा हूँ", "ािीुूेैोौंँ्"),
    "Bengali": ("আমি বাড়ি যাচ্ছি", "ািীুূেৈ্"),
    "Gurmukhi": ("ਮੈਂ ਘਰ ਜਾ ਰਿਹਾ ਹਾਂ", "ਾਿੀੁੂੇੈਂ"),
    "Gujarati": ("હું ઘરે જાઉં છું", "ાિીુૂેૈં્"),
    "Odia": ("ମୁଁ ଘରକୁ ଯାଉଛି", "ାିୀୁୂଁ୍"),
    "Tamil": ("நான் வீட்டிற்கு போகிறேன்", "ாிீுூெே்"),
    "Telugu": ("నేను ఇంటికి వెళ్తున్నాను", "ాిీుూెే్"),
    "Kannada": ("ನಾನು ಮನೆಗೆ ಹೋಗುತ್ತಿದ್ದೇನೆ", "ಾಿುೂೆ್"),
    "Malayalam": ("ഞാൻ വീട്ടിലേക്ക് പോകുന്നു", "ാിീുൂേ്"),
    "Sinhala": ("මම ගෙදර යනවා කිව්වා", "ාිීුූෙේ්"),
    "Thai": ("ฉันกำลังกลับบ้านที่นี่", "ิีึืุู่้๊๋"),
    "Lao": ("ຂ້ອຍກຳລັງກັບບ້ານ", "ິີຶືຸູ່້"),
    "Tibetan": ("ང་ནང་ལ་འགྲོ་གི་ཡོད", "ིེོུྲ"),
    "Burmese": ("ကျွန်တော် အိမ်ပြန်မယ်", "ာိီုူေ်"),
    "Khmer": ("ខ្ញុំកំពុងទៅផ្ទះ", "ាិីុូេ្"),
    "Thaana": ("އަހަރެން ގެއަށް ދަނީ", "ަާިީުޫެް"),
    "N'Ko": ("ߒ ߓߍ߫ ߕߊ߯ߟߊ߫ ߛߏ߫", "߲߫߬߭߮߯"),
    "Javanese": ("ꦲꦏꦸ ꦩꦸꦭꦶꦃ", "ꦴꦶꦷꦸꦹꦺ"),
    "Yoruba": ("mo ń lọ sílé ọjọ́ kẹ̀kẹ́", "\u0300\u0301\u0304\u0323"),
    "Vietnamese": ("tôi đang về nhà đợi mẹ".replace("ợ", "ơ\u0323"), "\u0300\u0301\u0303\u0309\u0323"),
    "Cyrillic": ("кыва\u0304т за\u0301мок", "\u0300\u0301\u0304"),
}


@pytest.mark.parametrize("script", SCRIPTS)
def test_another_mark_is_another_text(script):
    text, marks = SCRIPTS[script]
    places = [i for i, character in enumerate(text) if character in marks]
    assert places and multilingual(text) == multilingual(text + " !").strip()
    for place in places:
        for other in set(marks) - {text[place]}:
            assert multilingual(text[:place] + other + text[place + 1 :]) != multilingual(text), (place, other)


@settings(max_examples=300, deadline=None)
@given(st.text(st.sampled_from("aIİßΣʼ'’`´ \u0301\u0307\u200d\u200cאַאָاُ()<>[]-กำिक👍\ufe0fｶﾞ") | st.characters()))
@example("(a) [b] <c> don’t ’tis")
def test_normalising_again_changes_nothing(text):
    assert multilingual(multilingual(text)) == multilingual(text)


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("Don’t STOP, l'eau (laughs) 'tis the dogs' [noise] £5!", "don't stop l'eau tis the dogs 5"),
        ("об’єкт обʼєкт об'єкт", "об'єкт об'єкт об'єкт"),
        ("İstanbul ＡＢＣ ❤️ cafe\u0301", "istanbul abc café"),
        ("می\u200cخواهم \u200f\u200cکتاب\u200c", "می\u200cخواهم کتاب"),
        ("كَتَبَ الــولد", "كتب الولد"),
        ("שָׁלוֹם", "שלום"),
    ],
)
def test_letters_stay_and_the_rest_goes(text, normal):
    assert multilingual(text) == normal


def test_the_points_of_yiddish_are_vowels():
    assert normalize("אַ אָ", language="yi") != normalize("א א", language="Yiddish")
    assert normalize("אַ אָ", language="he") == normalize("א א")


def test_hindi_errors_are_jiwers():
    reference, hypothesis = "मैं घर जा रहा हूँ आज शाम", "मैं घार जो रहा हूँ आज शमा"
    assert score([reference], [hypothesis]).value == pytest.approx(jiwer.wer(reference, hypothesis)) == 3 / 7
    assert score([reference], [hypothesis], "whisper_basic").details["words_without_marks"] == 5


def test_a_normalizer_that_removes_marks_is_named_once(caplog, monkeypatch):
    monkeypatch.setattr(normalizers, "_warned", set())
    with caplog.at_level(logging.WARNING):
        for name in ("whisper_basic", "whisper_basic", "multilingual", "none"):
            score(["रात हो गई", "a café"], ["x", "y"], name)
    (message,) = (record.message for record in caplog.records)
    assert "whisper_basic removes marks" in message and "from 2 words" in message and "multilingual" in message


@pytest.mark.parametrize(
    ("text", "language"),
    [("我每天吃苹果。", "zh"), ("iPhoneを買いました", "ja"), ("ผมกลับบ้าน", "th"), ("ខ្ញុំទៅផ្ទះ", "km"), ("ຂ້ອຍໄປ", "lo")],
)
def test_the_script_decides_the_units_of_a_text_without_language(text, language):
    heard = "hello there"  # what is heard is counted like the reference
    counts = [text_errors(text, heard, code).tolist() for code in (None, language)]
    assert counts[0] == counts[1] and counts[0][0][3] == len(words(normalize(text), language)) > 1
    assert text_errors(heard, text).tolist()[0][3] == 2, "the reference decides"


def test_one_name_in_another_script_changes_no_units():
    assert not unspaced("I flew to 北京 last week") and not unspaced("한국어 漢字 문장입니다") and unspaced("OK吧")


def test_the_unit_is_reported():
    chinese, english = score(["你好吗"], ["你好"]), score(["hello"], ["hello"], languages=["en"])
    mixed = score(["你好吗", "hello there"], ["你好", "hello"])
    assert [s.details["unit"] for s in (chinese, english, mixed)] == ["character", "word", "mixed"]
    assert "1/3 characters" in scores_text({"wer": chinese}) and "character" not in scores_text({"wer": english})
    assert "2/5 words and, in 1 items, characters" in scores_text({"wer": mixed})
    assert mixed.details["items_by_character"] == 1


def test_turkish_has_a_dotless_i():
    assert multilingual("\u0130stanbul I\u015eIK", "tr") == multilingual("istanbul \u0131\u015f\u0131k", "Turkish")
    assert multilingual("I\u0307zmir") == multilingual("\u0130zmir") == "izmir" and multilingual("IT", "en") == "it"
