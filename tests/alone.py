"""Programs that exports come with, run where the packages that they must do without cannot be imported."""

import os
import subprocess
import sys
from pathlib import Path

GUARD = """\
import sys
class Guard:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"stentor", "torch", "transformers", "scipy", "soxr", "lhotse", "librosa", "onnx"}:
            raise AssertionError(f"the program needs {name}")
sys.meta_path.insert(0, Guard())
import runpy
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def alone(program: Path, *arguments: str | Path) -> str:
    """What the program prints."""
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    command = [sys.executable, "-c", GUARD, str(program), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout
