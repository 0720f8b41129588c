"""Kyutai's speech to text (Zeghidour et al. 2025, arXiv 2509.08753): a word is due a fixed delay after it began."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.audio_llm.grid_processor import GridProcessor
from stentor.models.decoding.frame_grid import FrameGrid
from stentor.models.text.control_tokens import text_ids

if TYPE_CHECKING:
    from torch import Tensor

WORD_START = 0  # of Moshi's tokenizers, where it says that a padding ends


class KyutaiSpeechToText(GridProcessor):
    """Audio at 24 kHz after a silence and before another one, as tokens of the codec Mimi."""

    model_types = ("kyutai_speech_to_text",)
    architecture = "KyutaiSpeechToTextForConditionalGeneration"
    tokenizer_holds = "the processor of a Kyutai speech-to-text model"
    fixed: ClassVar[tuple[str, ...]] = ("codec_model.*",)
    names = (("lm_head.", "lm_head."), ("codec_model.", "codec_model."), ("language_model.", "model."))
    lora_targets = tuple(f"language_model.*.{x}_proj.linear" for x in "qkvo")

    def setup(self, config: Any) -> None:
        extractor = self.hf.feature_extractor
        self.frame, self.rate = config.frame_size, extractor.sampling_rate
        self.pad_id, self._first = config.pad_token_id, config.bos_token_id
        if self.stream is not None:
            least, most = self.stream.limits
            if least < most:
                raise ConfigError("model.stream.delay: this model has a fixed delay: give one number of seconds.")
            extractor.audio_delay_seconds = least
        self.known_delays = (extractor.audio_delay_seconds, extractor.audio_delay_seconds)
        shift = extractor.audio_silence_prefix_seconds + extractor.audio_delay_seconds
        self.grid = FrameGrid(self.rate / self.frame, self.pad_id, WORD_START, at_end=False, shift=shift)
        self.delay = round(extractor.audio_delay_seconds * self.grid.rate)
        self.delays = (self.delay, self.delay)

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        from transformers import KyutaiSpeechToTextProcessor

        return KyutaiSpeechToTextProcessor.from_pretrained(name, trust_remote_code=False, **options)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        words = len(hf.tokenizer)  # behind them the token that a text begins with, then those of the codebooks
        settings.setdefault("vocab_size", words + 1)
        settings.setdefault("bos_token_id", words)
        tables = settings.get("num_codebooks", 32) * settings.get("codebook_vocab_size", 2049)
        settings.setdefault("audio_pad_token_id", settings["vocab_size"] + tables)
        settings.setdefault("pad_token_id", hf.tokenizer.pad_token_id)

    def model_of(self, pretrained: Any) -> Any:
        from stentor.models.audio_llm.grid_modeling import KyutaiModel

        return KyutaiModel(pretrained, self)

    def ids(self, text: str) -> list[int]:
        """Tokens of each word by itself, as in training."""
        return [i for word in text.split() for i in text_ids(self.hf.tokenizer, word)]

    def start(self, delay: int) -> list[int]:
        return [self._first]

    def silence(self) -> tuple[int, int]:
        """Samples before and behind a clip, as the feature extractor has them."""
        extractor = self.hf.feature_extractor
        behind = extractor.audio_delay_seconds + 1.0
        return int(extractor.audio_silence_prefix_seconds * self.rate), int(behind * self.rate)

    def positions(self, samples: int) -> int:
        wave = -(-samples * self.rate // self.sample_rate)
        return (sum(self.silence()) + wave) // self.frame + len(self.start_ids)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        import numpy as np
        import torch

        from stentor.models.codecs.resample import resample
        from stentor.models.collate import mask_audio

        waves = []
        for example in examples:
            clip = mask_audio(np.asarray(example.audio, np.float32), example)
            wave = resample(torch.from_numpy(clip), self.sample_rate, self.rate)
            wave = torch.nn.functional.pad(wave, self.silence())
            waves.append(wave[: len(wave) // self.frame * self.frame])
        return {"input_values": torch.nn.utils.rnn.pad_sequence(waves, batch_first=True)[:, None]}
