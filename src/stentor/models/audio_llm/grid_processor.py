"""Examples to batches for models on the frame grid: no prompt but the tokens of the delay, and one token to write for
each frame of the audio."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.data.cut import language_of, text_of, words_of
from stentor.models.audio_llm.frame_grid import FrameGrid, timed_pieces
from stentor.models.audio_llm.processor import Around, AudioLLMProcessor
from stentor.models.collate import num_samples

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.models.audio_llm.modeling import AudioLLMModel

NO_WORD_TIMES = (
    "{}: no time is known for half of its words or more, and this model learns when each word is written: "
    "`stentor prepare words` adds word times to a manifest."
)


class GridProcessor(AudioLLMProcessor):
    """A model that reads a frame of audio and the token before, and writes a token, frame after frame to the end of the
    audio: no token ends its answer, and the words of what it learns need times. `positions` include `start_ids`."""

    takes_delay = True
    grid: FrameGrid
    start_ids: list[int]
    """Tokens that are read before the first one is written."""
    pad_id: int
    eos_id = audio_id = -1  # none ends the answer, no position is for audio alone

    def model_of(self, pretrained: Any) -> AudioLLMModel:
        from stentor.models.audio_llm.grid_modeling import GridModel

        return GridModel(pretrained, self)

    def _max_seconds(self, positions: int | None) -> float:
        return self.longest_seconds  # attention looks back over a window that slides

    def _around(self, language: str | None, context: str | None, translate: bool) -> Around:
        return self.start_ids, []

    def prompt(self, language: str | None, samples: int, *args: Any, **kwargs: Any) -> list[int]:
        return self.start_ids

    def max_new_tokens(self, seconds: float) -> int:
        return self.positions(round(seconds * self.sample_rate)) - len(self.start_ids)

    def tokens(self, cut: Cut, seconds: float) -> int:
        return self.positions(round(seconds * self.sample_rate))

    def generation_config(self) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(bos_token_id=self.start_ids[0], pad_token_id=self.pad_id, do_sample=False)

    # Targets

    def drop_reason(self, cut: Cut, training: bool) -> tuple[str, str] | None:
        if training and not timed_pieces(text_of(cut) or "", words_of(cut), language_of(cut)):
            return "no_word_times", NO_WORD_TIMES.format(cut.id)
        return None

    def _place(self, example: Example) -> tuple[list[int], int]:
        """See `FrameGrid.place`."""
        pieces = timed_pieces(example.text or "", example.extra.get("times", []), example.language)
        words = [(self.ids(piece), start, end) for piece, start, end in pieces]
        return self.grid.place(words, self.max_new_tokens(num_samples(example) / self.sample_rate))

    def learnt(self, example: Example) -> list[int]:
        return self._place(example)[0]

    def _drop_reason(self, example: Example, tokens: int) -> tuple[str, str] | None:
        if not tokens:  # nothing to learn: a batch for generation, or a clip in which nothing is said
            return None
        if not timed_pieces(example.text or "", example.extra.get("times", []), example.language):
            return "no_word_times", NO_WORD_TIMES.format(example.id)
        if late := self._place(example)[1]:
            return "text_too_long", (
                f"{example.id}: {late} tokens of its text find no frame before the end of its audio and of the silence "
                "behind it."
            )
        return None
