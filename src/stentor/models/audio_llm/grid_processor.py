"""Examples to batches for models on the frame grid: the prompt has only the tokens of the delay, and one token is
written for each frame of the audio."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Batch, Example
from stentor.data.cut import Cut
from stentor.models.audio_llm.processor import AudioLLMProcessor, PromptParts
from stentor.models.delayed.processor import DelayedProcessor

if TYPE_CHECKING:
    from stentor.models.audio_llm.modeling import AudioLLMModel


class GridProcessor(DelayedProcessor, AudioLLMProcessor):
    """See `DelayedProcessor`. `positions` include those of `start`."""

    takes_delay = True
    pad_id: int
    eos_id = audio_id = -1  # none ends the answer, no position is for audio alone

    def model_of(self, pretrained: Any) -> AudioLLMModel:
        from stentor.models.audio_llm.grid_modeling import GridModel

        return GridModel(pretrained, self)

    @property
    def start_ids(self) -> list[int]:
        """Those of transcripts."""
        return self.start(self.delay)

    def _max_seconds(self, positions: int | None) -> float:
        return self.longest_seconds  # attention looks back over a window that slides

    def _prompt_parts(self, language: str | None, context: str | None, translate: bool) -> PromptParts:
        return self.start_ids, []

    def prompt(self, language: str | None, samples: int, *args: Any, **kwargs: Any) -> list[int]:
        return self.start_ids

    def prompt_of(self, example: Example, labels: bool) -> list[int]:
        return self.start(self.delay_of(example))

    def max_new_tokens(self, seconds: float) -> int:
        return self.positions(round(seconds * self.sample_rate)) - len(self.start_ids)

    def tokens(self, cut: Cut, seconds: float) -> int:
        longest = len(self.start(self.delays[1])) - len(self.start_ids)
        return self.positions(round(seconds * self.sample_rate)) + longest

    def collate(self, examples: Sequence[Example], packed: bool = False, labels: bool = True) -> Batch:
        return super().collate([self.draw_delay(e) for e in examples] if labels else examples, packed, labels)

    def generation_config(self) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(bos_token_id=self.start_ids[0], pad_token_id=self.pad_id, do_sample=False)

    # Targets

    def learnt(self, example: Example) -> list[int]:
        return self.place(example)[0]

    def refusal(self, example: Example, labels: bool) -> tuple[str, str] | None:
        # Without a text there is nothing to learn: a clip in which nothing is said.
        return self.misplaced(example) if labels and example.text else None
