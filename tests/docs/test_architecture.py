"""The house rules that a reader cannot check by eye: who may import whom, and what the engine may not know."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "stentor"
EXTENSIONS = ("sources", "models", "tasks", "labels", "losses", "callbacks", "judges")
PROGRAMS = ("run", "before", "planning", "prepare", "prepare_words", "quickstart", "scoring", "exporting",
            "export_check", "doctor", "prepare_codec", "prepare_features", "prepare_mixtures",
            "prepare_tokens", "publishing", "studio")  # fmt: skip
"""What the command line calls. They may use everything but the command line."""
MAY_IMPORT = {
    "errors": (),
    "audio": ("models.pretrained",),
    "config": (*(f"{name}.base" for name in EXTENSIONS), "data.section", "engine.section"),
    "sources": ("audio", "data"),
    "data": ("audio", "sources.base", "sources.held_out", "sources.jsonl", "tasks.base"),
    "labels": ("losses",),
    "losses": (),
    "models": ("audio", "data", "tasks.base"),
    "tasks": ("data", "judges.base", "judges.panel", "labels", "losses", "metrics", "models.base", "models.pretrained"),
    "callbacks": ("data", "metrics", "models.base"),
    "judges": ("audio", "data", "inference", "metrics", "models.base", "tasks"),
    "metrics": ("tasks.base",),
    "engine": ("data", "models.base", "tasks.base"),
    "inference": ("audio", "data", "judges.base", "metrics", "models.base", "tasks"),
    "publish": ("audio", "data", "inference.load", "metrics", "sources.jsonl"),
    "__init__": ("inference",),
    "__main__": ("cli",),
}
"""Who may import what at run time, besides `errors`, its own folder and what sections are made of."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def part_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def imported(path: Path, typing: bool = False) -> list[str]:
    """Modules that a file imports, anywhere in it; those under `if TYPE_CHECKING:` only with `typing`."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    only_types = {
        id(node)
        for block in ast.walk(tree)
        if isinstance(block, ast.If) and isinstance(block.test, ast.Name) and block.test.id == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    names = []
    for node in ast.walk(tree):
        if id(node) in only_types and not typing:
            continue
        if isinstance(node, ast.ImportFrom) and node.module:
            names += [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
    return names


def ours(path: Path) -> set[str]:
    """Modules of Stentor that a file imports, without `stentor.`."""
    found = {name.removeprefix("stentor.") for name in imported(path) if name.startswith("stentor.")}
    return {name for name in found if is_module(name)}


def is_module(name: str) -> bool:
    place = PACKAGE.joinpath(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").is_file()


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_arrows_point_one_way(path):
    part = part_of(path)
    if part == "cli":
        return
    # A demo's app is a program of its own, beside an installed Stentor.
    if part in PROGRAMS or "templates" in path.parts:
        assert not {name for name in ours(path) if name.partition(".")[0] == "cli"}
        return
    assert part in MAY_IMPORT, f"say in this test what {part} may import, and in docs/data_flow.md what it is"
    allowed = ("errors", "config.section", "config.fields", part, *MAY_IMPORT[part])
    wrong = {
        name
        for name in ours(path)
        if not any(name == a or name.startswith(f"{a}.") or a.startswith(f"{name}.") for a in allowed)
    }
    assert not wrong, f"{part} may not import {', '.join(sorted(wrong))}"


def test_the_studio_is_a_leaf():
    users = {part_of(p) for p in modules() if any(name.partition(".")[0] == "studio" for name in ours(p))}
    assert users <= {"studio", "cli"}


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine").glob("*.py")), ids=lambda p: p.name)
def test_the_engine_names_nobody(path):
    text = path.read_text(encoding="utf-8").lower()
    known = ["whisper", "voxtral", "speech_llm", "omnivoice", "diariz", "transcri", "synth", "librispeech", "qwen"]
    found = [word for word in known if word in text]
    assert not found, f"engine/{path.name} names {', '.join(found)}"


def test_nothing_heavy_is_imported_before_it_is_needed():
    """Every section of the config and the whole command line, without torch and its like."""
    code = (
        "import sys\n"
        "import stentor.cli, stentor.config.reference\n"
        "from stentor.config.schema import Config\n"
        "from stentor.config.reference import keys\n"
        "stentor.cli.build()\n"
        "assert len(list(keys())) > 100\n"
        "heavy = {'torch', 'lhotse', 'transformers', 'peft', 'accelerate', 'numpy', 'scipy', 'soundfile', 'pandas'}\n"
        "print(*sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.parametrize("path", sorted((PACKAGE / "config").rglob("*.py")), ids=lambda p: p.name)
def test_config_never_imports_torch(path):
    assert not {name for name in imported(path) if name.partition(".")[0] in ("torch", "lhotse", "transformers")}


def test_no_pickle_and_no_foreign_code():
    for path in modules():
        text = path.read_text(encoding="utf-8")
        names = {name.partition(".")[0] for name in imported(path)}
        assert not names & {"pickle", "dill", "cloudpickle", "joblib"}, path
        assert "torch.load(" not in text and "trust_remote_code=True" not in text, path
