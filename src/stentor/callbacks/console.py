"""Console callback: a progress bar on a terminal, plain lines otherwise."""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import PrivateAttr

from stentor.engine.callback import OBSERVES, Callback
from stentor.metrics.format import MINOR, duration, figure, interval

if TYPE_CHECKING:
    from rich.progress import Progress

    from stentor.data.batch import Prediction
    from stentor.engine.trainer import Trainer
    from stentor.metrics.score import Score

REFRESH = 0.2
"""Seconds between updates of the bar."""
MOST_TERMS = 4
"""Maximum number of loss terms in a line; more are only in metrics.jsonl and the report."""


class Console(Callback):
    """Show progress: a bar on a terminal, plain lines otherwise. Always on."""

    type: Literal["console"] = "console"
    effects = OBSERVES
    priority: ClassVar[int] = 100  # after the others, so that its line comes after theirs

    _progress: Progress | None = PrivateAttr(None)
    _bar: Any = PrivateAttr(None)
    _trained: float = PrivateAttr(0.0)
    """Total seconds of `_steps` steps, each from the end of the previous one, without evaluations."""
    _steps: int = PrivateAttr(0)
    _last: float | None = PrivateAttr(None)
    _drawn: float = PrivateAttr(0.0)

    def on_start(self, trainer: Trainer) -> None:
        self._trained, self._steps, self._last, self._drawn = 0.0, 0, None, 0.0
        if not trainer.main or not _on_terminal():
            return
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        # No refresh thread: a bar that the loop draws cannot outlive it or write to a closed terminal.
        figures, left = TextColumn("{task.fields[figures]}"), TextColumn("{task.fields[left]}")
        columns = [TextColumn("[bold]train"), BarColumn(bar_width=None), MofNCompleteColumn(), figures]
        columns += [TimeElapsedColumn(), left]
        self._progress = Progress(*columns, auto_refresh=False, transient=True, expand=True)
        self._bar = self._progress.add_task(
            "train", total=trainer.total_steps, completed=trainer.step, figures="", left=""
        )
        self._guard(self._progress.start)

    def on_step(self, trainer: Trainer) -> None:
        now = time.monotonic()
        if self._last is not None:  # the first step takes longer than others
            self._trained += now - self._last
            self._steps += 1
        self._last = now
        if self._progress is None:
            return
        last = trainer.step >= (trainer.total_steps or float("inf"))
        if now - self._drawn < REFRESH and not last:
            return
        self._drawn = now
        left = self._left(trainer)
        self._progress.update(self._bar, completed=trainer.step, left=f"{duration(left)} left" if left else "")
        self._guard(self._progress.refresh)

    def on_metrics(self, trainer: Trainer, metrics: dict[str, Any]) -> None:
        if "train/loss" not in metrics or not trainer.main:
            return
        if self._progress is not None:
            parts = _losses(metrics)
            if (rate := metrics.get("audio_seconds_per_second")) is not None:
                parts.append(f"{rate:.0f} audio s/s")
            self._progress.update(self._bar, figures=" · ".join(parts))
        else:
            trainer.say(self._row(trainer, metrics))

    def on_evaluate(self, trainer: Trainer, name: str, scores: dict[str, Score], predictions: list[Prediction]) -> None:
        if self._last is not None:
            self._last = time.monotonic()
        if trainer.main:
            trainer.say(f"step {trainer.step}  {name}: {scores_text(scores)}")

    def on_end(self, trainer: Trainer, error: BaseException | None) -> None:
        if self._progress is not None:
            self._guard(self._progress.stop)
            self._progress = None

    def _row(self, trainer: Trainer, metrics: dict[str, Any]) -> str:
        total = f"/{trainer.total_steps}" if trainer.total_steps else ""
        parts = [f"step {metrics['step']}{total}", *_losses(metrics)]
        terms = [k for k, v in metrics.items() if k.startswith("train/") and k != "train/loss" and v is not None]
        if 1 < len(terms) <= MOST_TERMS:
            parts += [f"{k.removeprefix('train/')} {metrics[k]:.4g}" for k in terms]
        forms = {"lr": "lr {:.2e}", "grad_norm": "norm {:.3g}", "audio_seconds_per_second": "{:.0f} audio s/s"}
        parts += [form.format(metrics[key]) for key, form in forms.items() if metrics.get(key) is not None]
        if left := self._left(trainer):
            parts.append(f"{duration(left)} left")
        return "  ".join(parts)

    def _left(self, trainer: Trainer) -> float | None:
        if not trainer.total_steps or not self._steps:
            return None
        return self._trained / self._steps * max(0, trainer.total_steps - trainer.step)

    def _guard(self, action: Any) -> None:
        """Write to the terminal. If the pipe or terminal was closed, training continues without output."""
        try:
            action()
        except (OSError, ValueError) as error:
            if isinstance(error, ValueError) and "closed file" not in str(error):
                raise
            self._progress = None
            silence_stdout()


def _losses(metrics: dict[str, Any]) -> list[str]:
    """Return the loss, if any step had one, and the number of skipped steps."""
    parts = [] if metrics["train/loss"] is None else [f"loss {metrics['train/loss']:.4g}"]
    return [*parts, f"skipped {metrics['skipped']}"] if metrics.get("skipped") else parts


def scores_text(scores: dict[str, Score]) -> str:
    """Return `wer 3.61 % (72/2000, 95 %: 2.90–4.41 %)  cer 1.20 %`: the scores, the first one with its details."""
    parts: list[str] = []
    for metric, score in scores.items():
        if metric in MINOR:
            continue
        text = f"{metric} {figure(metric, score.value)}"
        counted = f"{score.errors}/{score.total}{_unit(metric, score)}"
        details = [counted] if score.errors is not None and score.total is not None else []
        if bounds := interval(metric, {"low": score.low, "high": score.high}):
            details.append(f"95 %: {bounds}{_drawn(score)}")
        parts.append(f"{text} ({', '.join(details)})" if details and not parts else text)
    return "  ".join(parts)


def _unit(metric: str, score: Score) -> str:
    """Return the unit of a word error rate that does not count words, or not alone."""
    apart = f" words and, in {score.details.get('items_by_character')} items, characters"
    unit = "" if metric == "cer" else score.details.get("unit", "word")
    return {"character": " characters", "mixed": apart}.get(unit, "")


def _drawn(score: Score) -> str:
    """Return the units that the interval resamples, if speakers are known."""
    speakers = len(score.details.get("by_speaker", {}))
    if score.resampled == "speakers":
        return f" by {score.units} speakers"
    return f" by {score.units} recordings of {speakers} speakers" if speakers else ""


def silence_stdout() -> None:
    """Discard standard output, so that neither later lines nor Python's flush at exit fail again."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError, AttributeError):  # no descriptor to replace: stdout itself is closed or missing
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _on_terminal() -> bool:
    try:
        return sys.stdout is not None and sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    except ValueError:  # closed
        return False
