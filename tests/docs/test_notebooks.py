"""The notebooks run from top to bottom, with small models in the place of downloads."""

import json
import os
import shutil
import socket
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = {path.stem: path for path in sorted((ROOT / "notebooks").glob("*.ipynb"))}
EXPORTS = ROOT / "tests" / "frozen" / "exports"
SMALL = " ".join(
    ["train.steps=2", *(f"data.train.{i}.{key}=8" for i in (0, 1) for key in ("source.count", "count"))]
    + [f"data.eval.{name}.count=4" for name in ("digits", "commands", "calibration")]
)
CHECKED = """
shell = get_ipython()
def checked(command, run=shell.system):
    run(command)
    assert shell.user_ns["_exit_code"] == 0, f"exit code {shell.user_ns['_exit_code']}: {command}"
shell.system = checked
"""
"""A command in a cell that fails ends the notebook, which Jupyter alone does not see to."""


def parameters(name: str, folder: Path) -> dict[str, object]:
    """Values of a notebook's parameters: exports of the frozen tests, and what the machine has free."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for model in ("transducer", "diarize", "whisper", "omnivoice"):
        shutil.copytree(EXPORTS / model / "export", folder / "models" / model)
    recording = str(ROOT / "tests" / "frozen" / "data" / "one.flac")
    return {
        "quickstart": {"OVERRIDES": SMALL},
        "finetune": {"MODEL": "models/whisper", "EPOCHS": 1},
        "subtitles": {"MODEL": "models/transducer", "DIARIZER": "models/diarize"},
        "voice": {"MODEL": "models/omnivoice", "STEPS": 4},
        "serve": {"MODEL": "models/transducer", "RECORDING": recording, "PORT": port},
    }[name]


def test_each_begins_with_its_needs_and_has_no_outputs():
    assert list(NOTEBOOKS) == ["finetune", "quickstart", "serve", "subtitles", "voice"]
    for path in NOTEBOOKS.values():
        first, second, *rest = json.loads(path.read_text(encoding="utf-8"))["cells"]
        head = "".join(first["source"])
        assert head.startswith("# ") and "**Needs**" in head and "**Takes**" in head, path.name
        assert second["metadata"]["tags"] == ["parameters"]
        assert not any(cell.get("outputs") or cell.get("execution_count") for cell in rest)


@pytest.mark.long
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_notebook(name, tmp_path, monkeypatch):
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    book = nbformat.read(NOTEBOOKS[name], as_version=4)
    values = "\n".join(f"{key} = {value!r}" for key, value in parameters(name, tmp_path).items())
    book.cells.insert(2, nbformat.v4.new_code_cell(values + CHECKED))
    client = nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    printed = "".join(out.get("text", "") for cell in book.cells if "outputs" in cell for out in cell.outputs)
    assert "Traceback" not in printed
    assert (tmp_path / "runs" / name / "results.json").is_file() or name in ("serve", "subtitles")
