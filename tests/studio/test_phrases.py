"""The built-in phrases: enough of them, clean, readable in one breath, covering letters, sounds, and every kana, jamo,
Devanagari and Arabic sign."""

import ctypes
import re
import unicodedata
from collections import Counter

import pytest

from stentor.audio import synth
from stentor.errors import ConfigError
from stentor.studio.phrases import NAMES, languages, phrases

ALPHABETS = {
    "bg": "абвгдежзийклмнопрстуфхцчшщъьюя",
    "ca": "abcdefghijlmnopqrstuvxyzàçèéíïòóúü kw",
    "cs": "abcdefghijklmnoprstuvyzáčďéěíňóřšťúůýž qwx",
    "cy": "abcdefghijlmnoprstuwyâêîôŵŷ kjáäéëïöûẃẁ",
    "da": "abcdefghijklmnoprstuvyæøå cqwxzé",
    "de": "abcdefghijklmnopqrstuvwxyzäöüß éà",
    "el": "αβγδεζηθικλμνξοπρσςτυφχψωάέήίόύώ ϊϋΐΰ",
    "en": "abcdefghijklmnopqrstuvwxyz",
    "es": "abcdefghijklmnopqrstuvxyzáéíñóúü kw",
    "et": "abdefghijklmnoprstuväöõüš cqwxyzž",
    "eu": "abdefghijklmnoprstuxzñ cqvwyç",
    "fi": "adefghijklmnoprstuvyäö bcqwxzåšž",
    "fr": "abcdefghijlmnopqrstuvxyzàâçèéêëîïôùûœ kwæüÿ",
    "ga": "abcdefghilmnoprstuáéíóú",
    "gl": "abcdefghilmnopqrstuvxzáéíñóú jkwyüï",
    "he": "אבגדהוזחטיכךלמםנןסעפףצץקרשת",
    "hr": "abcčćdđefghijklmnoprsštuvzž",
    "hu": "abcdefghijklmnoprstuvyzáéíóöőúüű qwx",
    "id": "abcdefghijklmnoprstuvwyz qx",
    "is": "abdefghijklmnoprstuvxyáðéíóúýþæö cqwz",
    "it": "abcdefghilmnopqrstuvzàèéìòù jkwxyîó",
    "lt": "abcdefghijklmnoprstuvyząčęėįšųūž qwx",
    "lv": "abcdefghijklmnoprstuvzāčēģīķļņšūž",
    "mk": "абвгдѓежзѕијклљмнњопрстќуфхцчџш",
    "mt": "abdefghijklmnopqrstuvwxzċġħż àèìòùyc",
    "nb": "abdefghijklmnoprstuvyæøå cqwxzéòôó",
    "nl": "abcdefghijklmnoprstuvwxyzëï qéèêóöüáíú",
    "pl": "abcdefghijklmnoprstuwyząćęłńóśźż qvx",
    "pt": "abcdefghijlmnopqrstuvxzáâãàçéêíóôõú kwyü",
    "ro": "abcdefghijlmnoprstuvxzăâîșț kqwy",
    "ru": "абвгдежзийклмнопрстуфхцчшщъыьэюяё",
    "sk": "abcdefghijklmnoprstuvyzáäčďéíĺľňóôŕšťúýž qwx",
    "sl": "abcčdefghijklmnoprsštuvzž",
    "sq": "abcdefghijklmnopqrstuvxyzçë",
    "sr": "абвгдђежзијклљмнњопрстћуфхцчџш",
    "sv": "abcdefghijklmnoprstuvxyåäö qwzéà",
    "tr": "abcçdefgğhıijklmnoöprsştuüvyz âîû",
    "uk": "абвгґдеєжзиіїйклмнопрстуфхцчшщьюя",
    "vi": "abcdeghiklmnopqrstuvxyăâđêôơư",
}
"""Letters that each set must hold at least twice; after a space those of foreign words and stress marks that may stand
in it besides. Scripts with too many letters to list have only `SCRIPTS`."""
SCRIPTS = {
    "ARABIC": "ar fa ur",
    "CYRILLIC": "be kk",
    "BENGALI": "bn",
    "DEVANAGARI": "hi mr",
    "ARMENIAN": "hy",
    "HIRAGANA KATAKANA CJK": "ja",
    "GEORGIAN": "ka",
    "HANGUL": "ko",
    "TAMIL": "ta",
    "TELUGU": "te",
    "THAI": "th",
    "CJK": "zh",
}
"""Scripts (how Unicode names of letters begin) and their languages without an entry in `ALPHABETS`."""
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

KANA = (
    "あいうえおかきくけこさしすせそたちつてとなにぬねのはひふへほまみむめもやゆよらりるれろわをん"
    "がぎぐげござじずぜぞだでどばびぶべぼぱぴぷぺぽゃゅょっ"
)
LEADS, VOWELS = range(0x1100, 0x1113), range(0x1161, 0x1176)
FINALS = "ᆨᆩᆪᆫᆬᆭᆮᆯᆰᆱᆲᆶᆷᆸᆹᆺᆻᆼᆽᆾᆿᇀᇁᇂ"
"""Conjoining final consonants of everyday words: without ᆳ, ᆴ and ᆵ, which stand in a handful of words."""

SIGNS = {
    "ar": "ابتثجحخدذرزسشصضطظعغفقكلمنهوي" + "ءأإآؤئىة",
    "hi": "अआइईउऊऋएऐओऔकखगघचछजझटठडढणतथदधनपफबभमयरलवशषसह" + "ािीुूृेैोौंःँ़्",
    "ja": KANA,
    "ko": "".join(map(chr, [*LEADS, *VOWELS])) + FINALS,
}

PINYIN = (
    "b:不把 p:朋爬 m:门明 f:飞风 d:打大 t:天听 n:你您 l:来老 g:个高 k:看开 h:好红 j:家见 q:请前 x:小想 zh:这正 "
    "ch:吃出 sh:上说 r:人热 z:在早 c:从草 s:伞散 ü:女绿 üe:月雪 "
    "üan:圆全 ün:云裙 iong:熊穷 uai:快筷 uang:装窗 er:耳儿 ci:词次 si:四思"
)
"""Initials and the rarer finals of Mandarin with everyday characters that have them."""


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
    assert len(lines) >= (40 if code in {"is", "mt"} else 100)
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
        assert not (strange := set(counts) - set(ALPHABETS[code])), sorted(strange)
        rare = [letter for letter in ALPHABETS[code].partition(" ")[0] if counts[letter] < 2]
        assert not rare, f"less than twice: {rare}"
    else:
        (scripts,) = (names.split() for names, codes in SCRIPTS.items() if code in codes.split())
        assert not {c for c in counts if not unicodedata.name(c).startswith(tuple(scripts))}


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


@pytest.mark.parametrize("code", sorted(SIGNS))
def test_every_sign_is_read_twice_or_is_rare(code):
    counts = Counter(unicodedata.normalize("NFD" if code == "ko" else "NFC", "".join(phrases(code))))
    least = dict.fromkeys(FINALS, 1)  # clusters such as ᆪ stand in few words, once is enough
    assert not (rare := [sign for sign in SIGNS[code] if counts[sign] < least.get(sign, 2)]), f"too seldom: {rare}"


def test_chinese_has_every_initial_and_the_rarer_finals():
    read = set("".join(phrases("zh")))
    assert not (missing := [sound for sound in PINYIN.split() if not read & set(sound.partition(":")[2])]), missing
