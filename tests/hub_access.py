"""Who may do what at the Hub's stand-in: every route asks here first."""

from hub_store import PREFIX, Refused, Repo


def signed_in(h, write: bool = True) -> str:
    """The token's role; refused without a token, with a wrong one, and for writing with one that only reads."""
    if not h.token:
        raise Refused(401, "Invalid username or password.")
    if h.token not in h.hub.tokens:
        raise Refused(401, "Invalid credentials in Authorization header")
    if write and h.hub.tokens[h.token] == "read":
        raise Refused(403, "Forbidden: you must use a write token to upload to a repository.")
    return h.hub.tokens[h.token]


def repo_of(h, kind: str, owner: str, name: str, write: bool = False) -> Repo:
    """The repository; what does not exist and what one may not see look alike."""
    if h.token and h.token not in h.hub.tokens:
        raise Refused(401, "Invalid credentials in Authorization header")
    repo = h.hub.repos.get(PREFIX[(kind or "models").rstrip("s")] + f"{owner}/{name}")
    visible = repo and (not repo.private or (h.token and (owner == h.hub.user or owner in h.hub.organizations)))
    if not visible:
        # Without a token the Hub says 401 here; the code makes the client take it for "not found" as on https.
        raise Refused(404 if h.token else 401, "Repository not found", "RepoNotFound")
    if write:
        signed_in(h)
        if not h.hub.may_write(owner):
            raise Refused(403, f"You don't have the rights to write to {owner}/{name}")
    return repo
