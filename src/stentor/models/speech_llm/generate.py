"""Decoding of the speech LLM: its language model with a KV cache, for `stentor.models.decoding.search`."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from stentor.models.decoding.search import LanguageModelDecoder, Result, answer, token_limits
from stentor.models.speech_llm.modeling import SpeechLLMModel


@torch.no_grad()
def generate(
    model: SpeechLLMModel, inputs: dict[str, Tensor], max_new_tokens: int | list[int], eos_ids: set[int], **options: Any
) -> list[Result]:
    """Token ids (end token left out) and their log-probabilities under the model, for each item of a batch.

    `inputs` come from the processor's `collate(labels=False)`; `max_new_tokens` is one limit or one for each item;
    `options` are those of `stentor.models.decoding.search.answer`. The model should be in evaluation mode. A batch gives what
    its items give one by one, up to rounding. `states`, for greedy decoding, are filled with the last hidden states of
    a teacher-forced pass over the same tokens.
    """
    with steady_attention(model):
        hidden, _ = model.frames(inputs["features"], inputs["feature_lengths"])
        embeds = model.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
        decoder = LanguageModelDecoder(
            model.llm.base_model, model.head, embeds, inputs["attention_mask"], inputs["position_ids"]
        )
        return answer(decoder, token_limits(max_new_tokens, len(embeds)), eos_ids, **options)


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
