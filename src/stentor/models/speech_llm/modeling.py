"""Speech LLM: forward for training, generation, CTC decoding, word times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.decoding.rescoring import prompted_states, text_log_probs
from stentor.models.decoding.search import head_log_probs
from stentor.models.encoders.encode import Geometry, encode
from stentor.models.encoders.streaming.kinds import HearsChunks
from stentor.models.speech_llm.aligner import AlignedText, WordAligner
from stentor.models.speech_llm.config import AlignerSection
from stentor.models.speech_llm.projector import Projector

FLEX_TABLES = ("documents", "partial_count", "partial_index", "full_count", "full_index")
"""Inputs of a packed batch for flex_attention."""
ROWS = 128
"""Positions whose log-probabilities over the vocabulary are in memory at a time when a text is scored."""


@dataclass
class GreedyOutput:
    """A text that was written greedily."""

    ids: list[int]
    log_probs: list[float]
    states: list[Tensor]
    """Last hidden state [width] of each token, and of the end token after them."""


class EncoderCache(HearsChunks, nn.Module):
    """A model that can cache the encoder's output and the greedy output of the last batch, and what models share that
    have an `encoder` of the geometry `shape` and perhaps a `ctc_head` on it."""

    encoder: Any
    shape: Geometry
    ctc_head: Any

    def __init__(self) -> None:
        super().__init__()
        self._caching = False
        self._encoded: list[tuple[Tensor, ...]] = []
        self._greedy_outputs: list[GreedyOutput] | None = None

    @contextmanager
    def cache_encoder(self) -> Iterator[None]:
        """Inside, audio is encoded once, for its text, its CTC classes, its word times and other ways of decoding, and
        the states of greedily written text are not computed again for its word times: frames of all batches and states
        of the last one are kept to the end. For inference only."""
        before, self._caching = self._caching, True
        try:
            yield
        finally:
            self._caching = before
            if not before:
                self._encoded, self._greedy_outputs = [], None

    def cached(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, ...]:
        """The stored output for these inputs; empty when nothing is stored for them."""
        for seen_features, seen_lengths, *output in self._encoded:
            if torch.equal(seen_features, features) and torch.equal(seen_lengths, lengths):
                return tuple(output)
        return ()

    def store(self, features: Tensor, lengths: Tensor, *output: Tensor) -> None:
        """Store the encoder's output for these inputs, inside `cache_encoder`."""
        if self._caching:
            self._encoded.append((features, lengths, *output))

    def frames(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Encoder frames [B, T, width], zero at padding, and lengths [B]. No graph is kept for a frozen encoder.
        `chunks`: as `encode` takes them."""
        if cached := self.cached(features, lengths):
            return cached[0], cached[1]
        needed = torch.is_grad_enabled() and any(p.requires_grad for p in self.encoder.parameters())
        with torch.set_grad_enabled(needed):
            dtype = next(self.encoder.parameters()).dtype
            hidden, frames = encode(self.encoder, self.shape, features.to(dtype), lengths, chunks)
        if self.shape.window is not None:
            hidden = hidden[:, : int(frames.max())]
        self.store(features, lengths, hidden, frames)
        return hidden, frames

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the CTC classes [B, T, C], float32, from encoder frames."""
        return self.ctc_head(hidden.to(self.ctc_head.weight.dtype)).float().log_softmax(-1)

    def ctc_arguments(self, hidden: Tensor, frames: Tensor, inputs: dict[str, Any]) -> dict[str, Tensor]:
        """Arguments of the loss `ctc` for encoder frames, from the processor's `ctc_targets`."""
        rows = inputs["ctc_rows"]
        return {
            "log_probs": self.ctc_log_probs(hidden)[rows].transpose(0, 1),
            "lengths": frames[rows],
            "targets": inputs["ctc_targets"],
            "target_lengths": inputs["ctc_target_lengths"],
        }

    def best_ctc_classes(self, features: Tensor, lengths: Tensor) -> list[list[int]]:
        """The most likely CTC class of each frame, per clip."""
        hidden, frames = self.frames(features, lengths)
        best = self.ctc_log_probs(hidden).argmax(-1)
        return [row[:n].tolist() for row, n in zip(best, frames.tolist())]


def lowest_of_words(log_probs: Tensor, word_tokens: Tensor) -> Tensor:
    """The lowest log-probability [B, W] of each word's tokens, from the first to the last `word_tokens` [B, W, 2], of
    those of all tokens [B, K]."""
    token = torch.arange(log_probs.shape[1], device=log_probs.device)
    in_word = (token >= word_tokens[..., :1]) & (token <= word_tokens[..., 1:])
    return log_probs[:, None].masked_fill(~in_word, 0.0).amin(-1)


class SpeechLLMModel(EncoderCache):
    """Audio encoder, projector and causal language model; optionally a CTC head on the encoder and an aligner.

    Parts: `encoder`, `projector`, `llm`, `ctc_head`, `aligner`. A part without any trainable parameter stays in
    evaluation mode (no dropout), also while the rest trains.
    """

    llm: Any
    aligner: Any

    def __init__(
        self,
        encoder: Any,
        shape: Geometry,
        projector: Projector,
        llm: Any,
        ctc_classes: int | None = None,
        aligner: AlignerSection | None = None,
    ):
        super().__init__()
        self.encoder = encoder
        self.projector = projector
        self.llm = llm
        width = encoder.config.hidden_size
        self.ctc_head = nn.Linear(width, ctc_classes) if ctc_classes else None
        text = llm.get_input_embeddings().weight.shape[1]
        self.aligner = WordAligner(aligner, text, width, shape) if aligner else None
        self.shape = shape

    def train(self, mode: bool = True) -> SpeechLLMModel:
        super().train(mode)
        for part in self.children():
            if not any(p.requires_grad for p in part.parameters()):
                part.eval()
        return self

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
        hypotheses: dict[str, Any] | None = None,
        **options: Any,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses: `text`, with a CTC head `ctc`, with an aligner and known word times `alignment`; and
        log-probabilities of `hypotheses`.

        Args:
            features, feature_lengths: see `frames`.
            input_ids, audio_index, audio_rows: see `embed`. Right padding needs no mask under causal attention.
            label_index: positions [N] of the flattened sequence whose next token is `targets` [N].
            options: `position_ids` [1, L] of a packed batch, restarting at 0 for each item: transformers derives the
                block-diagonal mask from them; `FLEX_TABLES` of such a batch, for flex_attention
                (`stentor.models.packing.flex`); `chunks`, see `encode`; `ctc_rows`, `ctc_targets` and
                `ctc_target_lengths`; `text_rows`, `word_tokens` and `word_parts` (see `AlignedText`) with `word_times`
                [B, W, 2] in seconds.
        """
        mask = None
        if FLEX_TABLES[0] in options:
            from stentor.models.packing.flex import block_mask

            mask = block_mask(**{name: options[name] for name in FLEX_TABLES})
        hidden, frames = self.frames(features, feature_lengths, options.get("chunks"))
        embeds = self.embed(hidden, input_ids, audio_index, audio_rows)
        out = self.llm.base_model(
            inputs_embeds=embeds, attention_mask=mask, position_ids=options.get("position_ids"), use_cache=False
        ).last_hidden_state
        losses: dict[str, dict[str, Any]] = {"text": {**self.head(out.flatten(0, 1)[label_index]), "targets": targets}}
        if hypotheses is not None:
            losses["hypotheses"] = self.rescore(hidden, **hypotheses)
        if self.ctc_head is not None:
            losses["ctc"] = self.ctc_arguments(hidden, frames, options)
        if self.aligner is not None and "word_times" in options:
            times, moved = options["word_times"], None
            if self.training:
                moved, times = self.aligner.moved(feature_lengths, times)
            words = (options[name] for name in ("text_rows", "word_tokens", "word_parts"))
            text = AlignedText(out.flatten(0, 1), embeds.flatten(0, 1), *words)
            scores = self.aligner(features, feature_lengths, hidden, text, moved)
            losses["alignment"] = {**vars(scores), "times": times, "step": self.aligner.step}
        return losses

    def rescore(
        self,
        frames: Tensor,
        input_ids: Tensor,
        audio_index: Tensor,
        audio_rows: Tensor,
        attention_mask: Tensor,
        clips: Tensor,
        targets: Tensor,
        temperature: float,
        **_: Tensor,
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`, for encoder frames; the other inputs are prompts."""
        from stentor.models.speech_llm.generate import steady_attention

        embeds = self.embed(frames, input_ids, audio_index, audio_rows)
        with steady_attention(self):
            hidden = prompted_states(self.llm.base_model, embeds, attention_mask, clips, targets)
        return text_log_probs(self.head, hidden, targets, temperature)

    @torch.no_grad()
    def ctc_classes(self, features: Tensor, feature_lengths: Tensor, **_: Tensor) -> list[list[int]]:
        """See `best_ctc_classes`."""
        return self.best_ctc_classes(features, feature_lengths)

    @torch.no_grad()
    def align(
        self,
        features: Tensor,
        feature_lengths: Tensor,
        input_ids: Tensor,
        audio_index: Tensor,
        audio_rows: Tensor,
        text_rows: Tensor,
        word_tokens: Tensor,
        word_parts: Tensor,
        **options: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Word times of known texts, from the states that the aligner was trained on.

        Inputs as `forward` takes them. Returns start and end in seconds [B, W, 2], how sure they are [B, W] (see
        `WordAligner.times`), and the lowest log-probability of each word's tokens [B, W].
        """
        hidden, _ = self.frames(features, feature_lengths)
        spoken = text_rows >= 0
        ids = input_ids.flatten()[text_rows.clamp(min=0)]
        states, log_probs, missing = self._greedy_states(ids, spoken)
        if missing:
            embeds = self.embed(hidden, input_ids, audio_index, audio_rows)[missing]
            position_ids = options["position_ids"][missing] if "position_ids" in options else None
            shift = torch.tensor(missing, device=ids.device) - torch.arange(len(missing), device=ids.device)
            rows = (text_rows[missing] - shift[:, None] * input_ids.shape[1]).masked_fill(~spoken[missing], -1)
            states[missing], log_probs[missing] = self._states_of(embeds, position_ids, rows, ids[missing])
        tokens = self.llm.get_input_embeddings()(ids).flatten(0, 1)
        rows = torch.arange(ids.numel(), device=ids.device).view_as(ids).masked_fill(~spoken, -1)
        text = AlignedText(states.flatten(0, 1), tokens, rows, word_tokens, word_parts)
        times, sure = self.aligner.times(self.aligner(features, feature_lengths, hidden, text))
        return times, sure, lowest_of_words(log_probs, word_tokens)

    def _greedy_states(self, ids: Tensor, spoken: Tensor) -> tuple[Tensor, Tensor, list[int]]:
        """Last hidden states [B, K, width] and log-probabilities [B, K] of the texts' tokens `ids`, as far as
        `generate` wrote just these, and the rows where it did not: zero there and at padding. So is the log-probability
        of the end token, which belongs to no word."""
        weight = self.llm.get_input_embeddings().weight
        states = torch.zeros(*ids.shape, weight.shape[1], dtype=weight.dtype, device=ids.device)
        log_probs = torch.zeros(ids.shape, device=ids.device)
        outputs = self._greedy_outputs if self._greedy_outputs and len(self._greedy_outputs) == len(ids) else None
        missing = []
        for i, row in enumerate(ids):
            output = outputs[i] if outputs else None
            if output is None or output.ids != row[spoken[i]].tolist()[:-1]:
                missing.append(i)
                continue
            states[i, : len(output.states)] = torch.stack(output.states).to(states.dtype)
            log_probs[i, : len(output.log_probs)] = torch.tensor(output.log_probs, device=ids.device)
        return states, log_probs, missing

    def _states_of(
        self, embeds: Tensor, position_ids: Tensor | None, text_rows: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same by a pass over the sequences `embeds` [B, L, width], in which the texts are at `text_rows`."""
        from stentor.models.speech_llm.generate import steady_attention

        with steady_attention(self):
            out = self.llm.base_model(inputs_embeds=embeds, position_ids=position_ids, use_cache=False)
        flat = out.last_hidden_state.flatten(0, 1)
        spoken = text_rows >= 0
        before = flat[text_rows[spoken] - 1]  # the position before a token predicts it
        log_probs = torch.zeros(text_rows.shape, device=flat.device)
        if len(before):
            chunks = zip(before.split(ROWS), ids[spoken].split(ROWS))
            log_probs[spoken] = torch.cat([self._log_probs(r).gather(1, i[:, None])[:, 0] for r, i in chunks])
        return flat[text_rows.clamp(min=0)], log_probs

    def _log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities over the vocabulary [N, V], float32, from last hidden states."""
        return head_log_probs(self.head(hidden))

    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: int | list[int],
        eos_ids: set[int],
        beams: int = 1,
        temperature: float = 0.0,
        **options: Any,
    ) -> list[tuple[list[int], list[float]]]:
        """Token ids and their log-probabilities for each item; see `stentor.models.speech_llm.generate.generate`."""
        from stentor.models.speech_llm.generate import generate

        greedy = beams == 1 and not temperature and len(eos_ids) == 1
        options |= {"max_new_tokens": max_new_tokens, "eos_ids": eos_ids, "beams": beams, "temperature": temperature}
        self._greedy_outputs = None
        if not (greedy and self._caching and self.aligner is not None):
            return generate(self, inputs, **options)
        states: list[list[Tensor]] = []
        results = generate(self, inputs, states=states, **options)
        self._greedy_outputs = [GreedyOutput(*result, row) for result, row in zip(results, states)]
        return results
