"""Targets on the frame grid: one token for each frame of the audio, from the times of words."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from stentor.data.batch import Example, num_samples
from stentor.errors import ConfigError
from stentor.models.decoding.frame_grid import FrameGrid, timed_pieces

TINY = 1e-3  # seconds
NO_WORD_TIMES = (
    "{}: no time is known for half of its words or more, and this model learns when each word is written: "
    "`stentor prepare words` adds word times to a manifest."
)


class DelayedProcessor:
    """A mixin of processors of models that read a frame of audio and the token before, and write a token, frame after
    frame to the end of the audio: no token ends their answer, and the words of what they learn need times."""

    grid: FrameGrid
    sample_rate: int
    delays: tuple[int, int]
    """Shortest and longest delay in frames that clips are given in training."""
    known_delays: tuple[float, float]
    """Shortest and longest delay in seconds that the model can write with."""
    delay: int
    """Frames of delay of transcripts of files."""

    if TYPE_CHECKING:

        def ids(self, text: str) -> list[int]: ...

        def max_new_tokens(self, seconds: float) -> int: ...

    def start(self, delay: int) -> list[int]:
        """Tokens that are read before the first one is written."""
        raise NotImplementedError

    def delay_of(self, example: Example) -> int:
        """Frames of delay of an example: the one that was drawn for it, else that of transcripts."""
        return int(example.extra.get("delay", self.delay))

    def asked_delay(self, seconds: float | None) -> int:
        """Frames of the delay of a stream; None: that of transcripts. Raises ConfigError for one that the model does
        not know."""
        least, most = self.known_delays
        if seconds is not None and not least - TINY <= seconds <= most + TINY:
            known = f"a delay of {least:g} s" if least == most else f"delays of {least:g} to {most:g} s"
            raise ConfigError(f"This model was trained with {known}, and {seconds:g} s is none.")
        return self.delay if seconds is None else max(1, round(seconds * self.grid.rate))

    def draw_delay(self, example: Example) -> Example:
        """An example in training with its own delay, where there are several."""
        least, most = self.delays
        if example.rng is None or least == most:
            return example
        delay = int(example.rng.integers(least, most + 1))
        return replace(example, extra={**example.extra, "delay": delay})

    def piece_ids(self, piece: str) -> list[int]:
        """Tokens of a word with the white space before it."""
        return self.ids(piece)

    def place(self, example: Example) -> tuple[list[int], int]:
        """See `FrameGrid.place`."""
        pieces = timed_pieces(example.text or "", example.extra.get("times", []), example.language)
        words = [(self.piece_ids(piece), start, end) for piece, start, end in pieces]
        return self.grid.place(words, self.max_new_tokens(num_samples(example) / self.sample_rate))

    def misplaced(self, example: Example) -> tuple[str, str] | None:
        """(reason, sentence) for an example whose text does not fit on the grid."""
        if not timed_pieces(example.text or "", example.extra.get("times", []), example.language):
            return "no_word_times", NO_WORD_TIMES.format(example.id)
        if late := self.place(example)[1]:
            return "text_too_long", (
                f"{example.id}: {late} tokens of its text find no frame before the end of its audio and of the silence "
                "behind it (the model writes a token a frame): do text and audio belong together?"
            )
        return None
