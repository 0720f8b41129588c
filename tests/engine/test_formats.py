"""Format numbers of exports and run folders: older ones load, newer ones are refused with the version to install."""

import json
from pathlib import Path

import pytest

import stentor
from stentor.commands.run_start import check_run_format
from stentor.commands.train import build_model
from stentor.config.load import load, load_text
from stentor.errors import ConfigError
from stentor.export.export import export as export_model
from stentor.inference.load import find_export
from stentor.models.base import TaskRequirements
from stentor.report.run_folder import read_run
from stentor.version import EXPORT_FORMAT, RUN_FORMAT, format_keys, refuse_newer

NEWER = {"stentor_format": 99, "stentor_version": "7.8.9"}
REFUSED = r"{} was written by another version of Stentor \(format 99; this one reads up to 1\): install Stentor 7.8.9"
CONFIG = {"task": {"type": "transcribe"}, "model": {"type": "transformer"}, "data": {"train": [{"type": "synth"}]}}


def write(file: Path, **content) -> Path:
    file.write_text(json.dumps(content))
    return file


@pytest.fixture
def folder(tmp_path) -> Path:
    """An export as far as its files are looked at before the model is built."""
    (tmp_path / "export").mkdir()
    write(tmp_path / "export" / "config.json", model_type="transformer")
    return tmp_path / "export"


@pytest.mark.parametrize("keys", [{}, format_keys(EXPORT_FORMAT)], ids=["without a number", "of today"])
def test_exports_that_load(folder, keys):
    file = write(folder / "training_config.json", **keys, **CONFIG)
    assert find_export(folder) == folder
    # It is a run file, too.
    config = load(file).config
    assert config.model.type == "transformer" and config.plain() == load_text(json.dumps(CONFIG)).config.plain()


def test_a_newer_export_is_refused(folder, tmp_path):
    file = write(folder / "training_config.json", **NEWER, **CONFIG)
    message = REFUSED.format(file)
    model = {"type": "transformer", "init": str(folder)}
    started = load_text(json.dumps(CONFIG | {"model": model})).config
    for act in (
        lambda: stentor.load(folder),
        lambda: stentor.load(tmp_path),  # the run that it is the export of
        lambda: export_model(str(folder), tmp_path / "copy"),
        lambda: load(file),
        lambda: build_model(started, TaskRequirements("transcribe")),
    ):
        with pytest.raises(ConfigError, match=message) as caught:
            act()
        assert caught.value.exit_code == 2


def test_a_newer_run_is_refused(tmp_path):
    results = write(tmp_path / "results.json", **format_keys(RUN_FORMAT))
    check_run_format(tmp_path)
    assert read_run(tmp_path).results["stentor_version"] == stentor.__version__
    write(results, steps=3)  # before there were numbers
    check_run_format(tmp_path)
    write(results, **NEWER)
    for act in (check_run_format, read_run):
        with pytest.raises(ConfigError, match=REFUSED.format(results)):
            act(tmp_path)
    write(results)
    (tmp_path / "stages" / "1").mkdir(parents=True)
    stage = write(tmp_path / "stages" / "1" / "results.json", **NEWER)
    with pytest.raises(ConfigError, match=REFUSED.format(stage)):
        check_run_format(tmp_path)


@pytest.mark.parametrize("number", [0, -1, "2", None, 1.5, 2])
def test_what_is_no_number_of_a_known_format_is_refused(number):
    with pytest.raises(ConfigError, match="install a newer Stentor, or stop"):
        refuse_newer("a.json", {"stentor_format": number}, 1, also=", or stop")
