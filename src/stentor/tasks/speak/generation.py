"""Section `generation`: schedule, guidance and sampling of masked codec tokens."""

from typing import Any

from pydantic import Field

from stentor.section import Section

OF_TEXTS = frozenset({"seed", "chunk_duration", "chunk_threshold"})
"""Keys that mean something for every model that speaks: it gets seeds and pieces, and none of these."""


class Generation(Section):
    """Generation of speech codes: they are revealed in a few steps, the most certain first."""

    steps: int = Field(default=32, ge=1)
    """Passes through the model for each utterance. 16 is twice as fast and nearly as good."""
    guidance: float = Field(default=2.0, ge=0)
    """Classifier-free guidance: weight of the conditions over the model without any
    (classifier-free guidance). 0: no guidance, half of the work."""
    t_shift: float = Field(default=0.1, gt=0)
    """Shape of the schedule. 1: as many codes in each step. Below 1: few in the first steps, many in the last."""
    layer_penalty: float = Field(default=5.0, ge=0)
    """Delay of each codebook relative to the one before it."""
    position_temperature: float = Field(default=5.0, ge=0)
    """Temperature of the choice of positions that are revealed next. 0: none."""
    class_temperature: float = Field(default=0.0, ge=0)
    """Sampling temperature of the codes. 0: always the most likely."""
    seed: int = Field(default=0, ge=0)
    """Same seed, same speech. An item of a set draws from this and its id."""

    chunk_duration: float = Field(default=15.0, ge=1)
    """Seconds of a piece of a text that is too long to be spoken in one go; none is a fifth longer."""
    chunk_threshold: float = Field(default=30.0, ge=0)
    """Seconds that are still spoken in one go."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of a model's `speak`, beside the seeds."""
        return self.model_dump(exclude=set(OF_TEXTS))
