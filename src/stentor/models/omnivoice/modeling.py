"""OmniVoice model: a bidirectional language model between summed embeddings of codes and one head for all codebooks.

Names of parts and tensors are those of published checkpoints.
"""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stentor.losses.token import CrossEntropy
from stentor.models.omnivoice.generate import Prompt, speak
from stentor.models.packing.flex import block_mask, item_table

log = logging.getLogger("stentor")


def initial_std(config: Any) -> float:
    """Standard deviation of new weights beside a backbone with this config of transformers."""
    return float(config.get_text_config().to_dict().get("initializer_range", 0.02))


class OmniVoiceModel(nn.Module):
    """Codes of `codebooks` codebooks with `vocabulary` entries each, MASK (`mask_id`) among them.

    Parts: `llm` (a decoder of transformers without output layer), `audio_embeddings` [C V, H] and `audio_heads`
    [C V, H], whose rows c V ... (c + 1) V - 1 belong to codebook c.
    """

    llm: Any
    codebook_layer_offsets: Tensor

    def __init__(self, llm: Any, codebooks: int, vocabulary: int, mask_id: int):
        super().__init__()
        self.llm = llm
        self.codebooks, self.vocabulary, self.mask_id = codebooks, vocabulary, mask_id
        width = llm.get_input_embeddings().weight.shape[1]
        self.audio_embeddings = nn.EmbeddingBag(codebooks * vocabulary, width, mode="sum")
        self.audio_heads = nn.Linear(width, codebooks * vocabulary, bias=False)
        self.register_buffer("codebook_layer_offsets", torch.arange(codebooks) * vocabulary)
        std = initial_std(llm.config)
        for part in (self.audio_embeddings, self.audio_heads):
            nn.init.normal_(part.weight, std=std)
        self.weights: list[float] | None = None
        """Weights of the codebooks in the loss, as config.json names them; the model itself does not use them."""
        self._warned = False

    def embed(self, input_ids: Tensor, audio_mask: Tensor) -> Tensor:
        """Input of the language model [B, L, H] from ids [B, C, L]: the sum of a frame's embeddings where `audio_mask`
        [B, L] is set, elsewhere the text embedding of row 0."""
        # Ids of the other kind may be out of range. Both tables take part whatever is in the batch, as DDP wants.
        text = self.llm.get_input_embeddings()(input_ids[:, 0].masked_fill(audio_mask, 0))
        cells = input_ids.masked_fill(~audio_mask[:, None], 0) + self.codebook_layer_offsets[:, None]
        audio = self.audio_embeddings(cells.transpose(1, 2).flatten(0, 1)).view(*audio_mask.shape, -1)
        return torch.where(audio_mask[..., None], audio.to(text.dtype), text)

    def hidden(
        self,
        input_ids: Tensor,
        audio_mask: Tensor,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        **tables: Tensor,
    ) -> Tensor:
        """Last hidden states [B, L, H].

        Padded: `lengths` [B] are the numbers of valid positions of each row (None: all). Packed: B is 1,
        `position_ids` [1, L] restart in each item, `documents` int32 [L] number the items, and `tables` are those of
        `stentor.models.packing.flex`; without them, and on devices that flex_attention is not for, the items go through
        SDPA one beside the other.
        """
        if documents is not None:
            mask = self._packed(documents, tables)
        elif lengths is not None:
            length = audio_mask.shape[1]
            mask = torch.arange(length, device=lengths.device) < lengths[:, None]
            mask = mask[:, None, None].expand(-1, 1, length, length)
        else:
            mask = None
        out = self.llm(
            inputs_embeds=self.embed(input_ids, audio_mask),
            attention_mask=mask,
            position_ids=position_ids,
            use_cache=False,
        )
        return out.last_hidden_state.to(self.audio_heads.weight.dtype)  # of a backbone that is kept in bfloat16

    def _packed(self, documents: Tensor, tables: dict[str, Tensor]) -> Any:
        if tables and documents.is_cuda:
            return block_mask(documents, **tables, causal=False)
        if tables and not self._warned:
            self._warned = True
            log.warning(
                "model.attention: flex_attention trains on CUDA GPUs only; here packed batches go through SDPA item by "
                "item, which gives the same numbers."
            )
        return item_table(documents)

    def forward(
        self,
        input_ids: Tensor,
        audio_mask: Tensor,
        rows: Tensor,
        lengths: Tensor | None = None,
        position_ids: Tensor | None = None,
        documents: Tensor | None = None,
        hypotheses: dict[str, Tensor] | None = None,
        **targets_and_tables: Tensor,
    ) -> dict[str, dict[str, Tensor]]:
        """Arguments of the losses: for each codebook c, as `codes_c`, the hidden states of the cells to be learned and
        the output layer of that codebook; logits of other positions are never computed. And log-probabilities of
        `hypotheses`, see `rescore`.

        `rows` [N] are positions in the flattened [B L], those of codebook 0 first; `targets_0`, `targets_1`,
        ... are the codes [N_c] of each codebook; block tables and the other inputs are those of `hidden`.
        """
        targets = [targets_and_tables.pop(f"targets_{c}") for c in range(self.codebooks)]
        out = self.hidden(input_ids, audio_mask, lengths, position_ids, documents, **targets_and_tables)
        states = out.flatten(0, 1).index_select(0, rows).split([len(t) for t in targets])
        heads = self.audio_heads.weight.view(self.codebooks, self.vocabulary, -1).unbind(0)
        outputs = {
            f"codes_{c}": {"hidden": states[c], "weight": heads[c], "targets": targets[c]}
            for c in range(self.codebooks)
        }
        if hypotheses is not None:
            outputs["hypotheses"] = self.rescore(**hypotheses)
        return outputs

    def rescore(self, clips: Tensor, **inputs: Tensor) -> dict[str, Tensor]:
        """`log_probs` [R] of utterances, from a padded training batch with a row for each: the mean over its masked
        cells. `clips` [R] are the items that they are for."""
        size, rows = inputs["audio_mask"].shape[1], inputs["rows"]
        cells, count = [], 0
        for prediction in self(**inputs).values():
            scores = -CrossEntropy().of_tokens(**prediction)
            at = rows[count : count + len(scores)]
            cells.append(scores.new_zeros(len(clips) * size).index_copy(0, at, scores))
            count += len(scores)
        masked = torch.bincount(rows // size, minlength=len(clips)).clamp(min=1)
        return {"log_probs": torch.stack(cells).view(len(cells), len(clips), size).sum((0, 2)) / masked}

    def logits(self, input_ids: Tensor, audio_mask: Tensor, **layout: Tensor) -> Tensor:
        """Logits [B, C, L, V] of every position, for generation. Inputs as `hidden`."""
        out = self.audio_heads(self.hidden(input_ids, audio_mask, **layout))
        return out.unflatten(-1, (self.codebooks, self.vocabulary)).transpose(1, 2)

    def speak(self, prompts: Sequence[Prompt], **generation: Any) -> list[np.ndarray]:
        """The codes of each prompt's frames, integers [C, frames]; see `stentor.models.omnivoice.generate.speak`. Each
        is a function of its prompt and its one of `seeds` alone."""
        return speak(self, prompts, **generation)
