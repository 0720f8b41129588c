"""Inputs of strangers, one row each: what public reports of other tools describe must work here, or be refused with one
clear sentence."""

import shlex
import sys
from pathlib import Path

import pytest

pytest.importorskip("av")
sys.path.insert(0, str(Path(__file__).parent))

import stranger_data  # noqa: F401
import stranger_recordings  # noqa: F401
import stranger_texts  # noqa: F401
from stranger_row import MODELS, ROWS, check

from stentor.cli import main


def test_the_table_has_its_rows():
    assert len({row.name for row in ROWS}) == len(ROWS) >= 70
    assert len({row.report for row in ROWS}) >= 50


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_stranger(row, request, tmp_path, monkeypatch, capsys):
    if row.later:
        request.applymarker(pytest.mark.xfail(reason=row.later, strict=True))
    row.make(tmp_path)
    monkeypatch.chdir(tmp_path)
    for command in row.command.split(" && "):
        arguments = shlex.split(command)
        for name, path in MODELS.items():
            arguments = [part.replace(name, str(path)) for part in arguments]
        code = main(arguments)
        out, err = capsys.readouterr()
    check(row, code, out, err, tmp_path)
