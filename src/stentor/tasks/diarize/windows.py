"""Sections `windows` and `embedding`: windows of a recording, decisions and clustering of speakers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.section import ConfigConflict, Section


class Embedder(Section):
    """The section `task.windows.embedding`: a model of transformers that tells voices apart."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: str = Field(alias="from")
    """Hub id or folder of an x-vector model, such as microsoft/wavlm-base-plus-sv."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""


class VBx(Section):
    """The section `task.windows.vbx`: how a Bayesian model groups voices (Landini et al. 2022)."""

    fa: float = Field(default=1.0, gt=0)
    """Factor of the evidence: less of it makes fewer speakers."""
    fb: float = Field(default=20.0, gt=0)
    """Factor of the prior: more of it makes fewer speakers."""
    loop: float = Field(default=0.9, ge=0, lt=1)
    """Probability that a track of windows stays with its speaker from one stretch to the next."""


class Windows(Section):
    """The section `task.windows`: from windows of a recording to speaker diarization of all of it."""

    window: float | None = Field(default=None, gt=0)
    """Seconds that the model hears at once. Null: the task's `chunk`."""
    step: float = Field(default=0.25, gt=0, le=1)
    """Seconds from one window to the next, as a share of the window."""
    batch: int = Field(default=16, ge=1)
    """Windows that go through the model together."""
    threshold: float | None = Field(default=None, gt=0, lt=1)
    """Probability from which somebody speaks. Null: 0.5; for powerset labels the most probable set of speakers."""
    offset: float | None = Field(default=None, gt=0, lt=1)
    """Probability below which somebody who speaks stops. Null: the threshold."""
    change_cost: float = Field(default=0.0, ge=0)
    """For labels whose classes are sets of speakers: what a speaker who begins or stops costs in the search for the
    likeliest sequence of sets (Viterbi), in nats. 0: the most probable set in each frame. Smooths better than `median`,
    which does not know how sure a frame is."""
    upsample: int = Field(default=1, ge=1, le=20)
    """Decisions in each of the model's frames: its logits are interpolated between the middles of frames, so that
    somebody may begin within one. Of whole recordings; live speakers have the model's frames."""
    median: int = Field(default=1, ge=1)
    """Decisions of the median filter over each speaker's activity, an odd number. 1: off."""
    min_on: float = Field(default=0.0, ge=0)
    """Seconds; shorter stretches of speech are removed, after pauses were filled."""
    min_off: float = Field(default=0.0, ge=0)
    """Seconds; shorter pauses of a speaker are filled."""
    speakers: int | None = Field(default=None, ge=1)
    """Speakers in each recording. Null: unknown."""
    min_speakers: int | None = Field(default=None, ge=1)
    """Least number of speakers in each recording. Null: unknown."""
    max_speakers: int | None = Field(default=None, ge=1)
    """Greatest number of speakers in each recording. Null: unknown."""
    cluster_threshold: float | None = Field(default=None, gt=0)
    """Distance of voices from which they are two speakers: the cosine distance of embeddings, or that of spectra in
    units of what a voice varies by. Null: as the voices of each recording show it."""
    clustering: Literal["agglomerative", "vbx"] = "agglomerative"
    """Clustering of voices into speakers: nearest first, up to the threshold, or besides by a Bayesian hidden Markov
    model that begins with many speakers and drops those that it does not need (`vbx`)."""
    vbx: VBx = VBx()
    """Options of the Bayesian model."""
    embedding: Embedder | None = None
    """A model that tells voices apart, in the place of the model's own embeddings. Null: the model's own, if it has
    them, and else the long-term spectra of the voices."""

    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("speakers", "min_speakers"), ("speakers", "max_speakers"))

    @model_validator(mode="after")
    def _fits(self) -> Windows:
        if self.median % 2 == 0:
            raise ConfigConflict("median", f"a median filter has an odd number of frames, got {self.median}")
        if self.offset is not None and self.offset > (self.threshold or 0.5):
            raise ConfigConflict(
                "offset", f"it cannot be above the threshold ({self.threshold or 0.5:g}), got {self.offset:g}"
            )
        if self.speakers is not None and (self.min_speakers or self.max_speakers):
            raise ConfigConflict("speakers", "give the number of speakers, or its bounds, not both")
        low, high = self.bounds
        if high is not None and low > high:
            raise ConfigConflict("min_speakers", f"at least {low} and at most {high} speakers cannot be")
        return self

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Least and greatest number of speakers; None: no limit."""
        if self.speakers is not None:
            return self.speakers, self.speakers
        return self.min_speakers or 1, self.max_speakers
