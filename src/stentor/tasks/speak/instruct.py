"""Instruct vocabulary of the published OmniVoice models; models trained on other instructs know those."""

import re

ACCENTS = "american australian british canadian chinese indian japanese korean portuguese russian"
DIALECTS = "河南话 陕西话 四川话 贵州话 云南话 桂林话 济南话 石家庄话 甘肃话 宁夏话 青岛话 东北话"
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "gender": ("male", "female", "男", "女"),
    "age": ("child", "teenager", "young adult", "middle-aged", "elderly", "儿童", "少年", "青年", "中年", "老年"),
    "pitch": (
        *(f"{height} pitch" for height in ("very low", "low", "moderate", "high", "very high")),
        *(f"{height}音调" for height in ("极低", "低", "中", "高", "极高")),
    ),
    "style": ("whisper", "耳语"),
    "accent": tuple(f"{name} accent" for name in ACCENTS.split()),
    "dialect": tuple(DIALECTS.split()),
}
"""By category; of each category an instruct has one at most."""
SEPARATOR = re.compile(r"\s*[,，、;；]\s*")


def attributes(instruct: str) -> list[str]:
    """The parts of an instruct, in lower case."""
    return [part for part in SEPARATOR.split(instruct.strip().lower()) if part]


def warnings(instruct: str) -> list[str]:
    """Sentences for a person about parts that a published model does not understand; none when all is well."""
    parts = attributes(instruct)
    category = {word: name for name, words in ATTRIBUTES.items() for word in words}
    sentences = []
    if unknown := [part for part in parts if part not in category]:
        known = "; ".join(f"{name}: {', '.join(words)}" for name, words in ATTRIBUTES.items())
        sentences.append(
            f"The model was trained on a closed set of words for voices, and {', '.join(map(repr, unknown))} "
            f"{'is' if len(unknown) == 1 else 'are'} not among them ({known})."
        )
    for name in ATTRIBUTES:
        if len(several := [part for part in parts if category.get(part) == name]) > 1:
            sentences.append(f"The instruct names more than one {name}: {', '.join(several)}.")
    return sentences
