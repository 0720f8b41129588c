"""Models on the frame grid that transformers has: Voxtral Realtime and Kyutai's recogniser."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch import Tensor, nn

from stentor.models.audio_llm.modeling import AudioLLMModel, PartNames
from stentor.models.delayed.modeling import DelayedModel, FrameStream

if TYPE_CHECKING:
    from stentor.models.decoding.frame_grid import FrameGrid


class GridNames(PartNames, Protocol):
    """The same, with the grid of the frames."""

    grid: FrameGrid


class GridModel(DelayedModel, AudioLLMModel):  # type: ignore[misc]  # whose generate takes fewer options
    """See `AudioLLMModel`; its parts listen to all frames at once, and the language model writes one token for each."""

    def __init__(self, pretrained: Any, processor: GridNames):
        super().__init__(pretrained, processor)
        self.grid = processor.grid
        self.window = self.language_model.config.sliding_window

    def token_embeddings(self, ids: Tensor) -> Tensor:
        return self.language_model.get_input_embeddings()(ids)  # type: ignore[no-any-return]

    def new_cache(self) -> Any:
        from transformers import DynamicCache

        return DynamicCache(config=self.language_model.config)

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        out = self.language_model(
            inputs_embeds=embeds, past_key_values=cache, use_cache=cache is not None, **conditions
        )
        return out.last_hidden_state  # type: ignore[no-any-return]

    def hidden(self, input_ids: Tensor, audio_index: Tensor, heard: Tensor | None = None, **audio: Tensor) -> Tensor:
        frames, conditions = self.listen(**audio)
        embeds = self.token_embeddings(input_ids)
        return self.read(embeds + frames[:, : input_ids.shape[1]].to(embeds.dtype), **conditions)


class VoxtralRealtimeModel(GridModel):
    """Voxtral Realtime; its language model knows the delay."""

    time_embedding: Any

    def __init__(self, pretrained: Any, processor: Any):
        super().__init__(pretrained, processor)
        self.config.default_num_delay_tokens = processor.delay

    def listen(self, input_features: Tensor, num_delay_tokens: Tensor) -> tuple[Tensor, dict[str, Any]]:  # type: ignore[override]
        """`input_features` [B, mels, 8 frames a position], the delays [B] in frames."""
        out = self._audio_features(self, input_features=input_features, use_cache=False, return_dict=True)
        frames = out.pooler_output
        embedded = [self.time_embedding(delay[None]) for delay in num_delay_tokens.to(frames.dtype)]
        return frames, {"t_cond": torch.stack(embedded)[:, None]}

    def conditions(self, delay: int) -> dict[str, Tensor]:
        embedded = self.time_embedding(self.lm_head.weight.new_tensor([delay]))
        return {"t_cond": embedded[None, None]}

    def audio_opener(self, processor: Any, delay: int) -> Callable[[], FrameStream]:
        from stentor.models.audio_llm.grid_stream import RealtimeAudio

        return partial(RealtimeAudio, self, processor, delay)


class KyutaiModel(GridModel):
    """Kyutai's recogniser: a frame is the tokens of the codec Mimi, which stays as it is."""

    def __init__(self, pretrained: Any, processor: GridNames):
        nn.Module.__init__(self)
        self.config, self.grid, self.window = pretrained.config, processor.grid, pretrained.config.sliding_window
        self.marker_id, self.end_ids = None, set()
        self.codec_model = pretrained.codec_model.requires_grad_(False)
        self.language_model, self.lm_head = pretrained.model, pretrained.lm_head

    def token_embeddings(self, ids: Tensor) -> Tensor:
        return self.language_model.embed_tokens.embed_tokens(ids)  # type: ignore[no-any-return]

    def listen(self, input_values: Tensor) -> tuple[Tensor, dict[str, Any]]:  # type: ignore[override]
        """`input_values` [B, 1, samples], whole frames. A position reads the frame before that of its token."""
        with torch.no_grad():
            codes = self.codec_model.encode(input_values).audio_codes.transpose(1, 2)
        return self.code_embeddings(torch.cat([self.first_codes().expand(len(codes), -1, -1), codes], 1)), {}

    def first_codes(self) -> Tensor:
        """The codes [1, 1, codebooks] that stand before those of the audio."""
        tables = self.language_model.embed_tokens.audio_tokens_offsets[1:]
        return torch.full_like(tables, self.config.audio_bos_token_id)[None, None]

    def code_embeddings(self, codes: Tensor) -> Tensor:
        """[B, T, codebooks] to [B, T, width]."""
        return self.token_embeddings(codes + self.language_model.embed_tokens.audio_tokens_offsets[1:]).sum(2)

    def audio_opener(self, processor: Any, delay: int) -> Callable[[], FrameStream]:
        from stentor.models.audio_llm.grid_stream import KyutaiAudio

        return partial(KyutaiAudio, self, processor)

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        if cache is None:  # transformers looks back over the window only where there is a cache
            from transformers.masking_utils import create_sliding_window_causal_mask

            conditions["attention_mask"] = create_sliding_window_causal_mask(
                config=self.language_model.config, inputs_embeds=embeds, attention_mask=None, past_key_values=None
            )
        return super().read(embeds, cache, **conditions)
