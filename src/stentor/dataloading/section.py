"""Section `data:`: which records, mixed how, in batches of what size."""

from typing import Literal

from pydantic import Field, model_validator

from stentor.data.augment import Augment
from stentor.section import ConfigConflict, Section
from stentor.sources.base import Source


class Replay(Section):
    """General data between one's own, so that a pretrained model does not forget what it could (experience replay)."""

    share: float = Field(0.2, gt=0, lt=1)
    """Share of an epoch's items that are replayed. One's own data come whole; these come on top, other ones in each
    epoch as long as there are more than are needed."""
    sources: list[Source] = Field(min_length=1)
    """Where the general data come from. They share the replayed items by their sizes (`repeat` counts), or by `weight`
    where it is given. A stream needs a `limit`: so many of its records are read at the start and held in memory."""

    @model_validator(mode="after")
    def _weights(self) -> "Replay":
        _all_or_none(self.sources, "sources", "replay")
        return self


class Data(Section):
    """Training and evaluation data, and batching."""

    train: list[Source] = Field(min_length=1)
    """Training sources, mixed into one epoch."""
    replay: Replay | None = None
    """General data to train on besides, against forgetting. Null: none."""
    eval: dict[str, Source] = {}
    """Named sets that are scored during training (they pick the best checkpoint) and at the end."""
    test: dict[str, Source] = {}
    """Named sets that are scored once, at the end."""
    by: list[str] = ["language", "source", "dataset"]
    """Fields of the records by which the final scores of each set are broken down, such as `speaker`, `accent` or a
    column of a Hub data set; where all records of a set have the same value, that field is left out."""
    layout: Literal["padded", "packed"] | None = None
    """Batching: padded to the longest of items of similar length, or packed end to end. Null: as the
    model's attention asks for, which is padded for all but `omnivoice` with `attention: flex`."""
    batch_tokens: int = Field(2000, ge=1)
    """Hard limit of sequence positions in a batch, padding included, as the model family counts them."""
    max_items: int | None = Field(None, ge=1)
    """Hard limit of items in a batch. Null: only `batch_tokens` limits."""
    buckets: int = Field(30, ge=1)
    """Number of length buckets of the padded layout; their edges are set so that the least is wasted."""
    window: int = Field(1000, ge=1)
    """Items that the packed layout looks ahead for the best fit; also the number of items that a streaming source, or
    each lane of one with an index, is planned by."""
    min_seconds: float = Field(0.1, ge=0)
    """Shorter records are dropped (and counted)."""
    max_seconds: float = Field(30.0, gt=0)
    """Longer records are dropped (and counted). Not those of the task `diarize`, which cuts them into pieces itself."""
    max_bad: float = Field(0.01, ge=0, le=1)
    """Largest share of records that may be unusable (unreadable, missing, silent ...) before the run stops."""
    lanes: int = Field(8, ge=1)
    """Parts of a stream, or of data with an index, that are read side by side, so that each of several processes reads
    only its own: best a multiple of the number of processes. The plan depends on it, not on the processes. Data of too
    few files to be cut into equal parts is read in fewer, whole by every process in the end."""
    language_temperature: float | None = Field(None, ge=0, le=1)
    """Balance languages: each language's records are repeated (largest / its own hours) ^ (1 - value) times. 1 leaves
    the data as it is, 0 gives every language the same hours. Null: off."""
    augment: Augment = Augment()
    """Random changes of training audio, new in each epoch."""
    workers: int = Field(2, ge=0)
    """Processes that read audio and make batches, per training process. 0: in the training process itself."""
    prefetch: int = Field(4, ge=1)
    """Batches that each worker prepares ahead."""
    eval_batch_tokens: int | None = Field(None, ge=1)
    """`batch_tokens` for evaluation. Null: the same."""

    @model_validator(mode="after")
    def _weights(self) -> "Data":
        _all_or_none(self.train, "train", "training")
        return self


def _all_or_none(sources: list[Source], key: str, kind: str) -> None:
    weighted = [source.weight is not None for source in sources]
    if any(weighted) and not all(weighted):
        raise ConfigConflict(f"{key}.{weighted.index(False)}", f"needs a `weight`, as other {kind} sources have one")
