"""The family `test_meter` of tests/inference, for a server in a process of its own (`--plugin`)."""

import importlib.util
from pathlib import Path

spec = importlib.util.spec_from_file_location(
    "inference_models", Path(__file__).parents[1] / "inference" / "conftest.py"
)
models = importlib.util.module_from_spec(spec)
spec.loader.exec_module(models)
models.meter.__wrapped__(None)
