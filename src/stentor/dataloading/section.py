"""Section `data:`: which records, mixed how, in batches of what size."""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stentor.data.augment import Augment
from stentor.section import ConfigConflict, Effect, Section
from stentor.sources.base import Source


class Replay(Section):
    """Experience replay: general data mixed with your own, so that a pretrained model keeps its earlier abilities."""

    share: float = Field(0.2, gt=0, lt=1)
    """Share of an epoch's items that are replayed. They are added to all of your own data. Each epoch takes other
    replayed items, as long as there are more than it needs."""
    sources: list[Source] = Field(min_length=1)
    """Sources of the general data. Each gets a share of the replayed items by its size (times `repeat`), or by `weight`
    where it is set. A stream needs a `limit`: so many of its records are read at the start and kept in memory."""

    @model_validator(mode="after")
    def _weights(self) -> "Replay":
        _all_or_none(self.sources, "sources", "replay")
        return self


class Data(Section):
    """Data for training and evaluation, and how it is batched."""

    train: list[Source] = Field(min_length=1)
    """Training sources, mixed into one epoch."""
    replay: Replay | None = None
    """General data mixed into the training data, against forgetting. Null: none."""
    eval: dict[str, Source] = {}
    """Evaluation sets by name, scored during training (they select the best checkpoint) and at the end."""
    test: dict[str, Source] = {}
    """Test sets by name, scored once, at the end."""
    by: list[str] = ["language", "source", "dataset"]
    """Record fields by which the final scores of each set are broken down, such as `speaker`, `accent` or a column of a
    Hub data set. A field with the same value in all records of a set is left out."""
    layout: Literal["padded", "packed"] | None = None
    """Batch layout. `padded`: items of similar length, padded to the longest. `packed`: items end to end. Null: the
    layout that the model's attention needs, which is `padded` for all models but `omnivoice` with `attention: flex`."""
    batch_tokens: int = Field(2000, ge=1)
    """Hard limit of sequence positions in a batch, padding included, as the model family counts them. Larger records
    are dropped from training (and counted); in evaluation sets they are scored, and named in the plan."""
    max_items: int | None = Field(None, ge=1)
    """Hard limit of items in a batch. Null: only `batch_tokens` limits the batch."""
    buckets: int = Field(30, ge=1)
    """Number of length buckets of the padded layout. Their edges are chosen so that the least padding is needed."""
    window: int = Field(1000, ge=1)
    """Number of items among which the packed layout looks for the best fit. Batches of a stream, and of each lane of a
    source with an index, are also planned for this many items at a time."""
    min_seconds: float = Field(0.1, ge=0)
    """Shortest record in seconds. Shorter ones are dropped (and counted)."""
    max_seconds: float = Field(30.0, gt=0)
    """Longest record in seconds. Longer ones are dropped (and counted), or cut into pieces by the task `diarize`."""
    max_bad: float = Field(0.01, ge=0, le=1)
    """Largest share of records that may be unusable before the run stops: unreadable, missing, silent ..., or longer
    than the model can read or write. Records outside of `min_seconds` to `max_seconds` do not count."""
    lanes: int = Field(8, ge=1)
    """Number of parts into which a stream, or data with an index, is divided, so that each of several processes reads
    only its own parts. Use a multiple of the number of processes. It decides the order of items; the number of
    processes does not. Data with too few files for equal parts has fewer parts, or is read whole by every process."""
    language_temperature: float | None = Field(None, ge=0, le=1)
    """Temperature for balancing languages: the records of each language are repeated (hours of the largest / its own
    hours) ^ (1 - value) times. 1 leaves the data unchanged, 0 gives every language the same hours. Null: off."""
    augment: Augment = Augment()
    """Random changes of training audio, new in each epoch."""
    workers: int = Field(2, ge=0)
    """Worker processes that read audio and make batches, per training process. 0: the training process does it."""
    prefetch: int = Field(4, ge=1)
    """Number of batches that each worker prepares in advance."""
    eval_batch_tokens: int | None = Field(None, ge=1)
    """`batch_tokens` for evaluation. Null: the same as for training."""
    effects: ClassVar[Mapping[str, Effect]] = {
        **dict.fromkeys(("workers", "prefetch", "max_bad", "eval_batch_tokens"), "none"),
        **dict.fromkeys(("test", "by"), "scores"),
    }

    @model_validator(mode="after")
    def _weights(self) -> "Data":
        _all_or_none(self.train, "train", "training")
        return self


def _all_or_none(sources: list[Source], key: str, kind: str) -> None:
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        raise ConfigConflict(f"{key}.{weighted.index(False)}", f"needs a `weight`, as other {kind} sources have one")
