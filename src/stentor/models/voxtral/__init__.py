"""Family `voxtral`: fine-tuning of Mistral's Voxtral (Whisper encoder, projector, Llama) for transcription.

The model is transformers' VoxtralForConditionalGeneration, the prompt is mistral-common's transcription request, and an
export is what plain transformers or PEFT loads (Liu et al. 2025, arXiv 2507.13264).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.errors import ConfigError
from stentor.models.audio_llm import AudioLLM
from stentor.models.pretrained_section import TransformersConfig

if TYPE_CHECKING:
    import torch

    from stentor.models.audio_llm.modeling import AudioLLMModel
    from stentor.models.audio_llm.processor import AudioLLMProcessor


class Voxtral(AudioLLM):
    """Voxtral, for transcription, full or with LoRA."""

    type: Literal["voxtral"] = "voxtral"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a Voxtral model with its processor, such as mistralai/Voxtral-Mini-3B-2507."""
    config: TransformersConfig = None
    """Build it untrained from the keys of a VoxtralConfig (`audio_config`, `text_config`). Needs `tokenizer`."""
    tokenizer: str | None = None
    """Hub id or local folder with the tekken.json for a model built from `config`."""

    architecture: ClassVar[str] = "VoxtralForConditionalGeneration"
    tokenizer_holds: ClassVar[str] = "a tekken.json"
    always_float32: ClassVar[tuple[str, ...]] = ("embed_positions.weight",)

    def settle(self, settings: dict[str, Any], name: str, **options: Any) -> None:
        from stentor.models.voxtral.processor import read_processor

        mels = (settings.get("audio_config") or {}).get("num_mel_bins", 128)
        processor = read_processor(name, mels, **options)
        tekken = processor.tokenizer.tokenizer.instruct_tokenizer.tokenizer
        special = {"bos_token_id": tekken.bos_id, "eos_token_id": tekken.eos_id, "pad_token_id": tekken.pad_id}
        settings["text_config"] = {"vocab_size": tekken.n_words, **special, **(settings.get("text_config") or {})}
        settings.setdefault("audio_token_id", processor.audio_token_id)

    def inspect(self, config: Any) -> None:
        width, inner = config.audio_config.hidden_size, config.audio_config.intermediate_size
        if inner != 4 * width:
            raise ConfigError(
                f"model.config.audio_config: intermediate_size must be 4 * hidden_size ({4 * width}, not {inner}): "
                "four frames side by side are one position of the language model."
            )

    def processor_of(self, name: str, config: Any, **options: Any) -> AudioLLMProcessor:
        from stentor.models.voxtral.processor import Transcription, read_processor

        hf = read_processor(name, config.audio_config.num_mel_bins, **options)
        return Transcription(hf, self.max_text_tokens, self.token_rate, config.text_config.max_position_embeddings)

    def model_of(self, pretrained: torch.nn.Module, processor: AudioLLMProcessor) -> AudioLLMModel:
        from stentor.models.voxtral.modeling import VoxtralModel

        return VoxtralModel(pretrained)
