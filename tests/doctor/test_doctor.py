"""Each illness is made for real: fake packages in front of the path of a process of its own."""

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

import pytest

from stentor.commands.doctor.finding import numbers
from stentor.commands.doctor.hardware import _gpu
from stentor.commands.doctor.software import requirements, within

MODULE = ("-m", "stentor.commands.doctor", "--json")
ONE_CHECK = """
import sys
from stentor.commands.doctor import doctor
doctor.CHECKS = (doctor.{},)
sys.exit(doctor.main(json_output=True))
"""


def doctor(cwd: Path, fakes: Path | None = None, start: Sequence[str] = MODULE, **extra: str):
    """Findings by their names."""
    path = os.pathsep.join(filter(None, [str(fakes) if fakes else "", os.environ.get("PYTHONPATH", "")]))
    base = {k: v for k, v in os.environ.items() if k not in ("HF_TOKEN", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN_PATH")}
    done = subprocess.run(
        [sys.executable, *start],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        env={**base, "PYTHONPATH": path, **extra},
    )
    assert done.stderr == ""
    answer = json.loads(done.stdout)
    findings = {f["name"]: f for f in answer["findings"]}
    assert answer["ok"] == (done.returncode == 0) == all(f["state"] != "broken" for f in findings.values())
    return findings


def one_check(check: str) -> tuple[str, str]:
    """Starts the doctor with one check alone, such as `software.transformers`."""
    return "-c", ONE_CHECK.format(check)


def fake(folder: Path, name: str, code: str, version: str | None = None) -> None:
    (folder / f"{name}.py").write_text(textwrap.dedent(code))
    if version is not None:
        info = folder / f"{name}-{version}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.mark.long
def test_this_machine_through_the_command_line(tmp_path):
    (tmp_path / "token").write_text("hf_thisIsVerySecret")
    findings = doctor(tmp_path, start=("-m", "stentor", "doctor", "--json"), HF_HOME=str(tmp_path))
    for name in ("python", "packages", "torch", "transformers", "voice", "soundfile", "machine", "disk", "model cache"):
        assert findings[name]["state"] != "broken", findings[name]
    assert findings["hub token"] == {"name": "hub token", "state": "ok", "found": "there is one", "mend": ""}


def test_a_cuda_torchaudio_beside_a_cpu_torch(tmp_path):
    fake(tmp_path, "torchaudio", 'raise OSError("libtorch_cuda.so: cannot open shared object file")', version="2.11.0")
    finding = doctor(tmp_path, tmp_path, one_check("software.transformers"))["transformers"]
    assert finding["state"] == "broken"
    assert "torchaudio 2.11.0 cannot be loaded beside torch" in finding["found"]
    assert "libtorch_cuda.so" in finding["found"]
    assert "pip uninstall torchaudio" in finding["mend"]


def test_packages_that_are_broken_or_old(tmp_path):
    """A torch that does not load, an old lhotse, a silent voice and a lost libsndfile, all at once."""
    fake(tmp_path, "torch", 'raise ImportError("libtorch_cpu.so: undefined symbol")')
    fake(tmp_path, "lhotse", "", version="1.20.0")
    fake(tmp_path, "espeakng_loader", 'raise ImportError("no espeak in this wheel")')
    fake(tmp_path, "soundfile", 'raise OSError("sndfile library not found")')
    findings = doctor(tmp_path, tmp_path)
    assert "undefined symbol" in findings["torch"]["found"]
    assert findings["torch"]["state"] == "broken"
    assert findings["lhotse"]["found"].startswith("1.20.0, but >=1.33")
    assert findings["lhotse"]["mend"].startswith("pip install 'lhotse>=1.33")
    assert findings["voice"]["state"] == "broken"
    assert "espeak" in findings["voice"]["found"]
    assert "sndfile library not found" in findings["soundfile"]["found"]
    assert findings["disk"]["state"] in ("ok", "warning")  # the rest was examined all the same


def test_without_any_package_at_all(tmp_path):
    """A bare interpreter, with nothing but the source: everything is missing, and it says so."""
    source = Path(__file__).parents[2] / "src"
    done = subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {str(source)!r})\n"
            "from stentor.commands.doctor.doctor import main; sys.exit(main(True))",
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    findings = {f["name"]: f for f in json.loads(done.stdout)["findings"]}
    assert "torch>=" in findings["packages"]["found"]
    assert "'transformers>=" in findings["packages"]["mend"]
    assert "torch" not in findings  # named once is enough


def test_a_probe_that_crashes_is_an_answer(tmp_path):
    fake(tmp_path, "soundfile", "import os; os.kill(os.getpid(), 11)")
    finding = doctor(tmp_path, tmp_path, one_check("audio.soundfile"))["soundfile"]
    assert finding["state"] == "broken"
    assert "killed by signal 11" in finding["found"]


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder that even root cannot write to")
def test_a_folder_that_cannot_be_written_to():
    assert doctor(Path("/proc"), start=one_check("hardware.disk"))["disk"]["state"] == "broken"


def test_versions_and_bounds():
    assert within("2.13.0+cpu", ">=2.11")
    assert within("1.33", ">=1.33,<2")
    assert not within("2.0.0a7", ">=1.33,<2")
    assert not within("1.9.9", ">=1.10")
    assert within("10.0", ">9.9")
    assert numbers("13.0") > numbers("12.8")
    names = dict(requirements())
    assert names["lhotse"] == ">=1.33,<2"
    assert "jiwer" not in names  # extras are not required


GPU = {"cuda": "13.0", "hip": None, "available": True, "works": True, "mps": False, "said": [], "gpus": []}
H200 = ["H200", 141 << 30, "sm_90", True]
DRIVER = {"name": "NVIDIA H200", "driver": "570.1", "cuda": "12.8"}


@pytest.mark.parametrize(
    "torch, driver, state, words",
    [
        ({**GPU, "gpus": [H200]}, {**DRIVER, "cuda": "13.0"}, "ok", "141 GiB, sm_90, bf16"),
        ({**GPU, "gpus": [["T4", 15 << 30, "sm_75", False]]}, None, "ok", "no bf16"),
        ({**GPU, "works": False, "error": "no kernel", "gpus": [H200]}, None, "broken", "no kernel"),
        ({**GPU, "available": False, "cuda": None}, DRIVER, "warning", "this torch is a CPU build"),
        ({**GPU, "available": False, "said": ["driver is too old"]}, DRIVER, "warning", "driver is too old"),
        ({**GPU, "available": False, "cuda": None}, None, "note", "on the CPU"),
    ],
)
def test_what_torch_and_the_driver_say_about_the_gpu(torch, driver, state, words):
    finding = next(iter(_gpu(torch, driver)))
    assert (finding.state, words in finding.answer) == (state, True), finding


def test_an_older_driver_is_a_warning():
    findings = list(_gpu({**GPU, "gpus": [H200]}, DRIVER))
    assert [(f.name, f.state) for f in findings] == [("gpu", "ok"), ("driver", "warning")]
