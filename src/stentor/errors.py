"""Errors, each with the exit code of the command line.

Messages are written for users: what is wrong, where, and what to do. No message contains an access token
(`without_secrets`).
"""

import errno
import importlib.util
import os
import re
from pathlib import Path
from typing import Any

EXTRAS: dict[str, tuple[str, tuple[str, ...]]] = {
    "voice": ("the built-in voice (the quickstart, the source `synth`)", ("espeakng_loader",)),
    "av": ("m4a, aac, webm and other formats that FFmpeg reads", ("av",)),
    "vad": ("Silero voice activity detection", ("onnxruntime", "silero_vad")),
    "onnx": ("ONNX exports", ("onnx", "onnxscript", "onnxruntime")),
    "hub": ("data sets of the Hugging Face Hub", ("datasets", "pyarrow")),
    "voxtral": ("the tokenizer of Voxtral", ("mistral_common",)),
    "sherpa": ("exports for sherpa-onnx", ("onnx", "onnxscript", "onnxruntime", "sherpa_onnx")),
    "ggml": ("exports for whisper.cpp", ("pywhispercpp", "gguf")),
    "gguf": ("exports for CrispASR", ("crispasr", "gguf")),
    "ct2": ("exports for CTranslate2 and faster-whisper", ("ctranslate2",)),
    "speak": ("numbers and dates in words (`--normalize`)", ("babel", "unicode_rbnf", "kaldifst", "py3langid")),
    "evaluate": ("scoring as the Open ASR Leaderboard does; simplified Chinese", ("opencc", "kaldialign", "num2words")),
    "judges": ("recognisers of boards of speech synthesis (Paraformer)", ("sherpa_onnx",)),
    "studio": ("the studio and demos in the browser", ("gradio", "starlette", "anyio", "uvicorn")),
    "serve": (
        "the server",
        ("fastapi", "starlette", "anyio", "uvicorn", "websockets", "python_multipart", "prometheus_client"),
    ),
    "ray": ("clusters of Ray (`--ray`)", ("ray",)),
    "s3": ("s3:// addresses", ("s3fs",)),
    "gs": ("gs:// addresses", ("gcsfs",)),
    "web": ("https:// addresses", ("aiohttp",)),
    "quantize": ("4-bit base weights and 8-bit Adam", ("bitsandbytes",)),
    "track": ("TensorBoard and Trackio", ("tensorboard", "trackio")),
    "wandb": ("Weights & Biases", ("wandb",)),
    "gpu": ("utilisation of NVIDIA GPUs in metrics and reports", ("pynvml",)),
    "corpora": ("the corpora AISHELL-4 and AliMeeting", ("textgrid",)),
}
"""Purpose of each extra of the package, and the modules that it installs."""
FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or an exceeded quota."""
TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{6,}\b|\bBearer\s+[\w.~+/=-]{6,}")
"""Pattern of tokens of the Hugging Face Hub."""
URL_USER = re.compile(r"(?<=://)[^/\s'\"?#<>]+(?=@)")
"""User name and password in a URL."""
URL_SIGNATURE = re.compile(
    r"([?&;](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|signature|sig|(?:\w+[_-])?token"
    r"|(?:api[_-]?)?key|password|secret)=)[^&;\s'\"<>\\]+",
    re.IGNORECASE,
)
"""Parts of an address that grant access to what it names: signatures of S3, Google and Azure, tokens, passwords."""
SECRET_NAMES = re.compile(r"(?:^|_)(?:TOKEN|API_KEY|ACCESS_KEY|SECRET|PASSWORD)$")
"""Environment variables that contain secrets, for the Hub and for trackers."""
LEAST_SECRET = 8
"""Minimum length of a secret in characters: a shorter value could be part of any word."""
_HIDDEN: set[str] = set()


class StentorError(Exception):
    """Base class of expected errors. The command line shows the message without a traceback."""

    exit_code = 1


class ConfigError(StentorError):
    """Invalid usage or an invalid config file."""

    exit_code = 2


def installed(module: str) -> bool:
    """Whether a module can be found, without importing it."""
    return importlib.util.find_spec(module) is not None


def missing_extra(extra: str, what: str, *modules: str, instead: str = "") -> str:
    """A sentence that names the extra, or an empty text when `modules` (by default all of the extra's) are installed.

    `what` needs them and starts the sentence. `instead` says what else the user can do.
    """
    missing = [module for module in modules or EXTRAS[extra][1] if not installed(module)]
    if not missing:
        return ""
    names = " and ".join(filter(None, (", ".join(missing[:-1]), missing[-1])))
    verb = "is" if len(missing) == 1 else "are"
    instead = f", or {instead}" if instead else ""
    return f"{what} needs {names}, which {verb} not installed: pip install 'stentor[{extra}]'{instead}."


def require(extra: str, what: str, *modules: str, instead: str = "") -> None:
    """Raise ConfigError with the sentence of `missing_extra`, if there is one."""
    if sentence := missing_extra(extra, what, *modules, instead=instead):
        raise ConfigError(sentence)


class BatchTooLarge(ConfigError):
    """The largest batch of a training does not fit in memory."""


class DataError(StentorError):
    """Data that cannot be used for training or evaluation as it is. The message lists the problems."""

    exit_code = 3


class MissingData(DataError):
    """Data that does not exist at `path`, or a `part` of a corpus that is not there."""

    def __init__(self, message: str, path: Path, part: str | None = None):
        super().__init__(message)
        self.path, self.part = path, part

    def __reduce__(self) -> tuple[Any, ...]:  # errors go from rank to rank
        return MissingData, (str(self), self.path, self.part)


class RecordError(DataError):
    """One record that cannot be used; it is counted, and the others continue. `reason` is a short word for the
    statistics."""

    def __init__(self, message: str, reason: str = "unreadable"):
        super().__init__(message)
        self.reason = reason


class AudioError(RecordError):
    """One unusable audio file."""


class Stopped(StentorError):
    """A signal stopped the run after everything was saved; the same command resumes."""

    exit_code = 75


def hide(secret: str) -> None:
    """Make `without_secrets` also remove this secret, which is in no environment variable, such as a login token."""
    if len(secret) >= LEAST_SECRET:
        _HIDDEN.add(secret)


def without_secrets(text: str) -> str:
    """Return the text with access tokens, passwords and URL signatures replaced by `***`."""
    for value in tuple(_HIDDEN):  # another thread may add one
        text = text.replace(value, "***")
    for name, value in os.environ.items():
        if len(value) >= LEAST_SECRET and SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return TOKEN.sub("***", URL_SIGNATURE.sub(r"\1***", URL_USER.sub("***", text)))
