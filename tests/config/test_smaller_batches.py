"""Advice for a lack of memory halves the batches of every stage."""

import pytest

from stentor.config.convert.voxlm import convert
from stentor.config.load import load, stage_configs
from stentor.config.smaller_batches import advised
from stentor.errors import BatchTooLarge


def advice(loaded) -> list[str]:
    with pytest.raises(BatchTooLarge, match=r"It is too large\. For") as caught, advised(loaded):
        raise BatchTooLarge("It is too large.")
    return str(caught.value).split("`")[1].split()


def test_both_stages_of_a_converted_run_get_smaller(tmp_path):
    (tmp_path / "theirs.yaml").write_text("model: {name: voxlm-2b}\ntraining: {phase1: {gradient_accumulation: 3}}\n")
    (tmp_path / "run.yaml").write_text(convert(tmp_path / "theirs.yaml").text)
    before = load(tmp_path / "run.yaml")
    after = load(tmp_path / "run.yaml", advice(before))
    for old, new in zip(stage_configs(before), stage_configs(after), strict=True):
        assert new.data.max_items == old.data.max_items / 2 and new.data.batch_tokens == old.data.batch_tokens / 2
        assert new.train.accumulate == 2 * old.train.accumulate
    assert [c.train.accumulate for c in stage_configs(after)] == [6, 2]


def test_a_run_without_stages_has_no_keys_of_stages(tiny):
    path = tiny()
    config = load(path).config
    assert advice(load(path, ["data.max_items=null"])) == [
        f"data.batch_tokens={config.data.batch_tokens // 2}",
        "train.accumulate=2",
    ]


def test_dotted_keys_of_a_stage_count(tiny):
    given = ['stages=[{}, {"data.max_items": 4}]']
    path = tiny()
    more = advice(load(path, given))
    assert "stages.1.data.max_items=2" in more
    assert load(path, [*given, *more]).stages[1].data.max_items == 2
