"""Voxtral for training and decoding, over the parts of transformers' VoxtralForConditionalGeneration."""

from typing import Any

from torch import Tensor

from stentor.models.audio_llm.modeling import AudioLLMModel


class VoxtralModel(AudioLLMModel):
    """See `AudioLLMModel`."""

    def __init__(self, pretrained: Any):
        super().__init__(pretrained)
        # Fixed sinusoids; loading makes them trainable.
        self.audio_tower.embed_positions.requires_grad_(False)

    def audio(self, features: Tensor) -> Tensor:  # type: ignore[override]
        """Positions of the language model [windows * 375, width] from log-mel windows [windows, mels, 3000]."""
        with self.listening():
            hidden = self.audio_tower(features).last_hidden_state
        # Four encoder frames side by side make one position.
        hidden = hidden.reshape(-1, self.config.audio_config.intermediate_size)
        return self.multi_modal_projector(hidden.to(self.multi_modal_projector.linear_1.weight.dtype))
