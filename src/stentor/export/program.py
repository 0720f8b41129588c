"""Programs beside ONNX exports, which run them without Stentor and torch: put together from the parts in `templates`.

Every part is a module. A part imports names of others by `from stentor.export.templates.PART import ...`; in the
program these lines are gone, and all other imports come once, at the top.
"""

import ast
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

from stentor.models.contracts import Processor

TEMPLATES = Path(__file__).parent / "templates"
TRANSCRIBING = ("audio", "recordings", "transcribing")
"""Parts of every program that transcribes."""
INTERNAL = "stentor.export.templates"


def write_program(folder: Path, kind: str, name: str = "transcribe.py", parts: Sequence[str] = TRANSCRIBING) -> None:
    """Write the program of a kind of model, the part of that name, with the `parts` that it uses."""
    (folder / name).write_text(program(kind, parts), encoding="utf-8")


def program(kind: str, parts: Sequence[str] = TRANSCRIBING) -> str:
    """The text of a program: the docstring of the kind, the imports that are needed, then the parts in order."""
    imports: dict[str, set[str]] = {}
    docstring, bodies = "", []
    for part in (*parts, kind):
        text = (TEMPLATES / f"{part}.py").read_text(encoding="utf-8")
        first, *nodes = ast.parse(text).body
        code = [node for node in nodes if not isinstance(node, ast.Import | ast.ImportFrom)]
        for node in nodes:
            if isinstance(node, ast.Import):
                imports |= {f"import {ast.unparse(alias)}": set() for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not str(node.module).startswith(INTERNAL):
                imports.setdefault(f"from {node.module} import", set()).update(map(ast.unparse, node.names))
        rows = text.splitlines()
        bodies.append("\n".join(rows[code[0].lineno - 1 :]))
        docstring = "\n".join(rows[: first.end_lineno])
    body = _used("\n\n\n".join(bodies))
    used = {node.id for node in ast.walk(ast.parse(body)) if isinstance(node, ast.Name)}
    lines = {line: names & used for line, names in imports.items() if names & used or line.split()[-1] in used}
    ours = [line for line in lines if line.split()[1] in sys.stdlib_module_names]
    blocks = (sorted(ours, key=_order), sorted(lines.keys() - ours, key=_order))
    listed = ("\n".join(f"{line} {', '.join(sorted(lines[line]))}".rstrip() for line in block) for block in blocks)
    return "\n\n".join([docstring, *listed]) + "\n\n\n" + body + "\n"


def _used(text: str) -> str:
    """The text without the functions that nothing in it names."""
    tree, lines = ast.parse(text), text.splitlines()
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    for node in reversed(tree.body):
        if isinstance(node, ast.FunctionDef) and node.name not in names:
            del lines[node.lineno - 1 : node.end_lineno + 2]  # type: ignore[operator]
    return "\n".join(lines)


def _order(line: str) -> tuple[bool, str]:
    """`import` before `from`, as ruff sorts them."""
    return line.startswith("from"), line.lower()


def program_facts(processor: Processor) -> dict[str, Any]:
    """Keys of onnx_config.json that programs read: `sample_rate`, `max_seconds` (None: any) and `speech`."""
    trained = processor.trained_speech
    return {
        "sample_rate": processor.sample_rate,
        "max_seconds": processor.max_seconds,
        "speech": None if trained is None else asdict(trained),
    }


def load_program(folder: Path, name: str = "transcribe.py") -> Any:
    """The module of a folder's program, compiled in memory: an import would leave `__pycache__` in the folder."""
    module = ModuleType(f"{folder.name}_{Path(name).stem}")
    path = folder / name
    module.__file__ = str(path)
    exec(compile(path.read_text(encoding="utf-8"), path, "exec"), module.__dict__)
    return module
