"""What the Hub tells of a repository, and its files. Answers as in hub_routes."""

from urllib.parse import parse_qs, quote

from hub_access import repo_of
from hub_cards import card_facts
from hub_store import Blob, Commit, Refused


def info(h, kind, owner, name, revision="main"):
    repo = repo_of(h, kind, owner, name)
    at = repo.at(revision)
    card = card_facts(at.tree["README.md"].content.decode()) if "README.md" in at.tree else {}
    files = []
    for path, blob in sorted(at.tree.items()):
        file = {"rfilename": path}
        if h.query.get("blobs"):
            file |= {"size": len(blob.content), "blobId": blob.oid}
            if blob.lfs:
                file["lfs"] = {"size": len(blob.content), "sha256": blob.sha256, "pointerSize": len(blob.pointer)}
        files.append(file)
    answer = {
        "_id": "stand-in",
        "id": repo.id,
        "author": owner,
        "sha": at.oid,
        "lastModified": at.date,
        "createdAt": repo.created,
        "private": repo.private,
        "gated": "auto" if repo.gated else False,
        "disabled": False,
        "downloads": 0,
        "likes": 0,
        "siblings": files,
        "tags": card.get("tags") or [],
        "cardData": card,
    }
    if repo.type == "space":
        answer["sdk"] = repo.sdk
    return 200, answer


def entry(path: str, blob: Blob, at: Commit, expand: bool) -> dict:
    fields = {"type": "file", "oid": blob.oid, "size": len(blob.content), "path": path}
    if blob.lfs:
        fields["lfs"] = {"oid": blob.sha256, "size": len(blob.content), "pointerSize": len(blob.pointer)}
    if expand:
        fields["lastCommit"] = {"id": at.oid, "title": at.title, "date": at.date}
    return fields


def tree(h, kind, owner, name, revision, path=""):
    at = repo_of(h, kind, owner, name).at(revision)
    under, deep = (path + "/" if path else ""), h.query.get("recursive", "").lower() == "true"
    expand = h.query.get("expand", "").lower() == "true"
    entries = {}
    for known, blob in sorted(at.tree.items()):
        if known == path or known.startswith(under):
            parts = known[len(under) :].split("/")
            for depth in range(1, len(parts) if deep else min(len(parts), 2)):
                folder = under + "/".join(parts[:depth])
                entries[folder] = {"type": "directory", "oid": at.oid, "size": 0, "path": folder}
            if deep or len(parts) == 1:
                entries[known] = entry(known, blob, at, expand)
    if path and not entries:
        raise Refused(404, f"{path} does not exist on {revision}", "EntryNotFound")
    return 200, list(entries.values())


def paths_info(h, kind, owner, name, revision):
    at = repo_of(h, kind, owner, name).at(revision)
    asked = parse_qs(h.body.decode())
    expand = asked.get("expand", [""])[0].lower() == "true"
    return 200, [entry(path, at.tree[path], at, expand) for path in asked.get("paths", []) if path in at.tree]


def auth_check(h, kind, owner, name):
    if repo_of(h, kind, owner, name).gated:
        raise Refused(403, f"Access to {kind[:-1]} {owner}/{name} is restricted.", "GatedRepo")
    return 200, {}


def refs(h, kind, owner, name):
    branches = repo_of(h, kind, owner, name).branches
    lines = [{"name": b, "ref": f"refs/heads/{b}", "targetCommit": c[-1].oid} for b, c in branches.items()]
    return 200, {"branches": lines, "converts": [], "pullRequests": [], "tags": []}


def resolve(h, owner, name, revision, path, kind=None):
    """A file: text from here, a large one from the storage, by a redirect that carries its metadata."""
    repo = repo_of(h, kind, owner, name)
    at = repo.at(revision)
    if path not in at.tree:
        refused = Refused(404, "Entry not found", "EntryNotFound")
        headers = {"X-Error-Code": refused.code, "X-Error-Message": refused.message, "X-Repo-Commit": at.oid}
        return 404, {"error": refused.message}, headers
    blob = at.tree[path]
    if blob.lfs:
        where = f"{h.hub.storage}/get/{quote(repo.key, safe='')}/{blob.sha256}"
        return (
            302,
            b"",
            {
                "Location": where,
                "X-Repo-Commit": at.oid,
                "X-Linked-Size": str(len(blob.content)),
                "X-Linked-Etag": f'"{blob.sha256}"',
                "Accept-Ranges": "bytes",
            },
        )
    return part(h, blob.content, {"ETag": f'"{blob.oid}"', "X-Repo-Commit": at.oid})


def fetch(h, key, oid):
    return part(h, h.hub.repos[key].objects[oid], {"ETag": f'"{oid}"'})


def part(h, content: bytes, headers: dict[str, str]) -> tuple:
    """The content, or the range of it that was asked for."""
    asked = h.headers.get("Range")
    if not asked:
        return 200, content, {**headers, "Accept-Ranges": "bytes"}
    first, last = asked.removeprefix("bytes=").split("-")
    start, end = int(first), min(int(last or len(content) - 1), len(content) - 1)
    if start > end:
        return 416, b"", {"Content-Range": f"bytes */{len(content)}"}
    return 206, content[start : end + 1], {**headers, "Content-Range": f"bytes {start}-{end}/{len(content)}"}
