"""Generation: the decoder step by step for `stentor.models.decoding.search`, or the most likely path of the CTC head."""

from typing import Any

import torch
from torch import Tensor

from stentor.models.decoding.bias import Bias
from stentor.models.decoding.ctc import decode
from stentor.models.decoding.search import Result, answer
from stentor.models.transformer.modeling import TransformerModel, valid


class _StepDecoder:
    """The decoder with its states (keys and values, or the sums of linear attention); rows may be reordered, repeated
    or dropped."""

    def __init__(self, model: TransformerModel, inputs: dict[str, Tensor]):
        self.model = model
        self.context = self.mask = None
        if model.encoder is not None:
            self.context, frames = model.encode(inputs["features"], inputs["lengths"])
            self.mask = valid(frames, self.context.shape[1])
        rows = len(inputs["features" if model.encoder is not None else "tokens"])
        start = torch.full((rows, 1), model.bos, device=next(model.parameters()).device)
        self.states = model.decoder.start()
        self._read(inputs.get("tokens", start))
        self.context = self.mask = None  # the states hold what is needed of it

    def _read(self, tokens: Tensor) -> None:
        out = self.model.decoder.step(self.model.tokens(tokens), self.states, self.context, self.mask)
        self.log_probs = self.model.text_head(out[:, -1]).float().log_softmax(-1)

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B]; afterwards `log_probs` [B, V] are about the next one."""
        self._read(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Select rows of the batch, in this order; a row may come several times."""
        self.log_probs = self.log_probs[rows]
        self.states = [state.select(rows) for state in self.states]


@torch.no_grad()
def generate(
    model: TransformerModel,
    inputs: dict[str, Tensor],
    max_new_tokens: int | list[int],
    eos_ids: set[int],
    beams: int = 1,
    bias: Bias | None = None,
    best: list[list[Result]] | None = None,
    **options: Any,
) -> list[Result]:
    """Token ids (end token left out) and their log-probabilities under the model, for each item of a batch.

    `inputs` come from the processor's `collate(labels=False)`; for a language model `tokens` [B, U] are the beginning
    to go on from, start token included, and for an encoder-decoder they may be given too. `max_new_tokens` is one limit
    or one for each item. `options` are those of `stentor.models.decoding.search.answer`. The model should be in evaluation
    mode.

    A model without decoder gives classes of its CTC head, see `stentor.models.decoding.ctc`. Temperatures do
    nothing.
    """
    if model.decoder is None:
        hidden, frames = model.encode(inputs["features"], inputs["lengths"])
        return decode(model.ctc_log_probs(hidden), frames, 0, beams, bias, best)
    decoder = _StepDecoder(model, inputs)
    count = len(decoder.log_probs)
    limits = [max_new_tokens] * count if isinstance(max_new_tokens, int) else list(max_new_tokens)
    if (max_length := model.decoder.max_length) is not None:
        prefix = inputs["tokens"].shape[1] if "tokens" in inputs else 1
        limits = [min(limit, max_length - prefix) for limit in limits]
    return answer(decoder, limits, eos_ids, best, beams, bias=bias, **options)
