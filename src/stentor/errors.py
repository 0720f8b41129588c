"""Errors, each with the exit code of the command line.

Messages are written for the person at the keyboard: what is wrong, where, and what to do. No message holds an access
token (`without_secrets`).
"""

import errno
import os
import re
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a disk without room."""
TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{6,}\b|\bBearer\s+[\w.~+/=-]{6,}")
"""Pattern of tokens of the Hugging Face Hub."""
URL_USER = re.compile(r"(?<=://)[^/\s'\"?#<>]+(?=@)")
"""User and password of an address."""
URL_SIGNATURE = re.compile(
    r"([?&;](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|signature|sig|(?:\w+[_-])?token"
    r"|(?:api[_-]?)?key|password|secret)=)[^&;\s'\"<>\\]+",
    re.IGNORECASE,
)
"""Parts of an address that grant access to what it names: signatures of S3, Google and Azure, tokens, passwords."""
SECRET_NAMES = re.compile(r"(?:^|_)(?:TOKEN|API_KEY|ACCESS_KEY|SECRET|PASSWORD)$")
"""Environment variables that hold secrets, of the Hub and of trackers."""
LEAST_SECRET = 8
"""A shorter value could be part of any word."""
_HIDDEN: set[str] = set()


class StentorError(Exception):
    """An expected failure: shown as one plain paragraph, without a traceback."""

    exit_code = 1


class ConfigError(StentorError):
    """Wrong usage or a wrong config file."""

    exit_code = 2


class DataError(StentorError):
    """Data that must not be trained or scored on as it is; the message lists what is wrong."""

    exit_code = 3


class MissingData(DataError):
    """Data that is not where `path` says."""

    def __init__(self, message: str, path: Path):
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:  # errors go from rank to rank
        return MissingData, (str(self), self.path)


class RecordError(DataError):
    """One record that cannot be used; it is counted, and the others continue. `reason` is a short word for the
    statistics."""

    def __init__(self, message: str, reason: str = "unreadable"):
        super().__init__(message)
        self.reason = reason


class AudioError(RecordError):
    """One audio file that cannot be used."""


class Stopped(StentorError):
    """A signal stopped the run after everything was saved; the same command resumes."""

    exit_code = 75


def hide(secret: str) -> None:
    """From now on `without_secrets` takes this out as well: a secret that no variable holds, as that of a login."""
    if len(secret) >= LEAST_SECRET:
        _HIDDEN.add(secret)


def without_secrets(text: str) -> str:
    """The text without anything that is, or looks like, an access token, a password or a signature of an address."""
    for value in tuple(_HIDDEN):  # another thread may add one
        text = text.replace(value, "***")
    for name, value in os.environ.items():
        if len(value) >= LEAST_SECRET and SECRET_NAMES.search(name):
            text = text.replace(value, "***")
    return TOKEN.sub("***", URL_SIGNATURE.sub(r"\1***", URL_USER.sub("***", text)))
