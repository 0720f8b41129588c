"""Speaker diarization task.

A family that supports this task has, in addition to what every family has:

* processor: `frame_seconds` (seconds from one output frame to the next), `frames(samples)` (output frames of a clip);
* model: `needs.classes` outputs for each frame. Its forward takes the inputs from `collate` of the processor, `targets`
  (float32 [B, T, C] or int64 [B, T], -100 for frames that are not scored) and, if speaker embeddings are scored,
  `pools` float32 [B, K, T] and `pool_labels` int64 [B, K] (-100: none). It returns the arguments of the losses by what
  they score: `logits`, `hidden`, `weights`, `embeddings` (see `Loss.scores`). For inference, `label_frames(**inputs)`
  returns an object with `logits` [B, T, C], `embeddings` [B, T, E] or None, and `lengths` [B] in frames.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, PrivateAttr, model_validator

from stentor.data.batch import Batch, Example, Prediction
from stentor.data.cut import Cut, field_of, segments_of, uem_of
from stentor.data.spans import clip_spans
from stentor.errors import ConfigError
from stentor.losses.hidden import anchors
from stentor.metrics.score import Direction, Score
from stentor.models.base import TaskRequirements
from stentor.section import ConfigConflict
from stentor.tasks.base import Task
from stentor.tasks.diarize.labels.base import Labels
from stentor.tasks.diarize.labels.speaker import SpeakerLabels
from stentor.tasks.diarize.windows import Windows

if TYPE_CHECKING:
    import numpy as np
    import torch

    from stentor.losses.base import Loss
    from stentor.metrics.diarization import DiarizedRecording
    from stentor.models.base import Bundle
    from stentor.models.contracts import Processor
    from stentor.tasks.diarize.inference import WindowOutputs

SEGMENT_COUNTS = {
    "merged_segments": "Segments of one speaker that overlap were merged",
    "clipped_segments": "Segments that end after the audio were clipped",
    "empty_segments": "Segments without a duration were left out",
}
"""Messages about segments that a source changed, by the key of the record with their number."""
PIECE = "#"
"""Separator between the id of a recording and the start of a piece in seconds."""


class Diarize(Task):
    """Diarization (who spoke when), or detection of speech or overlap."""

    type: Literal["diarize"] = "diarize"
    labels: Labels = SpeakerLabels()
    """Labels of a frame: the active speakers (`speaker`, `powerset`), whether there is speech (`binary`) or overlapped
    speech (`overlap`), or labels of a plug-in."""
    chunk: float = Field(20.0, gt=0)
    """Seconds per training item: longer recordings are cut into pieces, and `data.max_seconds` does not apply."""
    shift: float | None = Field(None, gt=0)
    """Seconds from the start of one piece to the next, at most `chunk`; with less, pieces overlap. Null: `chunk`."""
    speaker_names: Literal["global", "local"] = "global"
    """Whether a speaker name is the same person in all recordings (`global`) or only within one recording (`local`, for
    names such as `speaker_1`). Losses of speaker embeddings need this."""
    windows: Windows = Windows()
    """Windows of a recording, decisions and clustering of speakers, in evaluation and inference."""

    any_length: ClassVar[bool] = True
    _terms: dict[str, tuple[str, bool]] = PrivateAttr(default_factory=dict)  # what each scores, whether per frame

    @model_validator(mode="after")
    def _leaves_nothing_out(self) -> Diarize:
        if self.shift is not None and self.shift > self.chunk:
            raise ConfigConflict(
                "shift", f"must be at most the chunk ({self.chunk:g}), or there are gaps between pieces"
            )
        return self

    # Training

    def losses(self) -> dict[str, Loss]:
        return self.labels.losses()

    def requirements(self, losses: Mapping[str, Loss]) -> TaskRequirements:
        for term, loss in losses.items():
            if loss.scores == "logits" and not {"logits", "targets"} <= set(inspect.signature(loss.sum).parameters):
                raise ConfigError(
                    f"losses.{term}: `{loss.type}` does not score labels of frames, as the task {self.type} needs: use "
                    f"{' or '.join(f'`{usual.type}`' for usual in self.losses().values())}."
                )
        self._terms = {term: (loss.scores, loss.per_frame) for term, loss in losses.items()}
        scores = tuple(sorted({loss.scores for loss in losses.values()}))
        return TaskRequirements(task=self.type, terms=tuple(losses), classes=self.labels.classes, scores=scores)

    def check_processor(self, processor: Processor) -> None:
        longest = processor.max_seconds
        for key, seconds in (("chunk", self.chunk), ("windows.window", self.windows.window)):
            if longest is not None and seconds is not None and seconds > longest:
                raise ConfigError(f"task.{key}: the model takes at most {longest:g} s at once, not {seconds:g} s.")

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """Return `no_segments` if there are no labels; an empty list of segments means that there is no speech."""
        return None if field_of(cut, "segments") is not None or segments_of(cut) else ("no_segments", cut.id)

    def training_segments(self, cut: Cut) -> Iterator[Cut]:
        """Yield pieces of `chunk` seconds; pieces outside of the scored regions (UEM) are left out."""
        from stentor.tasks.diarize.frames import spans_of_pieces

        spans = spans_of_pieces(cut.duration, self.chunk, self.shift)
        if len(spans) == 1:
            yield cut
            return
        uem = uem_of(cut)
        index = cut.index_supervisions(index_mixed_tracks=True)
        for start, end in spans:
            if uem is None or any(a < end and b > start for a, b in uem):
                piece = cut.truncate(offset=start, duration=min(end, cut.duration) - start, _supervisions_index=index)
                yield piece.with_id(f"{cut.id}{PIECE}{start:.10g}")

    def data_warnings(self, cuts: Iterable[Cut]) -> list[str]:
        slots = self.labels.slots
        pieces, crowded, most = 0, 0, 0
        named: list[str] = []
        counts: dict[str, dict[str, int]] = {key: {} for key in SEGMENT_COUNTS}  # by recording: equal in all its pieces
        for cut in cuts:
            pieces += 1
            for key, by_recording in counts.items():
                if count := field_of(cut, key):
                    by_recording[cut.id.partition(PIECE)[0]] = count
            speakers = len({s["speaker"] for s in segments_of(cut)})
            if slots is not None and speakers > slots:
                crowded, most = crowded + 1, max(most, speakers)
                named += [cut.id] if len(named) < 3 else []
        lines = []
        for key, by_recording in counts.items():
            if by_recording:
                more = f" and {len(by_recording) - 3} more" if len(by_recording) > 3 else ""
                names = ", ".join(list(by_recording)[:3])
                lines.append(f"{SEGMENT_COUNTS[key]}: {sum(by_recording.values())}, in {names}{more}.")
        if not crowded:
            return lines
        return [
            *lines,
            f"{crowded} of {pieces} training pieces have more than the {slots} speakers of `task.labels.speakers`, up "
            f"to {most}: in each, the {slots} who talk most are trained on and the others count as silent "
            f"({', '.join(named)}{' ...' if crowded > len(named) else ''}).",
        ]

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        """Return the item; `extra` has `segments`, `uem` and `duration` in seconds of the original recording, whose
        speed may have been changed (see `collate`)."""
        extra = {"segments": segments_of(cut), "uem": uem_of(cut), "duration": cut.duration}
        return Example(id=cut.id, audio=audio, rng=rng, extra=extra)

    def collate(self, examples: Sequence[Example], processor: Processor, packed: bool) -> Batch:
        """Return the processor's batch with `targets` and, if speaker embeddings are scored, `pools` and `pool_labels`.

        In evaluation (no example has `rng`), examples longer than `chunk` are cut into pieces first.
        """
        import torch

        from stentor.tasks.diarize.frames import FrameTargets, stack_pools

        if evaluated := all(e.rng is None for e in examples):
            examples = [chunk for e in examples for chunk in self._chunks(e, processor)]
        batch = processor.collate(examples, packed=packed, labels=True)
        ids = set(batch.ids)
        local = self.speaker_names == "local"
        rows = [
            FrameTargets(self.labels, e, processor, f"{e.id.partition(PIECE)[0]}\0" if local else "")
            for e in examples
            if e.id in ids
        ]
        if not rows:
            return batch
        frames = max(len(row.scored) for row in rows)
        shape, dtype = rows[0].targets.shape[1:], torch.from_numpy(rows[0].targets).dtype
        targets = torch.full((len(rows), frames, *shape), -100, dtype=dtype)
        for padded, row in zip(targets, rows, strict=True):
            padded[: len(row.scored)] = torch.from_numpy(row.targets)
        batch.inputs["targets"] = targets
        if any(scored == "embeddings" for scored, _ in self._terms.values()):
            batch.inputs["pools"], batch.inputs["pool_labels"] = stack_pools(rows, frames)
        for term, (scored, per_frame) in self._terms.items():
            if scored in ("hidden", "weights"):
                batch.counts[term] = sum(len(row.scored) for row in rows)
            elif scored == "embeddings":
                parts = self._parts(batch.inputs, evaluated)
                batch.counts[term] = sum(anchors(part["pool_labels"].flatten()) for part in parts)
            else:
                valid = targets != -100
                batch.counts[term] = int((valid.flatten(2).all(-1) if per_frame and valid.dim() > 2 else valid).sum())
        return batch

    def _chunks(self, example: Example, processor: Processor) -> Iterator[Example]:
        """Yield a whole recording in pieces as in training."""
        from stentor.tasks.diarize.frames import spans_of_pieces

        assert example.audio is not None
        rate, extra = processor.sample_rate, example.extra
        spans = spans_of_pieces(len(example.audio) / rate, self.chunk, None)
        if len(spans) == 1:
            yield example
            return
        for start, end in spans:
            segments = [
                {"speaker": s["speaker"], "start": max(s["start"] - start, 0.0), "end": min(s["end"], end) - start}
                for s in extra["segments"]
                if s["start"] < end and s["end"] > start
            ]
            uem = extra["uem"]
            if uem is not None:
                uem = clip_spans([(a - start, b - start) for a, b in uem], end - start)
            yield Example(
                id=f"{example.id}{PIECE}{start:.10g}",
                audio=example.audio[round(start * rate) : round(end * rate)],
                extra={"segments": segments, "uem": uem, "duration": end - start},
            )

    def _parts(self, inputs: Mapping[str, torch.Tensor], evaluated: bool) -> list[Mapping[str, torch.Tensor]]:
        """Return the inputs of each forward pass: whole recordings may have more chunks than `windows.batch`."""
        rows, size = len(inputs["targets"]), self.windows.batch
        if not evaluated or rows <= size:
            return [inputs]
        return [{k: v[i : i + size] for k, v in inputs.items()} for i in range(0, rows, size)]

    def loss_sums(self, model: torch.nn.Module, batch: Batch, losses: Mapping[str, Loss]) -> dict[str, torch.Tensor]:
        import torch

        sums: dict[str, torch.Tensor] = {}
        for part in self._parts(batch.inputs, evaluated=not torch.is_grad_enabled()):
            outputs = model(**part)
            for term, loss in losses.items():
                value = loss.checked_sum(outputs, loss.scores)
                sums[term] = sums[term] + value if term in sums else value
        return sums

    # Answers

    def predict(self, bundle: Bundle, examples: Sequence[Example]) -> list[dict[str, Any]]:
        """Return the `answer` for each example."""
        from stentor.tasks.diarize.inference import run_windows

        recordings = ([e.audio] for e in examples if e.audio is not None)
        return [self.answer(outputs, self.windows) for outputs in run_windows(bundle, self, recordings)]

    def answer(self, outputs: WindowOutputs, windows: Windows) -> dict[str, Any]:
        """Return `segments` `{"speaker", "start", "end"}` in seconds, in order of time, `frame_seconds` and, for labels
        with `class_names`, `classes`: runs [class, number of frames] for each target."""
        from stentor.tasks.diarize.aggregate import activity, segments, smoothed
        from stentor.tasks.diarize.classes import decoded_classes

        labels, frame = self.labels, outputs.frame_seconds
        tracks = smoothed(activity(outputs, windows, labels.permutes), windows, frame)
        found = segments(tracks, frame, outputs.duration, None if labels.permutes else labels.names)
        classes = {"classes": decoded_classes(outputs, windows, labels, tracks)} if labels.class_names else {}
        return {"segments": found, "frame_seconds": frame, **classes}

    def reference(self, cut: Cut) -> dict[str, Any]:
        """Return `segments` in terms of the labels, the scored regions (`uem`, None: all), the `duration` of the
        recording, its number of `speakers` and, for classes that are not about speakers, the speakers' `turns`."""
        segments = segments_of(cut)
        speakers = len({s["speaker"] for s in segments})
        reference = self.labels.reference_segments(segments)
        turns = {"turns": segments} if self.labels.class_names and not self.labels.permutes else {}
        return {"segments": reference, "uem": uem_of(cut), "duration": cut.duration, "speakers": speakers, **turns}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return the metrics of `stentor.metrics.diarization.scores`, `der` first, and those of frame classes."""
        from stentor.metrics import classification, diarization
        from stentor.tasks.diarize.classes import confusion

        scores = diarization.scores(self._spoken(predictions), speaker_labels=self.labels.permutes)
        if names := self.labels.class_names:
            counts = [confusion(self.labels, p.reference, p.output) for p in predictions if "classes" in p.output]
            scores |= classification.scores(counts, names)
        return scores

    def change(self, before: Sequence[Prediction], after: Sequence[Prediction]) -> dict[str, Score]:
        """Return the change of `der`."""
        from stentor.metrics.diarization import relative_change

        change = relative_change(self._spoken(before), self._spoken(after))
        return {} if change is None else {"der": change}

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        from stentor.metrics.classification import directions
        from stentor.metrics.diarization import DIRECTIONS, OF_SPEAKERS

        of_segments = {m: d for m, d in DIRECTIONS.items() if self.labels.permutes or m not in OF_SPEAKERS}
        return {**of_segments, **(directions(names) if (names := self.labels.class_names) else {})}

    def _spoken(self, predictions: Sequence[Prediction]) -> list[DiarizedRecording]:
        from stentor.metrics.diarization import DiarizedRecording

        return [
            DiarizedRecording(
                p.id, p.reference["segments"], p.output["segments"], p.reference["uem"], p.reference["duration"]
            )
            for p in predictions
        ]
