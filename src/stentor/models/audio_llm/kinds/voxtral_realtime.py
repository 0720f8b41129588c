"""Voxtral Realtime (arXiv 2602.11298): a word is due when it has ended and the delay has passed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.audio_llm.grid_processor import GridProcessor
from stentor.models.audio_llm.kinds.voxtral import TekkenProcessor, read_tekken
from stentor.models.collate import mask_features
from stentor.models.decoding.frame_grid import FrameGrid
from stentor.models.delayed.config import in_frames

if TYPE_CHECKING:
    from torch import Tensor


TRAINED = (0.08, 2.4)
"""Seconds of delay that Mistral trained it with."""


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
        trained = self._audio.get_num_delay_tokens()
        if self.stream is None:
            self.delays, self.known_delays = (trained, trained), TRAINED
        else:
            least, most = self.known_delays = self.stream.limits
            self.delays = in_frames(least, self.grid.rate), in_frames(most, self.grid.rate)
        self.delay = min(max(trained, self.delays[0]), self.delays[1])
        self._audio.transcription_delay_ms = self._milliseconds(self.delay)

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
    def samples_a_frame(self) -> int:
        """At the rate of the audio."""
        return int(self._audio.raw_audio_length_per_tok)

    @property
    def silence_before(self) -> int:
        """Samples."""
        return int(self._audio.n_left_pad_tokens) * self.samples_a_frame

    def _milliseconds(self, delay: int) -> float:
        return 1000 * delay / self.grid.rate

    def start(self, delay: int) -> list[int]:
        start = self.hf.tokenizer.tokenizer.instruct_tokenizer.start()
        return [*start, *self._encoder.encode_streaming_tokens(self._milliseconds(delay))]

    def model_of(self, pretrained: Any) -> Any:
        from stentor.models.audio_llm.grid_modeling import VoxtralRealtimeModel

        return VoxtralRealtimeModel(pretrained, self)

    def ids(self, text: str) -> list[int]:
        return super().ids(text if text[:1].isspace() else f" {text}")  # the first word as all others

    def positions(self, samples: int, delay: int | None = None) -> int:
        behind = self._audio.n_right_pad_tokens(self._milliseconds(self.delay if delay is None else delay))
        return int(self._audio.n_left_pad_tokens + behind + math.ceil(samples / self.samples_a_frame))

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        import numpy as np
        import torch

        extractor = self.hf.feature_extractor
        delays = [self.delay_of(e) for e in examples]
        clips = [
            self._encoder.pad(np.asarray(e.audio, np.float32), self.sample_rate, self._milliseconds(delay))
            for e, delay in zip(examples, delays)
        ]
        mels = [extractor(clip, sampling_rate=self.sample_rate).input_features[0].T for clip in clips]
        features = torch.nn.utils.rnn.pad_sequence(mels, batch_first=True).transpose(1, 2).contiguous()
        mask_features(features, torch.tensor([len(mel) for mel in mels]), examples)
        return {"input_features": features, "num_delay_tokens": torch.tensor(delays)}

    def save(self, folder: Path) -> None:
        super().save(folder)
        path = folder / "tekken.json"
        facts = json.loads(path.read_text(encoding="utf-8"))
        facts["audio"]["transcription_delay_ms"] = self._audio.transcription_delay_ms
        path.write_text(json.dumps(facts), encoding="utf-8")
