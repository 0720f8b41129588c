"""Audio Flamingo 3 in Stentor: a model that transformers has and Stentor does not serve, as a plug-in.

    stentor train examples/model/audio_flamingo.yaml --plugin examples/model/audio_flamingo.py

Whisper-like encoder, projector, Qwen2 (Goel et al. 2025, arXiv 2507.08128). Everything that audio language models have
in common (batches, labels, adapters, decoding, exports) is the family's; a model says how its prompt is made, how many
positions its audio takes, and what transformers' `get_audio_features` wants.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.extend import HOP, SHORTEST, WINDOW, ChatProcessor, Example, WhisperMel, mask_features, pad_shortest

if TYPE_CHECKING:
    from torch import Tensor


class AudioFlamingo3(ChatProcessor):
    """Audio is cut into windows of 30 s, each padded with silence and encoded separately; every 40 ms of audio become
    one position of the language model."""

    model_types = ("audioflamingo3",)
    architecture = "AudioFlamingo3ForConditionalGeneration"
    processor = "AudioFlamingo3Processor"
    tokenizer_holds = "the processor of an Audio Flamingo 3 model, such as nvidia/audio-flamingo-3-hf"
    longest_seconds = 600.0

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.mel = WhisperMel(self.hf.feature_extractor.feature_size, pad_to_30s=True)

    def positions(self, samples: int) -> int:
        """A convolution leaves every second frame, a mean every second of these."""
        windows, rest = divmod(max(samples, SHORTEST), WINDOW)
        return windows * (WINDOW // HOP // 4) + (-(-rest // HOP) + 1) // 2 // 2

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_features` [windows of all clips, mels, 3000] and their mask [windows, 3000]."""
        import torch

        clips = [pad_shortest(e.audio) for e in examples]
        windows = [clip[start : start + WINDOW] for clip in clips for start in range(0, len(clip), WINDOW)]
        owners = [e for e, clip in zip(examples, clips) for _ in range(0, len(clip), WINDOW)]
        mels, _ = self.mel(windows)
        frames = torch.tensor([-(-len(window) // HOP) for window in windows])
        mask_features(mels, frames, owners)  # SpecAugment, where the run asks for it
        return {"input_features": mels, "input_features_mask": (torch.arange(mels.shape[2]) < frames[:, None]).long()}
