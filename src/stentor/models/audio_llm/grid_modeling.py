"""Models on the frame grid: at each position the language model reads the token before and a frame of audio, added."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stentor.models.audio_llm.modeling import TEXT_INPUTS, AudioLLMModel
from stentor.models.decoding import Result, head_log_probs, search

if TYPE_CHECKING:
    from stentor.models.audio_llm.grid_processor import GridProcessor

_NO_END = {-1}


class GridModel(AudioLLMModel):
    """See `AudioLLMModel`; its parts listen to all frames at once, and the language model writes one token for each."""

    times_tokens = True

    def __init__(self, pretrained: Any, processor: GridProcessor):
        super().__init__(pretrained, processor)
        self.grid = processor.grid

    def listen(self, **audio: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """What is added to the token embeddings [B, positions, width], and further inputs of the language model."""
        raise NotImplementedError

    def token_embeddings(self, ids: Tensor) -> Tensor:
        """[B, L] to [B, L, width]."""
        return self.language_model.get_input_embeddings()(ids)  # type: ignore[no-any-return]

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        """Last hidden states [B, L, width] of positions behind those in the cache."""
        out = self.language_model(
            inputs_embeds=embeds, past_key_values=cache, use_cache=cache is not None, **conditions
        )
        return out.last_hidden_state  # type: ignore[no-any-return]

    def hidden(self, input_ids: Tensor, audio_index: Tensor, **audio: Tensor) -> Tensor:
        frames, conditions = self.listen(**audio)
        embeds = self.token_embeddings(input_ids)
        return self.read(embeds + frames[:, : input_ids.shape[1]].to(embeds.dtype), **conditions)

    @torch.no_grad()
    def generate(  # type: ignore[override]
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: list[int],
        eos_ids: set[int],
        spans: list[list[tuple[float, float]]] | None = None,
        **options: Any,
    ) -> list[Result]:
        """Text tokens and their log-probabilities for each item, without pauses and word starts. An empty list as
        `spans` is filled with the first and last second of each token (see `FrameGrid.texts`). `eos_ids` are not used:
        the grid ends with the audio."""
        frames, conditions = self.listen(**{name: t for name, t in inputs.items() if name not in TEXT_INPUTS})
        decoder = GridDecoder(self, inputs["input_ids"], frames, conditions)
        results = []
        for ids, log_probs in search(decoder, max_new_tokens, _NO_END, **options):
            indices, times = self.grid.texts(ids)
            results.append(([ids[i] for i in indices], [log_probs[i] for i in indices]))
            if spans is not None:
                spans.append(times)
        return results


class GridDecoder:
    """A `GridModel` with its cache, after the tokens before the first written one were read; as `search` takes it."""

    def __init__(self, model: GridModel, start: Tensor, frames: Tensor, conditions: dict[str, Any]):
        from transformers import DynamicCache

        self.model, self.frames, self.conditions = model, frames, conditions
        self.cache = DynamicCache(config=model.language_model.config)
        self.position = 0
        self._read(start)

    def _read(self, tokens: Tensor) -> None:
        embeds = self.model.token_embeddings(tokens)
        end = self.position + tokens.shape[1]
        embeds = embeds + self.frames[:, self.position : end].to(embeds.dtype)
        self.position = end
        self.state = self.model.read(embeds, self.cache, **self.conditions)[:, -1]
        self.log_probs = head_log_probs(self.model.head(self.state))

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B], each with the next frame of its clip."""
        self._read(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.frames, self.log_probs = self.frames[rows], self.log_probs[rows]
        self.cache.batch_select_indices(rows)


class VoxtralRealtimeModel(GridModel):
    """Voxtral Realtime; its language model knows the delay."""

    time_embedding: Any

    def __init__(self, pretrained: Any, processor: Any):
        super().__init__(pretrained, processor)
        self.config.default_num_delay_tokens = processor.delay

    def listen(self, input_features: Tensor, num_delay_tokens: Tensor) -> tuple[Tensor, dict[str, Any]]:  # type: ignore[override]
        """`input_features` [B, mels, 8 frames a position], the delay in frames."""
        out = self._audio_features(self, input_features=input_features, use_cache=False, return_dict=True)
        frames = out.pooler_output
        return frames, {"t_cond": self.time_embedding(num_delay_tokens.to(frames.dtype)[None])[None]}


class KyutaiModel(GridModel):
    """Kyutai's recogniser: a frame is the tokens of the codec Mimi, which stays as it is."""

    def __init__(self, pretrained: Any, processor: GridProcessor):
        nn.Module.__init__(self)
        self.config, self.grid = pretrained.config, processor.grid
        self.marker_id, self.end_ids, self.names_language = None, set(), False
        self.codec_model = pretrained.codec_model.requires_grad_(False)
        self.language_model, self.lm_head = pretrained.model, pretrained.lm_head

    def token_embeddings(self, ids: Tensor) -> Tensor:
        return self.language_model.embed_tokens.embed_tokens(ids)  # type: ignore[no-any-return]

    def listen(self, input_values: Tensor) -> tuple[Tensor, dict[str, Any]]:  # type: ignore[override]
        """`input_values` [B, 1, samples], whole frames. A position reads the frame before that of its token."""
        with torch.no_grad():
            codes = self.codec_model.encode(input_values).audio_codes.transpose(1, 2)
        codes = nn.functional.pad(codes, (0, 0, 1, 0), value=self.config.audio_bos_token_id)
        tables = self.language_model.embed_tokens.audio_tokens_offsets[1:]
        return self.token_embeddings(codes + tables).sum(2), {}

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        if cache is None:  # transformers looks back over the window only where there is a cache
            from transformers.masking_utils import create_sliding_window_causal_mask

            conditions["attention_mask"] = create_sliding_window_causal_mask(
                config=self.language_model.config, inputs_embeds=embeds, attention_mask=None, past_key_values=None
            )
        return super().read(embeds, cache, **conditions)
