"""wav2vec 2.0 in CTranslate2: texts and word times are ours."""

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("ctranslate2", reason="needs stentor[ct2]")

sys.path.insert(0, str(Path(__file__).parent))
import recognisers

from stentor.cli import main


@pytest.mark.long
def test_texts_and_times_are_ours(tmp_path):
    folder = recognisers.save(recognisers.ctc("wav2vec2_large"), tmp_path / "model")
    command = ["export", str(folder), "--to", str(tmp_path / "to"), "--format", "ctranslate2", "--allow-difference"]
    assert main([*command, "--quantization", "float16,int8"]) == 0
    model, exact, half, small = recognisers.rows(tmp_path / "to")
    assert exact["differ"] == 0 and exact["times_ms"] == [0, 0]
    assert [row["name"] for row in (half, small)] == ["float16", "int8"] and half["differ"] <= 6
    assert small["megabytes"] < half["megabytes"] < 0.7 * model["megabytes"]
    program = recognisers.snippet(tmp_path / "to").replace('"./', '"int8/')
    (tmp_path / "to" / "speech.wav").rename(tmp_path / "speech.wav")
    program = program.replace("speech.wav", str(tmp_path / "speech.wav")).replace('"."', '"int8"')
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path / "to", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout.strip(), done.stderr


@pytest.mark.parametrize(
    ("kind", "reason"), [("wav2vec2", "layer norms in all convolutions"), ("hubert", "not hubert")]
)
def test_other_shapes_are_refused(kind, reason, tmp_path, capsys):
    folder = recognisers.save(recognisers.ctc(kind), tmp_path / "model")
    assert main(["export", str(folder), "--to", str(tmp_path / "to"), "--format", "ctranslate2"]) == 2
    assert reason in capsys.readouterr().err
