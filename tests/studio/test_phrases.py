"""The built-in phrases: enough of them, clean, readable in one breath, covering letters and sounds."""

import ctypes
import re
import unicodedata
from collections import Counter

import pytest

from stentor.audio import synth
from stentor.errors import ConfigError
from stentor.studio.phrases import NAMES, languages, phrases

LATIN = "abcdefghijklmnopqrstuvwxyz"
CYRILLIC = "абвгдежзийклмнопрстуфхцчшщъыьэюя"
ALPHABETS = {
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "ca": "abcdefghijlmnopqrstuvxyz" + "àçèéíïòóúü",
    "cs": "abcdefghijklmnoprstuvyz" + "áčďéěíňóřšťúůýž",
    "cy": "abcdefghijlmnoprstuwy" + "âêîôŵŷ",
    "da": "abcdefghijklmnoprstuvy" + "æøå",
    "de": LATIN + "äöüß",
    "el": "αβγδεζηθικλμνξοπρσςτυφχψω" + "άέήίόύώ",
    "en": LATIN,
    "es": "abcdefghijklmnopqrstuvxyz" + "áéíñóúü",
    "et": "abdefghijklmnoprstuv" + "äöõüš",
    "eu": "abdefghijklmnoprstuxz" + "ñ",
    "fi": "adefghijklmnoprstuvy" + "äö",
    "fr": "abcdefghijlmnopqrstuvxyz" + "àâçèéêëîïôùûœ",
    "ga": "abcdefghilmnoprstu" + "áéíóú",
    "gl": "abcdefghilmnopqrstuvxz" + "áéíñóú",
    "he": "אבגדהוזחטיכךלמםנןסעפףצץקרשת",
    "hr": "abcčćdđefghijklmnoprsštuvzž",
    "hu": "abcdefghijklmnoprstuvyz" + "áéíóöőúüű",
    "id": "abcdefghijklmnoprstuvwyz",
    "is": "abdefghijklmnoprstuvxy" + "áðéíóúýþæö",
    "it": "abcdefghilmnopqrstuvz" + "àèéìòù",
    "lt": "abcdefghijklmnoprstuvyz" + "ąčęėįšųūž",
    "lv": "abcdefghijklmnoprstuvz" + "āčēģīķļņšūž",
    "mk": "абвгдѓежзѕијклљмнњопрстќуфхцчџш",
    "mt": "abdefghijklmnopqrstuvwxz" + "ċġħż",
    "nb": "abdefghijklmnoprstuvy" + "æøå",
    "nl": "abcdefghijklmnoprstuvwxyz" + "ëï",
    "pl": "abcdefghijklmnoprstuwyz" + "ąćęłńóśźż",
    "pt": "abcdefghijlmnopqrstuvxz" + "áâãàçéêíóôõú",
    "ro": "abcdefghijlmnoprstuvxz" + "ăâîșț",
    "ru": CYRILLIC + "ё",
    "sk": "abcdefghijklmnoprstuvyz" + "áäčďéíĺľňóôŕšťúýž",
    "sl": "abcčdefghijklmnoprsštuvzž",
    "sq": "abcdefghijklmnopqrstuvxyz" + "çë",
    "sr": "абвгдђежзијклљмнњопрстћуфхцчџш",
    "sv": "abcdefghijklmnoprstuvxy" + "åäö",
    "tr": "abcçdefgğhıijklmnoöprsştuüvyz",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "vi": "abcdeghiklmnopqrstuvxy" + "ăâđêôơư",
}
"""Letters that each set must hold at least twice. Scripts with too many letters to list have only `SCRIPTS`."""

BORROWED = {
    "ca": "kw",
    "cs": "qwx",
    "cy": "kjáäéëïöûẃẁ",
    "da": "cqwxzé",
    "de": "éà",
    "el": "ϊϋΐΰ",
    "es": "kw",
    "et": "cqwxyzž",
    "eu": "cqvwyç",
    "fi": "bcqwxzåšž",
    "fr": "kwæüÿ",
    "gl": "jkwyüï",
    "hu": "qwx",
    "id": "qx",
    "is": "cqwz",
    "it": "jkwxyîó",
    "lt": "qwx",
    "mt": "àèìòùyc",
    "nb": "cqwxzéòôó",
    "nl": "qéèêóöüáíú",
    "pl": "qvx",
    "pt": "kwyü",
    "ro": "kqwy",
    "sk": "qwx",
    "sv": "qwzéà",
    "tr": "âîû",
}
"""Letters of foreign words and stress marks that may stand in a set besides its alphabet."""

SCRIPTS = {
    "ar": ("ARABIC",),
    "be": ("CYRILLIC",),
    "bn": ("BENGALI",),
    "fa": ("ARABIC",),
    "hi": ("DEVANAGARI",),
    "hy": ("ARMENIAN",),
    "ja": ("HIRAGANA", "KATAKANA", "CJK"),
    "ka": ("GEORGIAN",),
    "kk": ("CYRILLIC",),
    "ko": ("HANGUL",),
    "mr": ("DEVANAGARI",),
    "ta": ("TAMIL",),
    "te": ("TELUGU",),
    "th": ("THAI",),
    "ur": ("ARABIC",),
    "zh": ("CJK",),
}
"""Scripts (how Unicode names of letters begin) of languages without an entry in `ALPHABETS`."""

NO_SPACES = {"ja", "km", "my", "th", "zh"}
CODES = sorted(languages())

SOUNDS = {
    "cs": "p b t d c ɟ k ɡ f v s z ʃ ʒ x h ts tʃ dʒ m n ɲ ŋ l r r̝ r̝̊ l̩ r̩ j i iː e eː a aː o oː u uː oʊ aʊ",
    "da": "p b t d k ɡ f s ʃ h ʋ ð j w ʁ m n ŋ l ʔi ʔe ʔu ʔo ʔy ʔœ i e ε ɛ a ɑ ɒ o u y œ ʌ ə ɐ̯",
    "de": "p b t d k ɡ pf ts f v s z ʃ ç x h m n ŋ l ɾ j iː ɪ yː ʏ eː ɛ ɛː øː œ a ɑː oː ɔ uː ʊ aɪ aʊ ɔø ə ɜ",
    "en": "p b t d k ɡ tʃ dʒ f v θ ð s z ʃ ʒ h m n ŋ l ɹ w j iː ɪ ɛ æ ɑː ʌ ɔː uː ʊ ɜː eɪ aɪ ɔɪ oʊ aʊ ə ɚ",
    "es": "p b t d k ɡ β ð ɣ f θ s x tʃ ʝ m n ɲ ŋ l ʎ r ɾ j w a e i o u aɪ",
    "fi": "p b t d k ɡ f v s h m n ŋ l r j a e i ɪ o u y æ ø aː eː iː oː uː yː æː øː "
    "ai ei oi ui yø æi øi au ou eu iu ie uo øy æy",
    "fr": "p b t d k ɡ f v s z ʃ ʒ m n ɲ l ʁ j w i e ɛ a ɔ o u y ø œ ə ɑ̃ ɛ̃ ɔ̃ œ̃",
    "is": "p b t d c ɟ k ɡ f ʋ θ ð s ç x ɣ h j m n ɲ ŋ l r l# n# r# ɪ ɛ a ɔ œ u i y eɪ aɪ oʊ aʊ øyː",
    "it": "p b t d k ɡ ts dz tʃ dʒ f v s z ʃ m n ɲ l ʎ r j w a e ɛ i o ɔ u tː kː",
    "nb": "p b t d k ɡ f v s ʂ ʃ x h m n ŋ l r j iː ɪ yː y eː ɛ ɛː øː œ ɑ a oː ɔ uː ʊ ʉː ʉ ə øy aɪ aʊ",
    "nl": "p b t d k f v s z x ɣ ʃ ʒ h m n ŋ l r ʋ j i y u ɪ ɛ ɑ ɔ ɵ eː aː oː øː ɛɪ œy ʌʊ ə",
    "pl": "p b t d k ɡ f v s z ʃ ʒ ɕ ʑ x ts tʃ dʒ tɕ dʑ m n ɲ ŋ l r w j i ɨ ɛ a ɔ u ɔ̃ ɛ̃",
    "pt": "p b t d k ɡ f v s z ʃ ʒ m n ɲ ŋ l ʎ ɾ ʁ j w i e ɛ a ɐ ɔ o u ɨ ɐ̃ õ ũ ɐ̃ʊ̃ eɪ aɪ oɪ eʊ",
    "sk": "p b t d tʲ dʲ k ɡ f v s z ʃ ʒ x h ts tʃ dʒ m n ɲ ŋ l ʎ r j l̩ r̩ l̩ː r̩ː i iː e eː a aː o oː u uː",
    "sv": "p b t d k ɡ f v s ʂ ɕ sx h m n ŋ l r j iː ɪ yː y eː ɛ ɛː øː œ ɑː a oː ɔ uː ʊ ʉ ɵ ə",
}
"""The phonemes that each set must hold at least twice, in the notation of eSpeak NG (`#` voiceless, `ʔ` with stød)."""


def letters(code: str) -> Counter[str]:
    return Counter(character for phrase in phrases(code) for character in phrase.lower() if character.isalpha())


def sounds(code: str) -> Counter[str]:
    """How often each phoneme stands in the phrases, by the built-in voice of the language."""
    ipa = 2 | ord("_") << 8  # espeakPHONEMES_IPA, with a separator between phonemes
    counts: Counter[str] = Counter()
    with synth._lock, synth._Library() as library:
        assert library.lib.espeak_SetVoiceByName({"en": "en-us"}.get(code, code).encode()) == 0
        for phrase in phrases(code):
            rest = ctypes.c_char_p(phrase.encode())
            while rest.value:
                words = library.lib.espeak_TextToPhonemes(ctypes.byref(rest), 1, ipa).decode().split()
                counts.update(
                    unicodedata.normalize("NFC", phoneme.strip("ˈˌ")) for word in words for phoneme in word.split("_")
                )
    return counts


def test_the_list_is_the_files_and_every_language_has_a_name():
    assert {"en", "de", "fr", "es", "it", "pt", "nl", "sv", "da", "fi", "nb", "is", "pl", "cs", "sk"} <= set(CODES)
    assert list(languages().values()) == sorted(languages().values())
    assert all(re.fullmatch(r"[a-z]{2}", code) and NAMES[code] == name for code, name in languages().items())


@pytest.mark.parametrize("code", ["xx", "", "../phrases/en", "en.txt", "EN"])
def test_only_languages_of_the_list_are_read(code):
    with pytest.raises(ConfigError, match="no built-in phrases"):
        phrases(code)


def test_norwegian_has_the_code_that_models_use_too():
    assert phrases("no") == phrases("nb")


@pytest.mark.parametrize("code", CODES)
def test_phrases_are_clean_sentences(code):
    lines = phrases(code)
    assert len(lines) >= 40
    assert len({re.sub(r"\W+", " ", line.lower()).strip() for line in lines}) == len(lines), "duplicates"
    for line in lines:
        assert line == line.strip() and "  " not in line and unicodedata.is_normalized("NFC", line), line
        assert not any(unicodedata.category(c)[0] in "NC" and c != "\u200c" for c in line), f"digit or control: {line}"
        assert not re.search(r"[<>{}\[\]()*_/\\|@#&%+=~^`\"]", line), f"not plain prose: {line}"
        assert re.search(r"[.!?…;。！？؟।՞]$|[»”“’]$", line) or code == "th", f"no final punctuation: {line}"
        if code in NO_SPACES:
            assert 6 <= len(line) <= 45, line
        else:
            assert 4 <= len([word for word in line.split() if re.search(r"\w", word)]) <= 14, line
            assert len(line) <= 110, line


@pytest.mark.parametrize("code", CODES)
def test_phrases_use_their_languages_letters(code):
    counts = letters(code)
    if code in ALPHABETS:
        strange = set(counts) - set(ALPHABETS[code]) - set(BORROWED.get(code, ""))
        assert not strange, sorted(strange)
        assert not (rare := [letter for letter in ALPHABETS[code] if counts[letter] < 2]), f"less than twice: {rare}"
    else:
        assert not {c for c in counts if not unicodedata.name(c).startswith(SCRIPTS[code])}


@pytest.mark.parametrize("code", sorted(SOUNDS))
def test_phrases_cover_their_languages_sounds(code):
    counts = sounds(code)
    assert not (
        rare := [phoneme for phoneme in unicodedata.normalize("NFC", SOUNDS[code]).split() if counts[phoneme] < 2]
    ), f"less than twice: {rare}"


@pytest.mark.parametrize("code", CODES)
def test_phrases_ask_exclaim_and_begin_in_many_ways(code):
    lines = phrases(code)
    assert sum("?" in line or line[-1] in "？؟;՞" or "՞" in line for line in lines) >= 4 or code == "th"
    assert sum(line[-1] in "!！" or "՜" in line for line in lines) >= 2 or code == "th"
    starts = Counter(line[0] if code in NO_SPACES else line.split()[0] for line in lines)
    assert starts.most_common(1)[0][1] <= len(lines) / 2.5
