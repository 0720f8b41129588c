"""Workflows, issue forms and hooks: they parse, fit their schemas, and name commands, files and keys that exist."""

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = [p for p in sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml")) if p.stem != "config"]
FILES = [*sorted((ROOT / ".github").rglob("*.yml")), *(ROOT / n for n in ("compose.yaml", "compose.cuda.yaml"))]
FILES.append(ROOT / ".pre-commit-config.yaml")
CHECKS = {
    "vendor.github-workflows": [str(p) for p in WORKFLOWS],
    "vendor.github-issue-forms": [str(p) for p in FORMS],
    "vendor.github-issue-config": [str(ROOT / ".github" / "ISSUE_TEMPLATE" / "config.yml")],
    "vendor.dependabot": [str(ROOT / ".github" / "dependabot.yml")],
    "vendor.compose-spec": [str(ROOT / "compose.yaml"), str(ROOT / "compose.cuda.yaml")],
}
"""Schemas of check-jsonschema, and the files that must fit them."""


def read(path: Path) -> dict:
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def steps(path: Path) -> list[dict]:
    return [step for job in read(path)["jobs"].values() for step in job["steps"]]


def commands() -> list[tuple[str, str]]:
    return [(path.name, step["run"]) for path in WORKFLOWS for step in steps(path) if "run" in step]


def installed(tool: str) -> str:
    """The path of a command line tool in this environment; skips the test where it is not installed."""
    found = shutil.which(tool, path=str(Path(sys.executable).parent)) or shutil.which(tool)
    if found is None:
        pytest.skip(f"{tool} is not installed here")
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.name)
def test_yaml_parses(path):
    assert read(path)


@pytest.mark.parametrize("schema", CHECKS)
def test_files_fit_their_schemas(schema):
    command = [installed("check-jsonschema"), "--builtin-schema", schema, *CHECKS[schema]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize(
    "command", [["yamllint", "-c", ".yamllint.yaml", ".github"], ["zizmor", "--offline", ".github"]]
)
def test_workflows_are_linted(command):
    done = subprocess.run([installed(command[0]), *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("where, command", commands())
def test_what_a_step_runs_exists(where, command):
    """Targets of make, scripts and folders of tests."""
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"\bmake ([\w-]+)", command)) <= targets
    for script in re.findall(r"(?<![\w/])\.[\w-]+/[\w/.-]+", command):
        assert (ROOT / script).is_file() and (ROOT / script).stat().st_mode & 0o100, script
    for folder in re.findall(r"\btests/[\w/.-]+", command):
        assert (ROOT / folder).exists(), folder
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    for chosen in re.findall(r"\.\[([\w,-]+)\]", command):
        assert set(chosen.split(",")) <= extras.keys()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda p: p.name)
def test_workflows_may_do_little_and_pin_what_they_use(path):
    workflow = read(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    granted = {k: v for job in workflow["jobs"].values() for k, v in job.get("permissions", {}).items()}
    assert granted in ({}, {"contents": "read", "id-token": "write"})
    text = path.read_text(encoding="utf-8")
    assert "secrets." not in text and "password" not in text
    for step in steps(path):
        if "uses" in step:
            assert re.search(r"@([0-9a-f]{40}|v\d+\.\d+\.\d+)$", step["uses"])
        if step.get("uses", "").startswith("actions/checkout"):
            assert step["with"]["persist-credentials"] is False


def test_ci_covers_all_versions_of_python_and_all_systems():
    jobs = read(ROOT / ".github" / "workflows" / "ci.yml")["jobs"]
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["requires-python"]
    versions = jobs["linux"]["strategy"]["matrix"]["python"]
    assert oldest == f">={versions[0]}" and versions == ["3.11", "3.12", "3.13", "3.14"]
    systems = [jobs["linux"]["runs-on"], *jobs["platforms"]["strategy"]["matrix"]["system"]]
    assert [system.partition("-")[0] for system in systems] == ["ubuntu", "macos", "windows"]
    assert any(step.get("run") == ".ci/run" for step in jobs["full"]["steps"])


@pytest.mark.parametrize("path", FORMS, ids=lambda p: p.name)
def test_issue_forms_ask_for_what_the_doctor_says(path, here):
    fields = {field["id"]: field for field in read(path)["body"] if "id" in field}
    assert fields["doctor"]["attributes"]["label"] == "Output of `stentor doctor --json`"
    assert fields["doctor"]["attributes"]["render"] == "json"


def test_the_doctor_answers_in_json(attempt):
    _, told = attempt("doctor", "--json")
    assert json.loads(told)["findings"]


def test_hooks_run_what_lint_runs():
    hooks = {hook["id"]: hook for repo in read(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repo["hooks"]}
    lint = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert hooks["ruff"]["entry"].startswith("ruff check") and "ruff check" in lint
    assert hooks["ruff-format"]["entry"].startswith("ruff format") and "ruff format" in lint


def test_text_files_are_opened_with_an_encoding():
    """Windows has another default than UTF-8 before Python 3.15."""
    command = [installed("ruff"), "check", "--preview", "--select", "PLW1514", "--no-cache", "--quiet", "src", "docker"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
