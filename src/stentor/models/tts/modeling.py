"""Training and speaking with a model of transformers, under its own names of parts and tensors."""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor, nn

TABLES = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules")
NAMES = {"guidance": "guidance_scale", "flow_steps": "num_flow_steps"}
"""Arguments of `generate` whose names are others."""


class Kind(Protocol):
    """Settings that a model gets from its processor, whose class computes with transformers' model."""

    fixed: ClassVar[tuple[str, ...]]
    generation: Any
    vocabulary: int | None

    @classmethod
    def loss(cls, pretrained: Any, inputs: dict[str, Tensor]) -> Tensor | dict[str, Tensor]:
        """The loss of a batch, or its parts."""

    @classmethod
    def generate(cls, pretrained: Any, prompt: Any, **options: Any) -> np.ndarray:
        """Codes [codebooks, frames] of one utterance."""


class TTSModel(nn.Module):
    """The parts of transformers' model, `pretrained`, which stands beside them and is no part itself.

    Parameters that are `fixed` are not trained; a part without any trainable parameter stays in evaluation mode.
    """

    pretrained: Any
    base_model_prefix = ""
    """peft asks for it where there are models of transformers inside."""

    def __init__(self, pretrained: Any, processor: Kind):
        super().__init__()
        self.config, self.kind = pretrained.config, type(processor)
        self.options = options_of(processor.generation)
        self.codes_end = processor.vocabulary
        self.__dict__["pretrained"] = pretrained
        # The same tables: what is moved, adapted or replaced here is so there.
        self.__dict__ |= {table: pretrained.__dict__[table] for table in TABLES}
        for name, parameter in self.named_parameters():
            if any(fnmatchcase(name, glob) for glob in processor.fixed):
                parameter.requires_grad_(False)

    def train(self, mode: bool = True) -> TTSModel:
        super().train(mode)
        self.pretrained.training = mode
        for part in self.children():
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        return self

    def forward(self, **inputs: Tensor) -> dict[str, dict[str, Tensor]]:
        """Arguments of the loss term `codes`, or its parts, which the model computes itself; inputs as
        `TTSProcessor.collate` makes them."""
        loss = self.kind.loss(self.pretrained, inputs)
        parts = {f"codes_{part}": term for part, term in loss.items()} if isinstance(loss, dict) else {"codes": loss}
        return {term: {"loss": value} for term, value in parts.items()}

    def speak(self, prompts: Sequence[Any], *, seeds: int | Sequence[int] = 0, **unmasking: Any) -> list[np.ndarray]:
        """The codes of each `tts.processor.Prompt`, integers [codebooks, frames], at least one frame.

        They are spoken one by one, each with its one of `seeds`, so that none depends on the others. Options of models
        that fill in masks (`unmasking`) are nothing here.
        """
        each = [seeds] * len(prompts) if isinstance(seeds, int) else seeds
        device = next(self.parameters()).device
        spoken = []
        for prompt, seed in zip(prompts, each, strict=True):
            with torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
                torch.manual_seed(seed)
                codes = self.kind.generate(self.pretrained, prompt, **self.options)
            codes = codes if codes.shape[1] else np.zeros((len(codes), 1), codes.dtype)
            spoken.append(codes if self.codes_end is None else codes.clip(0, self.codes_end - 1))
        return spoken


def options_of(generation: Any) -> dict[str, Any]:
    """Arguments of transformers' `generate` for the section `generation`."""
    settings = {NAMES.get(key, key): value for key, value in generation.model_dump(exclude_none=True).items()}
    temperature = settings.pop("temperature", None)
    if temperature is not None:
        settings |= {"do_sample": True, "temperature": temperature} if temperature else {"do_sample": False}
    return settings
