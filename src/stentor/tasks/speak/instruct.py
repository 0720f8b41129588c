"""Instruct vocabulary of the published OmniVoice models; models trained on other instructs know those.

Words, translations and rules are those of k2-fsa/OmniVoice (omnivoice/utils/voice_design.py).
"""

import difflib
import re

from stentor.errors import ConfigError

ACCENTS = "american australian british canadian chinese indian japanese korean portuguese russian"
DIALECTS = "河南话 陕西话 四川话 贵州话 云南话 桂林话 济南话 石家庄话 甘肃话 宁夏话 青岛话 东北话"
TRANSLATED: dict[str, dict[str, str]] = {
    "gender": {"male": "男", "female": "女"},
    "age": {"child": "儿童", "teenager": "少年", "young adult": "青年", "middle-aged": "中年", "elderly": "老年"},
    "pitch": {
        "very low pitch": "极低音调",
        "low pitch": "低音调",
        "moderate pitch": "中音调",
        "high pitch": "高音调",
        "very high pitch": "极高音调",
    },
    "style": {"whisper": "耳语"},
}
"""By category, of which an instruct has one at most: the words in English and Chinese."""
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    **{category: (*words, *words.values()) for category, words in TRANSLATED.items()},
    "accent": tuple(f"{name} accent" for name in ACCENTS.split()),
    "dialect": tuple(DIALECTS.split()),
}
"""All words by category; accents are of English speech alone, dialects of Chinese."""
CATEGORIES = {word: category for category, words in ATTRIBUTES.items() for word in words}
TO_CHINESE = {word: chinese for words in TRANSLATED.values() for word, chinese in words.items()}
TO_ENGLISH = {chinese: word for word, chinese in TO_CHINESE.items()}
SEPARATOR = re.compile(r"\s*[,，、;；]\s*")
HAN = re.compile(r"[\u4e00-\u9fff]")


def resolve(instruct: str, text: str) -> str:
    """An instruct as a published model reads it: in Chinese for a text with Chinese characters and where it names a
    dialect, else in English. Raises ConfigError for words that such a model does not know, for two words of one
    category, and for an accent together with a dialect."""
    parts = [part for part in SEPARATOR.split(instruct.strip().lower()) if part]
    if unknown := [part for part in parts if part not in CATEGORIES]:
        raise ConfigError(_unknown(unknown))
    categories = [CATEGORIES[part] for part in parts]
    if "accent" in categories and "dialect" in categories:
        raise ConfigError(f"The instruct {instruct!r} has an English accent and a Chinese dialect: leave one out.")
    chinese = "accent" not in categories and ("dialect" in categories or HAN.search(text) is not None)
    words = [(TO_CHINESE if chinese else TO_ENGLISH).get(part, part) for part in parts]
    for category in ATTRIBUTES:
        if len(several := [part for part in parts if CATEGORIES[part] == category]) > 1:
            raise ConfigError(f"The instruct names more than one {category}, {' and '.join(several)}: leave one out.")
    return ("，" if HAN.search("".join(words)) else ", ").join(words)


def _unknown(unknown: list[str]) -> str:
    near = [difflib.get_close_matches(part, CATEGORIES, 1, 0.6) for part in unknown]
    named = [f"{part!r}" + (f" (did you mean {match[0]!r}?)" if match else "") for part, match in zip(unknown, near)]
    known = "; ".join(f"{name}: {', '.join(words)}" for name, words in ATTRIBUTES.items())
    return f"The instruct has {', '.join(named)}, which the model does not know. It only knows these words: {known}."
