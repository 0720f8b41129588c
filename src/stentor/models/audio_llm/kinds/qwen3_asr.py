"""Qwen3-ASR: audio encoder with windowed attention, projector, Qwen3 (Shi et al. 2026, arXiv 2601.21337).

A conversation is, with what the model writes in brackets,

    <|im_start|>system\\nCONTEXT<|im_end|>\\n<|im_start|>user\\n<|audio_start|>AUDIO<|audio_end|><|im_end|>\\n
    <|im_start|>assistant\\n[language English<asr_text>TEXT<|im_end|>]

as the processor's chat template says. A language that is known is given in generation, so that the model writes the
text alone; in training the model always learns to name it, which teaches both ways at once, as Qwen's own fine-tuning
does. Where none is known it learns to write `language None`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.audio.features import HOP, WhisperMel
from stentor.data.batch import Example, num_samples
from stentor.errors import ConfigError
from stentor.models.audio_llm.chat import ChatProcessor
from stentor.models.collate import mask_features

if TYPE_CHECKING:
    from torch import Tensor

PIECE = 100
"""Frames of one second, over which the encoder's convolutions run."""
MARKER = "<asr_text>"
END = "<|im_end|>"


class Qwen3ASR(ChatProcessor):
    """Features, prompt and labels of Qwen3-ASR's transcription requests.

    The log-mel of a clip is that of Qwen3ASRProcessor for the clip alone. Every second becomes 13 positions of the
    language model, and every 80 ms that are left one more.
    """

    model_types = ("qwen3_asr",)
    architecture = "Qwen3ASRForConditionalGeneration"
    processor = "Qwen3ASRProcessor"
    tokenizer_holds = "the processor of a Qwen3-ASR model in the layout of transformers, such as Qwen/Qwen3-ASR-0.6B-hf"
    hints = frozenset({"context"})

    def setup(self, config: Any) -> None:
        from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

        super().setup(config)
        self.mel = WhisperMel(self.hf.feature_extractor.feature_size, bare=True)
        self.eos_id, self.marker_id = self.hf.tokenizer.convert_tokens_to_ids([END, MARKER])
        self.window = config.audio_config.n_window_infer // PIECE * self._positions(PIECE)
        self.language_names = LANGUAGE_CODE_TO_NAME
        self.naming = max(len(self._naming(name)) for name in [None, *self.language_names.values()])

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        processor = super().read(name, config, **options)
        if missing := [t for t in (END, MARKER, processor.audio_token) if t not in processor.tokenizer.get_vocab()]:
            raise ConfigError(f"The processor of {name} has no token {missing[0]}: give {cls.tokenizer_holds}.")
        return processor

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        super().settle(settings, hf)
        ends = [token for token in ("<|endoftext|>", END) if token in hf.tokenizer.get_vocab()]
        text = settings["text_config"] = {"model_type": "qwen3", **settings["text_config"]}
        audio = {"num_mel_bins": hf.feature_extractor.feature_size}
        if "hidden_size" in text:
            audio["output_dim"] = text["hidden_size"]
        settings["audio_config"] = {**audio, **(settings.get("audio_config") or {})}
        settings.setdefault("pad_token_id", hf.tokenizer.pad_token_id)
        settings.setdefault("eos_token_id", hf.tokenizer.convert_tokens_to_ids(ends))

    @classmethod
    def inspect(cls, config: Any) -> None:
        audio, text = config.audio_config, config.text_config
        if "thinker_config" in config.to_dict():
            raise ConfigError(
                "model.from: this model is in the layout of the package qwen-asr: use the one whose name ends in -hf, "
                "or convert it with the script convert_qwen3_asr_to_hf.py of transformers."
            )
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

    def request_options(self, language: str | None) -> dict[str, Any]:
        return {"language": self.name_of(language)}

    def prompt_of(self, example: Example, labels: bool) -> list[int]:
        return self.prompt(None if labels else example.language, num_samples(example), example.context)

    def answer(self, text: list[int], language: str | None) -> list[int]:
        return [*self._naming(self.name_of(language)), *text, self.eos_id]

    def _naming(self, name: str | None) -> list[int]:
        return self._all_ids(f"language {name}{MARKER}")

    def named_language(self, ids: Sequence[int]) -> str | None:
        """The code of the language that the model named before its text; None when it named none."""
        name = self.hf.tokenizer.decode(list(ids)).removesuffix(MARKER).removeprefix("language ").strip()
        return next((code for code, known in self.language_names.items() if known == name), None)

    def positions(self, samples: int) -> int:
        return self._positions(max(samples, self.hf.feature_extractor.min_length) // HOP)

    @staticmethod
    def _positions(frames: int) -> int:
        """Three convolutions, each of which leaves half of the frames of a piece, rounded up."""
        return frames // PIECE * 13 + -(-(frames % PIECE) // 8)

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`input_features` [1, mels, frames], the clips one after the other, each filled up to whole pieces, so that
        none has the padding of a batch; `input_features_mask` [1, frames] is 1 where there is audio; `cu_seqlens`
        [W + 1] are the positions at which windows of attention begin and the last one ends."""
        import numpy as np
        import torch

        least = self.hf.feature_extractor.min_length
        clips = [np.asarray(e.audio, np.float32) for e in examples]
        clips = [np.pad(clip, (0, max(0, least - len(clip)))) for clip in clips]
        mels, lengths = self.mel(clips)
        mask_features(mels, lengths, examples)
        parts, windows = [], [0]
        frame_mask = []
        for mel, length in zip(mels, lengths.tolist()):
            silent = -length % PIECE
            parts += [mel[:, :length], mel.new_zeros(len(mel), silent)]
            frame_mask += [1] * length + [0] * silent
            end = windows[-1] + self._positions(length)
            windows += [*range(windows[-1] + self.window, end, self.window), end]
        return {
            "input_features": torch.cat(parts, 1)[None],
            "input_features_mask": torch.tensor(frame_mask)[None],
            "cu_seqlens": torch.tensor(windows, dtype=torch.int32),
        }
