"""Phrases in scripts whose letters are composed: every kana, jamo, Devanagari and Arabic sign of the sounds is read."""

import unicodedata
from collections import Counter

import pytest

from stentor.studio.phrases import phrases

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


@pytest.mark.parametrize("code", sorted(SIGNS))
def test_every_sign_is_read_twice_or_is_rare(code):
    counts = Counter(unicodedata.normalize("NFD" if code == "ko" else "NFC", "".join(phrases(code))))
    least = dict.fromkeys(FINALS, 1)  # clusters such as ᆪ stand in few words, once is enough
    assert not (rare := [sign for sign in SIGNS[code] if counts[sign] < least.get(sign, 2)]), f"too seldom: {rare}"


PINYIN = {
    "b": "不把",
    "p": "朋爬",
    "m": "门明",
    "f": "飞风",
    "d": "打大",
    "t": "天听",
    "n": "你您",
    "l": "来老",
    "g": "个高",
    "k": "看开",
    "h": "好红",
    "j": "家见",
    "q": "请前",
    "x": "小想",
    "zh": "这正",
    "ch": "吃出",
    "sh": "上说",
    "r": "人热",
    "z": "在早",
    "c": "从草",
    "s": "伞散",
    "ü": "女绿",
    "üe": "月雪",
    "üan": "圆全",
    "ün": "云裙",
    "iong": "熊穷",
    "uai": "快筷",
    "uang": "装窗",
    "er": "耳儿",
    "ci": "词次",
    "si": "四思",
}
"""Initials and the rarer finals of Mandarin with everyday characters that have them."""


def test_chinese_has_every_initial_and_the_rarer_finals():
    read = set("".join(phrases("zh")))
    assert not (missing := [sound for sound, written in PINYIN.items() if not read & set(written)]), missing
