"""All that talks to the Hugging Face Hub when something is published.

Tokens come from the environment (`HF_TOKEN`) or the Hub's own login, never from an argument, and nothing that is said
here holds one. An upload that broke resumes where it was: what the Hub has already is not sent again.
"""

import contextlib
import logging
import os
import re
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import psutil

from stentor.data.yaml_text import read_yaml
from stentor.errors import LEAST_SECRET, SECRET_NAMES, TOKEN, ConfigError, hide
from stentor.publish.hub_errors import LOGIN, clean, explained, passing, root, short, unanswered

Kind = Literal["model", "dataset", "space"]
Say = Callable[[str], None]
Build = Callable[[Path], list[str]]
"""Writes what is to be published into an empty folder; answers remarks for the person who publishes."""

REPO = re.compile(r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}(?<![.-])")
WAITS = [2.0, 10.0, 30.0]
"""Seconds before an upload that broke is tried again, on top of the client's own retries of each request."""
ARRIVED = re.compile(r"([\d,]+)/([\d,]+) uploaded \(([\d.]+)(\w+) transferred\)")
"""Form in which the client reports its progress."""
READABLE = (".md", ".yaml", ".yml", ".json", ".jsonl", ".txt", ".py", ".toml", ".cfg", ".csv")
"""Endings of the files that are searched for tokens before anything is sent."""


@dataclass(frozen=True)
class Target:
    """A repository on the Hub."""

    repo: str
    """USER/REPO."""
    kind: Kind
    private: bool | None = None
    """None: private when it has to be made, and as it is when it is private already."""
    sdk: str = "gradio"
    """Kind of a Space: gradio or static."""

    def __post_init__(self) -> None:
        if not REPO.fullmatch(self.repo):
            raise ConfigError(
                f"--to {self.repo} is no name on the Hub: it takes USER/REPO, both of letters, digits, `-`, `_` and "
                "`.`, such as anna/digits."
            )

    @property
    def noun(self) -> str:
        return {"model": "model", "dataset": "data set", "space": "Space"}[self.kind]


def publish(
    build: Build,
    target: Target | None,
    dry_run: Path | None = None,
    message: str | None = None,
    say: Say = print,
    secrets: Mapping[str, str] | None = None,
    beside: Path | None = None,
) -> str:
    """Build what is to be published and upload it, or with `dry_run` only write it into that folder.

    `secrets` of a Space are set through the Hub's API. `beside`: a folder on the disk of what is published, where a
    hidden folder may be made for the time of the upload, so that large files can be linked instead of copied. Says
    what it does line by line, and answers the link of the repository, or the folder. Raises ConfigError (no token, no
    right, a name that is taken, a folder that is not empty) and StentorError (the Hub cannot be reached or fails; the
    same command resumes).
    """

    from huggingface_hub import HfApi

    def tell(text: str) -> None:
        say(clean(text))

    if dry_run is not None:
        if dry_run.exists() and (not dry_run.is_dir() or any(dry_run.iterdir())):
            raise ConfigError(f"--dry-run {dry_run} is not empty: choose another folder, so that nothing is lost.")
        dry_run.mkdir(parents=True, exist_ok=True)
        remarks = build(dry_run)
        refuse_tokens(dry_run)
        for remark in remarks:
            tell(remark)
        names = ", ".join(sorted(secrets or ()))
        tell(f"Nothing was sent. What would be is in {dry_run}" + (f", and the secrets {names}." if names else "."))
        return str(dry_run)
    if target is None:
        raise ConfigError("Say where with --to USER/REPO, or write it to a folder only with --dry-run DIR.")
    with explained(target.repo, target.noun):
        _user(HfApi(token=token_or_refuse()), target)  # before minutes of building for nothing
    with _stoppable(), _place(beside) as folder:
        remarks = build(folder)
        for remark in remarks:
            tell(remark)
        return upload(folder, target, message, tell, secrets)


def upload(
    folder: Path, target: Target, message: str | None = None, say: Say = print, secrets: Mapping[str, str] | None = None
) -> str:
    """Send a folder to a repository, which is made (private unless the target says otherwise) when there is none.

    Answers the repository's link. Raises as `publish`. Files that the repository had before and the folder has not
    are left there, and named.
    """
    from huggingface_hub import HfApi

    refuse_tokens(folder)
    with explained(target.repo, target.noun):
        api = HfApi(token=token_or_refuse())
        user = _user(api, target)
        before = _open(api, target, say)
        for name, value in (secrets or {}).items():
            api.add_space_secret(target.repo, name, value)
            say(f"The Space's secret {name} is set.")
        sizes = [p.stat().st_size for p in folder.rglob("*") if p.is_file()]
        say(f"Sending {len(sizes)} files ({_size(sum(sizes))}) to the {target.noun} {target.repo} as {user}.")
        with _logged(say):
            _send(api, folder, target, message or f"Publish with Stentor: {target.noun}", say)
    sent = {p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file()}
    if left := sorted(before - sent - {".gitattributes"}):
        more = " ..." if len(left) > 5 else ""
        say(f"From before it still holds {len(left)} other files: {', '.join(left[:5])}{more}.")
    prefix = {"model": "", "dataset": "datasets/", "space": "spaces/"}[target.kind]
    link = f"{api.endpoint}/{prefix}{target.repo}"
    say(f"Published: {link}")
    return link


def licence_of(repo: str, kind: Kind) -> str | None:
    """The licence that a repository's card declares; None when it declares none or the Hub cannot be asked."""
    from huggingface_hub import HfApi

    try:
        card = getattr(HfApi().repo_info(repo, repo_type=kind, timeout=10), "card_data", None)
    except unanswered():
        return None
    licence = card.get("license") if card else None
    return licence if isinstance(licence, str) else None


def benchmark_task(source: Mapping[str, Any]) -> str | None:
    """A benchmark's own name for the task that an evaluation source (`name`, `config`, `split`) is of, from its
    `eval.yaml` (https://huggingface.co/docs/hub/eval-results); None where it has none or cannot be asked."""
    from huggingface_hub import hf_hub_download
    from yaml import YAMLError

    try:
        file = Path(hf_hub_download(source["name"], "eval.yaml", repo_type="dataset", revision=source.get("revision")))
        tasks = (read_yaml(file.read_text("utf-8")) or {}).get("tasks") or []
    except YAMLError:
        return None
    except unanswered():
        return None
    config_and_split = (source.get("config") or "default", source.get("split") or "test")
    for task in tasks:
        if (task.get("config") or "default", task.get("split") or "test") == config_and_split:
            return str(task["id"])
    return None


def token_or_refuse() -> str:
    """The token of the environment or of the Hub's login. Raises ConfigError when there is none."""
    from huggingface_hub import get_token

    token = get_token()
    if not token:
        raise ConfigError(f"There is no token of the Hugging Face Hub here: {LOGIN}.")
    hide(token)
    return token


def account() -> str | None:
    """The name of the Hub's user whose token is here; None without a token, and when the Hub cannot be asked."""
    from huggingface_hub import HfApi, get_token

    if not (token := get_token()):
        return None
    try:
        return str(HfApi(token=token).whoami()["name"])
    except unanswered():
        return None


def refuse_tokens(folder: Path) -> None:
    """Raises ConfigError, naming the file, when a text file holds what is or looks like an access token."""
    secrets = [v for k, v in os.environ.items() if len(v) >= LEAST_SECRET and SECRET_NAMES.search(k)]
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.suffix in READABLE or path.name.startswith(".env")):
            with path.open(encoding="utf-8", errors="replace") as lines:
                for number, line in enumerate(lines, 1):
                    # Of what only looks like one, a text may speak ("Bearer of good news"); the Hub's have a form.
                    match = TOKEN.search(line)
                    if (match and not match.group().startswith("Bearer")) or any(s in line for s in secrets):
                        raise ConfigError(
                            f"{path.relative_to(folder)} line {number} holds an access token: take it out (and revoke "
                            "it if others could have seen it). Nothing was sent."
                        )


@contextlib.contextmanager
def _stoppable() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: what was built for the upload is removed."""
    if threading.current_thread() is not threading.main_thread():  # which alone may say what signals do
        yield
        return

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextlib.contextmanager
def _place(beside: Path | None) -> Iterator[Path]:
    """An empty folder, removed at the end; those of processes that were killed are removed, too."""
    prefix = ".stentor-publish-"
    if beside is None or not os.access(beside, os.W_OK):
        with tempfile.TemporaryDirectory(prefix=prefix[1:]) as place:
            yield Path(place)
        return
    for left in beside.glob(f"{prefix}*"):
        number = left.name.removeprefix(prefix).partition("-")[0]
        if number.isdigit() and not psutil.pid_exists(int(number)):
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=f"{prefix}{os.getpid()}-", dir=beside) as place:
        yield Path(place)


def _user(api: Any, target: Target) -> str:
    """Owner of the token. Raises ConfigError when it may only read, and for another account's name."""
    who = api.whoami()
    user, owner = str(who["name"]), target.repo.partition("/")[0]
    access = (who.get("auth") or {}).get("accessToken") or {}
    if access.get("role") == "read":
        raise ConfigError(f"The token of {user} may only read: {LOGIN}.")
    namespaces = [user, *(str(org.get("name")) for org in who.get("orgs") or [])]
    # A fine-grained token may be for a repository of others without telling whose members they are.
    if access.get("role") == "write" and owner.lower() not in [n.lower() for n in namespaces]:
        raise ConfigError(
            f"The token is that of {user}, who has no right to write {target.repo}: use one of the names "
            f"{', '.join(namespaces)} in --to USER/REPO."
        )
    return user


def _open(api: Any, target: Target, say: Say) -> set[str]:
    """Make the repository unless it is there; answers the files that it holds."""
    from huggingface_hub.errors import HfHubHTTPError

    if (info := _info(api, target)) is None:
        private = target.private is not False
        try:
            api.create_repo(
                target.repo,
                repo_type=target.kind,
                private=private,
                space_sdk=target.sdk if target.kind == "space" else None,
            )
        except HfHubHTTPError as error:
            if error.response.status_code != 409:
                raise
            if (info := _info(api, target)) is None:
                raise ConfigError(
                    f"The name {target.repo} is taken by something else than a {target.noun}: choose another for --to."
                ) from None
        else:
            say(f"Made the {'private' if private else 'public'} {target.noun} {target.repo}.")
            return set()
    if target.private is None and not info.private:
        raise ConfigError(
            f"The {target.noun} {target.repo} exists and everybody can read it: add --public if that is meant, or "
            "choose another name for --to."
        )
    if target.private is not None and bool(info.private) != target.private:
        is_, to_be = ("private", "public") if info.private else ("public", "private")
        raise ConfigError(
            f"The {target.noun} {target.repo} exists and is {is_}, but is to be {to_be}: make it {to_be} on its "
            f"settings page first, or publish it as {is_} (--{is_})."
        )
    return {file.rfilename for file in info.siblings or []}


def _info(api: Any, target: Target) -> Any:
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        return api.repo_info(target.repo, repo_type=target.kind)
    except RepositoryNotFoundError:
        return None


def _send(api: Any, folder: Path, target: Target, message: str, say: Say) -> None:
    """Upload, again after breaks: what arrived is known to the Hub by its hash and is skipped."""
    for wait in (*WAITS, None):
        try:
            api.upload_folder(repo_id=target.repo, repo_type=target.kind, folder_path=folder, commit_message=message)
            return
        except Exception as error:
            if wait is None or not passing(error):
                raise
            say(f"The connection broke ({short(root(error))}). Trying again in {wait:g} s.")
            time.sleep(wait)


@contextlib.contextmanager
def _logged(say: Say) -> Iterator[None]:
    """The client's log without tokens and signed addresses, and how far it is: by its bars on a terminal, elsewhere in
    a line every half minute."""
    from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

    def redact(record: logging.LogRecord) -> bool:
        record.msg, record.args = clean(record.getMessage()), ()
        return True

    def tell(record: logging.LogRecord) -> bool:
        if (match := ARRIVED.search(record.getMessage())) and float(match[3]):
            done, total, count, unit = match.groups()
            say(f"{done} of {total} large files have arrived ({count} {unit} sent).")
        return False  # the client's own line is not shown

    with contextlib.ExitStack() as undo:
        for handler in (*logging.getLogger("huggingface_hub").handlers, *logging.getLogger().handlers):
            handler.addFilter(redact)
            undo.callback(handler.removeFilter, redact)
        if not sys.stderr.isatty():
            if not are_progress_bars_disabled():
                disable_progress_bars()
                undo.callback(enable_progress_bars)
            uploads = logging.getLogger("huggingface_hub._upload_pipeline")
            undo.callback(uploads.setLevel, uploads.level)
            uploads.setLevel(logging.INFO)
            uploads.addFilter(tell)
            undo.callback(uploads.removeFilter, tell)
        yield


def _size(count: float) -> str:
    for unit in ("bytes", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}"
        count /= 1000
    return f"{count:.1f} GB"
