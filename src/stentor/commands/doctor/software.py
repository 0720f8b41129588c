"""Python, the packages and the accounts."""

import importlib.metadata
import operator as op
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from stentor.commands.doctor.finding import (
    BROKEN,
    NOTE,
    OK,
    WARNING,
    Finding,
    installed,
    last_line,
    numbers,
    python_process,
    version_of,
)


def python() -> Iterator[Finding]:
    yield Finding("python", OK, f"{platform.python_version()} on {platform.system()} {platform.machine()}")


def packages() -> Iterator[Finding]:
    """Versions of what Stentor depends on against the bounds in its metadata, without importing anything."""
    too_old: list[tuple[str, str, str]] = []
    fine: list[tuple[str, str, str]] = []
    missing: list[str] = []
    for name, bounds in requirements():
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            missing.append(f"{name}{bounds}")
            continue
        (fine if within(version, bounds) else too_old).append((name, version, bounds))
    for name, version, bounds in too_old:
        yield Finding(name, BROKEN, f"{version}, but {bounds} is needed", f"pip install '{name}{bounds}'")
    if missing:
        quoted = " ".join(f"'{m}'" for m in missing)
        yield Finding("packages", BROKEN, f"not installed: {', '.join(missing)}", f"pip install {quoted}")
    if fine and not missing and not too_old:
        shown = ("torch", "transformers", "accelerate", "lhotse", "peft")
        yield Finding("packages", OK, ", ".join(f"{n} {v}" for n, v, _ in fine if n in shown))


def requirements() -> list[tuple[str, str]]:
    """(name, version bounds) of each unconditional dependency, such as ("lhotse", ">=1.33,<2")."""
    try:
        lines = importlib.metadata.requires("stentor") or []
    except importlib.metadata.PackageNotFoundError:  # run from a source folder that was never installed
        import tomllib

        project = Path(__file__).parents[4] / "pyproject.toml"
        lines = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    parsed = []
    for line in lines:
        if ";" in line:  # extras and other platforms
            continue
        match = re.match(r"([A-Za-z0-9._-]+)(?:\[[^\]]*\])?\s*\(?([^)]*)\)?", line)
        if match:
            bounds = sorted(match[2].replace(" ", "").split(","), reverse=True)  # the lower bound first
            parsed.append((match[1], ",".join(bounds)))
    return parsed


def within(version: str, bounds: str) -> bool:
    """Whether a version satisfies bounds such as `>=1.33,<2` (numbers only: local and pre-release tags are ignored)."""
    compare = {">=": op.ge, "<=": op.le, "==": op.eq, "!=": op.ne, ">": op.gt, "<": op.lt}
    ours = numbers(version)
    for bound in filter(None, bounds.split(",")):
        match = re.match(r"(>=|<=|==|!=|>|<)(.+)", bound)
        if match and not compare[match[1]](ours, numbers(match[2])):
            return False
    return True


def transformers() -> Iterator[Finding]:
    """transformers imports torchaudio and torchcodec wherever they are installed: a wrong build of them breaks it."""
    if not installed("transformers") or not installed("torch"):
        return
    rc, _, err = python_process("from transformers import WhisperFeatureExtractor")
    if rc == 0:
        yield Finding("transformers", OK, "its audio classes can be imported")
        return
    culprit = next((n for n in ("torchaudio", "torchcodec", "torchvision") if n in err and installed(n)), None)
    reason = last_line(err) or f"exit code {rc}"
    if culprit is None:
        about = f"`from transformers import WhisperFeatureExtractor` fails: {reason}"
        fix = "Install Stentor again into a new environment; the message says which package is broken."
        yield Finding("transformers", BROKEN, about, fix)
        return
    yield Finding(
        "transformers",
        BROKEN,
        f"{culprit} {version_of(culprit)} cannot be loaded beside torch {version_of('torch')}, and transformers "
        f"imports it wherever it is installed: {reason}",
        f"Stentor does not need it: pip uninstall {culprit}. To keep it, install the build for your torch (for a CPU "
        f"torch: pip install {culprit} --index-url https://download.pytorch.org/whl/cpu).",
    )


OPTIONAL = {
    "tensorboard": ("curves in TensorBoard (callback `tracking`)", "tensorboard"),
    "trackio": ("curves in Trackio (callback `tracking`)", "trackio"),
    "wandb": ("curves in Weights & Biases (callback `tracking`)", "wandb"),
    "onnxruntime": ("Silero voice activity detection, running ONNX exports", "'stentor[vad]'"),
    "onnxscript": ("writing ONNX exports", "'stentor[onnx]'"),
    "bitsandbytes": ("8-bit Adam (optim.type adamw8bit)", "bitsandbytes"),
}


def optional() -> Iterator[Finding]:
    for name, (what, package) in OPTIONAL.items():
        if installed(name):
            yield Finding(name, OK, f"{version_of(name)}: {what}")
        else:
            yield Finding(name, NOTE, f"not installed: no {what}", f"pip install {package}")


def hub() -> Iterator[Finding]:
    """The Hugging Face cache and whether there is a token; the token itself is not looked at."""
    home = Path(
        os.environ.get("HF_HOME") or Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "huggingface"
    )
    cache = Path(os.environ.get("HF_HUB_CACHE") or home / "hub")
    place = next(p for p in (cache, *cache.parents) if p.exists())
    if not os.access(place, os.W_OK):
        fix = "Set HF_HOME to a folder that you may write to."
        yield Finding("model cache", WARNING, f"{cache} cannot be written to", fix)
    else:
        cached = len(list(cache.glob("models--*"))) if cache.exists() else 0
        offline = ", offline (HF_HUB_OFFLINE)" if os.environ.get("HF_HUB_OFFLINE", "0") not in ("", "0") else ""
        models = f"{cached} model{'' if cached == 1 else 's'}"
        yield Finding("model cache", OK, f"{models}, {shutil.disk_usage(place).free / 1e9:.1f} GB free{offline}")
    stored = Path(os.environ.get("HF_TOKEN_PATH") or home / "token")
    if os.environ.get("HF_TOKEN") or stored.exists():
        yield Finding("hub token", OK, "there is one")
    else:
        fix = "hf auth login (only for private models and for publishing)"
        yield Finding("hub token", NOTE, "none", fix)
