"""The speech LLM itself: forward for training, generation, CTC decoding."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.speech_llm.encoders import Geometry, encode
from stentor.models.speech_llm.projector import Projector


class SpeechLLMModel(nn.Module):
    """Audio encoder, projector and causal language model, with an optional CTC head on the encoder.

    Parts: `encoder`, `projector`, `llm`, `ctc_head`. A part without any trainable parameter stays in evaluation mode
    (no dropout), also while the rest trains.
    """

    def __init__(
        self, encoder: nn.Module, shape: Geometry, projector: Projector, llm: nn.Module, ctc_classes: int | None = None
    ):
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.llm = llm
        width = encoder.config.hidden_size
        self.ctc_head = nn.Linear(width, ctc_classes) if ctc_classes else None
        self.shape = shape

    def train(self, mode: bool = True) -> SpeechLLMModel:
        super().train(mode)
        for part in self.children():
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        return self

    def frames(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Encoder frames [B, T, width], zero at padding, and lengths [B]. No graph is kept for a frozen encoder."""
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in self.encoder.parameters())
        with torch.set_grad_enabled(needed):
            dtype = next(self.encoder.parameters()).dtype
            hidden, frames = encode(self.encoder, self.shape, features.to(dtype), lengths)
        if self.shape.window is not None:
            hidden = hidden[:, : int(frames.max())]
        return hidden, frames

    def embed(self, hidden: Tensor, input_ids: Tensor, audio_index: Tensor, audio_rows: Tensor) -> Tensor:
        """Input of the language model [B, L, width]: token embeddings, with projected audio at its positions.

        `audio_index` [N] are positions in the flattened [B * L] sequence, `audio_rows` [N] the rows of the flattened
        projector output that go there.
        """
        audio = self.projector(hidden.to(next(self.projector.parameters()).dtype)).flatten(0, 1)
        embeds = self.llm.get_input_embeddings()(input_ids)
        flat = embeds.flatten(0, 1).index_copy(0, audio_index, audio[audio_rows].to(embeds.dtype))
        return flat.view_as(embeds)

    def head(self, hidden: Tensor) -> dict[str, Tensor | None]:
        """What the language model's output layer computes from [N, width], in the form that the loss takes.

        `hidden` with `weight` [V, width] and `bias`, so that the loss may compute logits in chunks; `logits` [N, V]
        where the model caps its logits (Gemma 2) or the layer carries an adapter.
        """
        config = self.llm.config.get_text_config()
        if scale := getattr(config, "logit_scale", None):  # Cohere
            hidden = hidden * scale
        if scale := getattr(config, "logits_scaling", None):  # Granite
            hidden = hidden / scale
        layer = self.llm.get_output_embeddings()
        cap = getattr(config, "final_logit_softcapping", None)
        if cap:
            return {"logits": torch.tanh(layer(hidden) / cap) * cap}
        if type(layer) is not nn.Linear:
            return {"logits": layer(hidden)}
        return {"hidden": hidden, "weight": layer.weight, "bias": layer.bias}

    def forward(
        self,
        features: Tensor,
        feature_lengths: Tensor,
        input_ids: Tensor,
        audio_index: Tensor,
        audio_rows: Tensor,
        label_index: Tensor,
        targets: Tensor,
        position_ids: Tensor | None = None,
        ctc_rows: Tensor | None = None,
        ctc_targets: Tensor | None = None,
        ctc_target_lengths: Tensor | None = None,
        **flex: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses: `text` (rows of `label_index` only) and, with a CTC head, `ctc`.

        Right padding needs no mask under causal attention. `position_ids` [1, L] restarting at 0 mark the items of a
        packed batch; transformers derives the block-diagonal mask from them. `flex` are the block tables of such a
        batch for flex_attention (`stentor.models.speech_llm.flex`).
        """
        mask = None
        if flex:
            from stentor.models.speech_llm.flex import block_mask

            mask = block_mask(**flex)
        hidden, frames = self.frames(features, feature_lengths)
        embeds = self.embed(hidden, input_ids, audio_index, audio_rows)
        out = self.llm.base_model(
            inputs_embeds=embeds, attention_mask=mask, position_ids=position_ids, use_cache=False
        ).last_hidden_state
        losses = {"text": {**self.head(out.flatten(0, 1)[label_index]), "targets": targets}}
        if self.ctc_head is not None:
            losses["ctc"] = {
                "log_probs": self.ctc_log_probs(hidden)[ctc_rows].transpose(0, 1),
                "lengths": frames[ctc_rows],
                "targets": ctc_targets,
                "target_lengths": ctc_target_lengths,
            }
        return losses

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the CTC classes [B, T, C], float32, from encoder frames."""
        return self.ctc_head(hidden.to(self.ctc_head.weight.dtype)).float().log_softmax(-1)

    @torch.no_grad()
    def ctc_classes(self, features: Tensor, feature_lengths: Tensor, **_: Tensor) -> list[list[int]]:
        """The most likely CTC class of each frame, per clip."""
        hidden, frames = self.frames(features, feature_lengths)
        best = self.ctc_log_probs(hidden).argmax(-1)
        return [row[:n].tolist() for row, n in zip(best, frames.tolist())]

    def generate(self, inputs: dict[str, Tensor], **options: Any) -> list[tuple[list[int], list[float]]]:
        """Token ids and their log-probabilities for each item; see `stentor.models.speech_llm.generate.generate`."""
        from stentor.models.speech_llm.generate import generate

        return generate(self, inputs, **options)
