"""Models whose labels, task or losses are of a plug-in that is not loaded."""

import json
import shutil
from pathlib import Path

import pytest

import stentor
from stentor.errors import ConfigError

FROZEN = Path(__file__).parents[1] / "frozen"


@pytest.fixture
def counts(tmp_path) -> Path:
    """A diarizer whose labels are those of examples/diarize/count_labels.py."""
    folder = tmp_path / "counts"
    shutil.copytree(FROZEN / "exports" / "diarize" / "export", folder)
    file = folder / "training_config.json"
    content = json.loads(file.read_text())
    content["task"]["labels"] = {"type": "count", "most": 3}
    file.write_text(json.dumps(content))
    return folder


@pytest.mark.parametrize("verb", ["diarize", "evaluate", "transcribe"])
def test_commands_name_the_plugin_option(verb, counts, cli, tmp_path):
    clip = FROZEN / "data" / "one.flac"
    arguments = {
        "diarize": ["diarize", counts, clip],
        "evaluate": ["evaluate", counts, "--data", FROZEN / "data" / "clips.jsonl"],
        "transcribe": ["transcribe", FROZEN / "exports" / "ctc" / "export", clip, "--diarizer", counts],
    }[verb]
    done = cli(*arguments, check=False)
    assert done.returncode == 2
    assert "training_config.json: task: Unknown type 'count' for 'labels'" in done.stderr
    assert "--plugin FILE.py" in done.stderr and "unexpected failure" not in done.stderr


def test_python_names_the_import(counts):
    with pytest.raises(ConfigError, match="in Python, import that file first"):
        stentor.load(counts)
