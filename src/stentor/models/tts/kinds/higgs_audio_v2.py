"""Higgs Audio v2 (Boson AI 2025): a Llama in which frames of audio have feed-forward layers of their own; each codebook
stands one position later than the one before it. Earlier turns, text and audio, are the voice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.models.tts.processor import Prompt, Sample, TTSProcessor
from stentor.models.tts.processor_files import ProcessorFiles, message

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.codecs.base import AudioCodec

IGNORED = -100
SYSTEM = "Generate audio following instruction."
"""What the model's card has in the place of the system."""


class HiggsAudioV2(TTSProcessor):
    """A chat whose last turn is audio. A record's `instruct` is the scene, behind the words of the system."""

    model_types = ("higgs_audio_v2",)
    architecture = "HiggsAudioV2ForConditionalGeneration"
    tokenizer_holds = "the processor of a Higgs Audio v2 model"
    names_voice = True
    continues = False

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        return ProcessorFiles(name, **options)

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
        self.longest = config.max_position_embeddings
        self.audio_id, self.pad_id = config.audio_token_id, config.pad_token_id
        self.begin, self.end = config.audio_stream_bos_id, config.audio_stream_eos_id

    def model_codec(self, pretrained: Any) -> AudioCodec:
        return self.hf.codec()  # type: ignore[no-any-return]

    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        return self.ids(self.hf.render([*self._system(instruct), message("user", text)]))

    def _system(self, instruct: str | None) -> list[dict[str, Any]]:
        return [message("system", SYSTEM), *([message("scene", instruct)] if instruct else [])]

    def tokens(self, cut: Any, seconds: float) -> int:
        return super().tokens(cut, seconds) + self.codebooks + 1

    def columns(self, codes: np.ndarray) -> np.ndarray:
        """Codes [C, T] as the model reads them, int64 [T + C + 1, C]: codebook c begins c + 1 positions late, the token
        of the beginning stands before it and that of the end behind it."""
        import numpy as np

        books, frames = codes.shape
        columns = np.full((frames + books + 1, books), self.end)
        for c in range(books):
            columns[: c + 1, c] = self.begin
            columns[c + 1 : c + 1 + frames, c] = codes[c]
        return columns

    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], int]:
        """Inputs of transformers' forward. Learned are the codes and, of each codebook, the first token of the end."""
        import numpy as np
        import torch
        from torch.nn.utils.rnn import pad_sequence

        ids, audio, labels = [], [], []
        for sample in samples:
            columns, frames = self.columns(sample.codes), sample.codes.shape[1]
            late = np.arange(len(columns))[:, None] - np.arange(self.codebooks)
            ids.append(torch.tensor([*sample.ids, *[self.audio_id] * len(columns)]))
            audio.append(torch.from_numpy(columns))
            labels.append(torch.from_numpy(np.where((late > 0) & (late <= frames + 1), columns, IGNORED)))
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

    def utterance(
        self,
        text: str,
        language: str | None = None,
        instruct: str | None = None,
        reference: Any = None,
        *args: Any,
        **options: Any,
    ) -> Prompt:
        """A reference is an earlier turn: its text, then its audio."""
        prompt = super().utterance(text, language, instruct, None, *args, **options)
        if reference is not None:
            turns = [message("user", reference[1]), message("assistant", ""), message("user", text)]
            ids = self.ids(self.hf.render([*self._system(instruct), *turns]))
            prompt.codes = self.columns(reference[0]).T
            place = ids.index(self.audio_id)
            prompt.ids = [*ids[:place], *[self.audio_id] * prompt.codes.shape[1], *ids[place + 1 :]]
        return prompt

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
