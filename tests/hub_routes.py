"""The Hub's HTTP interface, route by route, as huggingface_hub 2.4 calls it: accounts and repositories are here, the
rest in hub_uploads and hub_reading.

Each answer takes the handler (its `hub`, `query`, `body`, `token`) and the named parts of the path, and gives
(status, body[, headers]).
"""

import hub_reading
import hub_uploads
import hub_xet
from hub_access import repo_of, signed_in
from hub_cards import card_faults
from hub_store import ATTRIBUTES, PREFIX, Blob, Refused, Repo

REPO = r"(?P<owner>[^/]+)/(?P<name>[^/]+)"
API = rf"/api/(?P<kind>models|datasets|spaces)/{REPO}"
FILES = rf"/(?:(?P<kind>datasets|spaces)/)?{REPO}"


def whoami(h):
    role = signed_in(h, write=False)
    return 200, {
        "type": "user",
        "id": "5e67bd5b1009063689407478",
        "name": h.hub.user,
        "fullname": "A Tester",
        "email": "tester@example.org",
        "emailVerified": True,
        "isPro": False,
        "canPay": False,
        "orgs": [{"type": "org", "name": n, "fullname": n, "roleInOrg": r} for n, r in h.hub.organizations.items()],
        "auth": {"type": "access_token", "accessToken": {"displayName": "stand-in", "role": role}},
    }


def create(h):
    signed_in(h)
    asked = h.json()
    owner, kind = asked.get("organization") or h.hub.user, asked.get("type") or "model"
    if not h.hub.may_write(owner):
        raise Refused(403, f'You don\'t have the rights to create a {kind} under the namespace "{owner}"')
    name = f"{owner}/{asked['name']}"
    address = f"{h.hub.endpoint}/{PREFIX[kind]}{name}"
    if PREFIX[kind] + name in h.hub.repos:
        raise Refused(409, f"You already created this {kind} repo: {name}", url=address)
    repo = Repo(name, kind, owner, private=asked.get("visibility") == "private", sdk=asked.get("sdk"))
    tree = {".gitattributes": Blob(ATTRIBUTES)}
    if kind == "space":
        repo.secrets = {entry["key"]: entry["value"] for entry in asked.get("secrets") or []}
        title = asked["name"]
        tree["README.md"] = Blob(f"---\ntitle: {title}\nsdk: {repo.sdk}\npinned: false\n---\n".encode())
    repo.commit("main", "initial commit", "", h.hub.user, tree)
    h.hub.repos[repo.key] = repo
    return 200, {"url": address, "name": name, "id": name}


def put_secret(h, owner, name):
    """Secrets of a Space are told by name only."""
    repo, asked = repo_of(h, "spaces", owner, name, write=True), h.json()
    repo.secrets[asked["key"]] = asked["value"]
    return 200, {key: {"key": key, "updatedAt": repo.created, "description": None} for key in repo.secrets}


def validate(h):
    asked = h.json()
    errors, warnings = card_faults(asked["content"], asked.get("repoType") or "model")
    return (400 if errors else 200), {
        "errors": [{"message": text} for text in errors],
        "warnings": [{"message": text} for text in warnings],
    }


ROUTES = [
    ("GET", "/api/whoami-v2", whoami),
    ("GET", "/api/agent-harnesses", lambda h: (200, {"standardEnvVars": [], "harnesses": {}})),
    ("POST", "/api/repos/create", create),
    ("POST", "/api/validate-yaml", validate),
    ("POST", "/api/complete_multipart", hub_uploads.complete),
    ("POST", f"{API}/preupload/(?P<revision>[^/]+)", hub_uploads.preupload),
    ("POST", f"{API}/commit/(?P<revision>[^/]+)", hub_uploads.commit),
    ("POST", f"{API}/paths-info/(?P<revision>[^/]+)", hub_reading.paths_info),
    ("GET", f"{API}/xet-write-token/(?P<revision>[^/]+)", hub_uploads.xet_token),
    ("GET", f"{API}/tree/(?P<revision>[^/]+)(?:/(?P<path>.+))?", hub_reading.tree),
    ("GET", f"{API}/refs", hub_reading.refs),
    ("GET", f"{API}/auth-check", hub_reading.auth_check),
    ("GET", f"{API}/revision/(?P<revision>[^/]+)", hub_reading.info),
    ("POST", f"/api/spaces/{REPO}/secrets", put_secret),
    ("GET", API, hub_reading.info),
    ("POST", rf"{FILES}\.git/info/lfs/objects/batch", hub_uploads.lfs_batch),
    ("POST", rf"{FILES}\.git/info/lfs/objects/verify", hub_uploads.verify),
    ("GET", f"{FILES}/resolve/(?P<revision>[^/]+)/(?P<path>.+)", hub_reading.resolve),
]
STORAGE_ROUTES = [
    ("GET", "/v1/chunks/default/(?P<hash>[0-9a-f]{64})", hub_xet.nothing),
    ("POST", "/v1/xorb-grants/default/(?P<hash>[0-9a-f]{64})", hub_xet.nothing),
    ("POST", "/v1/xorbs/default/(?P<hash>[0-9a-f]{64})", hub_xet.put_xorb),
    ("POST", "/v1/shards", hub_xet.put_shard),
    ("PUT", "/upload/(?P<oid>[0-9a-f]{64})", hub_uploads.store),
    ("GET", "/get/(?P<key>[^/]+)/(?P<oid>[0-9a-f]{64})", hub_reading.fetch),
]
