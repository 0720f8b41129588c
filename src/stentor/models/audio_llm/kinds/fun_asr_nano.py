"""Fun-ASR-Nano: SAN-M encoder of SenseVoice, Transformer adaptor, Qwen3 (FunAudioLLM/Fun-ASR-Nano-2512-hf)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.audio.kaldi import KaldiFeatures
from stentor.data.batch import Example
from stentor.models.audio_llm.chat import ChatProcessor
from stentor.models.collate import SHORTEST, mask_features, pad_shortest

if TYPE_CHECKING:
    from torch import Tensor

    from stentor.models.audio_llm.modeling import AudioLLMModel

FBANK = KaldiFeatures(window_type="hamming", snip_edges=True, high_freq=0.0)
STACK, STRIDE = 7, 6
"""Frames side by side, and from one such stack to the next: 60 ms, one position of the language model."""


class FunAsrNano(ChatProcessor):
    """Kaldi's filter banks, seven frames side by side; the first and the last one are repeated at the ends."""

    model_types = ("fun_asr_nano",)
    architecture = "FunAsrNanoForConditionalGeneration"
    audio_token = "<|object_ref_start|>"
    tokenizer_holds = "the processor of a Fun-ASR-Nano model in the layout of transformers"
    hints = frozenset({"context"})

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        super().settle(settings, hf)
        width = settings["text_config"].get("hidden_size", 1024)
        adaptor = {"hidden_size": width, "intermediate_size": width // 4}
        settings["adaptor_config"] = {**adaptor, **(settings.get("adaptor_config") or {})}

    def setup(self, config: Any) -> None:
        from transformers.models.fun_asr_nano.processing_fun_asr_nano import LANGUAGE_CODE_TO_NAME

        super().setup(config)
        self.language_names = LANGUAGE_CODE_TO_NAME

    def conversation(self, language: str | None, context: str | None, translate: bool) -> list[dict[str, Any]]:
        content: list[dict[str, Any]] = [{"type": "audio"}]
        if context:
            content.append({"type": "text", "text": context})
        if name := self.name_of(language):
            content.append({"type": "language", "language": name})
        return [{"role": "user", "content": content}]

    def positions(self, samples: int) -> int:
        return -(-FBANK.count(max(samples, SHORTEST)) // STRIDE)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_features` [B, T, 560], zero at padding, and their mask [B, T]."""
        import torch

        stacks = []
        for example in examples:
            mel = torch.from_numpy(FBANK.extract(pad_shortest(example.audio)))
            mask_features(mel.T[None], torch.tensor([len(mel)]), [example])
            count = -(-len(mel) // STRIDE)
            rows = torch.arange(count)[:, None] * STRIDE + torch.arange(STACK) - STACK // 2
            stacks.append(mel[rows.clamp(0, len(mel) - 1)].flatten(1))
        features = torch.nn.utils.rnn.pad_sequence(stacks, batch_first=True)
        lengths = torch.tensor([[len(stack)] for stack in stacks])
        return {"input_features": features, "input_features_mask": (torch.arange(features.shape[1]) < lengths).long()}

    def model_of(self, pretrained: Any) -> AudioLLMModel:
        # Without one, transformers makes no mask for the adaptor, and padding would be read as audio.
        adaptor = pretrained.config.adaptor_config
        adaptor._attn_implementation = adaptor._attn_implementation or pretrained.config._attn_implementation
        return super().model_of(pretrained)
