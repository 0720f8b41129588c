"""GLM-ASR: Whisper-like encoder with rotary positions, projector, Llama (zai-org/GLM-ASR-Nano-2512)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.audio.features import HOP, WINDOW, WhisperMel
from stentor.data.batch import Example
from stentor.models.audio_llm.chat import ChatProcessor
from stentor.models.collate import SHORTEST, mask_features, pad_shortest

if TYPE_CHECKING:
    from torch import Tensor


class GlmAsr(ChatProcessor):
    """Audio is cut into windows of 30 s, each padded with silence and encoded by itself; every 80 ms of audio become
    one position of the language model."""

    model_types = ("glmasr",)
    architecture = "GlmAsrForConditionalGeneration"
    processor = "GlmAsrProcessor"
    tokenizer_holds = "the processor of a GLM-ASR model"
    longest_seconds = 630.0

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.mel = WhisperMel(self.hf.feature_extractor.feature_size, pad_to_30s=True)

    def positions(self, samples: int) -> int:
        whole, rest = divmod(max(samples, SHORTEST), WINDOW)
        # A convolution leaves half of the frames, rounded up; four of them side by side make one position.
        return whole * (WINDOW // HOP // 8) + (-(-rest // HOP) + 1) // 2 // 4

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_features` [windows of all clips, mels, 3000] and their mask [windows, 3000]."""
        import torch

        clips = [pad_shortest(e.audio) for e in examples]
        windows = [clip[start : start + WINDOW] for clip in clips for start in range(0, len(clip), WINDOW)]
        owners = [e for e, clip in zip(examples, clips) for _ in range(0, len(clip), WINDOW)]
        mels, _ = self.mel(windows)
        frames = torch.tensor([-(-len(window) // HOP) for window in windows])
        mask_features(mels, frames, owners)
        return {"input_features": mels, "input_features_mask": (torch.arange(mels.shape[2]) < frames[:, None]).long()}
