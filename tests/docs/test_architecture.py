"""The house rules that a reader cannot check by eye: every import goes down, and what the engine may not know."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import networkx
import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "stentor"
STATEMENTS = (ast.stmt, ast.excepthandler, ast.match_case)
"""Nodes that imports lie in: never an expression."""
FLOORS = (
    "__main__",
    "cli",
    "serve",
    "studio",
    "web",
    "commands",
    "pipeline",
    "publish",
    "report",
    "config",
    "callbacks",
    "extend",
    "engine",
    "evaluators",
    "__init__",
    "inference",
    "dataloading",
    "tasks",
    "models",
    "sources",
    "data",
    "metrics",
    "losses",
    "text",
    "audio",
    "section",
    "version",
    "errors",
)
"""From top to bottom; a floor imports its own modules and those of floors below it."""


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def floor_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


OPEN = ("commands", "serve", "models")
"""Floors whose imports under `if TYPE_CHECKING:` do not all go down yet."""
CYCLES = 20
"""Groups of files that import each other in a circle, typing-only and function-level imports included."""


@functools.cache
def imports(path: Path, for_types: bool = False) -> list[str]:
    """Modules that a file imports, anywhere in it; with `for_types` also under `if TYPE_CHECKING:`."""
    names: list[str] = []
    blocks: list[ast.AST] = [ast.parse(path.read_text(encoding="utf-8"))]
    while blocks:
        node = blocks.pop()
        is_for_types = isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        if is_for_types and not for_types:
            continue
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names += [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        blocks += [part for part in ast.iter_child_nodes(node) if isinstance(part, STATEMENTS)]
    return names


def imported_floors(path: Path, for_types: bool = False) -> set[str]:
    """Floors that a file imports from. `stentor.load` is `__init__`; the version is no module."""
    names = [
        name
        for name in imports(path, for_types)
        if name.partition(".")[0] == "stentor" and name != "stentor.__version__"
    ]
    parts = [name.split(".") for name in names]
    return {p[1] if len(p) > 1 and p[1] in FLOORS else "__init__" for p in parts}


def test_every_folder_has_a_floor():
    entries = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()} - {"__pycache__"}
    assert entries == set(FLOORS)
    assert len(entries) <= 28


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_every_import_goes_down(path):
    if "templates" in path.parts:
        return  # a demo's app is a program of its own, beside an installed Stentor
    here = floor_of(path)
    upward = {f for f in imported_floors(path, here not in OPEN) - {here} if FLOORS.index(f) < FLOORS.index(here)}
    assert not upward, f"{here} is below {', '.join(sorted(upward))}"


def import_cycles() -> list[list[str]]:
    """Groups of modules that reach each other by imports of any kind."""
    names = {
        ".".join(p.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): p for p in modules()
    }
    graph = networkx.DiGraph()
    for name, path in names.items():
        for imported in imports(path, for_types=True):
            target = imported if imported in names else imported.rpartition(".")[0]
            if target in names and target != name and "templates" not in path.parts:
                graph.add_edge(name, target)
    return sorted(sorted(group) for group in networkx.strongly_connected_components(graph) if len(group) > 1)


def test_files_that_import_each_other_are_few():
    cycles = import_cycles()
    assert len(cycles) <= CYCLES, "\n".join(map(" ".join, cycles))


@pytest.mark.parametrize("path", sorted((PACKAGE / "engine").glob("*.py")), ids=lambda p: p.name)
def test_the_engine_names_nobody(path):
    text = path.read_text(encoding="utf-8").lower()
    known = ["whisper", "voxtral", "speech_llm", "omnivoice", "diariz", "transcri", "synth", "librispeech", "qwen"]
    named = [word for word in known if word in text]
    assert not named, f"engine/{path.name} names {', '.join(named)}"


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
    assert not {name for name in imports(path) if name.partition(".")[0] in ("torch", "lhotse", "transformers")}


def test_no_pickle_and_no_foreign_code():
    for path in modules():
        text = path.read_text(encoding="utf-8")
        names = {name.partition(".")[0] for name in imports(path)}
        assert not names & {"pickle", "dill", "cloudpickle", "joblib"}, path
        assert "torch.load(" not in text and "trust_remote_code=True" not in text, path
