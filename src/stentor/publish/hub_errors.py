"""Errors of the Hub and the network, each as one sentence that holds no token."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stentor.errors import ConfigError, StentorError, hide, without_secrets

if TYPE_CHECKING:
    from huggingface_hub.errors import HfHubHTTPError

LOGIN = "set HF_TOKEN to a token with write access (https://huggingface.co/settings/tokens), or run `hf auth login`"
AGAIN = "Run the same command again: what the Hub has already is not sent twice."
QUERY = re.compile(r"(https?://[^\s?'\"<>]+)\?[^\s'\"<>]+")
"""Addresses with a query: those of storage are signed, and who has one may write there."""


def clean(text: str) -> str:
    """The text without the Hub's token (that of its login too, which no variable holds) and signed addresses."""
    from huggingface_hub import get_token

    with contextlib.suppress(Exception):  # a login that cannot be read must not keep an error from being told
        if token := get_token():
            hide(token)
    return QUERY.sub(r"\1?***", without_secrets(text))


def network() -> tuple[type[Exception], ...]:
    """Exceptions of a connection that fails: of httpx, of the system, and of hf_xet, which has no classes of its
    own."""
    from httpx2 import TransportError

    return TransportError, ConnectionError, TimeoutError, RuntimeError


def unanswered() -> tuple[type[Exception], ...]:
    """Errors of a query to the Hub that gets no answer: refused, offline, no connection, or one that cannot be read."""
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled

    return HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, ValueError, *network()


def passing(error: BaseException) -> bool:
    """Whether it may go better in a moment."""
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    error = root(error)
    if isinstance(error, HfHubHTTPError):
        return error.response.status_code in (408, 429) or error.response.status_code >= 500
    return isinstance(error, network()) and not isinstance(error, OfflineModeIsEnabled)


@contextlib.contextmanager
def explained(repo: str, noun: str) -> Iterator[None]:
    """Turns what the client raises about the repository `repo`, a `noun`, into one sentence. The originals hold
    addresses and headers: none is chained."""
    try:
        yield
        return
    except StentorError:
        raise
    except Exception as error:
        failure = _failure(root(error), repo, noun)
        if failure is None:
            raise
    raise failure from None


def root(error: BaseException) -> BaseException:
    """The client wraps what broke the upload of one file in a RuntimeError."""
    return error.__cause__ if isinstance(error, RuntimeError) and error.__cause__ else error


def _failure(error: BaseException, repo: str, noun: str) -> StentorError | None:
    """None for what is not the Hub's or the network's doing."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError, OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return ConfigError("HF_HUB_OFFLINE is set, so that nothing can be sent: unset it.")
    if isinstance(error, LocalTokenNotFoundError):
        return ConfigError(f"There is no token of the Hugging Face Hub here: {LOGIN}.")
    if isinstance(error, HFValidationError):
        return ConfigError(clean(f"The Hub would not take the name {repo}: {error}"))
    if isinstance(error, HfHubHTTPError):
        return _refused(error, repo, noun)
    if isinstance(error, ValueError) and isinstance(error.__cause__ or error.__context__, HfHubHTTPError):
        message = " ".join(clean(str(error)).split())
        return ConfigError(
            f"The Hub does not accept this card: {message}. Fix it, for example with --dry-run and --card."
        )
    if isinstance(error, network()):
        return StentorError(f"The connection to the Hugging Face Hub failed ({short(error)}). {AGAIN}")
    return None


def _refused(error: HfHubHTTPError, repo: str, noun: str) -> StentorError:
    """Meaning of the Hub's answer."""
    status = error.response.status_code
    message = clean(" ".join((error.server_message or "").split()))[:300].rstrip(". ")
    message = f" It says: {message}." if message else ""
    if status == 401:
        return ConfigError(f"The Hub does not know this token, it may have expired: {LOGIN}.")
    if status in (403, 413, 507) and re.search(r"storage|quota|too large", message, re.I):
        return ConfigError(
            f"The Hub has no room for it in the account of {repo}: remove something there, take a larger plan, "
            f"or publish it with --public where only private storage is full.{message}"
        )
    if status == 403:
        return ConfigError(
            f"This token has no right to write {repo}: take a name of your own or of an organisation whose "
            f"member you are, and a token with write access to it.{message}"
        )
    if status == 402:
        return ConfigError(f"The Hub asks for payment before it makes or changes {repo}.{message}")
    if status == 404:
        return ConfigError(f"The Hub has no {noun} {repo} that this token may write.{message}")
    if status == 429 or status >= 500 or status == 408:
        return StentorError(f"The Hub is busy or out of order (status {status}).{message} {AGAIN}")
    return ConfigError(f"The Hub refused the {noun} {repo} (status {status}).{message}")


def short(error: BaseException) -> str:
    return clean(" ".join(f"{type(error).__name__}: {error}".split()))[:200].rstrip(": ")
