"""Extras: the table that messages are made of, the bounds that are installed, and each verb without any extra."""

import itertools
import os
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from stentor.errors import EXTRAS, ConfigError, missing_extra, require

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
DECLARED = PROJECT["optional-dependencies"]
FOR_DEVELOPERS = {"all", "docs", "test", "test-cluster"}


def packages(requirements):
    return {re.split(r"[^\w.-]", requirement)[0].lower() for requirement in requirements}


def test_the_table_is_that_of_the_package():
    assert set(EXTRAS) == set(DECLARED) - FOR_DEVELOPERS
    assert set(re.findall(r"[\w-]+", DECLARED["all"][0])) - {"stentor"} == set(EXTRAS)
    owners = {
        module: {name.lower().replace("_", "-") for name in names} for module, names in packages_distributions().items()
    }
    for extra, (_, modules) in EXTRAS.items():
        assert len(modules) == len(DECLARED[extra]), extra
        for module in modules:
            known = {name.replace("_", "-") for name in packages(DECLARED[extra])}
            assert owners.get(module, {module.replace("_", "-")}) & known, (extra, module)


def test_the_guide_lists_each_extra():
    section = (
        (ROOT / "docs" / "install.md").read_text(encoding="utf-8").partition("\n## Extras\n")[2].partition("\n## ")[0]
    )
    cells = re.findall(r"^\| (`[^|]*) \|", section, re.M)
    assert {name for cell in cells for name in re.findall(r"`([^`]*)`", cell)} == set(DECLARED) - {"test-cluster"}


def test_both_files_of_versions_keep_the_bounds():
    """The lowest versions, with which `.ci/run` tries the package, are the bounds themselves."""
    lowest, newest = (
        dict(line.split("==") for line in (ROOT / name).read_text(encoding="utf-8").split())
        for name in ("constraints-lowest.txt", "constraints.txt")
    )
    tried = 0
    for requirement in map(Requirement, [*PROJECT["dependencies"], *itertools.chain.from_iterable(DECLARED.values())]):
        name = canonicalize_name(requirement.name)
        if name == "stentor":
            continue
        bound = next((s.version for s in requirement.specifier if s.operator == ">="), None)
        assert Version(newest[name]) in requirement.specifier, requirement
        if name in lowest and bound is not None and name != "aiohttp":
            tried += 1
            assert Version(lowest[name]) == Version(bound), requirement
    assert tried > 50


def test_a_missing_extra_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    sentence = "It needs av, which is not installed: pip install 'stentor[av]', or leave it."
    assert missing_extra("av", "It", instead="leave it") == sentence
    with pytest.raises(ConfigError, match=r"^It needs av, which is not installed: pip install 'stentor\[av\]'\.$"):
        require("av", "It")
    for module in ("babel", "kaldifst", "py3langid"):
        monkeypatch.setitem(sys.modules, module, None)
    sentence = missing_extra("speak", "It", "babel", "kaldifst", "py3langid")
    assert "needs babel, kaldifst and py3langid, which are not" in sentence
    assert missing_extra("speak", "It", "sys") == ""


@pytest.mark.long
def test_each_verb_without_any_extra(tmp_path):
    """It works, or names its extra and ends with exit code 2."""
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT / "src")}
    command = [sys.executable, ROOT / "tests" / "each_verb.py", tmp_path / "work", *EXTRAS]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
