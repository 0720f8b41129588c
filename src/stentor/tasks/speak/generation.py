"""Section `generation`: schedule, guidance and sampling of masked codec tokens."""

from typing import Any

from pydantic import Field

from stentor.section import Section

OF_TEXTS = frozenset({"seed", "chunk_duration", "chunk_threshold"})
"""Keys that mean something for every model that speaks: it gets seeds and pieces, and none of these."""


class Generation(Section):
    """How a model of speech codes speaks: they are revealed in a few steps, the surest first."""

    steps: int = Field(default=32, ge=1)
    """Passes through the model for each utterance. 16 is twice as fast and nearly as good."""
    guidance: float = Field(default=2.0, ge=0)
    """How much further what is asked for is followed than a model would that had not been asked for anything
    (classifier-free guidance). 0: no guidance, half of the work."""
    t_shift: float = Field(default=0.1, gt=0)
    """Shape of the schedule. 1: as many codes in each step. Below 1: few in the first steps, many in the last."""
    layer_penalty: float = Field(default=5.0, ge=0)
    """How much later each codebook is revealed than the one before it."""
    position_temperature: float = Field(default=5.0, ge=0)
    """How much chance decides where codes are revealed next. 0: not at all."""
    class_temperature: float = Field(default=0.0, ge=0)
    """How much chance decides which of the likeliest codes is taken. 0: always the likeliest."""
    seed: int = Field(default=0, ge=0)
    """Same seed, same speech. An item of a set draws from this and its id."""

    chunk_duration: float = Field(default=15.0, ge=1)
    """Seconds of a piece of a text that is too long to be spoken in one go; none is a fifth longer."""
    chunk_threshold: float = Field(default=30.0, ge=0)
    """Seconds that are still spoken in one go."""

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of a model's `speak`, beside the seeds."""
        return self.model_dump(exclude=set(OF_TEXTS))
