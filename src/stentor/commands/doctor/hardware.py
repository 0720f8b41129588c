"""The processor, the memory, the disk and the GPU."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from stentor.commands.doctor.finding import BROKEN, NOTE, OK, WARNING, Finding, last_line, numbers, python_process
from stentor.data.system import usable_cores
from stentor.errors import installed

TORCH_PROBE = """
import json, warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import torch
    facts = {"version": torch.__version__, "cuda": torch.version.cuda, "hip": torch.version.hip, "gpus": []}
    facts["available"] = torch.cuda.is_available()
    if facts["available"]:
        for i in range(torch.cuda.device_count()):
            p = torch.cuda.get_device_properties(i)
            facts["gpus"].append([p.name, p.total_memory, f"sm_{p.major}{p.minor}", p.major >= 8])
        try:
            x = torch.ones(64, 64, device="cuda")
            facts["works"] = float((x @ x).sum()) == 64.0 ** 3
        except Exception as error:
            facts["works"], facts["error"] = False, str(error)
    facts["mps"] = torch.backends.mps.is_available()
    facts["threads"] = torch.get_num_threads()
facts["said"] = [str(w.message) for w in caught if "CUDA" in str(w.message)]
print("\\n" + json.dumps(facts))
"""


def torch() -> Iterator[Finding]:
    if not installed("torch"):
        return  # already among the missing packages
    rc, out, err = python_process(TORCH_PROBE)
    if rc != 0:
        fix = "Install torch again: pip install --force-reinstall torch (see pytorch.org for the build for your GPU)."
        yield Finding("torch", BROKEN, f"cannot be imported: {last_line(err) or f'exit code {rc}'}", fix)
        return
    report = json.loads(out.splitlines()[-1])
    build = f"CUDA {report['cuda']}" if report["cuda"] else f"ROCm {report['hip']}" if report["hip"] else "CPU build"
    yield Finding("torch", OK, f"{report['version']} ({build}, {report['threads']} threads)")
    yield from _gpu(report, _nvidia())


def _gpu(report: dict[str, Any], driver: dict[str, str] | None) -> Iterator[Finding]:
    """`found`: what torch says; `driver`: what nvidia-smi says, None without it."""
    gpu_build = bool(report["cuda"] or report["hip"])
    if report["available"]:
        for name, memory, architecture, bf16 in report["gpus"]:
            about = f"{name}, {memory / 2**30:.0f} GiB, {architecture}, {'bf16' if bf16 else 'no bf16: fp32 or fp16'}"
            if report["works"]:
                yield Finding("gpu", OK, about)
            else:
                about += f", but a computation on it fails: {last_line(report.get('error', ''))}"
                fix = "Install a torch build that supports this GPU (pytorch.org), or train with train.device=cpu."
                yield Finding("gpu", BROKEN, about, fix)
        if driver is not None and report["cuda"] and numbers(driver["cuda"])[0] < numbers(report["cuda"])[0]:
            about = f"driver {driver['driver']} is made for CUDA {driver['cuda']}, torch for {report['cuda']}"
            yield Finding("driver", WARNING, about, "Update the NVIDIA driver.")
    elif driver is not None and not gpu_build:
        fix = "Install a CUDA build of torch (pytorch.org) to train on the GPU."
        yield Finding("gpu", WARNING, f"{driver['name']} is there, but this torch is a CPU build", fix)
    elif driver is not None:
        message = f": {report['said'][0]}" if report["said"] else ""
        about = (
            f"{driver['name']} is there, but torch (CUDA {report['cuda']}) cannot use it with driver "
            f"{driver['driver']} (CUDA {driver['cuda']}){message}"
        )
        fix = "Update the NVIDIA driver, or install a torch build for an older CUDA (pytorch.org)."
        yield Finding("gpu", WARNING, about, fix)
    elif report["mps"]:
        yield Finding("gpu", NOTE, "Apple GPU: used for transcribing, and for training with train.device=mps")
    else:
        yield Finding("gpu", NOTE, "none: training runs on the CPU, in fp32")


def _nvidia() -> dict[str, str] | None:
    """Name, driver and CUDA version as nvidia-smi gives them; None without a working nvidia-smi."""
    first = _smi("--query-gpu=name,driver_version", "--format=csv,noheader").partition("\n")[0]
    if "," not in first:
        return None
    name, driver = first.rsplit(",", 1)
    cuda = re.search(r"CUDA(?: UMD)? Version:\s*([\d.]+)", _smi())
    return {"name": name.strip(), "driver": driver.strip(), "cuda": cuda[1] if cuda else "0"}


def gpu_names() -> tuple[str, ...]:
    """Names of the NVIDIA GPUs."""
    return tuple(filter(None, map(str.strip, _smi("--query-gpu=name", "--format=csv,noheader").splitlines())))


def _smi(*arguments: str) -> str:
    """Output of nvidia-smi; empty where it is not there, fails or hangs."""
    program = shutil.which("nvidia-smi")
    try:
        return (
            program
            and subprocess.run(
                [program, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30, check=True
            ).stdout
        ) or ""
    except (OSError, subprocess.SubprocessError):
        return ""


def machine() -> Iterator[Finding]:
    cores, usable = os.cpu_count() or 1, usable_cores()
    size = memory()
    about = f"{usable:g} of {cores} cores" if usable < cores else f"{cores} cores"
    yield Finding("machine", OK, about + (f", {size / 2**30:.0f} GiB of memory" if size else ""))
    if sys.platform == "linux" and os.path.isdir("/dev/shm"):
        shared = shutil.disk_usage("/dev/shm").total
        if shared < 256 * 2**20:
            about = f"/dev/shm has {shared / 2**20:.0f} MiB: loader workers may die of a bus error"
            fix = "Start the container with more (docker run --shm-size=2g or --ipc=host), or set data.workers=0."
            yield Finding("shared memory", WARNING, about, fix)
    if os.name == "posix":
        import resource

        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < 1024:
            yield Finding("open files", WARNING, f"at most {soft} at a time", "ulimit -n 4096, or fewer data.workers.")


def memory() -> int | None:
    """Bytes of memory, as the machine or the control group limits it."""
    if os.name != "posix" or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    if limit.exists() and (text := limit.read_text("utf-8").strip()) != "max":
        total = min(total, int(text))
    return total


def disk() -> Iterator[Finding]:
    place = Path("runs") if Path("runs").is_dir() else Path()
    name = "runs/" if place.name else "this folder"
    free = shutil.disk_usage(place).free
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(b"stentor")
    except OSError as error:
        fix = "Run from a folder that you may write to, or set output=FOLDER."
        yield Finding("disk", BROKEN, f"nothing can be written to {name} ({error.strerror})", fix)
        return
    about = f"{free / 1e9:.1f} GB free in {name}"
    if free < 5e9:
        yield Finding("disk", WARNING, about, "Checkpoints need room: free some, set output=FOLDER or train.keep=1.")
    else:
        yield Finding("disk", OK, about)
