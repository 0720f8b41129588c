"""Higgs Audio v2 (Boson AI 2025): a Llama in which frames of audio have feed-forward layers of their own; each codebook
is one position later than the one before it. Earlier turns, text and audio, are the voice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.models.tts.processor import IGNORED, Prompt, Sample, TTSProcessor, delayed, filled, message

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.codecs.base import AudioCodec

SYSTEM = "Generate audio following instruction."
"""The system message of the model's card."""


class HiggsAudioV2(TTSProcessor):
    """A chat whose last turn is audio. A record's `instruct` is the scene, after the system message."""

    model_types = ("higgs_audio_v2",)
    architecture = "HiggsAudioV2ForConditionalGeneration"
    tokenizer_holds = "the processor of a Higgs Audio v2 model"
    names_voice = True
    continues = False

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        tokenizer = hf.tokenizer
        codec = codec or hf.codec()
        begin, end = hf.settings["audio_stream_bos_id"], hf.settings["audio_stream_eos_id"]
        facts = {"vocab_size": len(tokenizer), "num_codebooks": codec.codebooks, "codebook_size": end + 1}
        facts |= {"audio_stream_bos_id": begin, "audio_stream_eos_id": end}
        facts |= {f"{key}_token_id": getattr(tokenizer, f"{key}_token_id") for key in ("bos", "eos", "pad")}
        for key in ("audio", "audio_bos", "audio_delay"):
            facts[f"{key}_token_id"] = tokenizer.convert_tokens_to_ids(hf.settings[f"{key}_token"])
        settings |= {**facts, **settings}

    def setup(self, config: Any) -> None:
        self.codebooks, self.vocabulary = config.num_codebooks, config.audio_stream_bos_id
        self.longest, self.more = config.max_position_embeddings, self.codebooks + 1
        self.audio_id, self.pad_id = config.audio_token_id, config.pad_token_id
        self.begin, self.end = config.audio_stream_bos_id, config.audio_stream_eos_id

    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        return self.template_ids(self.hf.render([*self._system(instruct), message("user", self.plain(text))]))

    def _system(self, instruct: str | None) -> list[dict[str, Any]]:
        return [message("system", SYSTEM), *([message("scene", self.plain(instruct))] if instruct else [])]

    def columns(self, codes: np.ndarray) -> Tensor:
        """Codes [C, T] as the model reads them, int64 [T + C + 1, C]: codebook c begins c + 1 positions late, the token
        of the beginning stands before it and that of the end behind it."""
        return delayed(codes, range(self.codebooks), self.begin, self.end, self.end)

    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], int]:
        """Inputs of transformers' forward. Learned are the codes and, of each codebook, the first token of the end."""
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ids, audio, labels = [], [], []
        for sample in samples:
            columns, frames = self.columns(sample.codes), sample.codes.shape[1]
            late = torch.arange(len(columns))[:, None] - torch.arange(self.codebooks)
            ids.append(torch.tensor([*sample.ids, *[self.audio_id] * len(columns)]))
            audio.append(columns)
            labels.append(columns.where((late > 0) & (late <= frames + 1), IGNORED))
        inputs = {
            "input_ids": pad_sequence(ids, True, self.pad_id),
            "attention_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in ids], True),
            "audio_input_ids": pad_sequence(audio, True, self.end),
            "audio_input_ids_mask": pad_sequence([torch.ones(len(row), dtype=torch.bool) for row in audio], True),
            "audio_labels": pad_sequence(labels, True, IGNORED),
        }
        return inputs, sum(s.codes.shape[1] + 1 for s in samples)

    @classmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> Tensor:
        # Each codebook's own mean, added up: all have as many targets.
        return pretrained(**inputs, num_items_in_batch=1, use_cache=False).loss  # type: ignore[no-any-return]

    def clone(self, prompt: Prompt, text: str, instruct: str | None, codes: np.ndarray, before: str) -> None:
        """A voice is an earlier turn: its text, then its audio."""
        turns = [message("user", self.plain(before)), message("assistant", ""), message("user", self.plain(text))]
        prompt.codes = self.columns(codes).T.numpy()
        ids = self.template_ids(self.hf.render([*self._system(instruct), *turns]))
        prompt.ids = filled(ids, self.audio_id, prompt.codes.shape[1])

    @classmethod
    def generate(cls, pretrained: Any, prompt: Prompt, **options: Any) -> np.ndarray:
        import torch

        config, device = pretrained.config, pretrained.audio_lm_head.weight.device
        input_ids = torch.tensor([prompt.ids], device=device)
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        before, books = 0, config.num_codebooks
        if prompt.codes is not None:
            audio = torch.as_tensor(prompt.codes.T.copy(), device=device)[None]
            before = audio.shape[1]
            mask = torch.ones(1, before, dtype=torch.bool, device=device)
            inputs |= {"audio_input_ids": audio, "audio_input_ids_mask": mask}
        most = prompt.limit + books + 1
        out = pretrained.generate(**inputs, max_new_tokens=most, return_dict_in_generate=True, **options)
        columns = out.audio_sequences[0, before:]
        ends = (columns[:, 0] == config.audio_stream_eos_id).nonzero()[:1, 0].tolist()
        frames = max(0, min([*(end - 1 for end in ends), len(columns) - books]))
        return torch.stack([columns[c + 1 : c + 1 + frames, c] for c in range(books)]).cpu().numpy()
