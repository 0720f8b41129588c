"""What can go wrong, each with the exit code that the command line answers.

Messages are written for the person at the keyboard: what is wrong, where, and what to do.
"""


class StentorError(Exception):
    """An expected failure: shown as one plain paragraph, without a traceback."""

    exit_code = 1


class ConfigError(StentorError):
    """Wrong usage or a wrong config file."""

    exit_code = 2


class DataError(StentorError):
    """Data that must not be trained or scored on as it is; the message lists what is wrong."""

    exit_code = 3


class AudioError(DataError):
    """One audio file that cannot be used. `reason` is a short word for the drop statistics."""

    def __init__(self, message: str, reason: str = "unreadable"):
        super().__init__(message)
        self.reason = reason


class Stopped(StentorError):
    """A signal stopped the run after everything was saved; the same command goes on."""

    exit_code = 75
