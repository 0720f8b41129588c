"""Qwen3-ASR for training and decoding, over the parts of transformers' Qwen3ASRForConditionalGeneration."""

from typing import Any

from torch import Tensor

from stentor.models.audio_llm.modeling import AudioLLMModel
from stentor.models.decoding import Result


class Qwen3ASRModel(AudioLLMModel):
    """See `AudioLLMModel`. What it generates up to `marker_id` names the language and is no part of the text."""

    names_language = True

    def __init__(self, pretrained: Any, marker_id: int, end_ids: set[int]):
        """`marker_id`: the token after which the transcript begins; `end_ids`: all tokens that end an answer."""
        super().__init__(pretrained)
        self.marker_id, self.end_ids = marker_id, end_ids

    def audio(self, features: Tensor, frame_mask: Tensor, windows: Tensor) -> Tensor:  # type: ignore[override]
        """Positions of the language model [N, width] from log-mel [mels, frames] of all clips, each filled up to whole
        pieces of 100 frames; `frame_mask` [frames] is 1 where there is audio. `windows` [W + 1] are the positions at
        which windows of attention begin and the last one ends."""
        with self.listening():
            # One row: clips of any lengths stand one after the other, without the padding of a batch.
            hidden = self.audio_tower(
                features[None].to(self.audio_tower.conv2d1.weight.dtype), frame_mask[None], cu_seqlens=windows
            ).last_hidden_state
        return self.multi_modal_projector(hidden.to(self.multi_modal_projector.linear_1.weight.dtype))

    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: list[int],
        eos_ids: set[int],
        named: list[list[int]] | None = None,
        **options: Any,
    ) -> list[Result]:
        """See `AudioLLMModel.generate`. An empty list as `named` is filled with the tokens that name each language."""
        results = super().generate(inputs, max_new_tokens, eos_ids | self.end_ids, **options)
        if named is not None:
            named += [ids[: len(ids) - len(self._text(ids, [])[0])] for ids, _ in results]
        return [self._text(ids, log_probs) for ids, log_probs in results]

    def _text(self, ids: list[int], log_probs: list[float]) -> Result:
        begin = ids.index(self.marker_id) + 1 if self.marker_id in ids else 0
        return ids[begin:], log_probs[begin:]
