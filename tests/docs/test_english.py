"""Plain English: words with a plainer one in their place are used no more, and a first line names or commands.

`python tests/docs/test_english.py [PATH ...]` lists every place, of the whole project or of the paths."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
WORDS = {
    r"(?:go|goes|going|gone|went) on": "continue, resume",
    r"anew": "again",
    r"nobody": "no one, or the passive",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:have|has|had) (?:a|no|any) say": "affect, count",
    r"by lot": "at random",
    r"nowhere": "never, not",
    r"as (?:it stands|they stand)": "unchanged",
    r"in good order": "cleanly, valid",
    r"be it the same": "even if unchanged",
    r"to the letter": "exactly",
    r"made-up answers?": "hallucination",
    r"(?:is|are|was|were|be|been) told": "is reported, is given",
    r"who spoke when": "speaker diarization (this phrase only in brackets after it)",
}
FRAGMENTS = ("Of", "What", "Who", "Which", "How", "That", "Whose", "Why")
"""First words of a fragment. A docstring, a help text or a heading begins with a noun phrase or an imperative."""
ALLOWED = re.compile(r"diarization \(who spoke when\)|\"mend\"", re.I)
"""The field's own phrase after its name, and a key of `stentor doctor --json`, which stays."""
FORBIDDEN = re.compile(r"\b(?:" + "|".join(WORDS).replace(" ", r"\s+") + r")\b", re.I)
TEXTS = (".py", ".md", ".html", ".js", ".mjs", ".css", ".yaml", ".yml", ".txt", ".ipynb", ".toml", ".cff", ".sh")
FOLDERS = ("src", "docs", "recipes", "examples", "benchmarks", "notebooks", ".github", "docker")


def files(paths: list[str]) -> list[Path]:
    """Files of the project that readers see: everything tracked but tests, speech samples and lists of words."""
    listed = subprocess.run(["git", "ls-files", *paths], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if name.endswith(TEXTS) and (ROOT / name).exists()]
    ours = [name for name in names if name.split("/")[0] in FOLDERS or "/" not in name]
    return [ROOT / name for name in ours if "/studio/phrases/" not in name]


def forbidden(path: Path) -> Iterator[str]:
    """Places with a word of the table. A line break inside a phrase, with the next line's comment sign, is a space."""
    text = path.read_text(encoding="utf-8")
    plain = re.sub(r"\n[ \t]*(?:#|//)?[ \t]*", lambda match: " " * len(match.group()), text)
    plain = ALLOWED.sub(lambda match: "-" * len(match.group()), plain)
    for match in FORBIDDEN.finditer(plain):
        line = text.count("\n", 0, match.start()) + 1
        yield f"{path.relative_to(ROOT)}:{line}: {' '.join(match.group().split())!r}"


def first_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(line, text) of every docstring, every text under a field or constant, and every `help=`; of a page, headings."""
    if path.suffix == ".md":
        in_code = False
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            in_code ^= line.startswith("```")
            if not in_code and re.match(r"#+ ", line):
                yield number, line.lstrip("# ")
    elif path.suffix == ".py":
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            body = getattr(node, "body", [])
            texts = [s.value for s in body if isinstance(s, ast.Expr)] if isinstance(body, list) else []
            if isinstance(node, ast.keyword) and node.arg == "help":
                texts = [node.value]
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.lineno, text.value


def fragments(path: Path) -> Iterator[str]:
    for number, text in first_lines(path):
        if text.split(maxsplit=1)[:1] and text.split(maxsplit=1)[0].strip(",:;.") in FRAGMENTS:
            yield f"{path.relative_to(ROOT)}:{number}: begins with {text.split()[0]!r}: {text.strip()[:60]!r}"


def faults(paths: list[str]) -> list[str]:
    return [fault for path in files(paths) for check in (forbidden, fragments) for fault in check(path)]


@pytest.mark.parametrize("folder", [*FOLDERS, "*.md"])
def test_plain_english(folder):
    found = faults([folder])
    assert not found, f"{len(found)} places:\n" + "\n".join(found[:40])


@pytest.mark.parametrize(
    ("text", "count"), [("A run goes\non.", 1), ("Speaker diarization (who spoke when).", 0), ("Nobody mends it.", 2)]
)
def test_the_check_finds_what_it_looks_for(text, count, tmp_path, monkeypatch):
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    (tmp_path / "page.md").write_text(text)
    assert len(list(forbidden(tmp_path / "page.md"))) == count


if __name__ == "__main__":
    print(*faults(sys.argv[1:]), sep="\n")
