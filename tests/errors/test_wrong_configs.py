"""Golden messages: each file in wrong/ is answered with exactly the text beside it.

After a change of the schema or of a message, write the texts again and read the difference:

    .venv/bin/python tests/errors/test_wrong_configs.py
"""

import os
from pathlib import Path

import pytest

from stentor.config.load import load
from stentor.errors import ConfigError

WRONG = Path(__file__).parent / "wrong"
FILES = sorted(p.name for p in WRONG.iterdir() if p.suffix in (".yaml", ".json"))
JARGON = ("Input should", "validation error", "function-wrap", "literal[", "type=", "pydantic", "NoneType", "Traceback")


def message(name: str) -> str:
    """What a user reads who runs `stentor config check NAME` in the folder of the files."""
    first = Path(name).read_text(encoding="utf-8").split("\n", 1)[0]
    overrides = first.removeprefix("# overrides: ").split() if first.startswith("# overrides: ") else []
    try:
        load(Path(name), overrides)
    except ConfigError as error:
        return f"{error}\n"
    raise AssertionError(f"{name} was accepted")


@pytest.mark.parametrize("name", FILES)
def test_wrong_file_is_answered_with_the_golden_text(name, monkeypatch):
    """The text speaks plainly and names the place."""
    monkeypatch.chdir(WRONG)
    golden = Path(name).with_suffix(".txt").read_text(encoding="utf-8")
    assert message(name) == golden and not any(word in golden for word in JARGON)
    assert golden and all(line.startswith((f"{name}:", "bases/", "override `")) for line in golden.splitlines())


def test_there_are_enough_wrong_files_and_no_stray_texts():
    assert len(FILES) >= 25
    assert {p.stem for p in WRONG.glob("*.txt")} == {Path(name).stem for name in FILES}


if __name__ == "__main__":
    os.chdir(WRONG)
    for wrong in FILES:
        Path(wrong).with_suffix(".txt").write_text(message(wrong), encoding="utf-8")
    print(f"Wrote {len(FILES)} texts. Read the difference before you commit it.")
