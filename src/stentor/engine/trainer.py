"""Trainer: the training loop. Summed losses are divided once per optimizer step, over all micro-batches and ranks."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stentor.data.audio_key import SAMPLE, audio_hashes
from stentor.data.batch import Batch, Prediction
from stentor.dataloading.batch_sampler import PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.engine import bad_records, nonfinite, restore, state
from stentor.engine.backend import Backend
from stentor.engine.checkpoint_writer import CheckpointWriter
from stentor.engine.device import Communicator, give_back_memory
from stentor.engine.dry_run import dry_run
from stentor.engine.ema import EMA
from stentor.engine.evaluate import EvalOptions, EvalSet, EvalSetup, evaluate, metrics_row
from stentor.engine.metric_accumulator import MetricAccumulator
from stentor.engine.optim import Plateau, factor
from stentor.engine.run_logger import RunLogger
from stentor.engine.setup import RunConfig, TrainingSetup
from stentor.engine.signals import on_signal
from stentor.engine.steering import Steering, steer
from stentor.engine.totals import MicroBatchLoss, StepTotals
from stentor.errors import ConfigError, DataError, StentorError, Stopped
from stentor.metrics.score import Score
from stentor.section.contract import blame

if TYPE_CHECKING:
    from stentor.engine.callback import Callback

MicroBatch = tuple[PlannedBatch, Batch]


class Trainer:
    """One stage of training, from the start or the newest undamaged checkpoint to the last step."""

    def __init__(
        self,
        config: RunConfig,
        setup: TrainingSetup,
        backend: Backend,
        communicator: Communicator,
        callbacks: Sequence[Callback],
        logger: RunLogger,
        checkpoints: Path,
    ):
        self.config, self.train, self.setup, self.backend = config, config.train, setup, backend
        self.communicator, self.logger, self.checkpoints = communicator, logger, checkpoints
        self.writer = CheckpointWriter(communicator, checkpoints, backend.accelerator.device)
        self.after_checkpoint: Callable[[Path], None] | None = None
        """Function called in the background of the main process with the folder of each complete checkpoint."""
        self.task, self.losses, self.bundle, self.evals = setup.task, setup.losses, setup.bundle, setup.evals
        self.batch_sampler, self.dropped = setup.batch_sampler, setup.train_data.dropped
        self.num_records = setup.train_data.all_records
        self.fingerprint = setup.train_data.fingerprint(setup.batch_sampler)
        is_main = backend.accelerator.is_main_process
        self.audio = audio_hashes(setup.train_data.audio_sample(SAMPLE)) if is_main else {}
        self.callbacks = sorted(callbacks, key=lambda c: c.priority)
        self.accelerator, self.model = backend.accelerator, backend.model
        self.folder, self.main, self.world = logger.folder, self.accelerator.is_main_process, communicator.world
        self.rank, self.device = self.accelerator.process_index, self.accelerator.device
        self.say(f"Training on {backend.description}, {self.accelerator.mixed_precision.replace('no', 'fp32')}.")
        self.ema = EMA(setup.bundle.model, self.train.ema) if self.train.ema else None
        self.plateau = Plateau(config.schedule)
        self.steering = Steering(config, setup.losses)
        self.meter = MetricAccumulator(setup.losses, self.device, communicator)
        self.progress = state.TrainProgress()
        self.restored: restore.Restored | None = None
        self.unjudged: int | None = None
        """Step of the newest checkpoint, until a step from its weights was finite (`nonfinite.judge`)."""
        self.judged: set[int] = set()
        """Steps of the newest good checkpoint and of the best ones at that time."""
        self.saved = 0  # step that was saved last
        self.accumulate = self.train.accumulate
        self.lr = 0.0
        self.extra: dict[str, Any] = {}
        """Values that callbacks add to the next row of training metrics."""
        self.metrics: dict[str, Any] = {}
        """Newest value of each metric that this process has logged."""
        self.at_start: Callable[[], None] | None = None
        """Function called once at step 0, after the dry run succeeded."""
        self.stop_reason: str | None = None
        self._signalled = False
        self._dummy_batch: Batch | None = None

    # For callbacks ------------------------------------------------------------------------------------------------

    @property
    def step(self) -> int:
        """Number of optimizer steps done."""
        return self.progress.step

    @property
    def epoch(self) -> int:
        return self.progress.epoch

    def say(self, line: str) -> None:
        """Write a line to the log and the console."""
        self.logger.say(line)

    def event(self, name: str, **fields: Any) -> None:
        """Write a line to events.jsonl."""
        self.logger.event(name, **fields)

    def log(self, metrics: dict[str, Any]) -> None:
        """Write a row of metrics at the current step to metrics.jsonl and the trackers."""
        row = {"step": self.step, "epoch": round(self.progress_epochs(), 4), "time": time.time(), **metrics}
        if self.main:
            self.logger.metrics(row)
        self.metrics |= row
        self._call("on_metrics", row)

    def stop(self, reason: str) -> None:
        """End training cleanly after this step."""
        self.stop_reason = reason

    def restore_best(self) -> None:
        """Load the weights of the best checkpoint into the model."""
        state.restore_best(self)

    # Length ---------------------------------------------------------------------------------------------------------

    @property
    def batches_per_step(self) -> int:
        """Number of batches per optimizer step, over all processes."""
        return self.accumulate * self.world

    @property
    def total_steps(self) -> int:
        if self.train.steps is not None:
            return self.train.steps
        if self.setup.batches_per_epoch is None:
            raise ConfigError("A streaming source has no known length: set `train.steps`.")
        return max(1, math.ceil((self.train.epochs or 10) * self.setup.batches_per_epoch / self.batches_per_step))

    @property
    def is_done(self) -> bool:
        """Whether all steps are done, the last one not skipped."""
        return self.step >= self.total_steps and not self.progress.skipped

    @property
    def eval_every(self) -> int:
        """Steps between evaluations; by default one epoch if the length is known."""
        batches_per_epoch = self.setup.batches_per_epoch
        steps_per_epoch = math.ceil(batches_per_epoch / self.batches_per_step) if batches_per_epoch else 1000
        return self.train.eval_every or steps_per_epoch

    @property
    def save_every(self) -> int:
        return self.train.save_every or self.eval_every

    def progress_epochs(self) -> float:
        """Return the number of epochs done, with a fraction if the length is known."""
        if self.setup.batches_per_epoch:
            return self.step * self.batches_per_step / self.setup.batches_per_epoch
        return float(self.epoch)

    # The loop -------------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end. Raises Stopped after a signal, DataError for too much bad data, StentorError otherwise."""
        if self.restored is None:
            restore.restore(self, restore.latest_checkpoint(self))
        error: BaseException | None = None
        with on_signal(self._ask_to_stop):  # after the current step
            try:
                self._call("on_start")
                restore.begin(self)
                if self.step and self.progress.evaluated != self.step and self._evaluation_due(self.step - 1):
                    self.evaluate()  # a signal came before this evaluation
                    self.save()
                if not self.is_done:
                    self._loop()
                nonfinite.check_end(self)
                state.wait_for_checkpoint(self)
            except BaseException as caught:
                error = caught
                with contextlib.suppress(StentorError):  # the first error matters more
                    state.wait_for_checkpoint(self)  # keep the checkpoint being written
                raise
            finally:
                if error is not None and not isinstance(error, Stopped):
                    with contextlib.suppress(OSError):  # on a full disk the error itself matters more
                        text = str(blame(error) or error) or type(error).__name__
                        self.event("failed", step=self.step, error=text)
                self._call("on_end", error)

    def _loop(self) -> None:
        self.event("started", step=self.step, total_steps=self.total_steps, world=self.world)
        if self.train.dry_run and self.step == 0:
            dry_run(self)
        if self.at_start is not None and self.step == 0:
            self.at_start()
        with contextlib.closing(self.open_loader()) as loader:
            self._train_steps(loader)

    def open_loader(self) -> Generator[MicroBatch, None, None]:
        """Return this rank's micro-batches, from the position in the data on, without end."""
        epoch, batch_in_epoch, index = (self.progress.position[key] for key in ("epoch", "within", "index"))
        skip = self.progress.next_index - index
        planned = self.batch_sampler.shard(self.rank, self.world, skip, epoch, batch_in_epoch, index)
        data, pin_memory = self.config.data, self.device.type == "cuda"
        return batches(self.batch_dataset(), planned, data.workers, data.prefetch, pin_memory)

    def _train_steps(self, loader: Iterator[MicroBatch]) -> None:
        self.model.train()
        self.meter.reset()
        started, seconds_before = time.monotonic(), self.progress.seconds
        self.saved = sound = self.step
        while self.progress.skipped or (self.step < self.total_steps and self.stop_reason is None):
            totals = self._train_step(self._micro_batches(loader))
            if totals is None:
                break
            if totals.saved == self.world:
                state.wait_for_checkpoint(self)
            self.progress.seconds = seconds_before + time.monotonic() - started
            self._call("on_step")
            if self.step % self.train.log_every == 0 or self.step >= self.total_steps:
                self.log(self.meter.row(self.lr) | self.extra)
                give_back_memory()
            if totals.signalled:
                self.save_rest()
                state.wait_for_checkpoint(self)
                self.event("stopped", step=self.step)
                raise Stopped(nonfinite.stop_message(self))
            if self.progress.skipped:
                continue  # its weights may be unsound: scoring and saving wait for a finite step
            if self._evaluation_due(sound):
                self.evaluate()
            if nonfinite.save_due(self, sound):
                self.save()
            sound = self.step
        else:
            self._call("on_epoch_end", self.epoch, dict(self.metrics))
        self.save_rest()
        if self.stop_reason:
            self.say(f"Stopped early at step {self.step}: {self.stop_reason}.")

    def _micro_batches(self, loader: Iterator[MicroBatch]) -> list[MicroBatch]:
        waited = time.monotonic()
        try:
            micro_batches = list(islice(loader, self.accumulate))
            if len(micro_batches) < self.accumulate:
                raise DataError("The training data ended: no usable record is left in the sources.")
        except StentorError:
            if self.world == 1:
                self.save_rest()  # the state after the last complete step is valid
            raise
        self.meter.wait += time.monotonic() - waited
        return micro_batches

    # One optimizer step ---------------------------------------------------------------------------------------------

    def _train_step(self, micro_batches: Sequence[MicroBatch]) -> StepTotals | None:
        """Do one optimizer step over this rank's micro-batches. Returns the totals of all ranks; None, without a step,
        if a callback ended training at the end of an epoch."""
        totals = self._reduce_totals(micro_batches)
        scale = {t: loss.weight * self.world / max(totals.targets[t], 1.0) for t, loss in self.losses.items()}
        if not self._in_epoch(round(totals.epoch)):
            return None
        losses = []
        for number, (planned, batch) in enumerate(micro_batches):
            is_last = number == len(micro_batches) - 1
            losses.append(self._train_micro_batch(planned, batch, scale, is_last))
        self.meter.add_step(losses, totals, self.step_optimizer(losses, totals.targets))
        self.progress.next_index += self.batches_per_step
        self.progress.position = {"epoch": planned.epoch, "within": planned.batch_in_epoch, "index": planned.index}
        self.progress.step += 1
        return totals

    def _in_epoch(self, epoch: int) -> bool:
        """Call the callbacks at the end and start of epochs. Returns False if one of them ends training."""
        if epoch == self.epoch and self.step:
            return True
        if self.step:
            self._call("on_epoch_end", self.epoch, dict(self.metrics))
        if self.stop_reason is None:
            self.progress.epoch = epoch
            self._call("on_epoch", epoch)
        return self.stop_reason is None

    def _reduce_totals(self, micro_batches: Sequence[MicroBatch]) -> StepTotals:
        rank_batches = [batch for _, batch in micro_batches]
        dropped = [d for batch in rank_batches for d in batch.dropped if d[0] not in self.progress.bad]
        totals = StepTotals.of(rank_batches, self.task, self.losses)
        totals.saved = float(self.writer.finished)
        totals.signalled, totals.num_dropped = float(self._signalled), float(len(dropped))
        # The first process has the first batch of the step, whose epoch is that of all.
        totals.epoch = float(micro_batches[0][0].epoch) if self.rank == 0 else 0.0
        totals = totals.reduced(self.communicator)
        self.progress.seen += round(totals.num_read)
        self.meter.add_batch(totals)
        if totals.num_dropped:
            bad_records.count_unreadable(self, [d for part in self.communicator.gather(dropped) for d in part])
        return totals

    def _train_micro_batch(
        self, planned: PlannedBatch, batch: Batch, scale: Mapping[str, float], is_last: bool
    ) -> MicroBatchLoss:
        """Run forward and backward of one micro-batch. `scale`: factor of the summed loss of each term."""
        self._call("on_batch", batch)
        self.seed_micro_batch(planned.index)
        ids, is_empty = batch.ids, not batch.ids
        if is_empty:  # every record was unreadable: take part in the collective calls with zero loss
            if self._dummy_batch is None:
                self._dummy_batch = bad_records.dummy_batch(self)
            batch, scale = self._dummy_batch, dict.fromkeys(self.losses, 0.0)
        with self.backend.synced(is_last):
            sums = self.backend.loss_sums(batch)
            self.backend.backward(torch.stack([scale[t] * sums[t].float() for t in self.losses]).sum())
        return MicroBatchLoss(ids, {t: sums[t].detach() * float(not is_empty) for t in self.losses})

    def step_optimizer(self, losses: Sequence[MicroBatchLoss], targets: Mapping[str, float]) -> float:
        """Step with the gradients so far: clipped, at the learning rate of the schedule, with EMA. Returns the norm
        before clipping. An update that is not finite is skipped and counted, with the records of `losses`; `targets`
        are those of all ranks."""
        lr_factor = factor(self.config.schedule, self.step, self.total_steps) * self.plateau.factor
        self.lr = self.config.optim.lr * lr_factor
        self.writer.wait_for_copy()
        norm = self.backend.optimizer_step(lr_factor, lambda: self._call("before_optimizer"))
        if not math.isfinite(norm):
            nonfinite.report_skipped_step(self, losses)
            return norm
        nonfinite.judge(self, losses, targets)
        self.progress.skipped = 0
        if self.ema is not None:
            self.ema.update(self.step)
        return norm

    def seed_micro_batch(self, index: int) -> None:
        """Seed torch and numpy (transformers uses both) for the micro-batch with this number in the run, so that
        dropout is the same on any rank and after any resume."""
        seed = (self.train.seed * 1_000_003 + index * 7919 + 12345) % 2**32
        torch.manual_seed(seed)
        np.random.seed(seed)

    def batch_dataset(self, augmented: bool = True) -> BatchDataset:
        """Return the dataset that reads planned batches."""
        data = self.config.data
        augment = data.augment if augmented else None
        return BatchDataset(self.task, self.bundle.processor, augment, self.train.seed, data.layout == "packed")

    # Evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score all evaluation sets and `steer` by their metrics."""
        self.progress.evaluated = self.step
        if self.world > 1:  # running statistics differ between ranks until the next forward of training
            for buffer in self.bundle.model.buffers():
                torch.distributed.broadcast(buffer, 0)
        row: dict[str, float] = {}
        with self.ema.applied() if self.ema else contextlib.nullcontext():
            for eval_set in self.evals:
                scores, means, predictions = self.score(eval_set)
                self._call("on_evaluate", eval_set.name, scores, predictions)
                row |= metrics_row(self.losses, eval_set.name, scores, means)
        steer(self, row)
        self.event("evaluated", step=self.step, metrics=row)
        self.log(row)
        self.meter.restart()

    def score(self, eval_set: EvalSet) -> tuple[dict[str, Score], dict[str, float], list[Prediction]]:
        """Score a set with the current weights: return (scores, mean loss per term, predictions)."""
        data, packed = self.config.data, self.config.data.layout == "packed"
        options = EvalOptions(data.workers, data.prefetch, self.backend.sharded, packed, data.max_bad)
        setup = EvalSetup(self.bundle, self.task, self.losses, self.accelerator, self.communicator, options)
        return evaluate(setup, eval_set)

    def _evaluation_due(self, since: int) -> bool:
        return bool(self.evals) and nonfinite.is_due(self, self.eval_every, since)

    def save(self) -> None:
        """Write a checkpoint, unless the last step was skipped; `on_save` when complete; called on all ranks."""
        if self.progress.skipped:
            self.say(f"Step {self.step} is not saved, because its update was skipped.")
        else:
            state.save(self)

    def save_rest(self) -> None:
        if self.saved != self.step:
            self.save()

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def _ask_to_stop(self) -> None:
        self._signalled = True
