"""Voxtral Realtime (arXiv 2602.11298): a word is due when it has ended and the delay has passed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.audio_llm.frame_grid import FrameGrid
from stentor.models.audio_llm.grid_processor import GridProcessor
from stentor.models.audio_llm.kinds.voxtral import TekkenProcessor, read_tekken
from stentor.models.collate import mask_features

if TYPE_CHECKING:
    from torch import Tensor


class VoxtralRealtime(GridProcessor, TekkenProcessor):
    """mistral-common's offline requests of streams: silence, the clip, silence for the delay and the last word."""

    model_types = ("voxtral_realtime",)
    architecture = "VoxtralRealtimeForConditionalGeneration"
    tokenizer_holds = "the tekken.json of a Voxtral Realtime model"

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.grid = FrameGrid(
            self._audio.frame_rate, self._encoder.streaming_pad, self._tekken.get_special_token("[STREAMING_WORD]")
        )
        if self.delay_seconds is not None:
            frames = self.delay_seconds * self.grid.rate
            if round(frames) < 1 or not math.isclose(round(frames), frames, abs_tol=1e-6):
                raise ConfigError(
                    f"model.delay_seconds: {self.delay_seconds:g} s must be a whole number of frames of "
                    f"{1 / self.grid.rate:g} s, one at least."
                )
            self._audio.transcription_delay_ms = 1000 * self.delay_seconds
        start = self.hf.tokenizer.tokenizer.instruct_tokenizer.start()
        self.start_ids = [*start, *self._encoder.encode_streaming_tokens()]

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        from transformers import VoxtralRealtimeFeatureExtractor, VoxtralRealtimeProcessor

        tokenizer = read_tekken(name, **options)
        audio = tokenizer.tokenizer.instruct_tokenizer.audio_encoder
        if audio is None or not audio.audio_config.is_streaming:
            raise ConfigError(f"{name}: its tekken.json has no settings of a stream: give {cls.tokenizer_holds}.")
        try:
            extractor = VoxtralRealtimeFeatureExtractor.from_pretrained(name, trust_remote_code=False, **options)
        except OSError:
            extractor = VoxtralRealtimeFeatureExtractor(feature_size=audio.audio_config.encoding_config.num_mel_bins)
        return VoxtralRealtimeProcessor(extractor, tokenizer)

    @property
    def _encoder(self) -> Any:
        return self.hf.tokenizer.tokenizer.instruct_tokenizer.audio_encoder

    @property
    def _audio(self) -> Any:
        return self._encoder.audio_config

    @property
    def delay(self) -> int:
        """Frames between the end of a word and its word-start token."""
        return int(self._audio.get_num_delay_tokens())

    def model_of(self, pretrained: Any) -> Any:
        from stentor.models.audio_llm.grid_modeling import VoxtralRealtimeModel

        return VoxtralRealtimeModel(pretrained, self)

    def ids(self, text: str) -> list[int]:
        return super().ids(text if text[:1].isspace() else f" {text}")  # the first word as all others

    def positions(self, samples: int) -> int:
        silence = self._audio.n_left_pad_tokens + self._audio.n_right_pad_tokens()
        return int(silence + math.ceil(samples / self._audio.raw_audio_length_per_tok))

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        import numpy as np
        import torch

        extractor = self.hf.feature_extractor
        clips = [self._encoder.pad(np.asarray(e.audio, np.float32), self.sample_rate) for e in examples]
        mels = [extractor(clip, sampling_rate=self.sample_rate).input_features[0].T for clip in clips]
        features = torch.nn.utils.rnn.pad_sequence(mels, batch_first=True).transpose(1, 2).contiguous()
        mask_features(features, torch.tensor([len(mel) for mel in mels]), examples)
        return {"input_features": features, "num_delay_tokens": torch.tensor(self.delay)}

    def save(self, folder: Path) -> None:
        super().save(folder)
        path = folder / "tekken.json"
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts["audio"]["transcription_delay_ms"] = self._audio.transcription_delay_ms
        path.write_text(json.dumps(facts), encoding="utf-8")
