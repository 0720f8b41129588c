"""Rescoring: log-probabilities, with a gradient, of texts that a model wrote for the clips of a batch.

A model that can be trained by sequence losses takes the keyword `hypotheses` in its forward and answers under the key
`hypotheses` with `log_probs`, float32 [R]. It is a dict of the inputs of generation that are not those of training, and

* `clips`, int64 [R] in ascending order: the item that each text is for; encoder states are looked up by it;
* `targets`, int64 [R, U], -100 at padding: the tokens of the texts, where they have one with the end token;
* `temperature`: of the distributions over tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stentor.losses.token import CrossEntropy

if TYPE_CHECKING:
    from torch import Tensor

IGNORED = -100


def text_log_probs(
    head: Callable[[Tensor], dict[str, Any]], hidden: Tensor, targets: Tensor, temperature: float
) -> dict[str, Tensor]:
    """Value of a forward pass under `hypotheses`, for last hidden states [R, U, width] at the positions that predict
    `targets` [R, U]. `head` makes of states [N, width] what `CrossEntropy.sum` takes, without targets."""
    real = targets != IGNORED
    output = head(hidden[real])
    if temperature != 1:
        scaled = {"hidden", "bias"} if "hidden" in output else {"logits"}
        output = {k: v / temperature if k in scaled and v is not None else v for k, v in output.items()}
    tokens = -CrossEntropy().of_tokens(targets[real], **output)
    return {"log_probs": tokens.new_zeros(targets.shape).masked_scatter(real, tokens).sum(1)}


def prompted_states(
    language_model: Any, embeds: Tensor, attention_mask: Tensor, clips: Tensor, targets: Tensor
) -> Tensor:
    """Last hidden states [R, U, width] of a causal language model, at the positions that predict `targets` [R, U]
    behind left-padded prompts `embeds` [B, P, width] with their mask [B, P].

    Each row is moved to the left by its padding, so that, as in training, what is padding comes last and needs no mask.
    """
    import torch

    words = language_model.get_input_embeddings()(targets[:, :-1].clamp(min=0))
    rows = torch.cat([embeds[clips], words.to(embeds.dtype)], 1)
    padding = (embeds.shape[1] - attention_mask.sum(1))[clips, None]
    place = torch.arange(rows.shape[1], device=rows.device) + padding
    rows = rows.gather(1, place.clamp(max=rows.shape[1] - 1)[..., None].expand_as(rows))
    hidden = language_model(inputs_embeds=rows, use_cache=False).last_hidden_state
    before = embeds.shape[1] - 1 - padding + torch.arange(targets.shape[1], device=rows.device)
    return hidden.gather(1, before[..., None].expand(-1, -1, hidden.shape[2]))


def ctc_log_probs(log_probs: Tensor, frames: Tensor, clips: Tensor, targets: Tensor, blank: int) -> dict[str, Tensor]:
    """Value of a forward pass under `hypotheses`, for log-probabilities of CTC classes [B, T, C] of which items have
    `frames` [B]: the sum over all alignments."""
    from torch.nn import functional as F

    lengths = (targets != IGNORED).sum(1)
    scores = log_probs.float().transpose(0, 1)[:, clips]
    loss = F.ctc_loss(scores, targets.clamp(min=0), frames[clips], lengths, blank=blank, reduction="none")
    return {"log_probs": -loss}
