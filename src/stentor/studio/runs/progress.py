"""Progress of a run, from the files that it writes as it goes. Each look reads what came since the last."""

import functools
import itertools
import json
import os
import threading
from collections import deque
from pathlib import Path
from statistics import fmean
from typing import Any

from stentor.report.curves import Series

MOST_FOLLOWED = 16
"""Runs whose files are followed at a time; beyond that the one looked at longest ago is read again when it is asked
for. This is a cache: all that it holds is on the disk."""
_SERIALS = itertools.count()
_PACE = 100
"""Intervals between logged rows that the remaining time is estimated from."""


class JsonlTail:
    """The objects of a JSONL file that grows (`metrics.jsonl`, `events.jsonl`, `samples.jsonl`).

    `poll` reads what is new and nothing twice, so following a run of days costs as much as its last seconds. It keeps
    no rows; who needs them keeps what they need of them.
    """

    def __init__(self, path: Path):
        self.path = path
        self.restarted = True
        """Whether the last poll began at the beginning of the file: what was read before does not count any more. A
        resumed run rewrites its files, without what it will repeat."""
        self._at = 0
        self._file: tuple[int, int] | None = None

    def poll(self) -> list[dict[str, Any]]:
        """The rows that came since the last call. Half a line at the end is left for the next."""
        self.restarted = False
        try:
            with open(self.path, "rb") as file:
                status = os.fstat(file.fileno())
                if self._file != (status.st_dev, status.st_ino) or status.st_size < self._at:
                    self.restarted, self._at, self._file = True, 0, (status.st_dev, status.st_ino)
                file.seek(self._at)
                data = file.read()
        except OSError:
            self.restarted, self._at, self._file = self._file is not None, 0, None
            return []
        complete = data[: data.rfind(b"\n") + 1]
        self._at += len(complete)
        rows = []
        for line in complete.splitlines():
            try:
                row = json.loads(line)
            except ValueError:
                continue
            if isinstance(row, dict):
                rows.append(row)
        return rows


class RunProgress:
    """Output of the run in a folder so far. `poll` reads what is new; everything else is as of the last poll."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.serial = next(_SERIALS)
        """Id of this object: curves of a run are not shown for a later one of the same name."""
        self.lock = threading.RLock()
        """Held while several fields must belong together: pages look at the same time."""
        self._events, self._metrics = JsonlTail(folder / "events.jsonl"), JsonlTail(folder / "metrics.jsonl")
        self._samples = JsonlTail(folder / "samples.jsonl")
        self._rewritten = 0
        self._forget_events()
        self._forget_metrics()
        self.samples_html: str | None = None
        """The samples as they are shown, which whoever draws them leaves here; None when there are new ones."""
        self.samples: dict[tuple[Any, str], dict[int, list[dict[str, Any]]]] = {}
        """Rows of samples.jsonl by (stage, set), then by step: those of the first evaluation and of the last."""

    def poll(self) -> None:
        """Read what is new."""
        with self.lock:
            events, metrics, samples = self._events.poll(), self._metrics.poll(), self._samples.poll()
            if self._events.restarted:
                self._forget_events()
            if self._metrics.restarted:
                self._forget_metrics()
            if self._samples.restarted:
                self.samples = {}
            if self._samples.restarted or samples:
                self.samples_html = None
            for event in events:
                self._happened(event)
            self.numbers.add(metrics)
            for row in metrics:
                self._measured(row)
            for row in samples:
                self._answered(row)

    @property
    def version(self) -> tuple[int, int]:
        """Changes whenever there is something new to draw."""
        return self._rewritten, self.numbers.rows

    def seconds_left(self) -> float | None:
        """Until the last step of the present stage, from the pace of this attempt's last rows, evaluations and saving
        included; None before there is a pace.

        One single pause that is far longer than any other (a machine that was asleep) does not count.
        """
        if self.total is None or len(self._ticks) < 2:
            return None
        pairs = list(self._ticks)
        spans = sorted((b[0] - a[0], b[1] - a[1]) for a, b in itertools.pairwise(pairs))
        if len(spans) > 2 and spans[-1][0] > 10 * max(spans[-2][0], 1.0):
            spans.pop()
        seconds, steps = sum(s for s, _ in spans), sum(n for _, n in spans)
        if steps <= 0 or seconds <= 0:
            return None
        return (self.total - self.step) * seconds / steps

    def seconds_trained(self) -> float | None:
        """From the beginning of this attempt to the last row; None before there is one."""
        return self._measured_at - self.began if self.began and self._measured_at > self.began else None

    def last(self, key: str, count: int = 1) -> float | None:
        """Mean of the last values of a metric, such as `audio_seconds_per_second`; None before there are any."""
        _, values = self.numbers.values.get(key, ((), ()))
        return fmean(values[-count:]) if values else None

    def _forget_events(self) -> None:
        self.step = 0
        """Optimizer steps that are done, of the present stage."""
        self.total: int | None = None
        """Steps of the present stage, once the run knows."""
        self.stage: tuple[int, int] | None = None
        """(which, of how many), for runs with several stages."""
        self.round: int | None = None
        """The round that is being done, or was done last, of a run in rounds."""
        self.rounds: int | None = None
        """Most rounds of a run in rounds; None of other runs."""
        self.began = 0.0
        """Last start or resume of training: seconds since 1970; 0.0 before."""
        self.closed: dict[str, Any] | None = None
        """The last `finished`, `stopped` or `failed` event, unless something came after it."""

    def _forget_metrics(self) -> None:
        self.numbers = Series()
        self._ticks: deque[tuple[float, int]] = deque(maxlen=_PACE + 1)
        self._measured_at = 0.0
        self._rewritten += 1

    def _happened(self, event: dict[str, Any]) -> None:
        kind, step, time = event.get("event"), event.get("step"), event.get("time")
        self.closed = event if kind in ("finished", "stopped", "failed") else None
        if kind == "stage" and isinstance(event.get("stage"), int) and isinstance(event.get("of"), int):
            self.stage, self.step, self.total = (event["stage"], event["of"]), 0, None
            self._ticks.clear()
        elif kind == "started":
            self.total = event["total_steps"] if isinstance(event.get("total_steps"), int) else None
            self.began = time if isinstance(time, (int, float)) else 0.0
            self.rounds = event["rounds"] if isinstance(event.get("rounds"), int) else None
            self.round = None
            self._ticks.clear()
        elif kind == "round" and isinstance(event.get("round"), int):
            self.round = event["round"]
        if isinstance(step, int):
            self.step = step

    def _measured(self, row: dict[str, Any]) -> None:
        step, time = row.get("step"), row.get("time")
        if not isinstance(step, int) or not isinstance(time, (int, float)) or time < self.began:
            return
        if self.stage and row.get("stage") != str(self.stage[0]):
            return
        self.step = max(self.step, step)
        if "train/loss" in row:
            self._ticks.append((time, step))
        self._measured_at = time

    def _answered(self, row: dict[str, Any]) -> None:
        if not isinstance(row.get("step"), int):
            return
        steps = self.samples.setdefault((row.get("stage"), str(row.get("set"))), {})
        if row["step"] not in steps and len(steps) > 1:
            steps.pop(max(steps))
        steps.setdefault(row["step"], []).append(row)


@functools.lru_cache(maxsize=MOST_FOLLOWED)
def _cached_progress(folder: Path, inode: int) -> RunProgress:
    return RunProgress(folder)


def progress_of(folder: Path) -> RunProgress:
    """The progress of the run in a folder, polled. Folders of the same name, one after the other, are kept apart."""
    try:
        progress = _cached_progress(folder, folder.stat().st_ino)
    except FileNotFoundError:
        progress = RunProgress(folder)
    progress.poll()
    return progress


def forget_progress() -> None:
    """Empty the cache: a folder that was deleted may come back as another one with the same numbers."""
    _cached_progress.cache_clear()
