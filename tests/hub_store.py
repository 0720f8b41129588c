"""What the Hub stand-in keeps: repositories with their commits, files and Space settings, all in memory."""

import hashlib
import itertools
import time
from dataclasses import dataclass, field
from fnmatch import fnmatch

# The rules that the Hub writes into a new repository's .gitattributes, shortened to kinds that speech projects have.
LFS_KINDS = (
    "*.bin",
    "*.ckpt",
    "*.flac",
    "*.gz",
    "*.h5",
    "*.m4a",
    "*.mp3",
    "*.npy",
    "*.npz",
    "*.ogg",
    "*.onnx",
    "*.parquet",
    "*.pickle",
    "*.pkl",
    "*.pt",
    "*.pth",
    "*.safetensors",
    "*.tar",
    "*.wav",
    "*.zip",
    "*tfevents*",
)
ATTRIBUTES = "".join(f"{kind} filter=lfs diff=lfs merge=lfs -text\n" for kind in LFS_KINDS).encode()
PREFIX = {"model": "", "dataset": "datasets/", "space": "spaces/"}


class Refused(Exception):
    """An answer that is not a success: HTTP status, the Hub's error code (header X-Error-Code) and its sentence."""

    def __init__(self, status: int, message: str, code: str = "", **body):
        super().__init__(message)
        self.status, self.message, self.code, self.body = status, message, code, body


def git_oid(content: bytes) -> str:
    """The name that git gives a file with this content (SHA-1)."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@dataclass(frozen=True)
class Blob:
    """A file's content and whether it lies in the large file storage."""

    content: bytes
    lfs: bool = False

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.content).hexdigest()

    @property
    def pointer(self) -> bytes:
        """What git itself holds of a large file (https://github.com/git-lfs/git-lfs/blob/main/docs/spec.md)."""
        text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{self.sha256}\nsize {len(self.content)}\n"
        return text.encode()

    @property
    def oid(self) -> str:
        return git_oid(self.pointer if self.lfs else self.content)


@dataclass(frozen=True)
class Commit:
    """One commit: its name, what was said, and the whole tree after it (path -> Blob)."""

    oid: str
    title: str
    description: str
    author: str
    tree: dict[str, Blob]
    date: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()))


@dataclass
class Repo:
    """A repository as a test may look at it.

    `files` is the head's path -> bytes, `lfs` the paths that went through the large file storage, `commits` newest
    last (the first is the Hub's own "initial commit"), `objects` every large file received, committed or not (SHA-256
    -> bytes). Of a Space: `secrets` (name -> value).
    """

    id: str
    type: str
    owner: str
    private: bool = False
    gated: bool = False
    """Its files are for those who accepted its conditions, which nobody has."""
    sdk: str | None = None
    branches: dict[str, list[Commit]] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    secrets: dict[str, str] = field(default_factory=dict)
    created: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()))

    @property
    def key(self) -> str:
        """Its place on the Hub, behind the server's address."""
        return PREFIX[self.type] + self.id

    @property
    def commits(self) -> list[Commit]:
        return self.branches["main"]

    @property
    def files(self) -> dict[str, bytes]:
        return {path: blob.content for path, blob in self.commits[-1].tree.items()}

    @property
    def lfs(self) -> set[str]:
        return {path for path, blob in self.commits[-1].tree.items() if blob.lfs}

    def at(self, revision: str) -> Commit:
        """The commit that a branch or (the beginning of) a commit's name stands for."""
        revision = revision.removeprefix("refs/heads/")
        if revision in self.branches:
            return self.branches[revision][-1]
        for commit in itertools.chain(*self.branches.values()):
            if len(revision) >= 7 and commit.oid.startswith(revision):
                return commit
        raise Refused(404, f"Invalid rev id: {revision}", "RevisionNotFound")

    def mode(self, path: str, sample: bytes, size: int, limit: int) -> str:
        """Whether a file goes into the commit itself or into the large file storage: there go those over `limit` bytes,
        the kinds that .gitattributes names, and all that is not text."""
        rules = self.files.get(".gitattributes", b"").decode().splitlines()
        kinds = [line.split()[0] for line in rules if "filter=lfs" in line]
        named = any(fnmatch(path, kind) or fnmatch(path.rsplit("/", 1)[-1], kind) for kind in kinds)
        return "lfs" if named or size > limit or b"\0" in sample else "regular"

    def commit(self, branch: str, title: str, description: str, author: str, tree: dict[str, Blob]) -> Commit:
        history = self.branches.setdefault(branch, [])
        parent = history[-1].oid if history else ""
        names = "".join(f"{path}\0{blob.oid}\n" for path, blob in sorted(tree.items()))
        oid = hashlib.sha1(f"{self.key}{parent}{len(history)}{title}{names}".encode()).hexdigest()
        history.append(Commit(oid, title, description, author, tree))
        return history[-1]
