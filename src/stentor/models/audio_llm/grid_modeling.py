"""Models on the frame grid that transformers has, Voxtral Realtime and Kyutai's recogniser, and the audio of streamed
recordings: their encoders with their caches, frame by frame."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from stentor.models.audio_llm.modeling import AudioLLMModel, PartNames
from stentor.models.codecs.resample import resample
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
        return partial(RealtimeAudio, self, processor, delay)


class KyutaiModel(GridModel):
    """Kyutai's recogniser: a frame is the tokens of the codec Mimi, which stays unchanged."""

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
        """The codes [1, 1, codebooks] before those of the audio."""
        tables = self.language_model.embed_tokens.audio_tokens_offsets[1:]
        return torch.full_like(tables, self.config.audio_bos_token_id)[None, None]

    def code_embeddings(self, codes: Tensor) -> Tensor:
        """[B, T, codebooks] to [B, T, width]."""
        return self.token_embeddings(codes + self.language_model.embed_tokens.audio_tokens_offsets[1:]).sum(2)

    def audio_opener(self, processor: Any, delay: int) -> Callable[[], FrameStream]:
        return partial(KyutaiAudio, self, processor)

    def read(self, embeds: Tensor, cache: Any = None, **conditions: Any) -> Tensor:
        if cache is None:  # transformers looks back over the window only where there is a cache
            from transformers.masking_utils import create_sliding_window_causal_mask

            conditions["attention_mask"] = create_sliding_window_causal_mask(
                config=self.language_model.config, inputs_embeds=embeds, attention_mask=None, past_key_values=None
            )
        return super().read(embeds, cache, **conditions)


class RealtimeAudio(FrameStream):
    """Voxtral Realtime: log-mels after the model's silence, the caches of convolutions and attention."""

    def __init__(self, model: Any, processor: Any, delay: int):
        super().__init__()
        self.model, self.processor, self.delay = model, processor, delay
        extractor = processor.hf.feature_extractor
        self._before = processor.silence_before
        self._hop = processor.samples_a_frame
        self._centre = extractor.win_length // 2  # silence before the first window, which is around the first sample
        self._needed = self._hop - extractor.hop_length + extractor.win_length
        self._dropped = extractor.hop_length  # transformers leaves out the last column
        self._signal = np.zeros(self._centre + self._before, np.float32)
        self._caches: dict[str, Any] = {}

    def _add(self, samples: np.ndarray) -> None:
        self._signal = np.concatenate([self._signal, samples])

    def _finish(self) -> None:
        total = self.processor.positions(self.samples, self.delay) * self._hop
        self._add(np.zeros(total - self._before - self.samples + self._centre, np.float32))

    @property
    def ready(self) -> bool:
        return len(self._signal) >= self._needed

    @torch.no_grad()
    def encode(self) -> None:
        piece = np.pad(self._signal[: self._needed], (0, self._dropped))
        self._signal = self._signal[self._hop :]
        extractor = self.processor.hf.feature_extractor
        mel = extractor(piece, sampling_rate=self.processor.sample_rate, center=False).input_features
        mel = torch.as_tensor(np.asarray(mel), device=self.model.lm_head.weight.device)
        out = self.model._audio_features(
            self.model, input_features=mel, use_cache=True, return_dict=True, **self._caches
        )
        self._caches = {"padding_cache": out.padding_cache, "past_key_values": out.past_key_values}
        self.frames.append(out.pooler_output[0, 0])


class KyutaiAudio(FrameStream):
    """Kyutai: tokens of the codec Mimi, after resampling; before them the first frame, which is none of the audio."""

    PIECE = 1280
    """Samples that are resampled at a time."""
    AROUND = 64
    """Samples on either side that resampling sees, more than its filter has."""

    def __init__(self, model: Any, processor: Any):
        super().__init__()
        self.model, self.processor = model, processor
        self._before, self._behind = processor.silence()
        self._signal = np.zeros(self.AROUND, np.float32)
        self._wave = torch.zeros(self._before)
        """Samples at the rate of the codec."""
        self._resampled = 0
        self._caches: dict[str, Any] = {}
        self.frames.append(model.code_embeddings(model.first_codes())[0, 0])

    def _add(self, samples: np.ndarray) -> None:
        self._signal = np.concatenate([self._signal, samples])
        while len(self._signal) >= self.PIECE + 2 * self.AROUND:
            self._resample()

    def _finish(self) -> None:
        rate, to = self.processor.sample_rate, self.processor.rate
        total = -(-self.samples * to // rate)
        while self._resampled < total:
            short = max(0, self.PIECE + 2 * self.AROUND - len(self._signal))
            self._signal = np.pad(self._signal, (0, short))
            self._resample()
        wave = self._wave[: len(self._wave) - (self._resampled - total)]
        self._wave = torch.nn.functional.pad(wave, (0, self._behind))

    def _resample(self) -> None:
        rate, to = self.processor.sample_rate, self.processor.rate
        piece = torch.from_numpy(self._signal[: self.PIECE + 2 * self.AROUND])
        around, count = self.AROUND * to // rate, self.PIECE * to // rate
        self._wave = torch.cat([self._wave, resample(piece, rate, to)[around : around + count]])
        self._signal, self._resampled = self._signal[self.PIECE :], self._resampled + count

    @property
    def ready(self) -> bool:
        return len(self._wave) >= self.processor.frame

    @torch.no_grad()
    def encode(self) -> None:
        frame, self._wave = self._wave.split([self.processor.frame, len(self._wave) - self.processor.frame])
        frame = frame.to(self.model.lm_head.weight.device)
        out = self.model.codec_model.encode(frame[None, None], use_streaming=True, return_dict=True, **self._caches)
        self._caches = {"padding_cache": out.padding_cache, "encoder_past_key_values": out.encoder_past_key_values}
        self.frames.append(self.model.code_embeddings(out.audio_codes.transpose(1, 2))[0, 0])
