"""The loop: summed losses divided once per optimizer step, whatever the batches, micro-batches and ranks."""

from __future__ import annotations

import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from stentor.data.batch import Batch, Prediction
from stentor.dataloading.batch_sampler import BatchSampler, Item, PlannedBatch
from stentor.dataloading.loader import BatchDataset, batches
from stentor.dataloading.mixing import DropCounter
from stentor.engine import ema, memory_estimate, state
from stentor.engine.deepspeed import DeepSpeedBackend
from stentor.engine.device import Communicator, give_back_memory, no_sync, wrap
from stentor.engine.evaluate import EvalSet, evaluate
from stentor.engine.metric_accumulator import MetricAccumulator
from stentor.engine.optim import Plateau, build, factor
from stentor.engine.run_logger import RunLogger
from stentor.engine.signals import on_signal
from stentor.errors import ConfigError, DataError, StentorError, Stopped
from stentor.metrics.score import Score

if TYPE_CHECKING:
    from accelerate import Accelerator

    from stentor.callbacks.base import Callback
    from stentor.config.schema import Config
    from stentor.dataloading.stream_shards import ShardedStream
    from stentor.losses.base import Loss
    from stentor.models.base import Bundle
    from stentor.tasks.base import Task


class Trainer:
    """One stage of training, from its start or from its newest good checkpoint to its last step."""

    def __init__(
        self,
        config: Config,
        bundle: Bundle,
        task: Task,
        losses: Mapping[str, Loss],
        plan: BatchSampler | ShardedStream,
        evals: list[EvalSet],
        callbacks: list[Callback],
        journal: RunLogger,
        accelerator: Accelerator,
        control: Communicator,
        checkpoints: Path,
        dropped: DropCounter,
        records: int,
        batches_per_epoch: int | None,
        fingerprint: str,
    ):
        self.config, self.train, self.bundle, self.task, self.losses = config, config.train, bundle, task, losses
        self.plan, self.evals, self.journal, self.accelerator = plan, evals, journal, accelerator
        self.control, self.checkpoints = control, checkpoints
        self.dropped, self.records, self.fingerprint = dropped, records, fingerprint
        self.callbacks = sorted(callbacks, key=lambda c: c.priority)
        self.folder, self.main, self.world = journal.folder, accelerator.is_main_process, control.world
        self.rank, self.device = accelerator.process_index, accelerator.device
        self.model, how = wrap(bundle.model, self.train, accelerator, bundle.family.wrap_layers, bundle.family.type)
        optimizers = build(config.optim, bundle.model)
        self.zero: DeepSpeedBackend | None = None
        if self.train.deepspeed is not None:
            self.zero = DeepSpeedBackend(
                bundle.model, optimizers, config, accelerator, bundle.family.wrap_layers, task, losses
            )
            how, optimizers = self.zero.how, []
        self.say(f"Training on {how}, {accelerator.mixed_precision.replace('no', 'fp32')}.")
        self.optimizers = [accelerator.prepare_optimizer(o) for o in optimizers]
        self.average = ema.EMA(bundle.model, self.train.ema) if self.train.ema else None
        self.plateau = Plateau(config.schedule)
        self.step, self.epoch, self.skipped, self.lr = 0, 0, 0, 0.0
        self.position = {"epoch": 0, "within": 0, "index": 0}
        self.next_index = 0
        self.accumulate = self.train.accumulate
        self.batches_per_epoch = batches_per_epoch
        self.bad: dict[str, tuple[str, str]] = {}
        """Records whose audio could not be used: id -> (reason, message)."""
        self.seen = 0
        self.evaluated = 0
        """The step that was scored last."""
        self.extra: dict[str, Any] = {}
        """What callbacks add to the next row of training metrics."""
        self.best: list[dict[str, Any]] = []
        self.scores: dict[str, dict[str, Score]] = {}
        self.at_start: Callable[[], None] | None = None
        """Done once at step 0, when the dry run has shown that training is possible."""
        self.seconds = 0.0
        self.stop_reason: str | None = None
        self._signal = False
        self._spare: Batch | None = None
        self.meter = MetricAccumulator(losses, self.device, control)

    # What callbacks use -------------------------------------------------------------------------------------------

    def say(self, line: str) -> None:
        """A line for the log and the console."""
        self.journal.say(line)

    def event(self, name: str, **fields: Any) -> None:
        """A line of events.jsonl."""
        self.journal.event(name, **fields)

    def log(self, metrics: dict[str, Any]) -> None:
        """A row of metrics.jsonl (and of the trackers) at the current step."""
        row = {"step": self.step, "epoch": round(self.progress_epochs(), 4), "time": time.time(), **metrics}
        if self.main:
            self.journal.metrics(row)
        self._call("on_metrics", row)

    def stop(self, reason: str) -> None:
        """End training after this step, in good order."""
        self.stop_reason = reason

    def restore_best(self) -> None:
        """Put the weights of the best checkpoint into the model."""
        state.restore_best(self)

    # Length ---------------------------------------------------------------------------------------------------------

    @property
    def batches_per_step(self) -> int:
        """Batches that all processes together take in an optimizer step."""
        return self.accumulate * self.world

    @property
    def steps_per_epoch(self) -> int | None:
        return math.ceil(self.batches_per_epoch / self.batches_per_step) if self.batches_per_epoch else None

    @property
    def total_steps(self) -> int:
        if self.train.steps is not None:
            return self.train.steps
        if self.batches_per_epoch is None:
            raise ConfigError("A streaming source has no known length: set `train.steps`.")
        return max(1, math.ceil((self.train.epochs or 10) * self.batches_per_epoch / self.batches_per_step))

    @property
    def eval_every(self) -> int:
        return self.train.eval_every or self.steps_per_epoch or 1000

    @property
    def save_every(self) -> int:
        return self.train.save_every or self.eval_every

    def progress_epochs(self) -> float:
        """Epochs done, with fraction where the length is known."""
        if self.batches_per_epoch:
            return self.step * self.batches_per_step / self.batches_per_epoch
        return float(self.epoch)

    # The loop -------------------------------------------------------------------------------------------------------

    def fit(self) -> None:
        """Train to the end. Raises Stopped after a signal, DataError for too much bad data, StentorError otherwise."""
        found = state.latest_checkpoint(self)
        if found is not None:
            state.load(self, found)
        else:
            self.journal.forget_after(-1)  # rows of a run that was killed before its first checkpoint
        error: BaseException | None = None
        with on_signal(self._ask_to_stop):  # after the current step
            try:
                self._call("on_start")
                if self.step and self.evaluated != self.step and self._evaluation_due():
                    self.evaluate()  # a signal came before this evaluation
                    self.save()
                if self.step < self.total_steps:
                    self._loop()
            except BaseException as caught:
                error = caught
                raise
            finally:
                if error is not None and not isinstance(error, Stopped):
                    with contextlib.suppress(OSError):  # on a full disk the error itself matters more
                        self.event("failed", step=self.step, error=str(error) or type(error).__name__)
                self._call("on_end", error)

    def _loop(self) -> None:
        self.event("started", step=self.step, total_steps=self.total_steps, world=self.world)
        if self.train.dry_run and self.step == 0:
            self._dry_run()
        if self.at_start is not None and self.step == 0:
            self.at_start()
        reader = BatchDataset(self.task, self.bundle.processor, self.config.data.augment, self.train.seed, self._packed)
        skip = self.next_index - self.position["index"]
        position = self.position
        dealt = self.plan.shard(self.rank, self.world, skip, position["epoch"], position["within"], position["index"])
        data = self.config.data
        with contextlib.closing(
            batches(reader, dealt, data.workers, data.prefetch, self.device.type == "cuda")
        ) as feed:
            self._steps(feed)

    def _steps(self, feed: Iterator[tuple[PlannedBatch, Batch]]) -> None:
        self.model.train()
        self.meter.reset()
        clock = time.monotonic()
        before = self.seconds
        saved = self.step
        while self.step < self.total_steps and self.stop_reason is None:
            try:
                waited = time.monotonic()
                micro = [self._next(feed) for _ in range(self.accumulate)]
                self.meter.wait += time.monotonic() - waited
            except StentorError:
                if self.world == 1 and saved != self.step:
                    self.save()  # the state after the last complete step is whole: nothing of it need be lost
                raise
            signalled = self._step(micro)
            self.seconds = before + time.monotonic() - clock
            self._call("on_step")
            if self.step % self.train.log_every == 0 or self.step == self.total_steps:
                self.log(self.meter.row(self.lr) | self.extra)
                give_back_memory()
            if signalled:
                if saved != self.step:
                    self.save()
                self.event("stopped", step=self.step)
                raise Stopped(
                    f"Stopped by a signal at step {self.step} of {self.total_steps}; everything is saved in "
                    f"{self.checkpoints}. Run the same command to go on."
                )
            if self._evaluation_due():
                self.evaluate()
            last = self.step == self.total_steps
            if self.step % self.save_every == 0 or last or (self.evaluated == self.step and self._is_best()):
                self.save()
                saved = self.step
        if saved != self.step:
            self.save()
        if self.stop_reason:
            self.say(f"Stopped early at step {self.step}: {self.stop_reason}.")

    @staticmethod
    def _next(feed: Iterator[tuple[PlannedBatch, Batch]]) -> tuple[PlannedBatch, Batch]:
        try:
            return next(feed)
        except StopIteration:
            raise DataError("The training data ended: no usable record is left in the sources.") from None

    def _step(self, micro: list[tuple[PlannedBatch, Batch]]) -> bool:
        """One optimizer step over this rank's micro-batches. True when a signal asks all ranks to stop."""
        counts: Counter[str] = Counter()
        dropped: list[tuple[str, str, str]] = []
        tokens = slots = seconds = 0.0
        read = 0
        for _, batch in micro:
            if batch.ids:
                counts.update(self.task.counts(batch))
            dropped += [d for d in batch.dropped if d[0] not in self.bad]
            read += len(batch.ids) + len(batch.dropped)
            tokens, slots, seconds = tokens + batch.tokens, slots + batch.num_positions, seconds + batch.seconds
        terms = list(self.losses)
        reduced = self.control.sum(
            [counts[t] for t in terms] + [float(self._signal), float(len(dropped)), float(read), tokens, slots, seconds]
        )
        totals = dict(zip(terms, reduced))
        signalled, bad = reduced[len(terms)] > 0, reduced[len(terms) + 1]
        self.seen += round(reduced[-4])
        self.meter.add_batch(*reduced[-3:])
        if bad:
            self._count_bad([d for part in self.control.gather(dropped) for d in part])
        scale = {t: self.losses[t].weight * self.world / max(totals[t], 1.0) for t in terms}
        if micro[0][0].epoch != self.epoch or self.step == 0:
            self.epoch = micro[0][0].epoch
            self._call("on_epoch", self.epoch)
        parts = []
        for number, (place, batch) in enumerate(micro):
            self._call("on_batch", batch)
            # Dropout and the like are a function of the batch's global number: the same on any rank, after any resume.
            _seed(self.train.seed, place.index)
            real = bool(batch.ids)
            if not real:  # every record was unreadable: take part in the collective work with nothing to learn
                batch, share = self._stand_in(), dict.fromkeys(terms, 0.0)
            else:
                share = scale
            with self._synced(number == len(micro) - 1):
                with self.accelerator.autocast():
                    sums = self._sums(batch)
                    loss = torch.stack([share[t] * sums[t].float() for t in terms]).sum()
                self._backward(loss)
            parts.append((batch.ids, {t: sums[t].detach() * float(real) for t in terms}))
        self._update(parts, totals, terms)
        self.next_index += self.batches_per_step
        place = micro[-1][0]
        self.position = {"epoch": place.epoch, "within": place.batch_in_epoch, "index": place.index}
        self.step += 1
        return signalled

    def _sums(self, batch: Batch) -> dict[str, torch.Tensor]:
        batch = batch.to(self.device)
        return self.zero.loss_sums(batch) if self.zero else self.task.loss_sums(self.model, batch, self.losses)

    def _synced(self, last: bool) -> contextlib.AbstractContextManager[None]:
        """Gradients go to the other ranks at the last micro-batch of a step."""
        return self.zero.last(last) if self.zero else no_sync(self.model, last)

    def _backward(self, loss: torch.Tensor) -> None:
        if self.zero:
            self.zero.backward(loss)
        else:
            self.accelerator.backward(loss)

    def _update(self, parts: list[Any], totals: dict[str, float], terms: list[str]) -> None:
        self.lr = self.config.optim.lr * self._factor()
        norm = self.zero.step(self._factor()) if self.zero else self._apply()
        if not bool(torch.isfinite(norm)):
            self._skip(parts)
        else:
            self.skipped = 0
            if self.average is not None:
                self.average.update(self.step)
            self.meter.step({t: sum(sums[t] for _, sums in parts) for t in terms}, totals, norm)

    def _apply(self) -> torch.Tensor:
        """Clip and step, unless a gradient is not finite. Returns the norm before clipping."""
        parameters = [p for o in self.optimizers for g in o.param_groups for p in g["params"]]
        scaler = self.accelerator.scaler  # of fp16
        for optimizer in self.optimizers:
            self.accelerator.unscale_gradients(optimizer)
        self._call("before_optimizer")
        norm = torch.nn.utils.clip_grad_norm_(parameters, self.train.clip or float("inf"))
        norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
        if bool(torch.isfinite(norm)):
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = group["peak"] * self._factor()
                if scaler is None:
                    optimizer.optimizer.step()
                else:
                    scaler.step(optimizer.optimizer)
        if scaler is not None:
            scaler.update()  # once for all optimizers; after a skipped step it lowers the loss scale
        for optimizer in self.optimizers:
            optimizer.zero_grad()
        return norm

    def _factor(self) -> float:
        return factor(self.config.schedule, self.step, self.total_steps) * self.plateau.factor

    def _skip(self, parts: list[Any]) -> None:
        lost = any(not bool(torch.isfinite(s).all()) for _, sums in parts for s in sums.values())
        if not self.control.sum([float(lost)])[0] and self.accelerator.scaler is not None:
            return  # fp16: the losses are fine, only the loss scale was too large
        self.skipped += 1
        guilty = [i for ids, sums in parts if not all(torch.isfinite(s).all() for s in sums.values()) for i in ids]
        everyone = sorted({i for part in self.control.gather(guilty) for i in part})
        if not everyone:
            everyone = sorted({i for part in self.control.gather([i for ids, _ in parts for i in ids]) for i in part})
        self.event("skipped_step", step=self.step, ids=everyone)
        self.say(
            f"Step {self.step}: the loss or a gradient was not finite; the update was skipped. "
            f"Records: {', '.join(everyone[:8])}{' ...' if len(everyone) > 8 else ''}."
        )
        if self.skipped > self.train.max_skipped:
            raise StentorError(
                f"{self.skipped} steps in a row had a loss or gradient that was not finite (the last at step "
                f"{self.step}, records {', '.join(everyone[:8])}). Lower `optim.lr`, set `train.clip`, or look at "
                "these records; run the same command again to go on from the last checkpoint."
            )

    def _count_bad(self, dropped: list[tuple[str, str, str]]) -> None:
        for name, reason, message in dropped:
            if name in self.bad:
                continue
            self.bad[name] = (reason, message)
            self.dropped.add(reason, message)
            self.event("bad_audio", id=name, reason=reason, message=message)
        before = self.dropped.reasons.total() - len(self.bad)  # when the sources were listed
        seen = self.records + before if self.records else max(1000, self.seen)
        self.dropped.check(seen, self.config.data.max_bad, "data.train")

    def _stand_in(self) -> Batch:
        """A batch that can be run when one has no readable record; its loss does not count."""
        if self._spare is None:
            reader = BatchDataset(self.task, self.bundle.processor, None, self.train.seed, self._packed)
            for items in islice(self.plan.epoch(0), 100):
                _, batch = reader[PlannedBatch(items[:1], 0, 0, 0)]
                if batch.ids:
                    self._spare = batch
                    break
            else:
                last = f" The last of them: {batch.dropped[-1][2]}" if batch.dropped else ""
                raise DataError(f"data.train: none of the first records can be used; see events.jsonl for them.{last}")
        return self._spare

    @property
    def _packed(self) -> bool:
        return self.config.data.layout == "packed"

    def _dry_run(self) -> None:
        """Forward and backward of the largest batch, leaving no trace in the model."""
        items = self.plan.largest(rank=self.rank)
        reader = BatchDataset(self.task, self.bundle.processor, self.config.data.augment, self.train.seed, self._packed)
        _, batch = reader[PlannedBatch(items, 0, 0, 0)]
        if not batch.ids:
            return
        kept = {n: b.clone() for n, b in self.bundle.model.named_buffers()}
        self.model.train()
        _seed(self.train.seed, 0)
        expected = self._expected(reader, items, batch.num_positions)
        began = time.monotonic()
        try:
            with memory_estimate.Peak(self.device, expected.weights, self._alone) as peak:
                self._try(batch)
            if self.device.type == "cuda" and not self.train.compile:
                self._count_flops(reader[PlannedBatch(items[:1], 0, 0, 0)][1])
        except torch.OutOfMemoryError:
            raise ConfigError(
                f"The largest batch ({len(items)} items, {batch.num_positions} positions, {batch.seconds:.0f} s of "
                "audio) does not fit in memory. Lower `data.batch_tokens` or `data.max_seconds` (and raise "
                "`train.accumulate` for the same batch size), or set `model.gradient_checkpointing: true`."
            ) from None
        for parameter in self.bundle.model.parameters():
            parameter.grad = None
        with torch.no_grad():
            for name, buffer in self.bundle.model.named_buffers():
                buffer.copy_(kept[name])
        self.say(
            f"Dry run of the largest batch: {len(items)} items, {batch.num_positions} positions, {batch.seconds:.0f} s "
            f"of audio, {time.monotonic() - began:.1f} s, {memory_estimate.compared(peak, expected)}"
        )

    def _expected(self, reader: BatchDataset, items: list[Item], slots: int) -> memory_estimate.Footprint:
        """What `--plan-only` would say of this run's memory, from one and two items of the largest batch."""
        tries = []
        for count in (1, 2) if self._alone and len(items) > 2 else ():
            _, few = reader[PlannedBatch(items[:count], 0, 0, 0)]
            tries += [(few.num_positions, few)] if few.ids else []
        return memory_estimate.estimate(self.bundle.model, self.config, self.world, self._try, tries, slots)

    @property
    def _alone(self) -> bool:
        """Whether a forward pass is this process's own affair: neither collective nor compiled."""
        return self.model is self.bundle.model and self.world == 1

    def _try(self, batch: Batch) -> None:
        with self._synced(False) if self.zero else contextlib.nullcontext():
            with self.accelerator.autocast():
                sums = self._sums(batch)
                loss = torch.stack([s.float() / max(batch.counts[t], 1) for t, s in sums.items()]).sum()
            if self.zero:  # as one micro-batch more of the first step, which counts for nothing
                self.zero.backward(0.0 * loss)
            else:
                loss.backward()

    def _count_flops(self, batch: Batch) -> None:
        """FLOPs per position of forward and backward, for the utilisation; unknown where a kernel cannot be counted."""
        from torch.utils.flop_counter import FlopCounterMode

        counter = FlopCounterMode(display=False)
        with contextlib.suppress(RuntimeError, NotImplementedError):
            with counter:
                self._try(batch)
            self.meter.flops_per_slot = counter.get_total_flops() / batch.num_positions

    # Evaluation ------------------------------------------------------------------------------------------------

    def evaluate(self) -> None:
        """Score all evaluation sets; the first one's main metric ranks checkpoints."""
        row: dict[str, Any] = {}
        self.evaluated = self.step
        if self.world > 1:  # running statistics are each rank's own until the next forward of training
            for buffer in self.bundle.model.buffers():
                torch.distributed.broadcast(buffer, 0)
        with self.average.applied() if self.average else contextlib.nullcontext():
            for eval_set in self.evals:
                scores, means, predictions = self.score(eval_set)
                self.scores[eval_set.name] = scores
                row |= self.row_of(eval_set.name, scores, means)
                self._call("on_evaluate", eval_set.name, scores, predictions)
        metric, mode = self.task.main_metric()
        value = self.scores[self.evals[0].name][metric].value
        if self.config.schedule.type == "plateau":
            self.plateau.see(value, mode)
        sign = 1 if mode == "min" else -1
        ranked = [*(b for b in self.best if b["step"] != self.step), {"step": self.step, "value": value}]
        ranked.sort(key=lambda b: (math.isnan(b["value"]), sign * b["value"], -b["step"]))
        self.best = ranked[: max(self.train.keep_best, 1)]
        self.event("evaluated", step=self.step, metrics=row)
        self.log(row)
        self.meter.restart()

    def _evaluation_due(self) -> bool:
        return bool(self.evals) and (self.step % self.eval_every == 0 or self.step == self.total_steps)

    def score(self, eval_set: EvalSet) -> tuple[dict[str, Score], dict[str, float], list[Prediction]]:
        """Score one set with the weights as they are."""
        sharded = self.train.shard or (self.zero is not None and self.zero.stage == 3)
        with self.zero.evaluating() if self.zero else contextlib.nullcontext():
            return evaluate(
                self.bundle,
                self.task,
                self.losses,
                eval_set,
                self.accelerator,
                self.control,
                workers=self.config.data.workers,
                prefetch=self.config.data.prefetch,
                sharded=sharded,
                packed=self._packed,
                max_bad=self.config.data.max_bad,
            )

    def row_of(self, name: str, scores: Mapping[str, Score], means: Mapping[str, float]) -> dict[str, float]:
        """What metrics.jsonl says of one scored set."""
        row = {f"eval/{name}/{k}": s.value for k, s in scores.items()}
        row |= {f"eval/{name}/loss": sum(self.losses[t].weight * v for t, v in means.items())}
        return row | {f"eval/{name}/loss_{t}": v for t, v in means.items()}

    def _is_best(self) -> bool:
        return self.train.keep_best > 0 and any(b["step"] == self.step for b in self.best)

    def save(self) -> None:
        """Write a checkpoint; all ranks call."""
        state.save(self)
        self._call("on_save", state.folder_of(self, self.step))

    # Helpers --------------------------------------------------------------------------------------------------------

    def _call(self, hook: str, *arguments: Any) -> None:
        for callback in self.callbacks:
            getattr(callback, hook)(self, *arguments)

    def _ask_to_stop(self) -> None:
        self._signal = True


def _seed(seed: int, index: int) -> None:
    """Seed torch and numpy for one micro-batch (models of transformers draw from both)."""
    value = (seed * 1_000_003 + index * 7919 + 12345) % 2**32
    torch.manual_seed(value)
    np.random.seed(value)
