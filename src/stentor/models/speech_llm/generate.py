"""Decoding of the speech LLM: its language model with a KV cache, for `stentor.models.decoding`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from stentor.models.decoding import Result, search

if TYPE_CHECKING:
    from stentor.models.speech_llm.modeling import SpeechLLMModel


class _Decoder:
    """The language model with its cache: one call per step, rows may be reordered, repeated or dropped."""

    def __init__(self, model: SpeechLLMModel, inputs: dict[str, Tensor]):
        from transformers import DynamicCache

        self.model = model
        hidden, _ = model.frames(inputs["features"], inputs["feature_lengths"])
        embeds = model.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
        self.mask = inputs["attention_mask"]
        self.position = inputs["position_ids"][:, -1:]
        self.cache = DynamicCache(config=model.llm.config)
        self.log_probs = self._run(embeds, inputs["position_ids"])

    def _run(self, embeds: Tensor, positions: Tensor) -> Tensor:
        self.state = self.model.llm.base_model(
            inputs_embeds=embeds,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        head = self.model.head(self.state)
        if "logits" not in head:
            head["logits"] = torch.nn.functional.linear(head["hidden"], head["weight"], head["bias"])
        return head["logits"].float().log_softmax(-1)

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B]; afterwards `state` [B, width] is theirs, and `log_probs` [B, V] is about the next one."""
        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        self.log_probs = self._run(self.model.llm.get_input_embeddings()(tokens[:, None]), self.position)

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.mask, self.position = self.mask[rows], self.position[rows]
        self.log_probs = self.log_probs[rows]
        self.cache.batch_select_indices(rows)


@torch.no_grad()
def generate(
    model: SpeechLLMModel,
    inputs: dict[str, Tensor],
    max_new_tokens: int | list[int],
    eos_ids: set[int],
    beams: int = 1,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    length_penalty: float = 1.0,
    states: list[list[Tensor]] | None = None,
) -> list[Result]:
    """Token ids (end token left out) and their log-probabilities under the model, for each item of a batch.

    `inputs` come from the processor's `collate(labels=False)`; `max_new_tokens` is one limit or one for each item.
    `beams` > 1 searches for the answer with the best sum of log-probabilities / length ** `length_penalty`;
    `temperature` > 0 samples instead (with `generator`, on the device of the model). The model should be in evaluation
    mode. A batch gives what its items give one by one, up to rounding.

    An empty list as `states`, for greedy decoding with one end id, is filled with the last hidden states [width] of
    each item's tokens and of the end token after them: those of a teacher-forced pass over the same tokens.
    """
    rows = len(inputs["input_ids"])
    limits = [max_new_tokens] * rows if isinstance(max_new_tokens, int) else list(max_new_tokens)
    with steady_attention(model):
        decoder = _Decoder(model, inputs)
        return search(decoder, limits, eos_ids, beams, temperature, generator, length_penalty, states)


@contextmanager
def steady_attention(model: SpeechLLMModel) -> Iterator[None]:
    """SDPA in place of flex_attention, which would be compiled anew for the shapes of every step."""
    config = model.llm.config
    before = config._attn_implementation
    if before == "stentor_flex":
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before
