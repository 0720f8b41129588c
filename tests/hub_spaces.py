"""Spaces: what runs, on what, and its secrets and variables. Answers as in hub_routes."""

from hub_access import repo_of, signed_in
from hub_store import Repo


def runtime_of(repo: Repo, stage: str) -> dict:
    running = stage == "RUNNING"
    return {
        "stage": stage,
        "hardware": {"current": repo.hardware if running else None, "requested": repo.hardware},
        "gcTimeout": repo.sleep_seconds,
        "storage": None,
        "devMode": False,
        "replicas": {"current": int(running)},
    }


def runtime(h, owner, name):
    repo = repo_of(h, "spaces", owner, name)
    return 200, runtime_of(repo, repo.next_stage())


def hardware(h, owner, name):
    repo = repo_of(h, "spaces", owner, name, write=True)
    repo.hardware = h.json()["flavor"]
    repo.sleep_seconds = h.json().get("sleepTimeSeconds", repo.sleep_seconds)
    return 200, runtime_of(repo, repo.stage)


def sleep_time(h, owner, name):
    repo = repo_of(h, "spaces", owner, name, write=True)
    repo.sleep_seconds = h.json()["seconds"]
    return 200, runtime_of(repo, repo.stage)


def restart(h, owner, name):
    repo = repo_of(h, "spaces", owner, name, write=True)
    repo.restarts += 1
    repo.start_again()
    return 200, runtime_of(repo, repo.stage)


def pause(h, owner, name):
    repo = repo_of(h, "spaces", owner, name, write=True)
    repo.ahead = ["PAUSED"]
    return 200, runtime_of(repo, repo.stage)


def settings_of(repo: Repo, kind: str) -> dict:
    """Secrets are told by name only; variables with their values."""
    shown = {}
    for key, value in (repo.secrets if kind == "secrets" else repo.variables).items():
        shown[key] = {"key": key, "updatedAt": repo.created, "description": repo.described.get(key)}
        if kind == "variables":
            shown[key]["value"] = value
    return shown


def show_setting(h, owner, name, what):
    signed_in(h, write=False)
    return 200, settings_of(repo_of(h, "spaces", owner, name), what)


def put_setting(h, owner, name, what):
    repo, asked = repo_of(h, "spaces", owner, name, write=True), h.json()
    (repo.secrets if what == "secrets" else repo.variables)[asked["key"]] = asked["value"]
    if asked.get("description"):
        repo.described[asked["key"]] = asked["description"]
    return 200, settings_of(repo, what)


def drop_setting(h, owner, name, what):
    repo = repo_of(h, "spaces", owner, name, write=True)
    (repo.secrets if what == "secrets" else repo.variables).pop(h.json()["key"], None)
    return 200, settings_of(repo, what)
