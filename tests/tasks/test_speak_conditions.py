"""What a training sample is told and what it hides (section 1.3 of the notes on OmniVoice)."""

import numpy as np
import pytest

from stentor.data.seeding import rng
from stentor.tasks.base import Task
from stentor.tasks.speak.task import Conditions, Speak, Spoken, draw

FULL = Spoken("hello", language="en", instruct="female, low pitch", pinyin="hel3lo")
N = 4000


def drawn(record=FULL, **settings) -> list[Conditions]:
    task = Speak(**settings)
    return [draw(record, task, rng(0, i)) for i in range(N)]


def share(flags) -> float:
    return float(np.mean(list(flags)))


def test_the_shares_are_those_of_the_ratios():
    conditions = drawn()
    conditional = [c for c in conditions if not c.unconditional]
    near = {"abs": 0.025}
    assert share(c.unconditional for c in conditions) == pytest.approx(0.1, **near)
    assert share(c.language is not None for c in conditional) == pytest.approx(0.8, **near)
    assert share(c.instruct is not None for c in conditional) == 1.0
    assert share(c.text == "hel3lo" for c in conditional) == pytest.approx(0.3, **near)
    assert share(c.prompt_frames_ratio == 0 for c in conditional) == pytest.approx(0.5, **near)
    prompts = [c.prompt_frames_ratio for c in conditional if c.prompt_frames_ratio]
    assert min(prompts) > 0 and max(prompts) < 0.3 and np.mean(prompts) == pytest.approx(0.15, abs=0.01)
    masks = [c.mask_ratio for c in conditions]
    assert np.mean(masks) == pytest.approx(0.5, **near) and np.var(masks) == pytest.approx(1 / 12, abs=0.01)


def test_an_unconditional_sample_is_the_audio_alone():
    conditions = drawn(drop_cond_ratio=1.0)
    assert all(c.unconditional and not c.denoise and c.prompt_frames(100) == 0 for c in conditions)
    assert {(c.language, c.instruct, c.text) for c in conditions} == {(None, None, "")}


def test_only_an_instruct_that_is_told_takes_the_prompt_away():
    with_prompt = {"prompt_ratio_range": (0.1, 0.3), "drop_cond_ratio": 0.0, "only_instruct_ratio": 1.0}
    assert all(c.prompt_frames_ratio == 0 for c in drawn(**with_prompt))
    assert all(c.prompt_frames_ratio >= 0.1 for c in drawn(instruct_ratio=0.0, **with_prompt))
    assert all(c.prompt_frames_ratio >= 0.1 for c in drawn(Spoken("hello"), **with_prompt))
    both = drawn(instruct_ratio=0.5, only_instruct_ratio=0.5, drop_cond_ratio=0.0, prompt_ratio_range=(0.1, 0.3))
    assert all(c.instruct is not None for c in both if c.prompt_frames_ratio == 0)
    assert share(c.prompt_frames_ratio == 0 for c in both) == pytest.approx(0.25, abs=0.025)


def test_a_noisy_beginning_is_the_prompt_and_is_never_dropped():
    conditions = drawn(Spoken("hello", instruct="x", clean_from=37), drop_cond_ratio=1.0, only_instruct_ratio=1.0)
    assert all(c.denoise and not c.unconditional and c.prompt_frames(100) == 37 for c in conditions)


def test_what_a_record_lacks_is_not_told():
    assert {(c.language, c.instruct, c.text) for c in drawn(Spoken("hello"), drop_cond_ratio=0.0)} == {
        (None, None, "hello")
    }


def test_a_changed_ratio_changes_nothing_else():
    a = drawn(drop_cond_ratio=0.0)
    b = drawn(drop_cond_ratio=0.0, language_ratio=0.0, use_pinyin_ratio=0.0, only_instruct_ratio=0.0)
    assert [c.mask_ratio for c in a] == [c.mask_ratio for c in b]
    assert all(y.prompt_frames_ratio in (x.prompt_frames_ratio, y.prompt_frames_ratio) for x, y in zip(a, b))
    assert [x.prompt_frames_ratio for x in a if x.prompt_frames_ratio] == [
        y.prompt_frames_ratio for x, y in zip(a, b) if x.prompt_frames_ratio
    ]


@pytest.mark.parametrize("ratio, frames, prompt", [(0.3, 10, 3), (0.29, 10, 2), (0.3, 3, 0), (0.99, 1, 0)])
def test_prompt_frames_are_rounded_down_and_leave_something_to_learn(ratio, frames, prompt):
    assert Conditions(False, ratio, None, None, "a", False, None, 0.5).prompt_frames(frames) == prompt


def test_a_noisy_beginning_as_long_as_the_audio_leaves_a_frame():
    assert Conditions(False, 0.0, None, None, "a", True, 12, 0.5).prompt_frames(12) == 11


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prompt_ratio_range": [0.3, 0.1]}, "two shares between 0 and 1, the lower one first"),
        ({"mask_ratio_range": [0.0, 0.0]}, "nothing to learn"),
        ({"prompt_ratio_range": [0.0, 1.0]}, "leaves nothing to learn"),
        ({"min_tokens": 50, "max_tokens": 40}, "no record is left"),
        ({"drop_cond_ratio": 1.5}, "less than or equal to 1"),
        ({"drop_cond_ration": 0.5}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Task.model_validate({"type": "speak", **settings})
