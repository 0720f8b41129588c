"""Records as a model will get them, from metadata alone: what it cannot use is dropped before the first step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from stentor.data.batch import Example
from stentor.data.codec_tokens import has_codes
from stentor.data.cut import Cut
from stentor.dataloading.mixing import DropCounter
from stentor.models.codec_processor import CodecProcessor
from stentor.models.contracts import Processor
from stentor.models.encoders.inputs import EncoderInputs

if TYPE_CHECKING:
    from stentor.tasks.base import Task


def planned_example(task: Task, processor: Any, cut: Cut, seconds: float) -> Example:
    """The example of a record that lasts so many seconds, with zeros, which take no memory, as its audio or codes."""
    if isinstance(processor, CodecProcessor) and has_codes(cut):
        example = task.example(cut, None, None)
        example.extra["codes"] = np.broadcast_to(np.int16(0), (1, processor.frames(cut, seconds)))
        return example
    samples = round(seconds * processor.sample_rate)
    return task.example(cut, np.broadcast_to(np.float32(0), samples) if task.audio else None, None)


def without_loss(task: Task, processor: Any, cuts: Iterable[Cut]) -> DropCounter:
    """Records of an evaluation set that are scored, but not in its loss: the model cannot write their text."""
    counter = DropCounter()
    if isinstance(processor, Processor) and not task.any_length:
        for cut in cuts:
            if reason := processor.refusal(planned_example(task, processor, cut, cut.duration), labels=True):
                counter.add(*reason)
    return counter


def partly_trained(task: Task, processor: Any, cuts: Iterable[Cut]) -> list[str]:
    """A warning about training records that one of several loss terms has no targets of."""
    if not isinstance(processor, EncoderInputs) or processor.ctc is None:
        return []
    examples = (planned_example(task, processor, cut, cut.duration) for cut in cuts)
    names = [example.id for example in examples if not processor.has_ctc_targets(example)]
    return names and [
        f"{len(names):,} training records have no part in the loss of the CTC head: their text is empty for it, or has "
        f"more signs than it has frames ({', '.join(names[:3])}{' ...' if len(names) > 3 else ''})."
    ]


@dataclass(frozen=True)
class ModelDrops:
    """The `DropReason` of a model, and of its task's limits of length, for records in `training` or in evaluation."""

    task: Task
    processor: Any
    training: bool

    def __call__(self, cut: Cut, seconds: float | None = None) -> tuple[str, str] | None:
        """`seconds`: length after augmentation. None: that of the record."""
        seconds = cut.duration if seconds is None else seconds
        # Records of any length are evaluated in windows. A plug-in's processor need not know what it refuses.
        reason = None
        if isinstance(self.processor, Processor) and (self.training or not self.task.any_length):
            reason = self.processor.drop_reason(planned_example(self.task, self.processor, cut, seconds), self.training)
        return reason or self.task.length_drop_reason(cut, lambda: self.processor.tokens(cut, seconds))
