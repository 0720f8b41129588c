"""Downloads: a data set or a trained model as one zip file, which is made while it is sent.

A data set's is a folder of audio with `metadata.jsonl`, as it is published, which `stentor` and the AudioFolder of
`datasets` read; README.md counts what is in it and names what is not.
"""

import tempfile
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from stentor.audio.io import probe
from stentor.errors import AudioError, ConfigError
from stentor.studio.dataset_folder import OWN_KEYS, DataSet
from stentor.studio.files import Record, disk_errors, record_lines, write_bytes
from stentor.studio.projects import Projects
from stentor.studio.runs import jobs
from stentor.studio.server.routes import dataset_of, route
from stentor.studio.texts import say

BLOCK = 2**20
"""Bytes of a file that are in memory at a time."""


class _Sink(bytearray):
    """A file to write to that hands on what was written."""

    def write(self, data: bytes) -> int:
        self.extend(data)
        return len(data)

    def flush(self) -> None:
        """All is in memory."""

    def take(self) -> bytes:
        data = bytes(self)
        self.clear()
        return data


def zipped(folder: Path, inside: str = "") -> Iterator[bytes]:
    """The bytes of a zip file of a folder, in pieces, not compressed: audio and weights would not shrink. Its files are
    in the folder `inside` of the zip file; links that lead out are left out."""
    sink = _Sink()
    with zipfile.ZipFile(sink, "w") as archive:  # type: ignore[arg-type]  # it needs no more of a file
        for path in _files(folder):
            info = zipfile.ZipInfo(f"{inside}{path.relative_to(folder).as_posix()}", time.localtime()[:6])
            info.file_size = path.stat().st_size
            with path.open("rb") as source, archive.open(info, "w") as member:
                while block := source.read(BLOCK):
                    member.write(block)
                    yield sink.take()
    yield sink.take()


def _files(folder: Path) -> list[Path]:
    home = folder.resolve()
    return [p for p in sorted(folder.rglob("*")) if p.is_file() and p.resolve().is_relative_to(home)]


def dataset(request: Request, projects: Projects) -> Response:
    """GET: a data set."""
    from stentor.publish.dataset import build

    found = dataset_of(request, projects)
    records, about = _records(found)
    with disk_errors(projects.tmp):
        place = tempfile.TemporaryDirectory(prefix="card-", dir=projects.tmp)  # goes with what refers to it
    folder = Path(place.name)
    write_bytes(folder / "manifest.jsonl", record_lines(records))
    write_bytes(folder / "about.md", about.encode())
    build([str(folder / "manifest.jsonl")], folder, card=folder / "about.md", link=True)
    (folder / "README.md").rename(folder / "data" / "train" / "README.md")

    def pieces() -> Iterator[bytes]:
        with place:
            yield from zipped(folder / "data" / "train")

    return _answer(found.name, pieces())


def _records(dataset: DataSet) -> tuple[list[Record], str]:
    """The records to send, and the text of README.md, which names those whose file is gone or unreadable. Raises
    ConfigError without any."""
    records, left_out, sides = [], [], dataset.sides()
    for record in dataset.records():
        try:
            probe(path := dataset.audio(record))
        except (AudioError, ConfigError):
            left_out.append(f"- {record['id']}: {record.get('text', '')}")
            continue
        fields = {k: v for k, v in record.items() if k not in OWN_KEYS}
        side = {"held_out": sides[record["id"]] == "held_out"} if record["id"] in sides else {}
        records.append({**fields, **side, "audio_path": str(path)})
    if not records:
        raise ConfigError(say("download_empty", name=dataset.name))
    minutes = sum(record.get("duration") or 0.0 for record in records) / 60
    about = say("download_about", name=dataset.name, count=len(records), minutes=minutes)
    missing = [say("download_left_out", count=len(left_out)), *left_out] if left_out else []
    return records, "\n".join([about, *missing, ""])


def model(request: Request, projects: Projects) -> Response:
    """GET: the trained model of a run."""
    job = jobs.find(projects, request.path_params["name"])
    if not _files(job.folder / "export"):
        raise ConfigError(say("download_no_model", name=job.name))
    return _answer(job.folder.name, zipped(job.folder / "export", f"{job.folder.name}/"))


def _answer(name: str, pieces: Iterator[bytes]) -> Response:
    headers = {"Content-Disposition": f"attachment; filename*=utf-8''{quote(name)}.zip", "Cache-Control": "no-store"}
    return StreamingResponse(pieces, media_type="application/zip", headers=headers)


ROUTES: list[Route] = [
    route("/studio/download/dataset/{dataset}", dataset),
    route("/studio/download/run/{name}", model),
]
