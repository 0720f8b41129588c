"""Sections `windows` and `embedding`: windows of a recording, decisions and clustering of speakers."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field, model_validator

from stentor.section import ConfigConflict, Section


class Embedder(Section):
    """The section `task.windows.embedding`: a speaker embedding model of transformers."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    source: str = Field(alias="from")
    """Hub id or folder of an x-vector model, such as microsoft/wavlm-base-plus-sv."""
    revision: str | None = None
    """Branch, tag or commit of the Hub id. Null: the newest."""


class VBx(Section):
    """The section `task.windows.vbx`: Bayesian clustering of voices, VBx (Landini et al. 2022)."""

    fa: float = Field(default=1.0, gt=0)
    """Factor of the evidence (F_A); a lower value gives fewer speakers."""
    fb: float = Field(default=20.0, gt=0)
    """Factor of the prior (F_B); a higher value gives fewer speakers."""
    loop: float = Field(default=0.9, ge=0, lt=1)
    """Probability that a track keeps its speaker from one stretch of windows to the next."""


class Windows(Section):
    """The section `task.windows`: from windows of a recording to the diarization of the whole recording."""

    window: float | None = Field(default=None, gt=0)
    """Seconds of audio per window. Null: the task's `chunk`."""
    step: float = Field(default=0.25, gt=0, le=1)
    """Step from one window to the next, as a share of the window."""
    batch: int = Field(default=16, ge=1)
    """Number of windows per batch."""
    threshold: float | None = Field(default=None, gt=0, lt=1)
    """Minimum probability of a speaker's speech. Null: 0.5; for powerset labels the most probable set of speakers."""
    offset: float | None = Field(default=None, gt=0, lt=1)
    """Probability below which the speech of an active speaker ends. Null: the threshold."""
    change_cost: float = Field(default=0.0, ge=0)
    """For labels whose classes are sets of speakers: cost in nats of each start or end of a speaker in the search for
    the most likely sequence of sets (Viterbi). 0: the most probable set in each frame. Smooths better than `median`,
    which ignores the probabilities."""
    upsample: int = Field(default=1, ge=1, le=20)
    """Decisions per frame of the model: logits are interpolated between frames, so that speech may begin within one.
    For whole recordings; live diarization uses the model's frames."""
    median: int = Field(default=1, ge=1)
    """Length of the median filter over each speaker's activity, an odd number of decisions. 1: off."""
    min_on: float = Field(default=0.0, ge=0)
    """Minimum seconds of speech; shorter stretches are removed after pauses were filled."""
    min_off: float = Field(default=0.0, ge=0)
    """Minimum seconds of a pause; shorter pauses of a speaker are filled."""
    speakers: int | None = Field(default=None, ge=1)
    """Number of speakers in each recording. Null: unknown."""
    min_speakers: int | None = Field(default=None, ge=1)
    """Minimum number of speakers in each recording. Null: unknown."""
    max_speakers: int | None = Field(default=None, ge=1)
    """Maximum number of speakers in each recording. Null: unknown."""
    cluster_threshold: float | None = Field(default=None, gt=0)
    """Maximum distance of voices of one speaker: the cosine distance of embeddings, or the distance of spectra in units
    of the variation within a voice. Null: estimated from each recording."""
    clustering: Literal["agglomerative", "vbx"] = "agglomerative"
    """Clustering of voices: agglomerative up to the threshold, or followed by a Bayesian hidden Markov model that
    starts with many speakers and drops those it does not need (`vbx`)."""
    vbx: VBx = VBx()
    """Options of the Bayesian model."""
    embedding: Embedder | None = None
    """Speaker embedding model that replaces the model's own embeddings. Null: the model's own, or long-term spectra of
    the voices if it has none."""

    exclusive_keys: ClassVar[tuple[tuple[str, ...], ...]] = (("speakers", "min_speakers"), ("speakers", "max_speakers"))

    @model_validator(mode="after")
    def _fits(self) -> Windows:
        if self.median % 2 == 0:
            raise ConfigConflict("median", f"must be an odd number, got {self.median}")
        if self.offset is not None and self.offset > (self.threshold or 0.5):
            raise ConfigConflict(
                "offset", f"must not be above the threshold ({self.threshold or 0.5:g}), got {self.offset:g}"
            )
        if self.speakers is not None and (self.min_speakers or self.max_speakers):
            raise ConfigConflict("speakers", "give the number of speakers or its bounds, not both")
        low, high = self.bounds
        if high is not None and low > high:
            raise ConfigConflict("min_speakers", f"must not be above max_speakers ({high}), got {low}")
        return self

    @property
    def bounds(self) -> tuple[int, int | None]:
        """Minimum and maximum number of speakers; None: no limit."""
        if self.speakers is not None:
            return self.speakers, self.speakers
        return self.min_speakers or 1, self.max_speakers
