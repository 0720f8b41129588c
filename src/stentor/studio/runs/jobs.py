"""Training runs that the studio starts: processes of their own, whose whole truth is in their folders.

    runs/NAME/run.yaml     the config that the run follows: `stentor train runs/NAME/run.yaml` does the same by hand
                           (with a section `improve:`, `stentor improve`)
    runs/NAME/studio.json  when it was made, of which run it is a retry
    runs/NAME/data/        its own copy of the recordings that it learns from (data_snapshot.py)
    runs/NAME/...          what every detached command leaves (detached.py) and what `stentor train` writes

Runs that were trained on the command line are there as well, in `runs/` or in a folder that was named at the start:
they have no studio.json, and are looked at, tried, published and trained on, but not stopped, resumed or deleted here.

Nothing is held in memory: any page of any studio sees the same, before and after a restart.
"""

import contextlib
import errno
import secrets
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from stentor.config.yaml_writer import edited
from stentor.data.yaml_text import read_yaml
from stentor.engine.run_lock import run_locked
from stentor.errors import ConfigError, StentorError
from stentor.studio.files import (
    checked_name,
    disk_errors,
    inside,
    mapping,
    read_json,
    read_records,
    stamp,
    write_bytes,
    write_json,
)
from stentor.studio.projects import Projects
from stentor.studio.runs import detached
from stentor.studio.runs.data_snapshot import keep, renew
from stentor.studio.runs.detached import Ending
from stentor.studio.runs.judgement import got_worse
from stentor.studio.runs.path_policy import check_length, checked
from stentor.studio.runs.progress import RunProgress, forget_progress, progress_of
from stentor.studio.runs.supervisor import AFTERWARDS
from stentor.studio.texts import say

TRAIN = (*detached.STENTOR, "train")
IMPROVE = (*detached.STENTOR, "improve")
State = Literal["waiting", "running", "stopping", "stopped", "failed", "finished", "worse"]
"""`worse`: finished, with a model that is worse than before (judgement.py)."""
_BEHIND = 10.0
"""Seconds that the supervisor's copy of the output may be behind the run's own log."""


@dataclass(frozen=True)
class RunStatus:
    """Where a run stands."""

    state: State
    sentence: str
    """Description of the state, for a person."""
    step: int = 0
    """Optimizer steps that are done, of the present stage."""
    total: int | None = None
    """Steps of the present stage, once the run knows."""
    exit: int | None = None
    """The training's exit code; negative for a signal. None while it runs, and when it ended without one."""

    @property
    def alive(self) -> bool:
        return self.state in ("waiting", "running", "stopping")

    @property
    def done(self) -> bool:
        """Whether the training came to its end, well or not."""
        return self.state in ("finished", "worse")


@dataclass(frozen=True)
class Job:
    """One run: its folder. All there is to know is read from it by the functions here."""

    folder: Path
    number: int = 1
    """Number among the runs that have the same name, in several folders."""

    @property
    def name(self) -> str:
        return self.folder.name if self.number == 1 else f"{self.folder.name} ({self.number})"

    @property
    def by_studio(self) -> bool:
        """Whether the studio started it."""
        return (self.folder / "studio.json").is_file()

    @property
    def config(self) -> Path:
        return self.folder / ("run.yaml" if self.by_studio else "config.yaml")

    @property
    def in_rounds(self) -> bool:
        """Whether `stentor improve` trains it."""
        try:
            return has_rounds(self.yaml)
        except OSError:
            return False

    @property
    def training(self) -> Path:
        """The folder whose curves and samples are shown: of a run in rounds, that of its last training."""
        trainings = [path / "run" for path in self.rounds if (path / "run" / "metrics.jsonl").is_file()]
        return trainings[-1] if trainings else self.folder

    @property
    def rounds(self) -> list[Path]:
        """The folders of its rounds, in their order."""
        folders = [path for path in self.folder.glob("round-*") if path.name[6:].isdecimal()]
        return sorted(folders, key=lambda path: int(path.name[6:]))

    @property
    def yaml(self) -> str:
        return self.config.read_text(encoding="utf-8")

    @property
    def datasets(self) -> set[str] | None:
        """The data sets that it learned from; None where that is unknown."""
        home = self.folder.parents[1] / "datasets"
        copies = self.about.get("copies")
        manifests = [Path(manifest) for manifest in copies.values()] if isinstance(copies, dict) else []
        sets = {m.relative_to(home).parts[0] for m in manifests if m.is_relative_to(home)}
        return None if copies is None else sets

    @property
    def about(self) -> dict[str, Any]:
        """`created` (seconds since 1970), `retry_of` (a run's name, or None), `copies` (the manifests that its
        data was copied from, by the copy's name)."""
        return read_json(self.folder / "studio.json") or {"created": (stamp(self.config) or (0, 0))[0] / 1e9}


def has_rounds(yaml: str) -> bool:
    """Whether a run file is for `stentor improve`; one that cannot be read is not."""
    return bool((mapping(yaml) or {}).get("improve"))


def start(
    projects: Projects,
    yaml: str,
    name: str | None = None,
    retry_of: str | None = None,
    then: Mapping[str, Any] | None = None,
) -> Job:
    """Start a run with this config, under `name` or the config's own; `then` is what follows (afterwards.py).

    The config's `name` and `output` are set to the run's folder. Raises ConfigError when it is wrong (with the lines),
    when the name is invalid, and when there is a run of this name: of two starts at once exactly one is made. Raises
    StentorError when the disk is full.
    """
    check_length(yaml)
    tree, name = _placed(yaml, name, projects.runs)
    checked(edited(yaml, tree), projects)
    folder = inside(projects.runs, name)
    with _staging(projects) as staging:
        copies = keep(tree, staging, folder, projects)
        write_bytes(staging / "run.yaml", edited(yaml, tree).encode())
        write_json(staging / "studio.json", {"created": time.time(), "retry_of": retry_of, "copies": copies})
        if then:
            with disk_errors(staging):
                (staging / AFTERWARDS).mkdir()
            write_json(staging / AFTERWARDS / "orders.json", then)
        # Locked before it has its name, so that no one else can start it; and a folder that holds anything is never
        # replaced by a rename, so of several starts one wins.
        with _exclusive(staging, name) as lock:
            try:
                staging.rename(folder)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise StentorError(
                        f"{name} could not be made ({error.strerror}): check {projects.runs}."
                    ) from error
                raise ConfigError(f"There is a run {name} already: open it, or choose another name.") from None
            try:
                _launch(folder, projects, lock)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)
                raise
    return Job(folder)


def resume(projects: Projects, job: Job) -> None:
    """Run the same command again: it resumes from its last checkpoint. Raises ConfigError while it still runs."""
    _require_by_studio(job)
    with _exclusive(job.folder, job.name) as lock:
        _launch(job.folder, projects, lock)


def next_round(projects: Projects, job: Job) -> None:
    """Do another round of a run in rounds, on its data sets as they are now: what people corrected since enters as
    theirs. Raises ConfigError while it still runs."""
    _require_by_studio(job)
    with _exclusive(job.folder, job.name) as lock:
        for dataset in map(projects.dataset, projects.datasets()):
            if dataset.sides():  # what was corrected joins train.jsonl or held_out.jsonl
                dataset.parts()
        with _staging(projects) as staging:
            renew(job.about.get("copies", {}), staging, job.folder)
        _launch(job.folder, projects, lock, "--more", "1")


def suggest_labels(projects: Projects, job: Job) -> int:
    """Write the labels of a run's last round as drafts into the data sets that its recordings come from, also those
    that it did not keep; answers how many records have one."""
    folders = next((found for path in reversed(job.rounds) if (found := sorted(path.glob("labels-*/")))), [])
    records = [r for path in folders for name in ("manifest", "rejects") for r in read_records(path / f"{name}.jsonl")]
    spoken = Counter(record.get("recording") for record in records if record.get("reason") != "no_speech")
    labels = {r["recording"]: r for r in records if r.get("text") and spoken[r["recording"]] == 1}
    return sum(projects.dataset(name).suggest(labels) for name in projects.datasets())


def find(projects: Projects, name: str) -> Job:
    """The run of this name. Raises ConfigError."""
    for job in jobs(projects):
        if job.name == name:
            return job
    raise ConfigError(f"There is no run {str(name)[:80]}.")


def jobs(projects: Projects) -> list[Job]:
    """All runs of the folder, the newest first."""
    jobs_on_disk, numbers = [], Counter[str]()
    for folder in (path for root in (projects.runs, *projects.more_runs) for path in sorted(root.glob("*/"))):
        trained = all((folder / name).is_file() for name in ("config.yaml", "events.jsonl"))  # by `stentor train`
        if not folder.is_symlink() and (trained or (folder / "studio.json").is_file()):
            numbers[folder.name] += 1
            jobs_on_disk.append(Job(folder, numbers[folder.name]))
    return sorted(jobs_on_disk, key=lambda job: (job.about.get("created", 0.0), job.name), reverse=True)


def of_dataset(listed: Sequence[Job], dataset: str | None) -> list[Job]:
    """Those runs of a list that learned from a data set, or do not say from what; all without a data set."""
    return [job for job in listed if dataset is None or job.datasets is None or dataset in job.datasets]


def delete(projects: Projects, job: Job) -> None:
    """Remove a run with its checkpoints. Raises ConfigError while it runs."""
    _require_by_studio(job)
    if detached.alive(job.folder / AFTERWARDS):
        raise ConfigError(say("after_delete", name=job.name))
    with _exclusive(job.folder, job.name):
        projects.discard(job.folder)
    forget_progress()


def state(job: Job) -> RunStatus:
    """Where a run stands, from its folder alone."""
    ending = _ending(job)
    now = progress_of(job.folder)
    with now.lock:
        status = _status(ending, now)
    worse = got_worse(job.folder) if status.state == "finished" else ""
    return replace(status, state="worse", sentence=worse) if worse else status


def word(job: Job) -> State:
    """The state alone, which for a run that ended well or badly costs next to nothing. `running` may still be
    `waiting`."""
    ending = _ending(job)
    if ending.alive:
        return ending.state
    now = state(job).state if ending.exit is None else _state_of(ending, None)
    return "worse" if now == "finished" and got_worse(job.folder) else now


def alive(job: Job) -> bool:
    """Whether a run's processes live."""
    return _ending(job).alive


def _ending(job: Job) -> Ending:
    """State of a run; for one that the studio did not start, whether its training holds its lock."""
    if job.by_studio:
        return detached.ending(job.folder)
    return Ending(run_locked(job.folder), None, "", 1.0, None)


def _require_by_studio(job: Job) -> None:
    if not job.by_studio:
        raise ConfigError(say("run_elsewhere", name=job.name))


def log(job: Job, lines: int = 200) -> str:
    """The end of all that the run printed, without secrets; of its own log when its supervisor is gone."""
    output_time, log_time = ((stamp(job.folder / name) or (0, 0))[0] / 1e9 for name in ("output.txt", "log.txt"))
    return detached.tail(job.folder / ("log.txt" if log_time > output_time + _BEHIND else "output.txt"), lines)


def _status(ending: Ending, now: RunProgress) -> RunStatus:
    if ending.alive:
        return RunStatus(*_living(ending, now), now.step, now.total)
    closed = now.closed if now.closed and now.closed.get("time", 0.0) >= ending.started else None
    state, code = _state_of(ending, closed), ending.exit
    if state == "finished":
        sentence = say("run_finished") if now.rounds is None else say("run_rounds_finished", round=now.step)
    elif state == "stopped":
        saved = code == detached.STOPPED or (closed is not None and closed["event"] == "stopped")
        if now.rounds is None:
            sentence = say("run_saved" if saved else "run_stopped", step=now.step)
        else:
            sentence = say("run_saved_in_round" if saved else "run_stopped_in_round", round=now.round or 0)
    else:
        why = str(closed.get("error") or "") if code is None and closed else ""
        resumable = code is None or code < 0
        sentence = why or ending.reason + (f" {say('run_resumable')}" if resumable else "")
    return RunStatus(state, sentence, now.step, now.total, code)


def _living(ending: Ending, now: RunProgress) -> tuple[State, str]:
    """State and sentence of a run whose processes live."""
    if ending.stop_requested_at is not None:
        return "stopping", say("run_stopping")
    if now.began < ending.started:  # what the files tell is of an earlier attempt
        return "waiting", say("run_waiting")
    if now.rounds is not None:
        if now.round is None:
            return "running", say("run_waiting")
        return "running", say("run_round", round=now.round, rounds=now.rounds)
    if now.total is not None and now.step >= now.total:
        return "running", say("run_finishing")
    stage = say("run_stage", stage=now.stage[0], stages=now.stage[1]) if now.stage else ""
    return "running", say("run_running", step=now.step, total=now.total, stage=stage)


def _state_of(ending: Ending, closed: dict[str, Any] | None) -> State:
    """End of a run. Without an exit code (its supervisor was killed) the run's own last event decides."""
    if ending.exit is None and closed and closed["event"] != "failed":
        return "finished" if closed["event"] == "finished" else "stopped"
    return ending.state


def _placed(yaml: str, name: str | None, runs: Path) -> tuple[dict[str, Any], str]:
    """The config with its name and folder set, and the name."""
    from yaml import YAMLError

    try:
        tree = read_yaml(yaml)
    except YAMLError as error:
        raise ConfigError(f"The config is not YAML: {' '.join(str(error).split())[:300]}") from None
    if not isinstance(tree, dict):
        raise ConfigError("The config is empty: it needs at least task, model and data.")
    name = checked_name(str(name if name is not None else tree.get("name", "run")), "run's name")
    tree["name"], tree["output"] = name, str(runs)
    return tree, name


@contextlib.contextmanager
def _staging(projects: Projects) -> Iterator[Path]:
    """A folder for what is put in its place by one rename. Raises StentorError when the disk is full."""
    staging = projects.tmp / f"run-{secrets.token_hex(8)}"
    with disk_errors(staging):
        staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _exclusive(folder: Path, name: str) -> contextlib.AbstractContextManager[int]:
    return detached.exclusive(folder, f"The run {name} is running already: stop it first, or wait.")


def _launch(folder: Path, projects: Projects, lock: int, *more: str) -> None:
    verb = IMPROVE if Job(folder).in_rounds else TRAIN
    detached.launch(folder, [*verb, str(folder / "run.yaml"), *more], lock, projects.folder)
