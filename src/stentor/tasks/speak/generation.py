"""Section `generation`: schedule, guidance and sampling of masked codec tokens."""

from typing import Any

from pydantic import Field

from stentor.section import Section

OF_TEXTS = frozenset({"seed", "chunk_duration", "chunk_threshold"})
"""Keys that apply to every synthesis model. They are not passed to the model, which gets seeds and pieces."""


class Generation(Section):
    """Generation settings of a masked model of speech codes, which are unmasked in a few steps, most certain first."""

    steps: int = Field(default=32, ge=1)
    """Number of unmasking steps for each utterance. 16 is twice as fast and nearly as good."""
    guidance: float = Field(default=2.0, ge=0)
    """Scale of classifier-free guidance: a higher value follows text and voice more closely. 0: no guidance, which
    halves the work."""
    t_shift: float = Field(default=0.1, gt=0)
    """Shape of the schedule. 1: equally many codes per step. Below 1: few in the first steps, many in the last."""
    layer_penalty: float = Field(default=5.0, ge=0)
    """Penalty that delays the unmasking of each codebook relative to the one before it."""
    position_temperature: float = Field(default=5.0, ge=0)
    """Temperature of the choice of the positions to unmask. 0: no randomness."""
    class_temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the codes. 0: always the most likely code."""
    seed: int = Field(default=0, ge=0)
    """Random seed: the same seed gives the same speech. An item of an evaluation set uses this seed and its id."""

    chunk_duration: float = Field(default=15.0, ge=1)
    """Target duration in seconds of the pieces of a long text; pieces are at most a fifth longer."""
    chunk_threshold: float = Field(default=30.0, ge=0)
    """Seconds above which a text is split into pieces."""

    def arguments(self) -> dict[str, Any]:
        """Return the keyword arguments of a model's `speak`, except the seeds."""
        return self.model_dump(exclude=set(OF_TEXTS))
