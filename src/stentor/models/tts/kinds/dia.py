"""Dia (Nari Labs 2025): an encoder of bytes and a decoder that predicts all codebooks of DAC at once, each a few frames
later than the first (its delay). The frames of a voice are the beginning of what it speaks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from stentor.models.codecs.base import INSIDE
from stentor.models.tts.processor import IGNORED, Prompt, Sample, TTSProcessor, delayed

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.codecs.base import AudioCodec

SPEAKER = "[S1]"
DELAYS = (0, 8, 9, 10, 11, 12, 13, 14, 15)
"""Delays of the released model."""


class Dia(TTSProcessor):
    """`[S1] text`, or a text that says itself who speaks (`[S1] ... [S2] ...`)."""

    model_types = ("dia",)
    architecture = "DiaForConditionalGeneration"
    tokenizer_holds = "the processor of a Dia model"
    blank = 0
    tags = re.compile(r"(\[S\d\])")
    generation_keys = (*TTSProcessor.generation_keys, "guidance")

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        """The parts of a DiaProcessor; of an export without its codec, which lies beside."""
        from transformers import DiaFeatureExtractor, DiaProcessor, DiaTokenizer

        if not (Path(name) / INSIDE).is_dir():
            return DiaProcessor.from_pretrained(name, trust_remote_code=False, **options)
        parts = (part.from_pretrained(name, trust_remote_code=False) for part in (DiaTokenizer, DiaFeatureExtractor))
        return SimpleNamespace(**dict(zip(("tokenizer", "feature_extractor"), parts)), audio_tokenizer=None)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        if codec is not None:
            books, entries = codec.codebooks, codec.require_tokens()
        else:
            books, entries = hf.audio_tokenizer.config.n_codebooks, hf.audio_tokenizer.config.codebook_size
        settings.setdefault("delay_pattern", [DELAYS[min(c, 8)] + max(0, c - 8) for c in range(books)])
        special = {"eos_token_id": entries, "pad_token_id": entries + 1, "bos_token_id": entries + 2}
        width = (settings.get("encoder_config") or {}).get("hidden_size")
        decoder = {"num_channels": books, "vocab_size": entries + 4, **special}
        if width is not None:
            decoder["cross_hidden_size"] = width
        settings["decoder_config"] = {**decoder, **(settings.get("decoder_config") or {})}

    def setup(self, config: Any) -> None:
        decoder = config.decoder_config
        self.codebooks, self.delays = decoder.num_channels, list(config.delay_pattern)
        self.end, self.pad, self.begin = decoder.eos_token_id, decoder.pad_token_id, decoder.bos_token_id
        self.vocabulary = min(self.end, self.pad, self.begin)
        self.more = max(self.delays) + 2
        self.longest, self.longest_text = (c.max_position_embeddings for c in (decoder, config.encoder_config))

    def model_codec(self, pretrained: Any) -> AudioCodec:
        from stentor.models.codecs.neural import part_codec

        codec = part_codec(self.hf.audio_tokenizer, self.codebooks)
        self.hf.audio_tokenizer = None  # loaders take the processor along
        return codec

    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        return self.ids(text if text.lstrip().startswith("[S") else f"{SPEAKER} {text}")

    def lengths(self, text: int, frames: int) -> list[tuple[str, int, int]]:
        return [("text", text, self.longest_text), ("frames", frames - 1, self.longest)]

    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], int]:
        """`input_ids` and `attention_mask` [B, S], `decoder_input_ids` [B, L, codebooks], `labels` [B codebooks, L]."""
        import torch

        frames = [delayed(s.codes, self.delays, self.begin, self.pad, self.end) for s in samples]
        batch = torch.nn.utils.rnn.pad_sequence(frames, batch_first=True, padding_value=self.pad)
        texts = [torch.tensor(s.ids) for s in samples]
        ids = torch.nn.utils.rnn.pad_sequence(texts, batch_first=True)
        labels = batch[:, 1:].masked_fill((batch[:, 1:] == self.pad) | (batch[:, 1:] == self.begin), IGNORED)
        lengths = torch.tensor([len(text) for text in texts])
        inputs = {
            "input_ids": ids,
            "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long(),
            "decoder_input_ids": batch[:, :-1],
            "labels": labels.transpose(1, 2).flatten(0, 1).contiguous(),
        }
        return inputs, int((labels != IGNORED).sum())

    @classmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> Tensor:
        return pretrained(**inputs, num_items_in_batch=1, use_cache=False).loss

    def clone(self, prompt: Prompt, text: str, instruct: str | None, codes: np.ndarray, before: str) -> None:
        """The text of a voice comes before the text, in one."""
        prompt.codes = codes
        if before.strip():
            prompt.ids = self.prompt_ids(f"{before.strip()} {text.strip()}", instruct)

    @classmethod
    def generate(cls, pretrained: Any, prompt: Prompt, **options: Any) -> np.ndarray:
        import numpy as np
        import torch

        config = pretrained.config
        decoder, delays = config.decoder_config, config.delay_pattern
        device, most = pretrained.logits_dense.weight.device, max(delays)
        codes = prompt.codes if prompt.codes is not None else np.zeros((len(delays), 0), np.int64)
        start = delayed(codes, delays, decoder.bos_token_id, decoder.pad_token_id)[None].to(device)
        ids = torch.tensor([prompt.ids], device=device)
        out = pretrained.generate(
            input_ids=ids,
            attention_mask=torch.ones_like(ids),
            decoder_input_ids=start,
            decoder_attention_mask=torch.ones_like(start[..., 0]),
            max_new_tokens=prompt.limit + most + 1,
            **options,
        )[0]
        ends = (out[:, 0] == decoder.eos_token_id).nonzero()[:1, 0].tolist()
        end = ends[0] if ends else len(out) - most
        first = 1 + codes.shape[1]
        return torch.stack([out[first + d : end + d, c] for c, d in enumerate(delays)]).cpu().numpy()

    def save_hf(self, folder: Path) -> None:
        from transformers import DiaProcessor

        parts, codec = (self.hf.feature_extractor, self.tokenizer), cast("Any", self.codec)
        if codec.type != "dac":  # transformers' processor holds no other
            for part in parts:
                part.save_pretrained(folder)
            return
        codec.model.name_or_path = str((folder / INSIDE).resolve())
        DiaProcessor(*parts, audio_tokenizer=codec.model).save_pretrained(folder)
