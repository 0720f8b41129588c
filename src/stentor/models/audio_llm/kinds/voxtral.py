"""Voxtral: Whisper encoder, projector, Llama (Liu et al. 2025, arXiv 2507.13264). The prompt is mistral-common's
transcription request."""

from __future__ import annotations

import io
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stentor.audio.features import HOP, WINDOW, WhisperMel
from stentor.data.batch import Example
from stentor.errors import ConfigError, DataError, require
from stentor.models.audio_llm.processor import AudioLLMProcessor, PromptParts
from stentor.models.collate import mask_features
from stentor.text.languages import among, table

if TYPE_CHECKING:
    from torch import Tensor


class TekkenProcessor(AudioLLMProcessor):
    """A model with a tokenizer of mistral-common."""

    def setup(self, config: Any) -> None:
        self.bos_id, self.pad_id = int(self._tekken.bos_id), int(self._tekken.pad_id)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        tekken = hf.tokenizer.tokenizer.instruct_tokenizer.tokenizer
        special = {"bos_token_id": tekken.bos_id, "eos_token_id": tekken.eos_id, "pad_token_id": tekken.pad_id}
        settings["text_config"] = {"vocab_size": tekken.n_words, **special, **(settings.get("text_config") or {})}

    def __getstate__(self) -> dict[str, Any]:
        # mistral-common's tokenizer knows its file only by a path that may be another one (or gone) elsewhere.
        with tempfile.TemporaryDirectory() as folder:
            self.save(Path(folder))
            files = {path.name: path.read_bytes() for path in Path(folder).iterdir()}
        return {**self.__dict__, "hf": None, "_files": files}

    def __setstate__(self, state: dict[str, Any]) -> None:
        files = state.pop("_files")
        self.__dict__.update(state)
        # The folder stays as long as the processor, which is saved by copying from it.
        self._folder = tempfile.TemporaryDirectory(prefix="stentor-voxtral-")
        for name, content in files.items():
            (Path(self._folder.name) / name).write_bytes(content)
        self.hf = self.read(self._folder.name, {})

    @property
    def _tekken(self) -> Any:
        return self.hf.tokenizer.tokenizer.instruct_tokenizer.tokenizer

    def ids(self, text: str) -> list[int]:
        return self._tekken.encode(text, bos=False, eos=False)


class Voxtral(TekkenProcessor):
    """Features, prompt and labels of Voxtral's transcription requests.

    Audio is cut into windows of 30 s (the last is filled up with silence), each of which becomes `per_window` positions
    of the language model. The log-mel of a clip is computed over all its windows at once, as VoxtralProcessor does.
    """

    model_types = ("voxtral",)
    architecture = "VoxtralForConditionalGeneration"
    tokenizer_holds = "a tekken.json"
    fixed = ("audio_tower.embed_positions.weight",)

    def setup(self, config: Any) -> None:
        super().setup(config)
        self.mel = WhisperMel(self.hf.feature_extractor.feature_size, windows=True)
        self.eos_id = int(self._tekken.eos_id)
        self.audio_id = int(self.hf.audio_token_id)
        self.per_window = self._request(None).count(self.audio_id)

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        from transformers import VoxtralProcessor, WhisperFeatureExtractor

        backend = read_tekken(name, **options)
        try:
            extractor = WhisperFeatureExtractor.from_pretrained(name, trust_remote_code=False, **options)
        except OSError:  # a tekken.json alone
            mels = (config.get("audio_config") or {}).get("num_mel_bins", 128)
            extractor = WhisperFeatureExtractor(feature_size=mels)
        # VoxtralProcessor.from_pretrained takes another tokenizer where no config.json tells it which.
        return VoxtralProcessor(extractor, backend)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any) -> None:
        super().settle(settings, hf)
        settings.setdefault("audio_token_id", hf.audio_token_id)

    @classmethod
    def inspect(cls, config: Any) -> None:
        width, inner = config.audio_config.hidden_size, config.audio_config.intermediate_size
        if inner != 4 * width:
            raise ConfigError(
                f"model.config.audio_config: intermediate_size must be 4 * hidden_size ({4 * width}, not {inner}): "
                "four frames side by side are one position of the language model."
            )

    # Prompt

    def _request(self, language: str | None) -> list[int]:
        """Prompt tokens of a clip of one window, from mistral-common itself."""
        import numpy as np
        import soundfile
        from mistral_common.protocol.transcription.request import TranscriptionRequest

        clip = io.BytesIO()
        soundfile.write(clip, np.zeros(self.sample_rate, np.float32), self.sample_rate, format="WAV")
        request = TranscriptionRequest.from_openai({"model": "voxtral", "file": clip, "language": language})
        return self.hf.tokenizer.tokenizer.encode_transcription(request).tokens

    def _prompt_parts(self, language: str | None, context: str | None, translate: bool) -> PromptParts:
        ids = self._request(code(language))
        first = ids.index(self.audio_id)
        return ids[:first], ids[first + ids.count(self.audio_id) :]

    def positions(self, samples: int) -> int:
        return self.windows(samples) * self.per_window

    @staticmethod
    def windows(samples: int) -> int:
        """Windows of 30 s that a clip takes."""
        return max(1, math.ceil(samples / WINDOW))

    # Batches

    def features(self, examples: Sequence[Example]) -> Tensor:
        """Log-mel [windows of all clips, mels, 3000], the windows of a clip one after the other."""
        import numpy as np
        import torch

        clips = [np.asarray(e.audio, np.float32) for e in examples]
        mels, lengths = self.mel([clip if len(clip) else np.zeros(1, np.float32) for clip in clips])
        mask_features(mels, lengths, examples)
        windows = mels.unflatten(2, (-1, WINDOW // HOP)).transpose(1, 2)
        counts = [self.windows(len(clip)) for clip in clips]
        if min(counts) == max(counts):  # no copy of clips up to 30 s
            return windows.flatten(0, 1)
        return torch.cat([row[:count] for row, count in zip(windows, counts)])

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        return {"input_features": self.features(examples)}

    def generation_config(self) -> Any:
        from transformers import GenerationConfig

        return GenerationConfig(bos_token_id=self.bos_id, eos_token_id=self.eos_id, pad_token_id=self.pad_id)


def code(language: str | None) -> str | None:
    """The code of two letters (ISO 639-1) of a language named by code, locale (`en-US`) or English name; None when none
    is named. Raises DataError for a language without such a code: transcription requests name no other."""
    known = among(language, tuple(name for name in table() if len(name) == 2))
    if known is not None or not (language or "").strip():
        return known
    raise DataError(
        f"Voxtral's prompt can name no language {language!r}: give a code of two letters (ISO 639-1) such as en or fr, "
        "or leave the language out to detect it."
    )


def read_tekken(name: str, **options: Any) -> Any:
    """transformers' tokenizer around mistral-common's, of a folder or Hub id. Raises ConfigError when mistral-common is
    not installed, OSError and ValueError when there is no tokenizer."""
    require("voxtral", "Voxtral")
    from transformers import MistralCommonBackend  # type: ignore[attr-defined]

    return MistralCommonBackend.from_pretrained(name, trust_remote_code=False, **options)
