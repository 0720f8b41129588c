"""The wheel holds every file of the source tree, so that nothing is missing where there is none."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def test_the_wheel_holds_every_file(tmp_path):
    pytest.importorskip("setuptools", minversion="77", reason="setuptools builds the wheel")
    clone = tmp_path / "clone"
    shutil.copytree(ROOT / "src", clone / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone / name)
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*command, "--wheel-dir", tmp_path, clone], check=True)
    [wheel] = tmp_path.glob("*.whl")
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if name.startswith("stentor/")}
    source = {str(f.relative_to(ROOT / "src")) for f in (ROOT / "src" / "stentor").rglob("*") if f.is_file()}
    assert {n for n in source if "__pycache__" not in n} == packed
