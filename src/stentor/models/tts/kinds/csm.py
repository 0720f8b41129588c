"""CSM (Sesame 2025): a language model reads and predicts frames of Mimi, the first codebook by itself, the others with
a small decoder. Earlier turns, text and audio, give the voice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.models.tts.processor import IGNORED, Prompt, Sample, TTSProcessor

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.codecs.base import AudioCodec


class Csm(TTSProcessor):
    """`[speaker]text` between the tokens of a turn, then its frames and one of code 0 alone, which ends it."""

    model_types = ("csm",)
    architecture = "CsmForConditionalGeneration"
    tokenizer_holds = "the processor of a CSM model"
    fixed = ("codec_model.*",)
    lora_targets = tuple(f"{part}.*.{x}_proj" for part in ("backbone_model", "depth_decoder") for x in "qkvo")
    names_voice = True

    @classmethod
    def read(cls, name: str, config: dict[str, Any], **options: Any) -> Any:
        from transformers import CsmProcessor

        return CsmProcessor.from_pretrained(name, trust_remote_code=False, **options)

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        tokenizer = hf.tokenizer
        facts = {"text_vocab_size": len(tokenizer), "bos_token_id": tokenizer.bos_token_id}
        facts |= {"audio_token_id": hf.audio_token_id, "audio_eos_token_id": hf.audio_eos_token_id}
        settings |= {**facts, "pad_token_id": hf.audio_token_id, **settings}
        if codec is not None:
            settings |= {"num_codebooks": codec.codebooks, "vocab_size": codec.require_tokens() + 3}
            settings.setdefault("codebook_pad_token_id", codec.require_tokens() + 2)
        # The decoder reads the backbone's states and embeddings.
        shared = {"backbone_hidden_size": "hidden_size", "num_codebooks": "num_codebooks", "vocab_size": "vocab_size"}
        depth = {theirs: settings[ours] for theirs, ours in shared.items() if ours in settings}
        settings["depth_decoder_config"] = {**depth, **(settings.get("depth_decoder_config") or {})}

    def setup(self, config: Any) -> None:
        self.codebooks, self.vocabulary = config.num_codebooks, config.codebook_pad_token_id
        self.longest, self.more = config.max_position_embeddings, 1
        self.audio_id, self.audio_end = config.audio_token_id, config.audio_eos_token_id
        self.end_code = config.codebook_eos_token_id

    def model_codec(self, pretrained: Any) -> AudioCodec:
        from stentor.models.codecs.neural import part_codec

        if not any(
            entries.any() for name, entries in pretrained.codec_model.named_buffers() if name.endswith("embed_sum")
        ):
            raise ConfigError(
                "model.codec: the codec inside a new CSM is untrained, all its codes are 0: add `codec: {type: mimi}`, "
                "or `codec: {type: mel_rvq}`, which is fitted on the training data."
            )
        return part_codec(pretrained.codec_model, self.codebooks)

    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        """`instruct` is the speaker, in published models a number; without one it is 0."""
        tokenizer = self.tokenizer
        return [tokenizer.bos_token_id, *self.ids(f"[{instruct or 0}]{text}"), tokenizer.eos_token_id]

    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], int]:
        """`input_ids` [B, L], `codes` [N, codebooks] of the positions of audio, in order, and `labels` [B, L,
        codebooks]."""
        import torch

        width = max(len(s.ids) + s.codes.shape[1] + 1 for s in samples)
        ids = torch.full((len(samples), width), self.tokenizer.bos_token_id)
        labels = torch.full((len(samples), width, self.codebooks), IGNORED)
        frames = []
        for i, sample in enumerate(samples):
            codes = torch.as_tensor(sample.codes).long().T
            end, start = len(sample.ids) + len(codes), len(sample.ids)
            ids[i, : end + 1] = torch.tensor([*sample.ids, *[self.audio_id] * len(codes), self.audio_end])
            frames.append(torch.cat([codes, codes.new_full((1, self.codebooks), self.end_code)]))
            labels[i, start : end + 1] = frames[-1]
        return {"input_ids": ids, "codes": torch.cat(frames), "labels": labels}, sum(map(len, frames))

    @classmethod
    def embed(cls, pretrained: Any, input_ids: Tensor, codes: Tensor) -> Tensor:
        """Input of the backbone [B, L, H]: embeddings of text, and of frames [N, codebooks] at the N positions of
        audio."""
        config = pretrained.config
        audio = (input_ids == config.audio_token_id) | (input_ids == config.audio_eos_token_id)
        embeds = pretrained.embed_text_tokens(input_ids)
        frames = pretrained.backbone_model.embed_tokens(codes[None])[0].to(embeds.dtype)
        return embeds.masked_scatter(audio[..., None], frames)

    @classmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> Tensor:
        embeds = cls.embed(pretrained, inputs["input_ids"], inputs["codes"])
        out = pretrained(inputs_embeds=embeds, labels=inputs["labels"], num_items_in_batch=1, use_cache=False)
        # Of each frame the decoder's mean over its codebooks.
        return out.backbone_loss + out.depth_decoder_loss / (pretrained.config.num_codebooks - 1)

    @classmethod
    def generate(cls, pretrained: Any, prompt: Prompt, **options: Any) -> np.ndarray:
        import torch

        config, device = pretrained.config, pretrained.lm_head.weight.device
        ids = list(prompt.ids)
        frames = torch.zeros(0, config.num_codebooks, dtype=torch.long, device=device)
        if prompt.codes is not None:
            frames = torch.as_tensor(prompt.codes, device=device).long().T
            audio = [config.audio_token_id] * len(frames)
            if prompt.before is None:
                ids += audio
            else:
                ids = [*prompt.before, *audio, config.audio_eos_token_id, *ids]
                frames = torch.cat([frames, frames.new_full((1, config.num_codebooks), config.codebook_eos_token_id)])
        input_ids = torch.tensor([ids], device=device)
        depth = {f"depth_decoder_{name}": value for name, value in options.items()}
        inputs = {"inputs_embeds": cls.embed(pretrained, input_ids, frames)}
        codes = pretrained.generate(**inputs, max_new_tokens=prompt.limit, use_cache=True, **options, **depth)[0]
        ends = (codes[:, :-1] == config.codebook_eos_token_id).all(-1).nonzero()[:1, 0].tolist()
        return codes[: ends[0] if ends else None].T.cpu().numpy()
