"""Granite Speech: conformer encoder, Q-Former, Granite (IBM 2025, arXiv 2505.08699), and Granite Speech Plus, whose
Q-Former reads several of the encoder's layers. Granite Speech 5 is a CTC model and does not belong to this family."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.data.batch import Example
from stentor.models.audio_llm.chat import ChatProcessor
from stentor.models.collate import SHORTEST, mask_features, pad_shortest

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.models.audio_llm.modeling import AudioLLMModel

RATE, N_FFT, LENGTH, HOP, MELS = 16000, 512, 400, 160, 80


class GraniteSpeech(ChatProcessor):
    """Log-mel of HTK's filters, two frames side by side. The encoder knows no padding, so clips pass it one by one;
    what `window_size` frames of it hold becomes a few positions of the language model."""

    model_types = ("granite_speech",)
    architecture = "GraniteSpeechForConditionalGeneration"
    audio_token = "<|audio|>"
    audio_key = "audio_token_index"
    tokenizer_holds = "the tokenizer of a Granite Speech model, with its chat template"
    translates = True

    def setup(self, config: Any) -> None:
        import torch
        from transformers.audio_utils import mel_filter_bank

        super().setup(config)
        self.block, self.per_block = config.window_size, config.window_size // config.downsample_rate
        filters = mel_filter_bank(N_FFT // 2 + 1, MELS, 0.0, RATE / 2, RATE, norm=None, mel_scale="htk")
        self.filters, self.window = torch.from_numpy(filters).float(), torch.hann_window(LENGTH)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        super().settle(settings, hf)
        encoder = settings.get("encoder_config") or {}
        width = encoder.get("hidden_dim", 1024) * (1 + len(encoder.get("cat_hidden_layers") or ()))
        settings["projector_config"] = {"encoder_hidden_size": width, **(settings.get("projector_config") or {})}

    def conversation(self, language: str | None, context: str | None, translate: bool) -> list[dict[str, Any]]:
        wish = "translate the speech to English" if translate else "transcribe the speech into a written format"
        return [{"role": "user", "content": f"{self.audio_token}can you {wish}?"}]

    def positions(self, samples: int) -> int:
        frames = (max(samples, SHORTEST) // HOP + 1) // 2
        return -(-frames // self.block) * self.per_block

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_features` [1, frames of all clips, 160], the clips one after the other; `lengths` [B] in frames."""
        import torch

        features = []
        for example in examples:
            clip = torch.from_numpy(pad_shortest(example.audio))
            spectrum = torch.stft(clip, N_FFT, HOP, LENGTH, self.window, return_complex=True).abs().square()
            mel = (self.filters.T @ spectrum).clamp_(min=1e-10).log10_()
            mel = torch.maximum(mel, mel.max() - 8) / 4 + 1
            mel = mel[None, :, : mel.shape[1] // 2 * 2].contiguous()
            mask_features(mel, torch.tensor([mel.shape[2]]), [example])
            features.append(mel[0].T.reshape(-1, 2 * MELS))
        return {"input_features": torch.cat(features)[None], "lengths": torch.tensor([len(f) for f in features])}

    def model_of(self, pretrained: Any) -> AudioLLMModel:
        from stentor.models.audio_llm.modeling import ClipwiseModel

        return ClipwiseModel(pretrained, self)


class GraniteSpeechPlus(GraniteSpeech):
    """Granite Speech Plus; all that differs is in its config."""

    model_types = ("granite_speech_plus",)
    architecture = "GraniteSpeechPlusForConditionalGeneration"
