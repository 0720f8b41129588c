"""Normalisers of published evaluations."""

import json
from pathlib import Path

import pytest

from stentor.text.normalize import normalize, words

GOLDEN = json.loads(Path(__file__).with_name("published_normalizers.json").read_text("utf-8"))
"""Texts after `post_process` of OmniVoice's omnivoice/eval/wer/{seedtts,hubert,minimax,fleurs}.py, with zhon 2.1.1 and
zhconv 1.4.3; of seedtts in Chinese with `zhconv.convert` before it, as its caller does."""


@pytest.mark.parametrize("case", GOLDEN, ids=lambda case: f"{case['language']}: {case['text'][:20]}")
def test_normalised_texts_are_those_of_the_published_evaluations(case):
    if any(c in case["text"] for c in "臺灣氣"):
        pytest.importorskip("opencc")
    for name in ("seed_tts", "librispeech_pc", "minimax", "fleurs"):
        if case.get(name) is not None:
            normalised = normalize(case["text"], name, case["language"])
            assert words(normalised, case["language"]) == words(case[name], case["language"]), name


def test_chinese_is_divided_into_characters_and_letters():
    assert words(normalize("你好，GPT 4！", "seed_tts", "zh"), "zh") == [*"你好GPT4"]
