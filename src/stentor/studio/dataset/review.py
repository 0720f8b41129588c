"""The routes of step 2, that page/check_list.mjs talks to: the recordings with what is wrong with them, and what a
person does about it."""

from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from stentor.errors import ConfigError
from stentor.studio.dataset.findings import DatasetFindings, checked
from stentor.studio.projects import DataSet, Projects
from stentor.studio.server.routes import dataset_of, json_body, route

MOST_ROWS = 200
"""Rows that are answered at a time."""
MOST_BYTES = 100_000
"""Bytes of the largest request."""


def overview(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the ids of the rows to `show` (with the words `find` in their text), in the order that they are shown in,
    and the figures on top."""
    dataset, query = dataset_of(request, projects), request.query_params
    findings = checked(dataset)
    return {"order": findings.chosen(query.get("show", "all"), query.get("find", "")), **_figures(dataset, findings)}


def rows(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the rows with the given ids (`id`, many times); those that were removed meanwhile are left out."""
    ids = request.query_params.getlist("id")
    if len(ids) > MOST_ROWS:
        raise ConfigError(f"At most {MOST_ROWS} rows are answered at a time.")
    findings = checked(dataset_of(request, projects))
    return {"rows": [findings.rows[id] for id in ids if id in findings.rows]}


def edit(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, text}: correct a text. Without `text`, what stands there is right: it is no draft any more."""
    dataset, fields = dataset_of(request, projects), _json_fields(request)
    id = _id(fields)
    text = fields["text"] if "text" in fields else dataset.record(id).get("text", "")
    if not isinstance(text, str):
        raise ConfigError("The text of a recording is a string.")
    dataset.edit(id, text=text)
    return _row(dataset, id)


def move(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, side}: train on a recording, or hold it out, with all that must stay with it."""
    dataset, fields = dataset_of(request, projects), _json_fields(request)
    id = _id(fields)
    moved = dataset.move(id, str(fields.get("side")))
    return {**_row(dataset, id), "moved": moved}


def remove(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: take a recording out of the data set. It can be put back."""
    dataset = dataset_of(request, projects)
    dataset.remove([_id(_json_fields(request))])
    return _figures(dataset, checked(dataset))


def put_back(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: undo the removal of a recording."""
    dataset, fields = dataset_of(request, projects), _json_fields(request)
    dataset.put_back([id := _id(fields)])
    return _row(dataset, id)


def removed(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: what can be put back, the last first. POST: delete it for good."""
    dataset = dataset_of(request, projects)
    if request.method == "POST":
        dataset.forget_removed()
    records = dataset.removed()
    shown = [
        {"id": r["id"], "text": str(r.get("text") or ""), "seconds": r.get("duration") or 0.0}
        for r in records[:MOST_ROWS]
    ]
    return {"rows": shown, "removed": len(records)}


def _figures(dataset: DataSet, findings: DatasetFindings) -> dict[str, Any]:
    names = ("measured", "hours", "speakers", "languages", "kinds", "divided")
    figures = {name: getattr(findings, name) for name in names}
    return {**figures, "total": len(findings.rows), "counts": findings.counts(), "removed": len(dataset.removed())}


def _row(dataset: DataSet, id: str) -> dict[str, Any]:
    """A row after a change, with the figures. Raises ConfigError when it is gone."""
    findings = checked(dataset)
    if id not in findings.rows:
        dataset.record(id)  # says that it is not there
    return {"row": findings.rows[id], **_figures(dataset, findings)}


def _json_fields(request: Request) -> dict[str, Any]:
    return json_body(request, MOST_BYTES, "The request is no JSON object.")


def _id(fields: dict[str, Any]) -> str:
    if not isinstance(id := fields.get("id"), str):
        raise ConfigError("The request names no recording (id).")
    return id


ROUTES: list[Route] = [
    route("/studio/check/{dataset}", overview),
    route("/studio/check/{dataset}/rows", rows),
    route("/studio/check/{dataset}/edit", edit, ["POST"]),
    route("/studio/check/{dataset}/move", move, ["POST"]),
    route("/studio/check/{dataset}/remove", remove, ["POST"]),
    route("/studio/check/{dataset}/back", put_back, ["POST"]),
    route("/studio/check/{dataset}/removed", removed, ["GET", "POST"]),
]
