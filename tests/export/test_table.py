"""Every exporter of the table keeps the contract, and every other pair of format and family is one sentence."""

import importlib
import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import recognisers

from stentor.cli import main
from stentor.errors import EXTRAS
from stentor.export.exporter import Exporter
from stentor.export.program import load_program, program
from stentor.export.table import EXPORTERS, FORMATS, formats_of

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("row", EXPORTERS, ids="-".join)
def test_exporters_keep_the_contract(row):
    format, _ = row
    module, name = EXPORTERS[row].split(":")
    exporter = vars(importlib.import_module(module))[name]
    assert format in FORMATS and issubclass(exporter, Exporter)
    exporter()  # nothing is abstract
    assert exporter.extra in EXTRAS and exporter.usage.strip()
    assert all(0 < points <= 5 for points in exporter.quantizations.values())
    if exporter.runtime == "onnxruntime-web":  # of npm, pinned by its hash
        return
    pins = (ROOT / "constraints.txt").read_text().lower().replace("_", "-")
    assert re.search(rf"^{exporter.runtime.lower()}==", pins, re.M), f"{exporter.runtime} is not pinned"
    extras = (ROOT / "pyproject.toml").read_text()
    declared = re.search(rf"^{exporter.extra} = \[(.*?)\]", extras, re.M | re.S)
    assert declared and exporter.runtime in declared[1].lower().replace("_", "-")


def test_quantizations_are_documented():
    page = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    for place in set(EXPORTERS.values()):
        module, name = place.split(":")
        for quantization in vars(importlib.import_module(module))[name].quantizations:
            assert f"`{quantization}`" in page, f"docs/deploy.md does not name {quantization} of {name}"


@pytest.mark.parametrize("format", [f for f in FORMATS if f != "hf" and (f, "ctc") not in EXPORTERS] or ["ggml"])
def test_other_pairs_are_one_sentence(format, tmp_path, capsys):
    folder = recognisers.save(recognisers.ctc("wav2vec2"), tmp_path / "model")
    assert main(["export", str(folder), "--to", str(tmp_path / "to"), "--format", format]) == 2
    message = capsys.readouterr().err
    assert f"--format {format}: models of the family ctc have no such export." in message
    assert f"Formats of this model: {', '.join(formats_of('ctc'))}." in message and not (tmp_path / "to").exists()


def test_programs_name_files_that_cannot_be_read(tmp_path):
    """Damaged audio and damaged files of the folder, without a traceback."""
    (tmp_path / "transcribe.py").write_text(program("ctc"), encoding="utf-8")
    (tmp_path / "talk.wav").write_bytes(b"")
    (tmp_path / "onnx_config.json").write_text('{"speech": ', encoding="utf-8")
    transcribe = load_program(tmp_path)
    with pytest.raises(SystemExit, match=r"talk\.wav cannot be read .*: give an audio file"):
        transcribe.read(tmp_path / "talk.wav")
    with pytest.raises(SystemExit, match=r"onnx_config\.json cannot be read .*: copy or export the folder again"):
        transcribe.Recognizer(tmp_path)
