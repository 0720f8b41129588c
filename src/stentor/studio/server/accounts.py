"""Accounts: on this machine itself the address that is printed holds a token, elsewhere everybody signs in."""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
import threading
import time
from pathlib import Path

from stentor.data.system import POSIX
from stentor.errors import ConfigError
from stentor.studio.files import disk_errors, inside
from stentor.studio.projects import Projects
from stentor.web.origins import secret

OWNER = "owner"
"""The one person of a studio without names."""
SHORTEST = 8
"""Characters of the shortest password."""
STAYS = 30 * 24 * 3600.0
"""Seconds for which a browser stays signed in."""
MOST_SESSIONS = 1000
COST = 2**14
"""Parameters of scrypt: the cost of a guess at a password, and of each sign-in."""
_TOKEN = re.compile(r"[\w-]{32}")
_PAIRS = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}:\S+(?:\s+[A-Za-z0-9][A-Za-z0-9_-]{0,63}:\S+)*")


def passwords(host: str, variable: str | None) -> dict[str, str]:
    """Password by person, from the environment; empty where no sign-in is needed.

    The variable holds one password, or `NAME:PASSWORD` pairs with spaces or newlines between them. Raises ConfigError
    where a password is needed and none, or a short one, is there.
    """
    words = secret(host, variable, "studio", "password", "--password-env")
    if words is None:
        return {}
    pairs = [pair.split(":", 1) for pair in words.split()] if _PAIRS.fullmatch(words) else [[OWNER, words]]
    if any(len(word) < SHORTEST for _, word in pairs):
        raise ConfigError(
            f"The environment variable {variable} must hold a password of at least {SHORTEST} characters, or "
            "NAME:PASSWORD for each person."
        )
    if len({name.lower() for name, _ in pairs}) < len(pairs):
        raise ConfigError(f"The environment variable {variable} names the same person twice.")
    return dict(pairs)  # type: ignore[arg-type]


def local_token(folder: Path) -> str:
    """The token of a studio without passwords: everybody on this machine reaches its address, so the address alone
    must not open it. It is the same after a restart, in a file that no one else can read (on Windows, all who
    can read the folder). Raises StentorError."""
    path = folder / ".access-token"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        status = path.lstat()
        private = not POSIX or (status.st_uid == os.getuid() and not status.st_mode & 0o077)
        if private and _TOKEN.fullmatch(token := path.read_text("utf-8")):
            return token
    token = secrets.token_urlsafe(24)
    with disk_errors(path):
        path.unlink(missing_ok=True)
        with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(token)
    return token


class Accounts:
    """The people of a studio, their folders, and which browsers have signed in (sessions are held in memory: after a
    restart everybody signs in again). Without passwords there is one person, whose browser holds `token`."""

    def __init__(
        self,
        folder: Path,
        passwords: dict[str, str],
        models: tuple[Path, ...] = (),
        publish: bool = False,
        more_runs: tuple[Path, ...] = (),
    ):
        """`passwords`: by person; `publish`: whether people who are named use the owner's login of the Hub;
        `more_runs`: see `Projects`. Raises ConfigError for these where several people are named."""
        self.guarded = bool(passwords)
        self.named = self.guarded and set(passwords) != {OWNER}
        self._salt = secrets.token_bytes(16)
        self._digests = {name: self._digest(password) for name, password in passwords.items()}
        self._sessions: dict[str, tuple[str, float]] = {}
        self._lock = threading.Lock()
        folders = (
            {name: inside(Path(folder), "users", name) for name in passwords} if self.named else {OWNER: Path(folder)}
        )
        if self.named and more_runs:
            raise ConfigError("--runs shows the runs of one person: leave it away where several sign in.")
        publishes = publish or not self.named
        self._projects = {
            name: Projects(path, self.guarded, models, publishes, more_runs) for name, path in folders.items()
        }
        self.token = "" if self.guarded else local_token(self._projects[OWNER].folder)

    def projects(self, name: str) -> Projects:
        """A person's projects."""
        return self._projects[name]

    def meant(self, name: str) -> str:
        """The person that somebody who signs in says to be; empty for all that are not known."""
        return OWNER if not self.named else name if name in self._digests else ""

    def sign_in(self, name: str, password: str) -> str | None:
        """The secret of a new session; None unless the password is right."""
        name = name if self.named else OWNER
        # An unknown name takes as long as a wrong password.
        digest = self._digests.get(name, b"")
        if not hmac.compare_digest(self._digest(password), digest):
            return None
        with self._lock:
            now = time.time()
            sessions = sorted((end, key, person) for key, (person, end) in self._sessions.items() if end > now)
            self._sessions = {key: (person, end) for end, key, person in sessions[-MOST_SESSIONS + 1 :]}
            self._sessions[session := secrets.token_urlsafe(32)] = (name, now + STAYS)
        return session

    def sign_out(self, session: str) -> None:
        with self._lock:
            self._sessions.pop(session, None)

    def who(self, session: str | None) -> str | None:
        """The person of a session, or of the token of a studio without passwords."""
        if not self.guarded:
            return OWNER if hmac.compare_digest((session or "").encode(), self.token.encode()) else None
        person, end = self._sessions.get(session or "", (None, 0.0))
        return person if end > time.time() else None

    def _digest(self, password: str) -> bytes:
        return hashlib.scrypt(password.encode(), salt=self._salt, n=COST, r=8, p=1)
