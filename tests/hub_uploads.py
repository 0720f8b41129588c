"""How files come to the Hub: what goes where (preupload), large ones to the storage (LFS, whole or in parts), and the
commit that names them all. Answers as in hub_routes."""

import base64
import json
import secrets
from fnmatch import fnmatch
from urllib.parse import urlencode

import hub_xet
from hub_access import repo_of
from hub_store import Blob, Refused, Repo


def preupload(h, kind, owner, name, revision):
    repo, asked = repo_of(h, kind, owner, name, write=True), h.json()
    tree = repo.at(revision).tree
    ignore = tree.get(".gitignore")
    lines = (asked["gitIgnore"] if "gitIgnore" in asked else ignore.content.decode() if ignore else "").splitlines()
    ignored = [line.strip().rstrip("/") for line in lines if line.strip() and not line.startswith("#")]
    files = []
    for file in asked["files"]:
        path, known = file["path"], tree.get(file["path"])
        mode = repo.mode(path, base64.b64decode(file["sample"]), file["size"], h.hub.regular_bytes)
        skip = any(fnmatch(part, rule) for rule in ignored for part in (path, *path.split("/")))
        oid = (known.sha256 if known.lfs else known.oid) if known else None
        files.append({"path": path, "uploadMode": mode, "shouldIgnore": skip, **({"oid": oid} if oid else {})})
    return 200, {"files": files}


def lfs_batch(h, owner, name, kind=None):
    repo = repo_of(h, kind, owner, name, write=True)
    objects = []
    for entry in h.json()["objects"]:
        oid, size = entry["oid"], entry["size"]
        answer = {"oid": oid, "size": size}
        if oid not in repo.objects:
            key = secrets.token_hex(8)  # the signature that stands in for the token at the storage
            h.hub.pieces[key] = {}
            where = f"{h.hub.storage}/upload/{oid}?" + urlencode({"key": key, "repo": repo.key, "size": size})
            if size > h.hub.part_bytes:
                count = -(-size // h.hub.part_bytes)
                header = {str(i): f"{where}&part={i}" for i in range(1, count + 1)}
                completion = f"{h.hub.endpoint}/api/complete_multipart?" + urlencode({"key": key, "repo": repo.key})
                upload = {"href": completion, "header": {"chunk_size": str(h.hub.part_bytes), **header}}
            else:
                upload = {"href": where}
            prefix = f"{h.hub.endpoint}/{repo.key}.git/info/lfs/objects/verify"
            answer["actions"] = {"upload": upload, "verify": {"href": prefix}}
        objects.append(answer)
    chosen = "multipart" if any("header" in o.get("actions", {}).get("upload", {}) for o in objects) else "basic"
    return 200, {"transfer": chosen, "objects": objects}, {"Content-Type": "application/vnd.git-lfs+json"}


def xet_token(h, kind, owner, name, revision):
    return hub_xet.token(h, repo_of(h, kind, owner, name, write=True))


def store(h, oid):
    """One file, or one part of it, at the storage, where the signed address is the right to write: a token beside it is
    an error, as with S3, and a leak."""
    key = h.query.get("key", "")
    if h.token or key not in h.hub.pieces:
        return 400, b"<Error><Code>InvalidRequest</Code><Message>Only one auth mechanism allowed</Message></Error>"
    h.hub.pieces[key][int(h.query.get("part", 0))] = h.body
    if "part" not in h.query:
        keep(h, key, oid)
    return 200, b"", {"ETag": f'"{Blob(h.body).sha256[:32]}"'}


def complete(h):
    asked, parts = h.json(), h.hub.pieces.get(h.query.get("key", ""), {})
    etags = {part["partNumber"]: part["etag"].strip('"') for part in asked["parts"]}
    if etags != {number: Blob(content).sha256[:32] for number, content in parts.items()}:
        raise Refused(400, "The parts that were named are not those that were uploaded")
    keep(h, h.query["key"], asked["oid"])
    return 200, {"success": True}


def keep(h, key: str, oid: str) -> None:
    content = b"".join(piece for _, piece in sorted(h.hub.pieces.pop(key).items()))
    if Blob(content).sha256 != oid:
        raise Refused(400, "The content does not have the SHA-256 that was announced")
    h.hub.repos[h.query["repo"]].objects[oid] = content


def verify(h, owner, name, kind=None):
    repo, asked = repo_of(h, kind, owner, name, write=True), h.json()
    if len(repo.objects.get(asked["oid"], b"")) != asked["size"]:
        raise Refused(404, "The object is not there")
    return 200, {}


def commit(h, kind, owner, name, revision):
    repo = repo_of(h, kind, owner, name, write=True)
    lines = [json.loads(line) for line in h.body.splitlines() if line]
    head = lines[0]["value"]
    parent = repo.at(revision)
    if head.get("parentCommit") and not parent.oid.startswith(head["parentCommit"]):
        raise Refused(412, "A commit has happened since. Please refresh and try again.")
    tree = dict(parent.tree)
    for entry in lines[1:]:
        change(repo, tree, entry["key"], entry["value"], h.hub.regular_bytes)
    branch = revision.removeprefix("refs/heads/")
    created = repo.commit(branch, head["summary"], head["description"], h.hub.user, tree)
    address = f"{h.hub.endpoint}/{repo.key}/commit/{created.oid}"
    return 200, {"success": True, "commitOid": created.oid, "commitUrl": address, "hookOutput": ""}


def change(repo: Repo, tree: dict[str, Blob], kind: str, value: dict, limit: int) -> None:
    """One line of a commit, carried out on the tree."""
    path = value["path"]
    if kind == "file":
        content = base64.b64decode(value["content"])
        if repo.mode(path, content[:8000], len(content), limit) == "lfs" and content:
            raise Refused(400, f"Your push was rejected because {path} must go through the large file storage")
        tree[path] = Blob(content)
    elif kind == "lfsFile":
        if value["oid"] not in repo.objects:
            raise Refused(
                400, f"Your push was rejected because an LFS pointer pointed to a file that does not exist: {path}"
            )
        tree[path] = Blob(repo.objects[value["oid"]], lfs=True)
    elif kind == "deletedFile":
        if path not in tree:
            raise Refused(404, f"A file with this name doesn't exist: {path}", "EntryNotFound")
        del tree[path]
    elif kind == "deletedFolder":
        gone = [known for known in tree if known.startswith(path.rstrip("/") + "/")]
        if not gone:
            raise Refused(404, f"A folder with this name doesn't exist: {path}", "EntryNotFound")
        for known in gone:
            del tree[known]
    else:
        raise Refused(400, f"The stand-in knows no operation {kind}")
