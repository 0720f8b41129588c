"""The examples of the pages about data are right."""

import re
from pathlib import Path

import pytest

from stentor.config.prepare.base import Preparation
from stentor.data.yaml_text import read_yaml
from stentor.dataloading.section import Data
from stentor.sources.base import Source

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "data.md").read_text(encoding="utf-8")
NAMES = ("data", "hub_data", "diarization_data", "large_data")
EXAMPLES = [
    e for n in NAMES for e in re.findall(r"```yaml\n(.*?)```", (DOCS / f"{n}.md").read_text("utf-8"), re.DOTALL)
]


@pytest.mark.parametrize("example", EXAMPLES, ids=range(len(EXAMPLES)))
def test_yaml_examples_are_valid(example):
    sections = read_yaml(example)
    for step in sections.pop("prepare", []):
        assert Preparation.model_validate(step).options()
    for data in sections.values():
        data.setdefault("train", ["synth"])
        assert Data.model_validate(data)


def test_all_sources_and_anchors_are_there():
    kinds = {k for k in Source.choices() if Source.choices()[k].__module__.startswith("stentor.")}
    missing = [k for k in kinds if f"type: {k}" not in PAGE]
    assert not missing
    headings = {
        re.sub(r"[^\w -]", "", h).strip().lower().replace(" ", "-") for h in re.findall(r"^#+ (.*)", PAGE, re.M)
    }
    assert set(re.findall(r"\]\(#([^)]+)\)", PAGE)) <= headings
