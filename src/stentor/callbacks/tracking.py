"""Tracking callback: send metrics to experiment trackers through Accelerate. A failing tracker is switched off."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from pydantic import PrivateAttr

from stentor.engine.callback import OBSERVES, Callback
from stentor.errors import missing_extra
from stentor.section import Section

if TYPE_CHECKING:
    from accelerate.tracking import GeneralTracker

    from stentor.engine.trainer import Trainer


class WandB(Section):
    """Weights & Biases. The key comes from `wandb login` or WANDB_API_KEY, not from the config."""

    project: str
    """Project of the run."""
    entity: str | None = None
    """User or team. Null: the account's default."""
    group: str | None = None
    """Group of related runs. Null: none."""
    tags: list[str] = []
    """Tags of the run."""
    mode: Literal["online", "offline"] = "online"
    """Mode. `offline` writes to the run folder, to upload later with `wandb sync`."""


class Trackio(Section):
    """Trackio, Hugging Face's local-first tracker; open it with `trackio show`."""

    project: str
    """Project of the run."""
    space_id: str | None = None
    """Hugging Face Space (`USER/NAME`) that shows the run. Null: only on this machine."""
    private: bool | None = None
    """Whether a new Space is private. Null: the account's default."""


class Tracking(Callback):
    """Send metrics to TensorBoard, Weights & Biases or Trackio."""

    type: Literal["tracking"] = "tracking"
    effects = OBSERVES
    tensorboard: bool = False
    """Write TensorBoard files to the folder `tensorboard` of the run."""
    wandb: WandB | None = None
    """Log to Weights & Biases. Null: off."""
    trackio: Trackio | None = None
    """Log to Trackio. Null: off."""

    _run_id: str = PrivateAttr("")

    def on_start(self, trainer: Trainer) -> None:
        if not trainer.main:
            return
        resumed = bool(self._run_id)
        self._run_id = self._run_id or uuid.uuid4().hex[:8]
        for name, make in self._makers(trainer, resumed).items():
            extra = "wandb" if name == "wandb" else "track"
            if missing := missing_extra(extra, f"Logging to {name}", name):
                trainer.say(missing)
                continue
            try:
                tracker = make()
                tracker.start()
            except Exception as error:  # any kind of network, account or disk failure: the run continues without it
                _switched_off(trainer, name, "could not be started", error)
                continue
            # In Accelerate's own list, so that other callbacks (samples) find them.
            trainer.accelerator.trackers.append(tracker)

    def on_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        values = {
            key: value
            for key, value in metrics.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and key not in ("step", "time")
        }
        for tracker in list(trainer.accelerator.trackers):
            guarded(trainer, tracker, partial(tracker.log, values, step=metrics["step"]))

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        for tracker in list(trainer.accelerator.trackers):
            guarded(trainer, tracker, tracker.finish)
        trainer.accelerator.trackers.clear()

    def state_dict(self) -> dict[str, Any]:
        return {"run_id": self._run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._run_id = state["run_id"]

    def _makers(self, trainer: Trainer, resumed: bool) -> dict[str, Callable[[], GeneralTracker]]:
        """Start functions of the trackers that are on. A resumed run continues the same curves."""
        from accelerate import tracking

        makers: dict[str, Callable[[], GeneralTracker]] = {}
        name, folder = trainer.config.name, trainer.folder
        shared = {"config": trainer.config.plain(), "resume": "allow"}
        if self.tensorboard:
            # Rows that an earlier process wrote after the checkpoint from which this one resumes are hidden.
            purge = {"purge_step": trainer.step + 1} if resumed else {}
            makers["tensorboard"] = partial(tracking.TensorBoardTracker, "tensorboard", folder, **purge)
        if self.wandb is not None:
            options = self.wandb.model_dump(exclude={"project"}, exclude_none=True) | shared
            options |= {"name": name, "id": self._run_id, "dir": str(folder)}
            makers["wandb"] = partial(tracking.WandBTracker, self.wandb.project, **options)
        if self.trackio is not None:
            options = self.trackio.model_dump(exclude={"project"}, exclude_none=True) | shared
            options |= {"name": f"{name}-{self._run_id}"}
            makers["trackio"] = partial(tracking.TrackioTracker, self.trackio.project, **options)
        return makers


def guarded(trainer: Trainer, tracker: GeneralTracker, action: Callable[[], Any]) -> None:
    """Run an action of a tracker. If it fails, report it once and switch off the tracker."""
    try:
        action()
    except Exception as error:
        trainer.accelerator.trackers.remove(tracker)
        _switched_off(trainer, tracker.name, "failed", error)


def _switched_off(trainer: Trainer, name: str, what: str, error: Exception) -> None:
    reason = " ".join(str(error).split())[:200]
    trainer.say(f"{name} {what} ({type(error).__name__}: {reason}); it is switched off and the run continues.")
