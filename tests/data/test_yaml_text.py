"""Plain data of YAML 1.2, and changed values in a text that keeps its comments."""

import pytest
from yaml import YAMLError

from stentor.config.yaml_writer import edited
from stentor.data.yaml_text import read_yaml


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("no", "no"),
        ("off", "off"),
        ("yes", "yes"),
        ("1_000", "1_000"),
        ("0o17", 15),
        ("017", 17),
        ("0x1F", 31),
        ("2026-01-01", "2026-01-01"),
        ("12:30:45", "12:30:45"),
        ("-.INF", float("-inf")),
        ("~", None),
        ("'3'", "3"),
        ("<<", "<<"),
    ],
)
def test_plain_scalars_are_those_of_yaml_1_2(text, value):
    assert read_yaml(f"key: {text}") == {"key": value}


@pytest.mark.parametrize(
    ("text", "after"),
    [
        (
            "# head\nname: a  # the name\ndata:\n  train:\n  - {path: a.jsonl}  # first\nx:\n",
            '# head\nname: "b: c"  # the name\ndata:\n  train:\n  - {path: z}  # first\nx: 1\noutput: runs\n',
        ),
        (
            '{"name": "a", "data": {"train": [{"path": "a.jsonl"}]}, "x": null}',
            '{"name": "b: c", "data": {"train": [{"path": z}]}, "x": 1, output: runs}',
        ),
    ],
)
def test_a_text_is_edited_where_values_differ(text, after):
    value = {"name": "b: c", "output": "runs", "data": {"train": [{"path": "z"}]}, "x": 1}
    assert edited(text, value) == after and read_yaml(after) == value


@pytest.mark.parametrize("opened", ["[", "{a: ", "- "])
def test_a_text_of_very_many_levels_is_refused(opened):
    """The reader in C would end the process; a page can send such a text."""
    with pytest.raises(YAMLError, match="more than 100 levels"):
        read_yaml(opened * 30_000)
