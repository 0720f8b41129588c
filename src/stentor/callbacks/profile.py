"""Profile callback: time of a few steps by operator, with torch.profiler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field, PrivateAttr

from stentor.engine.callback import OBSERVES, Callback

if TYPE_CHECKING:
    from stentor.engine.trainer import Trainer


class Profile(Callback):
    """Profile a few steps, into `profile/` of the run: a trace for ui.perfetto.dev and a table of operators."""

    type: Literal["profile"] = "profile"
    effects = OBSERVES
    start: int = Field(10, ge=0)
    """Number of steps to skip, counted from the start of this process, because the first ones are not typical."""
    steps: int = Field(3, ge=1)
    """Number of steps to profile."""
    shapes: bool = False
    """Also record tensor shapes (slower, larger files)."""
    rows: int = Field(25, ge=1)
    """Number of rows of the table."""

    _profiler: Any = PrivateAttr(None)
    _first: int = PrivateAttr(0)

    def on_start(self, trainer: Trainer) -> None:
        self._first = trainer.step
        if self.start == 0:
            self._begin(trainer)

    def on_step(self, trainer: Trainer) -> None:
        done = trainer.step - self._first
        if self._profiler is not None and done >= self.start + self.steps:
            self._finish(trainer)
        elif self._profiler is None and done == self.start:
            self._begin(trainer)

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        if self._profiler is not None:  # the run was shorter than start + steps
            self._finish(trainer)

    def _begin(self, trainer: Trainer) -> None:
        if not trainer.main:
            return
        import torch
        from torch.profiler import ProfilerActivity, profile

        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])
        self._profiler = profile(activities=activities, record_shapes=self.shapes, profile_memory=True)
        self._profiler.start()

    def _finish(self, trainer: Trainer) -> None:
        import torch

        profiler, self._profiler = self._profiler, None
        profiler.stop()
        folder = trainer.folder / "profile"
        folder.mkdir(exist_ok=True)
        stem = f"steps-{self._first + self.start + 1:06d}-{trainer.step:06d}"
        trace = folder / f"{stem}.json"
        profiler.export_chrome_trace(str(trace))
        key = "self_device_time_total" if torch.cuda.is_available() else "self_cpu_time_total"
        averages = profiler.key_averages()
        (folder / f"{stem}.txt").write_text(averages.table(sort_by=key, row_limit=self.rows), encoding="utf-8")
        top = sorted(averages, key=lambda e: e.self_device_time_total or e.self_cpu_time_total, reverse=True)[:3]
        names = ", ".join(event.key for event in top)
        trainer.say(
            f"profile of steps {stem.removeprefix('steps-')} in {trace} (open at ui.perfetto.dev); most time in {names}"
        )
