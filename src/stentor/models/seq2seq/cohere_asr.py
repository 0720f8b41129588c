"""Cohere ASR: a FastConformer encoder, and a prompt that names the language and how the text is written."""

from typing import Any

from torch import Tensor

from stentor.models.encoders.encode import adjust, encode
from stentor.models.encoders.geometry import Geometry, geometry, mask
from stentor.models.seq2seq.config import Seq2Seq
from stentor.models.seq2seq.modeling import Seq2SeqModel
from stentor.models.seq2seq.processor import Seq2SeqProcessor, language_codes
from stentor.models.seq2seq.tokenizer import byte_tokenizer

LANGUAGES = ("ar", "de", "el", "en", "es", "fr", "it", "ja", "ko", "nl", "pl", "pt", "vi", "zh")
BEFORE = ("▁", "<|startofcontext|>", "<|startoftranscript|>", "<|emo:undefined|>")
AFTER = ("<|pnc|>", "<|noitn|>", "<|notimestamp|>", "<|nodiarize|>")
"""Punctuation, numbers in words, no times, no speakers; the language comes before them, twice."""


class Processor(Seq2SeqProcessor):
    """transformers' own log-mel of clips that it does not cut, and the prompt of its processor."""

    processor_class = "CohereAsrProcessor"

    def __init__(self, tokenizer: Any, extractor: Any, config: Any, generation: dict[str, Any], family: Seq2Seq):
        super().__init__(tokenizer, extractor, config, generation, family)
        self.max_seconds = min(self.max_seconds, extractor.max_audio_clip_s)
        self.known_languages = LANGUAGES
        self.languages = {code: tokenizer.convert_tokens_to_ids(f"<|{code}|>") for code in LANGUAGES}
        self.codes = {name: code for name, code in language_codes().items() if code in LANGUAGES}

    def geometry(self, config: Any) -> Geometry:
        return geometry(config.encoder_config)

    @classmethod
    def fresh_tokenizer(cls) -> Any:
        special = ["<unk>", "<pad>", "<|endoftext|>", *BEFORE, *AFTER, *(f"<|{code}|>" for code in LANGUAGES)]
        roles = {"unk_token": "<unk>", "pad_token": "<pad>", "eos_token": "<|endoftext|>", "bos_token": BEFORE[0]}
        return byte_tokenizer(special, **roles)

    @classmethod
    def fresh_extractor(cls, config: Any) -> Any:
        from transformers import CohereAsrFeatureExtractor

        return CohereAsrFeatureExtractor(feature_size=config.encoder_config.num_mel_bins)

    def unknown_language(self, language: str | None) -> str | None:
        known = f"{self.title} knows {', '.join(LANGUAGES)}"
        if not language:
            return f"it names no language (`language`, `--language`), which this model needs; {known}"
        return None if self.code(language) else f"its language is {language!r}, and {known}"

    def prompt(self, language: str | None, translate: bool = False) -> list[int]:
        named = f"<|{self.code(language) or 'en'}|>"  # metadata may lack it where only the length counts
        return self.tokenizer.convert_tokens_to_ids([*BEFORE, named, named, *AFTER])  # type: ignore[no-any-return]


class Model(Seq2SeqModel):
    """Cohere ASR; batch norms keep their statistics, as is usual in fine-tuning."""

    def adjust(self) -> None:
        adjust(self.model.encoder, pretrained=True)

    def encoder_states(self, features: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        hidden, frames = encode(self.model.encoder, self.shape, features, lengths)
        return hidden, mask(frames, hidden.shape[1])
