"""Step 2: routes that page/check_list.mjs talks to: what is wrong with recordings, and what a person does about it."""

from collections.abc import Sequence
from typing import Any

from starlette.requests import Request
from starlette.routing import Route

from stentor.errors import ConfigError
from stentor.studio.dataset import trimming
from stentor.studio.dataset.findings import checked
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
    return {"order": checked(dataset).chosen(query.get("show", "all"), query.get("find", "")), **_rows(dataset)}


def rows(request: Request, projects: Projects) -> dict[str, Any]:
    """GET: the rows with the given ids (`id`, many times); those that were removed meanwhile are left out."""
    ids = request.query_params.getlist("id")
    if len(ids) > MOST_ROWS:
        raise ConfigError(f"At most {MOST_ROWS} rows are answered at a time.")
    return _rows(dataset_of(request, projects), ids)


def edit(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, text}: correct a text. Without `text`, what stands there is right: it is no draft any more."""
    dataset, ids, fields = _asked(request, projects)
    text = fields["text"] if "text" in fields else dataset.record(ids[0]).get("text", "")
    if not isinstance(text, str):
        raise ConfigError("The text of a recording is a string.")
    dataset.edit(ids[0], text=text)
    return _rows(dataset, ids)


def move(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id, side}: train on a recording, or hold it out, with all that must stay with it."""
    dataset, ids, fields = _asked(request, projects)
    return {"moved": dataset.move(ids[0], str(fields.get("side"))), **_rows(dataset, ids)}


def remove(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: take a recording out of the data set. It can be put back."""
    dataset, ids, _ = _asked(request, projects)
    dataset.remove(ids)
    return _rows(dataset)


def put_back(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {id}: undo the removal of a recording."""
    dataset, ids, _ = _asked(request, projects)
    dataset.put_back(ids)
    dataset.record(ids[0])  # says so where it is not there
    return _rows(dataset, ids)


def trim(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {ids}: cut the silence at the ends of recordings; answers also `trimmed`, seconds by id."""
    dataset, ids, _ = _asked(request, projects)
    spans = checked(dataset).spans
    return {"trimmed": trimming.trim(dataset, {i: spans[i] for i in ids if i in spans}), **_rows(dataset, ids)}


def restore(request: Request, projects: Projects) -> dict[str, Any]:
    """POST {ids}: undo `trim`; answers also `restored`, the ids that are whole again."""
    dataset, ids, _ = _asked(request, projects)
    return {"restored": trimming.restore(dataset, ids), **_rows(dataset, ids)}


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


def _rows(dataset: DataSet, ids: Sequence[str] = ()) -> dict[str, Any]:
    """Rows as they are now, with the figures; those that are gone are left out."""
    findings = checked(dataset)
    rows = [findings.rows[id] for id in ids if id in findings.rows]
    return {"rows": rows, **findings.figures(), "removed": len(dataset.removed())}


def _asked(request: Request, projects: Projects) -> tuple[DataSet, list[str], dict[str, Any]]:
    """The data set, the recordings that the body names (`id` or `ids`), and its fields. Raises ConfigError."""
    fields = json_body(request, MOST_BYTES, "The request is no JSON object.")
    ids = fields.get("ids", [fields.get("id")])
    if not isinstance(ids, list) or not 0 < len(ids) <= MOST_ROWS or not all(isinstance(id, str) for id in ids):
        raise ConfigError(f"The request names no recordings (id, or at most {MOST_ROWS} ids).")
    return dataset_of(request, projects), ids, fields


ROUTES: list[Route] = [
    route("/studio/check/{dataset}", overview),
    route("/studio/check/{dataset}/rows", rows),
    route("/studio/check/{dataset}/edit", edit, ["POST"]),
    route("/studio/check/{dataset}/move", move, ["POST"]),
    route("/studio/check/{dataset}/remove", remove, ["POST"]),
    route("/studio/check/{dataset}/back", put_back, ["POST"]),
    route("/studio/check/{dataset}/trim", trim, ["POST"]),
    route("/studio/check/{dataset}/whole", restore, ["POST"]),
    route("/studio/check/{dataset}/removed", removed, ["GET", "POST"]),
]
