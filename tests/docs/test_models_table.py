"""The table of docs/finetune.md is that of `stentor models`.

After a change of the catalogue, write it again:

    .venv/bin/python tests/docs/test_models_table.py
"""

from pathlib import Path

from stentor.commands.models import HEAD, table_rows
from stentor.models.catalogue import known_models

PAGE = Path(__file__).parents[2] / "docs" / "finetune.md"
BEGIN, END = (
    "<!-- models: python tests/docs/test_models_table.py writes what is between these lines -->\n",
    "<!-- /models -->",
)


def table() -> str:
    lines = [HEAD, ["---"] * len(HEAD), *table_rows(known_models().values())]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def test_the_page_has_the_table_of_the_command():
    before, _, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    assert before and rest.partition(END)[0] == table(), "python tests/docs/test_models_table.py writes it again"


if __name__ == "__main__":
    text = PAGE.read_text(encoding="utf-8")
    start, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    PAGE.write_text(text[:start] + table() + text[end:], encoding="utf-8")
