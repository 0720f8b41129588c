"""Examples to batches for Qwen3-ASR. Holds no torch module, so that it can be sent to loader workers.

A conversation is, with what the model writes in brackets,

    <|im_start|>system\\nCONTEXT<|im_end|>\\n<|im_start|>user\\n<|audio_start|>AUDIO<|audio_end|><|im_end|>\\n
    <|im_start|>assistant\\n[language English<asr_text>TEXT<|im_end|>]

as the processor's chat template says. A language that is known is given in generation, so that the model writes the
text alone; in training the model always learns to name it, which teaches both ways at once, as Qwen's own fine-tuning
does. Where none is known it learns to write `language None`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from stentor.audio.features import HOP, WhisperMel
from stentor.data.batch import Example
from stentor.errors import ConfigError, DataError
from stentor.models.audio_llm.processor import AudioLLMProcessor
from stentor.models.collate import mask_features

PIECE = 100
"""Frames of one second, over which the encoder's convolutions run."""
MARKER = "<asr_text>"
END = "<|im_end|>"


class Qwen3ASRTranscription(AudioLLMProcessor):
    """Features, prompt and labels of Qwen3-ASR's transcription requests.

    The log-mel of a clip is that of Qwen3ASRProcessor for the clip alone: nothing in a batch depends on the other
    clips. Every second becomes 13 positions of the language model, and every 80 ms that are left one more.
    """

    def __init__(self, hf: Any, config: Any, max_text_tokens: int, token_rate: float):
        """`hf`: transformers' Qwen3ASRProcessor; `config`: the Qwen3ASRConfig of the model."""
        super().__init__(hf, max_text_tokens, token_rate)
        tokenizer = hf.tokenizer
        self.mel = WhisperMel(hf.feature_extractor.feature_size, bare=True)
        self.eos_id, self.marker_id = tokenizer.convert_tokens_to_ids([END, MARKER])
        self.end_ids = {self.eos_id, *_numbers(config.eos_token_id)}
        self.pad_id = tokenizer.pad_token_id
        self.audio_id = int(hf.audio_token_id)
        self.window = config.audio_config.n_window_infer // PIECE * self._positions(PIECE)
        self._prompts: dict[str | None, tuple[list[int], list[int]]] = {}
        self.naming = max(len(self._naming(name)) for name in [None, *languages().values()])
        """Most tokens that name a language before the transcript."""
        prompt = sum(map(len, self.around(None))) + self.naming
        free = config.text_config.max_position_embeddings - prompt - max_text_tokens - 1
        self.max_seconds = float(free // self._positions(PIECE))
        if self.max_seconds < 1:
            raise ConfigError(
                f"model.max_text_tokens: {max_text_tokens} leave no room for audio in the "
                f"{config.text_config.max_position_embeddings} positions of the language model."
            )

    def ids(self, text: str) -> list[int]:
        # Special tokens that stand in a transcript are letters like any other.
        return self.hf.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids

    # Prompt

    def around(self, language: str | None, context: str | None = None) -> tuple[list[int], list[int]]:
        if context:
            return self._around(language, context)
        if language not in self._prompts:
            self._prompts[language] = self._around(language, None)
        return self._prompts[language]

    def _around(self, language: str | None, context: str | None) -> tuple[list[int], list[int]]:
        audio = self.hf.audio_token
        (text,) = self.hf.apply_transcription_request(
            audio=np.zeros(1, np.float32),
            language=name_of(language),
            prompt=context.replace(audio, "") if context else None,
            tokenize=False,
        )
        before, after = text.split(audio)
        return self._all_ids(before), self._all_ids(after)

    def question(self, language: str | None, context: str | None, labels: bool) -> tuple[list[int], list[int]]:
        return self.around(None if labels else language, context)

    def answer(self, text: list[int], language: str | None) -> list[int]:
        return [*self._naming(name_of(language)), *text, self.eos_id]

    def _naming(self, name: str | None) -> list[int]:
        return self._all_ids(f"language {name}{MARKER}")

    def named_language(self, ids: Sequence[int]) -> str | None:
        """The code of the language that the model named before its text; None when it named none."""
        name = self.hf.tokenizer.decode(list(ids)).removesuffix(MARKER).removeprefix("language ").strip()
        return next((code for code, known in languages().items() if known == name), None)

    def _all_ids(self, text: str) -> list[int]:
        """Tokens of a text, special ones included."""
        return self.hf.tokenizer(text, add_special_tokens=False).input_ids

    # Lengths

    def positions(self, samples: int) -> int:
        return self._positions(max(samples, self.hf.feature_extractor.min_length) // HOP)

    @staticmethod
    def _positions(frames: int) -> int:
        """Three convolutions, each of which leaves half of the frames of a piece, rounded up."""
        return frames // PIECE * 13 + -(-(frames % PIECE) // 8)

    def max_new_tokens(self, seconds: float) -> int:
        return super().max_new_tokens(seconds) + self.naming

    # Batches

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        """`features` [mels, frames], `frame_mask` [frames] and `windows` [W + 1]; see `Qwen3ASRModel.audio`."""
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
            "features": torch.cat(parts, 1),
            "frame_mask": torch.tensor(frame_mask),
            "windows": torch.tensor(windows, dtype=torch.int32),
        }

    def decode(self, ids: Sequence[int]) -> str:
        """Text of generated ids, without special tokens."""
        return self.hf.tokenizer.decode(list(ids), skip_special_tokens=True)

    def generation_config(self) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(
            eos_token_id=sorted(self.end_ids),
            pad_token_id=self.pad_id,
            do_sample=False,
            max_new_tokens=self.max_text_tokens + self.naming,
        )


def languages() -> dict[str, str]:
    """Codes of the languages that Qwen3-ASR was trained on, and the names that it knows them by."""
    from transformers.models.qwen3_asr.processing_qwen3_asr import LANGUAGE_CODE_TO_NAME

    return LANGUAGE_CODE_TO_NAME


def name_of(language: str | None) -> str | None:
    """The name that Qwen3-ASR has for a language given by code, locale (`en-US`) or English name; None when none is
    given. Raises DataError for another language."""
    name = (language or "").strip().lower()
    if not name:
        return None
    names = {n.lower(): n for n in languages().values()} | languages()
    for word in (name, name.replace("_", "-").partition("-")[0]):
        if word in names:
            return names[word]
    known = ", ".join(f"{code} ({name})" for code, name in sorted(languages().items()))
    raise DataError(
        f"Qwen3-ASR knows no language {language!r}: there is {known}. Leave the language out to have it found out."
    )


def read_processor(name: str, **options: Any) -> Any:
    """transformers' Qwen3ASRProcessor of a folder or Hub id. Raises OSError or ValueError when there is none, and
    ConfigError when it is not that of a recogniser."""
    from transformers import Qwen3ASRProcessor

    processor = Qwen3ASRProcessor.from_pretrained(name, trust_remote_code=False, **options)
    missing = [t for t in (END, MARKER, processor.audio_token) if t not in processor.tokenizer.get_vocab()]
    if missing or not processor.chat_template:
        what = f"token {missing[0]}" if missing else "chat template"
        raise ConfigError(
            f"The processor of {name} has no {what}: give the folder or Hub id of a Qwen3-ASR model in the layout of "
            "transformers, such as Qwen/Qwen3-ASR-0.6B-hf."
        )
    return processor


def _numbers(ids: int | Sequence[int]) -> list[int]:
    return [ids] if isinstance(ids, int) else list(ids)
