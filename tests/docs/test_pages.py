"""README and docs say what is: every folder is in the map, every command parses, every config checks, every link leads
somewhere, and the examples of docs/extend.md work."""

import itertools
import json
import re
import shlex
from pathlib import Path

import pytest

from stentor.cli import build
from stentor.config.load import load

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "stentor"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
LATER = {"docs/results.md"}
"""Pages that others link to and that may not be written yet."""


def blocks(page: Path, language: str) -> list[str]:
    """Fenced code blocks of a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands() -> list[tuple[str, str]]:
    """(page, command) for every line of every shell block, and for the commands in the README's tables."""
    lines = [(page.name, line) for page in PAGES for block in blocks(page, "sh") for line in block.splitlines()]
    lines += [("README.md", line) for line in re.findall(r"`(stentor [^`|]+)`", PAGES[0].read_text(encoding="utf-8"))]
    lines = [(page, re.split(r"(?:^|\s)# ", line)[0].strip()) for page, line in lines]
    return sorted({(page, line) for page, line in lines if line})


def test_folder_map_is_complete():
    """Every entry of the package is in the map of docs/architecture.md."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    block = re.search(r"^## Layers\n.*?^```text\n(.*?)^```", text, re.M | re.S).group(1)
    entries = set(re.findall(r"^(\w+) ", block, re.M))
    expected = {p.stem for p in PACKAGE.iterdir() if p.is_dir() or p.suffix == ".py"}
    assert entries == expected - {"__init__", "__main__", "__pycache__"}
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 180


@pytest.mark.parametrize(("page", "line"), commands(), ids=lambda text: text[:60])
def test_command_parses(page, line):
    words = shlex.split(line)
    if words[0] in ("arecord", "ffmpeg"):  # of others, into a command of ours
        words = words[words.index("|") + 1 :]
    program, *arguments = itertools.takewhile(lambda word: word not in ("|", "<", ">"), words)
    if "-m" in arguments and arguments[arguments.index("-m") + 1] == "stentor":  # under a launcher
        program, arguments = "stentor", arguments[arguments.index("-m") + 2 :]
    if program == "make":
        targets = re.findall(r"^(\w[\w-]*):", (ROOT / "Makefile").read_text(), re.M)
        assert set(arguments) <= set(targets)
    elif program == "stentor":
        command, context = build(), None
        while True:  # down to the verb; a wrong option, argument or verb raises
            context = command.make_context("stentor", list(arguments), parent=context)
            if not hasattr(command, "resolve_command"):
                break
            rest = [*context._protected_args, *context.args]
            if not rest:
                break
            _, command, arguments = command.resolve_command(context, rest)
    elif program == "python" and arguments[0] == "-c":
        assert compile(arguments[1], line, "exec")
    elif program == "python":
        assert (ROOT / arguments[0]).exists()  # a script, or a folder with a __main__.py
    elif program == "pip":
        assert arguments[0] == "install"
        assert all((ROOT / a).exists() for a in arguments[1:] if a.startswith("./"))
    else:
        raise AssertionError(f"{page}: what is {program}?")


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if not target.startswith("http"):
            place = (page.parent / target).resolve()
            assert place.exists() or str(place.relative_to(ROOT)) in LATER, f"{page.name} links to {target}"


def test_run_file_of_the_readme(tmp_path, cli):
    text, *more = blocks(ROOT / "README.md", "yaml")
    for other in more:
        (tmp_path / "other.yaml").write_text(other)
        load(tmp_path / "other.yaml")
    assert 15 <= len(text.splitlines()) <= 25
    (tmp_path / "run.yaml").write_text(text)
    config = load(tmp_path / "run.yaml").config
    assert f"runs/{config.name}" in (ROOT / "README.md").read_text()
    for page, line in commands():
        words = shlex.split(line)
        if page == "README.md" and "train" in words and (file := words[words.index("train") + 1]).endswith(".yaml"):
            plugin = ["--plugin", str(ROOT / words[words.index("--plugin") + 1])] if "--plugin" in words else []
            run = tmp_path / file if file == "run.yaml" else ROOT / file
            assert run.exists(), line
            changes = [w for w in words[words.index("train") + 2 :] if re.match(r"[\w.]+=", w)]
            cli("config", "check", run, *changes, *plugin)


def test_python_of_the_readme():
    for text in blocks(ROOT / "README.md", "python"):
        compile(text, "README.md", "exec")
    import stentor
    from stentor.inference.model import Model

    assert callable(stentor.load) and callable(Model.transcribe)


def test_exit_codes_of_the_readme():
    from stentor import errors

    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", (ROOT / "README.md").read_text(), re.M)}
    kinds = [c for c in vars(errors).values() if isinstance(c, type) and issubclass(c, errors.StentorError)]
    assert documented == {0, *(kind.exit_code for kind in kinds)}


def test_changelog_has_this_version():
    from stentor.version import __version__

    text = (ROOT / "CHANGELOG.md").read_text()
    assert re.search(rf"^## {re.escape(__version__)}\b", text, re.M)
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


def test_licence_is_whole():
    text = (ROOT / "LICENSE").read_text()
    assert "Apache License" in text and "END OF TERMS AND CONDITIONS" in text and "The Stentor authors" in text


def test_constraints_pin_everything_that_is_required():
    """Each line pins one version, and no requirement of pyproject.toml is left open."""
    import tomllib

    lines = (ROOT / "constraints.txt").read_text().split()
    pinned = dict(line.split("==") for line in lines)
    assert "+" not in pinned["torch"] and len(pinned) == len(lines)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    needed = [*project["dependencies"], *(r for extra in project["optional-dependencies"].values() for r in extra)]
    names = {re.split(r"[^\w.-]", requirement)[0] for requirement in needed} - {"stentor"}
    known = {re.sub(r"[-_.]+", "-", name).lower() for name in pinned}
    assert not {n for n in names if re.sub(r"[-_.]+", "-", n).lower() not in known}


def test_ci_is_for_any_machine():
    """No host, no path of one machine, no question asked; a failure is a failure."""
    text = (ROOT / ".ci" / "run").read_text()
    assert text.startswith("#!/usr/bin/env bash\n") and "\nset -euo pipefail\n" in text
    assert (ROOT / ".ci" / "run").stat().st_mode & 0o111
    for file in (text, (ROOT / "Makefile").read_text(), (ROOT / "constraints.txt").read_text()):
        assert "://" not in file and not re.search(r"(^|[\s=\"'])/(work|home|root|opt)\b", file)


def test_examples_of_extend(tmp_path, corpus, cli, rows):
    """The Python of docs/extend.md is one plug-in, and its YAML a run that uses all of it."""
    page = ROOT / "docs" / "extend.md"
    plugin = tmp_path / "extended.py"
    plugin.write_text("\n\n".join(blocks(page, "python")))
    [text] = blocks(page, "yaml")
    folder = tmp_path / "recordings"
    folder.mkdir()
    for line in (corpus / "train.jsonl").read_text().splitlines():
        record = json.loads(line)
        (folder / record["audio_path"]).symlink_to(corpus / record["audio_path"])
        (folder / record["audio_path"]).with_suffix(".txt").write_text(record["text"])
    (tmp_path / "run.yaml").write_text(text.replace("my/recordings", str(folder)))
    small = [
        "model.width=16",
        "model.layers=1",
        "data.workers=0",
        "train.device=cpu",
        "train.log_every=1",
        f"output={tmp_path}/runs",
    ]
    plugins = ["--plugin", ROOT / "examples" / "plugin" / "gru_ctc.py", "--plugin", plugin]
    done = cli("train", tmp_path / "run.yaml", *small, *plugins)
    run = tmp_path / "runs" / "extended"
    results = json.loads((run / "results.json").read_text())
    assert next(iter(results["eval"]["dev"])) == "exact" and results["eval"]["dev"]["exact"]["total"] == 16
    assert results["data"]["used"] == 16
    # The callback is content with anything, so it stops at the first evaluation.
    assert "Stopped early at step" in done.stdout and "0.00% of the answers" in results["stopped"]
    assert rows(run)[-1]["train/ctc"] > 0
