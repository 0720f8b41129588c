"""Exceptions, each with the exit code of the command line.

Messages are written for users: what is wrong, where, and what to do. No message contains an access token
(`without_secrets`).
"""

import errno
import os
import re
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk or an exceeded quota."""
TOKEN = re.compile(r"\b(?:hf|api_org)_[A-Za-z0-9]{6,}\b|\bBearer\s+[\w.~+/=-]{6,}")
"""Strings that look like a token of the Hugging Face Hub, wherever they come from."""
URL_USER = re.compile(r"(?<=://)[^/\s'\"?#<>]+(?=@)")
"""User name and password in a URL."""
URL_SIGNATURE = re.compile(
    r"([?&;](?:X-(?:Amz|Goog)-(?:Signature|Credential|Security-Token)|AWSAccessKeyId|signature|sig|(?:\w+[_-])?token"
    r"|(?:api[_-]?)?key|password|secret)=)[^&;\s'\"<>\\]+",
    re.IGNORECASE,
)
"""Parts of a URL that grant access to anyone: signatures of S3, Google and Azure, tokens, passwords."""
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


class DataError(StentorError):
    """Data that cannot be used for training or evaluation as it is. The message lists the problems."""

    exit_code = 3


class MissingData(DataError):
    """Data that does not exist at `path`."""

    def __init__(self, message: str, path: Path):
        super().__init__(message)
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:  # errors go from rank to rank
        return MissingData, (str(self), self.path)


class RecordError(DataError):
    """One unusable record. It is counted and the rest is processed. `reason` is a short word for the statistics."""

    def __init__(self, message: str, reason: str = "unreadable"):
        super().__init__(message)
        self.reason = reason


class AudioError(RecordError):
    """One unusable audio file."""


class Stopped(StentorError):
    """A run that a signal stopped after everything was saved. The same command resumes it."""

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
