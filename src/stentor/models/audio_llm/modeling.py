"""Training and decoding over the parts of a transformers model with audio encoder, projector and language model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.decoding import LanguageModelDecoder, Result, search

TEXT_INPUTS = ("input_ids", "audio_index", "attention_mask", "position_ids")
"""Inputs of a batch for generation that are not audio."""


_INNER = "model."  # transformers has all parts but the output layer below `model.`


def transformers_name(name: str) -> str:
    """transformers' name of a tensor of an `AudioLLMModel`."""
    return name if name.startswith("lm_head.") else _INNER + name


def own_name(name: str) -> str:
    """The name in an `AudioLLMModel` of a tensor of transformers' model."""
    return name.removeprefix(_INNER)


class AudioLLMModel(nn.Module):
    """Parts `audio_tower`, `multi_modal_projector`, `language_model` and `lm_head`, under the names that transformers
    has for them below `model.`.

    A part without any trainable parameter stays in evaluation mode (no dropout), also while the rest trains.
    """

    config: Any
    audio_tower: Any
    multi_modal_projector: Any
    language_model: Any
    lm_head: Any

    def __init__(self, pretrained: Any):
        """`pretrained`: transformers' model, whose parts are taken over."""
        super().__init__()
        self.config = pretrained.config
        self.audio_tower = pretrained.model.audio_tower
        self.multi_modal_projector = pretrained.model.multi_modal_projector
        self.language_model = pretrained.model.language_model
        self.lm_head = pretrained.lm_head

    def train(self, mode: bool = True) -> AudioLLMModel:
        super().train(mode)
        for part in self.children():
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        return self

    def audio(self, **inputs: Tensor) -> Tensor:
        """Positions of the language model [N, width] from the audio inputs of the processor."""
        raise NotImplementedError

    @contextmanager
    def listening(self) -> Iterator[None]:
        """The audio tower runs in this context: no graph is kept where it is frozen."""
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in self.audio_tower.parameters())
        with torch.set_grad_enabled(needed):
            yield

    def embed(self, input_ids: Tensor, audio_index: Tensor, **audio: Tensor) -> Tensor:
        """Input of the language model [B, L, width]: token embeddings, with the audio at its positions."""
        embeds = self.language_model.get_input_embeddings()(input_ids)
        flat = embeds.flatten(0, 1).index_copy(0, audio_index, self.audio(**audio).to(embeds.dtype))
        return flat.view_as(embeds)

    def head(self, hidden: Tensor) -> dict[str, Tensor]:
        """What the output layer computes from [N, width], in the form that the loss takes: `hidden` and `weight`, so
        that the loss may compute logits in chunks, or `logits` where the layer carries an adapter."""
        hidden = hidden.to(self.lm_head.weight.dtype)  # parts that are not trained may be in bfloat16
        if type(self.lm_head) is not nn.Linear:
            return {"logits": self.lm_head(hidden)}
        return {"hidden": hidden, "weight": self.lm_head.weight}

    def forward(
        self, input_ids: Tensor, audio_index: Tensor, label_index: Tensor, targets: Tensor, **audio: Tensor
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the loss term `text`, for the positions of `label_index` only; inputs as
        `AudioLLMProcessor.collate` makes them. Right padding needs no mask under causal attention."""
        embeds = self.embed(input_ids, audio_index, **audio)
        out = self.language_model(inputs_embeds=embeds, use_cache=False).last_hidden_state
        return {"text": {**self.head(out.flatten(0, 1)[label_index]), "targets": targets}}

    @torch.no_grad()
    def generate(
        self, inputs: dict[str, Tensor], max_new_tokens: list[int], eos_ids: set[int], **options: Any
    ) -> list[Result]:
        """Token ids (end token left out) and their log-probabilities for each item of a batch made for generation;
        `options` are those of `stentor.models.decoding.search`."""
        audio = {name: tensor for name, tensor in inputs.items() if name not in TEXT_INPUTS}
        embeds = self.embed(inputs["input_ids"], inputs["audio_index"], **audio)
        decoder = LanguageModelDecoder(
            self.language_model, self.head, embeds, inputs["attention_mask"], inputs["position_ids"]
        )
        return search(decoder, max_new_tokens, eos_ids, **options)
