"""Pocket TTS (Kyutai 2025) and Gradium's Phonon of the same build: a small language model whose state, frame by frame,
is where a flow leads noise to the next continuous latent of the codec (arXiv 2509.06926, 2505.18825)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from stentor.errors import ConfigError
from stentor.models.tts.processor import Prompt, Sample, TTSProcessor, filled, message

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from stentor.models.codecs.base import AudioCodec

TOKENS = ("audio_prompt", "audio_latent", "audio_prompt_bos", "audio_bos")
STATISTICS_SECONDS = 300.0
"""Audio that mean and deviation of an untrained model's latents are taken from, at most."""


class PocketTTS(TTSProcessor):
    """The voice's latents, the text, then the latents to be spoken, which are the "codes" here."""

    model_types = ("pocket_tts",)
    architecture = "PocketTTSForConditionalGeneration"
    tokenizer_holds = "the processor of a Pocket TTS model"
    continues = False
    generation_keys = ("temperature", "flow_steps")

    @classmethod
    def settle(cls, settings: dict[str, Any], hf: Any, codec: AudioCodec | None) -> None:
        codec, tokenizer = codec or hf.codec(), hf.tokenizer
        facts = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
        facts |= {"latent_dim": codec.codebooks, "frame_rate": codec.frame_rate}
        for key in TOKENS:
            if token := getattr(tokenizer, f"{key}_token", None):
                facts[f"{key}_token_id"] = tokenizer.convert_tokens_to_ids(token)
        settings |= {**facts, **settings}
        head = {"latent_dim": settings["latent_dim"]}
        if "hidden_size" in settings:
            head["condition_dim"] = settings["hidden_size"]
        settings["flow_head_config"] = {**head, **(settings.get("flow_head_config") or {})}

    @classmethod
    def inspect(cls, config: Any) -> None:
        if (flow := config.flow_head_config.flow_type) != "lsd":
            raise ConfigError(
                f"model.from: its flow head is of the kind '{flow}', which transformers runs but cannot train: give a "
                "checkpoint with `flow_type: lsd`."
            )

    def setup(self, config: Any) -> None:
        self.codebooks, self.vocabulary, self.longest = config.latent_dim, None, config.max_position_embeddings
        self.config = config
        self.loss_parts = {"flow": 1.0, "end": config.eos_loss_weight}

    def fit(self, pretrained: Any, audios: Iterator[np.ndarray]) -> None:
        """Mean and deviation of the training latents. transformers has a moving average follow them during training,
        and what an item gives would depend on the batches before it."""
        import torch

        assert self.codec is not None
        latents, seconds = [], 0.0
        for audio in audios:
            latents.append(torch.from_numpy(self.codec.encode([audio])[0]))
            if (seconds := seconds + len(audio) / self.codec.sample_rate) > STATISTICS_SECONDS:
                break
        frames = torch.cat(latents, 1)
        pretrained.latent_mean.copy_(frames.mean(1))
        pretrained.latent_std.copy_(frames.std(1).clamp(min=1e-4))

    def prompt_ids(self, text: str, instruct: str | None) -> list[int]:
        return self.template_ids(self.hf.render([message("user", self.plain(text))]))

    def inputs(self, samples: Sequence[Sample]) -> tuple[dict[str, Tensor], dict[str, int]]:
        """Text and latents, noise [draws, frames, latent_dim] and `times` [draws, frames, 3] of the flow, and `ends`
        [positions of audio], which the last of each item is."""
        import numpy as np
        import torch
        from torch.nn.utils.rnn import pad_sequence

        config = self.config
        draws, ids, noise, times, jumps = config.flow_loss_num_samples, [], [], [], []
        for sample in samples:
            frames = sample.codes.shape[1]
            ids.append(torch.tensor([*sample.ids, *[config.audio_latent_token_id] * frames]))
            noise.append(sample.rng.standard_normal((draws, frames, self.codebooks), np.float32))
            logits = sample.rng.standard_normal((draws, frames, 3), np.float32)
            logits[..., 1:].sort(-1)  # a jump begins before it ends
            times.append(1 / (1 + np.exp(-logits * config.lsd_time_logit_std - config.lsd_time_logit_mean)))
            jumps.append(np.full(frames, sample.rng.random() < config.lsd_distill_probability))
        labels = [torch.from_numpy(np.ascontiguousarray(s.codes.T)) for s in samples]
        inputs = {
            "input_ids": pad_sequence(ids, True, config.pad_token_id),
            "attention_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in ids], True),
            "labels": pad_sequence(labels, True),
            "labels_mask": pad_sequence([torch.ones(len(row), dtype=torch.long) for row in labels], True),
            "noise": torch.from_numpy(np.concatenate(noise, 1)),
            "times": torch.from_numpy(np.concatenate(times, 1)),
            "jumps": torch.from_numpy(np.concatenate(jumps)),
        }
        frames = sum(map(len, labels))
        return inputs, {"flow": frames, "end": frames + len(samples)}

    @classmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """The terms of transformers' loss, with the noise and times of `inputs` instead of drawing them there."""
        import torch
        from torch.nn import functional as F

        ids, mask = inputs["input_ids"], inputs["labels_mask"]
        config = pretrained.config
        latents = (inputs["labels"] - pretrained.latent_mean) / pretrained.latent_std
        states = pretrained.model(
            input_ids=ids,
            attention_mask=inputs["attention_mask"],
            audio_latents=latents,
            audio_latents_mask=mask,
            use_cache=False,
        ).last_hidden_state
        audio = (ids == config.audio_bos_token_id) | (ids == config.audio_latent_token_id)
        states = states[audio]
        # Of each item the state before a frame predicts it, the one after the last frame the end.
        more = torch.cat([mask, torch.zeros_like(mask[:, :1])], 1).bool()
        more = more[torch.cat([torch.ones_like(mask[:, :1]), mask], 1).bool()]
        ends = pretrained.eos_head(states)[:, 0].float()
        return {
            "flow": _flow(pretrained, states[more], latents[mask.bool()], inputs),
            "end": F.binary_cross_entropy_with_logits(ends, (~more).float(), reduction="sum"),
        }

    def utterance(self, text: str, *args: Any, **options: Any) -> Prompt:
        prompt, settings = super().utterance(text, *args, **options), self.hf.settings
        short = len(text.split()) <= settings.get("short_text_max_words", 4)
        prompt.after = settings.get("frames_after_eos_short_text", 4) if short else settings.get("frames_after_eos", 2)
        return prompt

    def clone(self, prompt: Prompt, text: str, instruct: str | None, codes: np.ndarray, before: str) -> None:
        """Only the latents of a voice precede the text."""
        ids = self.template_ids(self.hf.render([message("user", "", self.plain(text))]))
        prompt.codes, prompt.ids = codes, filled(ids, self.config.audio_prompt_token_id, codes.shape[1])

    @classmethod
    def generate(cls, pretrained: Any, prompt: Prompt, **options: Any) -> np.ndarray:
        import torch

        device = pretrained.eos_head.weight.device
        input_ids = torch.tensor([prompt.ids], device=device)
        inputs = {"input_ids": input_ids, "attention_mask": torch.ones_like(input_ids)}
        inputs["frames_after_eos"] = torch.tensor([prompt.after])
        if prompt.codes is not None:
            latents = torch.as_tensor(prompt.codes.T.copy(), device=device)[None]
            inputs |= {
                "audio_prompt_latents": latents,
                "audio_prompt_latents_mask": latents.new_ones(latents.shape[:2]),
            }
        out = pretrained.generate(**inputs, max_new_tokens=prompt.limit, return_dict_in_generate=True, **options)
        return out.audio_latents[0].T.float().cpu().numpy()  # type: ignore[no-any-return]


class Phonon(PocketTTS):
    """Its voices are latents of another codec, which transformers does not have: it only has its trained voices."""

    model_types = ("gradium_phonon_tts",)
    architecture = "GradiumPhononTTSForConditionalGeneration"
    tokenizer_holds = "the processor of a Gradium Phonon model"
    clones = False

    def clone(self, prompt: Prompt, text: str, instruct: str | None, codes: np.ndarray, before: str) -> None:
        raise ConfigError(
            "Gradium's Phonon reads voices with a codec that is not published with it: leave out the voice."
        )


def _flow(pretrained: Any, conditions: Tensor, latents: Tensor, inputs: dict[str, Tensor]) -> Tensor:
    """Sum over frames of the weighted terms of the Lagrangian self-distillation, each the mean of its draws; the term
    of jumps is that of the frames in `jumps`, which their share makes up for."""
    from transformers.loss.loss_lsd import lsd_diagonal_loss, lsd_distillation_loss

    config, noise, times = pretrained.config, inputs["noise"], inputs["times"]
    draws = len(noise)

    def term(function: Any, frames: Tensor | slice, columns: slice, **options: Any) -> Tensor:
        condition, data = conditions[frames].repeat(draws, 1), latents[frames].repeat(draws, 1)
        when = times[:, frames, columns].flatten(0, 1).unbind(-1)
        moments = [moment[:, None] for moment in when]

        def velocity(x: Tensor, start: Tensor, end: Tensor) -> Tensor:
            return pretrained.flow_head(x, condition, times=[start, end])  # type: ignore[no-any-return]

        loss = function(velocity, data, noise[:, frames].flatten(0, 1), *moments, **options)
        weight = pretrained.loss_weighting(moments[0], moments[-1]).squeeze(-1)
        return (loss * weight.exp() / data.shape[-1] - weight).sum() / draws

    flow = config.lsd_diagonal_weight * term(lsd_diagonal_loss, slice(None), slice(0, 1))
    jumping = inputs["jumps"].nonzero()[:, 0]
    if len(jumping):
        share = (1 - config.lsd_diagonal_weight) / config.lsd_distill_probability
        flow = flow + share * term(lsd_distillation_loss, jumping, slice(1, 3), stop_gradient="minimal")
    return flow
