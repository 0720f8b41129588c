"""Family `qwen3_asr`: fine-tuning of Qwen3-ASR (audio encoder with windowed attention, projector, Qwen3) for
transcription.

The model is transformers' Qwen3ASRForConditionalGeneration, the prompt is that of its processor's transcription
request, and an export is what plain transformers or PEFT loads (Shi et al. 2026, arXiv 2601.21337).
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


class Qwen3ASR(AudioLLM):
    """Qwen3-ASR, for transcription, full or with LoRA. Give records their language: where one says none, the model
    learns to name none."""

    type: Literal["qwen3_asr"] = "qwen3_asr"
    source: str | None = Field(None, alias="from")
    """Hub id or local folder of a Qwen3-ASR model in the layout of transformers, such as Qwen/Qwen3-ASR-0.6B-hf."""
    config: TransformersConfig = None
    """Build it untrained from the keys of a Qwen3ASRConfig (`audio_config`, `text_config`). Needs `tokenizer`."""
    tokenizer: str | None = None
    """Hub id or local folder with the processor (tokenizer and chat template) for a model built from `config`."""

    architecture: ClassVar[str] = "Qwen3ASRForConditionalGeneration"
    tokenizer_holds: ClassVar[str] = "the processor of a Qwen3-ASR model"

    def decoding_options(self) -> frozenset[str]:
        return super().decoding_options() | {"context"}

    @classmethod
    def can_load(cls, config: dict[str, Any]) -> bool:
        """Qwen3-ASR as transformers writes it; not the forced aligner, which has the same `model_type`."""
        return config.get("model_type") == "qwen3_asr" and cls.architecture in (config.get("architectures") or ())

    def settle(self, settings: dict[str, Any], name: str, **options: Any) -> None:
        from stentor.models.qwen3_asr.processor import END, read_processor

        processor = read_processor(name, **options)
        tokenizer = processor.tokenizer
        ends = [token for token in ("<|endoftext|>", END) if token in tokenizer.get_vocab()]
        text = {"model_type": "qwen3", "vocab_size": len(tokenizer), **(settings.get("text_config") or {})}
        audio = {"num_mel_bins": processor.feature_extractor.feature_size}
        if "hidden_size" in text:
            audio["output_dim"] = text["hidden_size"]
        settings["text_config"] = text
        settings["audio_config"] = {**audio, **(settings.get("audio_config") or {})}
        settings.setdefault("audio_token_id", processor.audio_token_id)
        settings.setdefault("pad_token_id", tokenizer.pad_token_id)
        settings.setdefault("eos_token_id", tokenizer.convert_tokens_to_ids(ends))

    def inspect(self, config: Any) -> None:
        audio, text = config.audio_config, config.text_config
        if "thinker_config" in config.to_dict():
            raise ConfigError(
                "model.from: this model is in the layout of the package qwen-asr: take the one whose name ends in -hf, "
                "or convert it with the script convert_qwen3_asr_to_hf.py of transformers."
            )
        if self.architecture not in (config.architectures or [self.architecture]):
            raise ConfigError(f"model.from: a {config.architectures[0]} does not transcribe: give a recogniser.")
        if audio.n_window != 50 or audio.n_window_infer % 100:
            raise ConfigError(
                f"model.config.audio_config: n_window must be 50 and n_window_infer a multiple of 100 (they are "
                f"{audio.n_window} and {audio.n_window_infer}): the processor cuts audio into pieces of 100 frames."
            )
        if audio.output_dim != text.hidden_size:
            raise ConfigError(
                f"model.config.audio_config: output_dim ({audio.output_dim}) must be the hidden_size of text_config "
                f"({text.hidden_size})."
            )

    def processor_of(self, name: str, config: Any, **options: Any) -> AudioLLMProcessor:
        from stentor.models.qwen3_asr.processor import Qwen3ASRTranscription, read_processor

        return Qwen3ASRTranscription(read_processor(name, **options), config, self.max_text_tokens, self.token_rate)

    def model_of(self, pretrained: torch.nn.Module, processor: AudioLLMProcessor) -> AudioLLMModel:
        from stentor.models.qwen3_asr.modeling import Qwen3ASRModel

        return Qwen3ASRModel(pretrained, processor.marker_id, processor.end_ids)  # type: ignore[attr-defined]
