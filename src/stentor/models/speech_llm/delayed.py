"""Speech LLM as a delayed stream: at each position the language model reads the token before, the frame of projected
audio that came last and the one whose words are due, a delay before it, added, and gets the delay as input."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.models.delayed.modeling import DelayedModel, FrameStream
from stentor.models.encoders.streaming.encoder_stream import AudioStream, ChunkEncoder, encode_chunks
from stentor.models.speech_llm.delayed_processor import DelayedSpeechProcessor
from stentor.models.speech_llm.modeling import SpeechLLMModel


class DelayedSpeechLLM(DelayedModel, SpeechLLMModel):  # type: ignore[misc]  # whose generate takes fewer options
    """See `SpeechLLMModel`; `due` projects the frames whose words are due, so that the language model need not learn to
    look back by each delay; `delay_embedding` is added at every position."""

    def __init__(self, parts: tuple[Any, Any, Any], processor: DelayedSpeechProcessor, ctc_classes: int | None = None):
        """`parts`: encoder, projector and language model."""
        encoder, projector, llm = parts
        super().__init__(encoder, processor.shape, projector, llm, ctc_classes)
        self.grid, self.window = processor.grid, processor.window
        width = llm.get_input_embeddings().weight.shape[1]
        self.delay_embedding = nn.Embedding(processor.delays[1] + 1, width)
        nn.init.normal_(self.delay_embedding.weight, std=0.02)
        self.due = nn.Linear(width, width, bias=False)

    def project(self, hidden: Tensor, delays: Tensor) -> Tensor:
        """Vectors that are added to the token embeddings [B, positions, width], from encoder frames and delays [B]."""
        audio = self.audio_embeddings(hidden)
        position = torch.arange(audio.shape[1], device=audio.device) - delays[:, None]
        earlier = audio.gather(1, position.clamp(min=0)[..., None].expand_as(audio)) * (position >= 0)[..., None]
        return self.position_embeddings(audio, earlier, delays[:, None])

    def audio_embeddings(self, hidden: Tensor) -> Tensor:
        """Projected audio [B, positions, width] of encoder frames."""
        return self.projector(hidden.to(next(self.projector.parameters()).dtype))  # type: ignore[no-any-return]

    def position_embeddings(self, audio: Tensor, due: Tensor, delays: Tensor) -> Tensor:
        """Vectors that are added to the token embeddings [..., width], of audio [..., width] that came last, of that a
        delay before it (zeros before the recording), and delays [...]."""
        return audio + self.due(due) + self.delay_embedding(delays)  # type: ignore[no-any-return]

    def listen(  # type: ignore[override]
        self, features: Tensor, feature_lengths: Tensor, delays: Tensor, chunks: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Any]]:
        return self.project(self.frames(features, feature_lengths, chunks)[0], delays), {}

    def forward(  # type: ignore[override]
        self,
        features: Tensor,
        feature_lengths: Tensor,
        delays: Tensor,
        input_ids: Tensor,
        label_index: Tensor,
        targets: Tensor,
        **options: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses `text` and, with a CTC head, `ctc`; inputs as `DelayedSpeechProcessor.collate` makes
        them. Right padding needs no mask under causal attention."""
        hidden, frames = self.frames(features, feature_lengths, options.get("chunks"))
        embeds = self.token_embeddings(input_ids)
        out = self.read(embeds + self.project(hidden, delays)[:, : input_ids.shape[1]].to(embeds.dtype))
        losses: dict[str, dict[str, Any]] = {"text": {**self.head(out.flatten(0, 1)[label_index]), "targets": targets}}
        if self.ctc_head is not None:
            losses["ctc"] = self.ctc_arguments(hidden, frames, options)
        return losses

    def token_embeddings(self, ids: Tensor) -> Tensor:
        return self.llm.get_input_embeddings()(ids)  # type: ignore[no-any-return]

    def new_cache(self) -> Any:
        from transformers.cache_utils import Cache, DynamicSlidingWindowLayer

        assert self.window is not None
        layers = self.llm.config.get_text_config().num_hidden_layers
        return Cache(layers=[DynamicSlidingWindowLayer(sliding_window=self.window) for _ in range(layers)])

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        if cache is None:
            assert self.window is not None
            position = torch.arange(embeds.shape[1], device=embeds.device)
            back = position[:, None] - position
            visible = (back >= 0) & (back < self.window)
            conditions["attention_mask"] = visible.expand(len(embeds), 1, -1, -1)
        out = self.llm.base_model(
            inputs_embeds=embeds, past_key_values=cache, use_cache=cache is not None, **conditions
        )
        return out.last_hidden_state  # type: ignore[no-any-return]

    # Streams

    def audio_opener(self, processor: Any, delay: int) -> Callable[[], FrameStream]:
        encoder = self.chunk_encoder(processor, processor.streaming.soonest)
        return partial(ChunkedAudio, self, processor, delay, encoder)

    def encode(self, recordings: Sequence[Any]) -> None:
        chunks = encode_chunks([recording.audio for recording in recordings])
        for recording, hidden in zip(recordings, chunks):
            recording.take(hidden)


class ChunkedAudio(FrameStream):
    """Audio of a recording while it comes, through an encoder that hears chunk by chunk, and the projector."""

    def __init__(self, model: DelayedSpeechLLM, processor: DelayedSpeechProcessor, delay: int, encoder: ChunkEncoder):
        super().__init__()
        self.model, self.processor, self.delay = model, processor, delay
        self.audio = AudioStream(encoder)
        self._delays = torch.tensor(delay, device=self.audio.encoder.device)
        self._hidden: Tensor | None = None
        self._earlier: Tensor | None = None
        """Projected audio [delay, width] of the last positions."""

    @property
    def ready(self) -> bool:
        return self.audio.ready

    def _add(self, samples: np.ndarray) -> None:
        self.audio.add(samples)

    def _finish(self) -> None:
        total = self.processor.positions_of(self.samples, self.delay) * self.processor.samples_a_position
        self.audio.add(np.zeros(total - self.samples, np.float32))
        self.audio.finish()

    @torch.no_grad()
    def take(self, hidden: Tensor) -> None:
        """The next frames [T, width] of the encoder; those that make no position wait for others."""
        hidden = hidden if self._hidden is None else torch.cat([self._hidden, hidden])
        count = len(hidden) // self.processor.factor
        self._hidden = hidden[count * self.processor.factor :]
        if count:
            audio = self.model.audio_embeddings(hidden[None, : count * self.processor.factor])[0]
            earlier = audio.new_zeros(self.delay, audio.shape[1]) if self._earlier is None else self._earlier
            earlier = torch.cat([earlier, audio])
            self._earlier = earlier[count:].clone()
            self.frames.extend(self.model.position_embeddings(audio, earlier[:count], self._delays))
