"""Long recordings: split at their pauses and written down by a model, by a process that outlives the page.

    tmp/long-ID/files/N      the recordings as they were sent; deleted when all are done, or when it is given up
    tmp/long-ID/long.json    what was asked for
    tmp/long-ID/state.json   how far it is
    and the files of detached.py

Each piece is in the data set as soon as it is written down. After whatever ended it, `resume` continues where it was.
"""

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from stentor.audio.activity import EnergyDetector
from stentor.errors import AudioError, ConfigError, StentorError
from stentor.inference.load import load
from stentor.inference.model import Model
from stentor.inference.recording import FileRecording
from stentor.inference.vad import cut
from stentor.studio.dataset_folder import DataSet
from stentor.studio.files import Record, disk_errors, inside, new_id, read_json, write_json
from stentor.studio.projects import Projects
from stentor.studio.runs import detached, try_model
from stentor.studio.runs.settings import RUN, known, title_now
from stentor.studio.texts import say
from stentor.studio.uploaded_audio import Upload, checked, enterable, fingerprint, read, shown, source_name

MOST_REFUSED = 200
"""Sentences that are kept about what was not taken."""
_ID = re.compile(r"[0-9]{8}-[0-9]{6}-[0-9a-f]{8}")
LONGEST = 15.0
"""Seconds of the longest piece: easy to correct by ear, and short enough for every model."""
RATE = 16000
"""Hz at which pauses are looked for."""
_EDGE = 0.2
"""Seconds around speech that belong to a piece."""


def writers(projects: Projects) -> dict[str, tuple[str, str | None]]:
    """Label and model (folder or Hub id) of what can write first texts, by the choice that a page sends: none (empty),
    the person's runs, the folders that this studio was given, and the pretrained models of the catalogue."""
    found: dict[str, tuple[str, str | None]] = {"": (say("long_no_model"), None)}
    for name in try_model.runs(projects):
        with contextlib.suppress(StentorError):  # it has another task
            if (trial := try_model.trial(projects, name)).task in ("transcribe", "words"):
                found[RUN + name] = say("long_run", name=name), str(trial.export)
    for number, folder in enumerate(_folders(projects)):
        found[f"folder:{number}"] = folder.name, str(folder)
    for model in known().values():
        section = model.run["model"]
        # With an alphabet of its transcripts, a pretrained encoder writes nothing before it is trained.
        if "transcribe" in model.tasks and model.download and section.get("from") and "alphabet" not in section:
            found[model.name] = title_now(model), str(section["from"])
    return found


def start(
    projects: Projects, dataset: str, files: Sequence[Upload], choice: str, language: str | None, speaker: str | None
) -> str:
    """Begin to split recordings, whose files are moved away; answers the work's id.

    Raises ConfigError for no recording, an unknown data set or model, and while another such work runs: models are
    large. Raises StentorError when the disk is full.
    """
    if not files:
        raise ConfigError(say("long_none"))
    name = projects.dataset(dataset).name
    models = writers(projects)
    if choice not in models:
        raise ConfigError(say("no_model", name=str(choice)[:80]))
    if any(work["state"] == "running" for work in works(projects)):
        raise ConfigError(say("long_busy"))
    id = new_id()
    folder = projects.tmp / f"long-{id}"
    try:
        with disk_errors(folder):
            (folder / "files").mkdir(parents=True)
            for number, upload in enumerate(files):
                shutil.move(upload.path, folder / "files" / str(number))
        asked = {
            "dataset": name,
            "names": [shown(f.name) for f in files],
            "model": models[choice][1],
            "language": language,
            "speaker": speaker,
            "created": time.time(),
        }
        write_json(folder / "long.json", asked)
        _launch(projects, folder)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return id


def resume(projects: Projects, id: str) -> None:
    """Begin again where it was. Raises ConfigError while it runs, and when there is nothing left to do."""
    folder = _folder(projects, id)
    if not (folder / "files").is_dir():
        raise ConfigError(say("long_gone"))
    if any(work["state"] == "running" for work in works(projects)):
        raise ConfigError(say("long_busy"))
    _launch(projects, folder)


def stop(projects: Projects, id: str) -> None:
    """End it; what it has taken stays."""
    detached.end(_folder(projects, id))


def forget(projects: Projects, id: str) -> None:
    """Take it off the list, with the recordings that were sent; what is in the data set stays. Raises ConfigError while
    it runs."""
    folder = _folder(projects, id)
    with detached.exclusive(folder, say("long_busy")):
        projects.discard(folder)


def works(projects: Projects, dataset: str | None = None) -> list[dict[str, Any]]:
    """Jobs for all data sets or one, the newest first: `id`, `names`, `state` (running, stopped, failed or
    finished), a `sentence`, `done` and `of` pieces, `added` records, and what was `refused`."""
    listed = []
    for folder in sorted(projects.tmp.glob("long-*"), reverse=True):
        order = read_json(folder / "long.json")
        if order and (dataset is None or order.get("dataset") == dataset):
            listed.append(_work(folder, order))
    return listed


def _work(folder: Path, order: dict[str, Any]) -> dict[str, Any]:
    ending = detached.ending(folder)
    now = read_json(folder / "state.json")
    done, of, added = (int(now.get(key) or 0) for key in ("done", "of", "added"))
    state = "running" if ending.alive else "finished" if now.get("finished") else ending.state
    told = {"running": "long_pieces" if of else "long_listens", "finished": "long_finished", "stopped": "long_stopped"}
    sentence = say(told.get(state, "long_ended"), done=done, of=of, count=added)
    return {
        "id": folder.name.removeprefix("long-"),
        "names": order.get("names", []),
        "state": state,
        "sentence": sentence if state in told else ending.message or sentence,
        "done": done,
        "of": of,
        "added": added,
        "refused": now.get("refused", []),
    }


def _folders(projects: Projects) -> list[Path]:
    """Exports in the folders that the studio was started with (`--models`)."""
    exports = []
    for root in projects.models:
        candidates = [root, *sorted(p for p in Path(root).glob("*") if p.is_dir())]
        exports += [p for p in candidates if (config := read_json(p / "config.json")) and not _encoder(config)]
    return exports


def _encoder(config: dict[str, Any]) -> bool:
    """Whether it is a pretrained model without an output for text."""
    return any(str(name).endswith(("Model", "ForPreTraining")) for name in config.get("architectures") or ())


def _folder(projects: Projects, id: str) -> Path:
    folder = inside(projects.tmp, f"long-{id}") if _ID.fullmatch(id) else None
    if folder is None or not (folder / "long.json").is_file():
        raise ConfigError(say("long_unknown"))
    return folder


def _launch(projects: Projects, folder: Path) -> None:
    with detached.exclusive(folder, say("long_busy")) as lock:
        command = [sys.executable, "-m", "stentor.studio.dataset.long_recordings", str(projects.folder), folder.name]
        detached.launch(folder, command, lock, projects.folder)


def main(projects_folder: str, name: str) -> None:
    """Entry point of the process: `python -m stentor.studio.dataset.long_recordings PROJECTS long-ID`."""
    projects = Projects(Path(projects_folder))
    folder = projects.tmp / name
    asked, added = read_json(folder / "long.json"), read_json(folder / "state.json").get("added", 0)
    dataset = projects.dataset(asked["dataset"])
    state: dict[str, Any] = {"done": 0, "of": 0, "added": added, "refused": []}
    write_json(folder / "state.json", state)
    language = asked["language"] or dataset.about.get("language")
    model = load(asked["model"]) if asked["model"] else None
    refused: list[str] = []
    for number, named in enumerate(asked["names"]):
        upload, done, of = Upload(folder / "files" / str(number), named), state["done"], state["of"]
        try:
            for piece in split_into(dataset, upload, model, language, asked["speaker"]):
                if isinstance(piece.record, AudioError):
                    refused.append(str(piece.record))
                elif piece.record is not None:
                    state["added"] += 1
                state |= {"done": done + piece.done, "of": of + piece.of, "refused": refused[:MOST_REFUSED]}
                write_json(folder / "state.json", state)
        except AudioError as error:  # this recording cannot be used; the next may
            refused.append(str(error))
    write_json(folder / "state.json", {**state, "finished": True, "refused": refused[:MOST_REFUSED]})
    shutil.rmtree(folder / "files", ignore_errors=True)


class Piece(NamedTuple):
    """A piece of a recording, and how far the recording is."""

    done: int
    of: int
    record: Record | AudioError | None
    """Saved record, or why it could not be used; None for a piece that the data set had already."""


def split_into(
    dataset: DataSet,
    upload: Upload,
    model: Model | None = None,
    language: str | None = None,
    speaker: str | None = None,
) -> Iterator[Piece]:
    """Save the pieces of a recording, one after the other, each on the disk when it is answered.

    With `model` each has its transcript, marked `draft: true` until a person edits it; without, an empty one. Whatever
    ends this in the middle, the same call resumes: pieces of the same file that the data set has are passed over, and
    those that were removed from it do not come back. Raises AudioError for a file that is refused, StentorError when
    the disk is full; the pieces before that stay.
    """
    name, digest, file = shown(upload.name), fingerprint(upload.path), enterable(upload)
    _, rate = checked(file)
    known = {(r.get("source_id"), r.get("source_start")) for r in [*dataset.records(), *dataset.removed()]}
    spans = _spoken(file)
    if not spans:
        raise AudioError(f"{name}: no speech stands out of the background, so there is nothing to split.", "silent")
    for done, (start, end) in enumerate(spans, 1):
        extra = {"source": source_name(name), "source_id": digest, "source_start": round(start, 3)}
        record: Record | AudioError | None = None
        if (digest, extra["source_start"]) not in known:
            try:
                audio = read(file, rate, start, end - start)
            except AudioError as error:  # a damaged stretch of an otherwise good recording
                record = error
            else:
                said = model.transcribe(audio, rate=rate, language=language, keep_failed=True).text if model else ""
                more = {**extra, "draft": True} if said.strip() else extra
                record = dataset.add(audio, rate, said.strip(), language, speaker, **more)
        yield Piece(done, len(spans), record)


def _spoken(upload: Upload) -> list[tuple[float, float]]:
    """(start, end) in seconds of the pieces of a checked recording that hold speech, each at most `LONGEST`."""
    activity = EnergyDetector().activity(FileRecording(upload.path, RATE).blocks(), RATE)
    edge = round(_EDGE * RATE)
    spans = [
        (max(w.start, w.speech_start - edge) / RATE, min(w.end, w.speech_end + edge) / RATE)
        for w in cut(activity, RATE, LONGEST)
    ]
    return [(start, end) for start, end in spans if end > start]


if __name__ == "__main__":
    try:
        main(*sys.argv[1:3])
    except StentorError as problem:
        print(f"stentor: {problem}", flush=True)
        sys.exit(problem.exit_code)
