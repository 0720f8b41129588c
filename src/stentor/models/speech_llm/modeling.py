"""Speech LLM: forward for training, generation, CTC decoding, word times."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.contracts import Capabilities, GenerationOutput
from stentor.models.decoding.rescoring import prompted_states, text_log_probs
from stentor.models.decoding.search import LanguageModelDecoder, answer, head_log_probs, token_limits
from stentor.models.encoders.cache import EncoderCache
from stentor.models.encoders.geometry import Geometry
from stentor.models.speech_llm.aligner import AlignedText, WordAligner
from stentor.models.speech_llm.config import AlignerSection

FLEX_TABLES = ("documents", "partial_count", "partial_index", "full_count", "full_index")
"""Inputs of a packed batch for flex_attention."""
ROWS = 128
"""Positions whose log-probabilities over the vocabulary are in memory at a time when a text is scored."""


def lowest_of_words(log_probs: Tensor, word_tokens: Tensor) -> Tensor:
    """The lowest log-probability [B, W] of each word's tokens, from the first to the last `word_tokens` [B, W, 2], of
    those of all tokens [B, K]."""
    token = torch.arange(log_probs.shape[1], device=log_probs.device)
    in_word = (token >= word_tokens[..., :1]) & (token <= word_tokens[..., 1:])
    return log_probs[:, None].masked_fill(~in_word, 0.0).amin(-1)


class Projector(nn.Module):
    """Joins `factor` frames and maps them to the language model's width.

    [B, T, width] (zero at padding) -> [B, ceil(T / factor), out]. `mlp` stacks the frames (SLAM-ASR, Ma et al. 2024);
    `conv` is a convolution of that stride which also sees half a stride on either side.
    """

    def __init__(self, kind: str, factor: int, width: int, out: int, hidden: int | None = None, dropout: float = 0.0):
        super().__init__()
        self.factor = factor
        hidden = hidden or out
        self.conv = nn.Conv1d(width, hidden, factor + 2 * (factor // 2), factor) if kind == "conv" else None
        self.linear1: Any = nn.Linear(factor * width, hidden) if kind == "mlp" else None
        self.dropout = nn.Dropout(dropout)
        self.linear2 = nn.Linear(hidden, out)

    def forward(self, frames: Tensor) -> Tensor:
        frames = F.pad(frames, (0, 0, 0, -frames.shape[1] % self.factor))
        if self.conv is not None:
            side = self.factor // 2
            hidden = self.conv(F.pad(frames.transpose(1, 2), (side, side))).transpose(1, 2)
        else:
            hidden = self.linear1(frames.reshape(frames.shape[0], -1, self.factor * frames.shape[2]))
        return self.linear2(self.dropout(F.gelu(hidden)))


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
        config = llm.config.get_text_config().to_dict()
        self.factor, self.divisor = config.get("logit_scale"), config.get("logits_scaling")  # of Cohere, of Granite
        self.cap = config.get("final_logit_softcapping")

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(aligns="words" if self.aligner is not None else None)

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
        """Output of the language model's last layer from [N, width], in the form that the loss takes.

        `hidden` with `weight` [V, width] and `bias`, so that the loss may compute logits in chunks; `logits` [N, V]
        where the model caps its logits (Gemma 2) or the layer carries an adapter.
        """
        hidden = hidden * self.factor if self.factor else hidden
        hidden = hidden / self.divisor if self.divisor else hidden
        layer = self.llm.get_output_embeddings()
        if self.cap:
            return {"logits": torch.tanh(layer(hidden) / self.cap) * self.cap}
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
            assert output.states is not None
            states[i, : len(output.states)] = torch.stack(output.states).to(states.dtype)
            log_probs[i, : len(output.log_probs)] = torch.tensor(output.log_probs, device=ids.device)
        return states, log_probs, missing

    def _states_of(
        self, embeds: Tensor, position_ids: Tensor | None, text_rows: Tensor, ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """The same by a pass over the sequences `embeds` [B, L, width], in which the texts are at `text_rows`."""
        with steady_attention(self):
            out = self.llm.base_model(inputs_embeds=embeds, position_ids=position_ids, use_cache=False)
        flat = out.last_hidden_state.flatten(0, 1)
        spoken = text_rows >= 0
        before = flat[text_rows[spoken] - 1]  # the position before a token predicts it
        log_probs = torch.zeros(text_rows.shape, device=flat.device)
        if len(before):
            chunks = zip(before.split(ROWS), ids[spoken].split(ROWS))
            log_probs[spoken] = torch.cat([head_log_probs(self.head(r)).gather(1, i[:, None])[:, 0] for r, i in chunks])
        return flat[text_rows.clamp(min=0)], log_probs

    @torch.no_grad()
    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: int | list[int],
        eos_ids: set[int],
        beams: int = 1,
        temperature: float = 0.0,
        **options: Any,
    ) -> list[GenerationOutput]:
        """See `Recognizer.generate`. A batch gives what its items give one by one, up to rounding.

        Where the encoder is cached for an aligner, outputs of greedy decoding hold the last hidden states of a
        teacher-forced pass over the same tokens.
        """
        greedy = beams == 1 and not temperature and len(eos_ids) == 1
        keep = greedy and self._caching and self.aligner is not None
        with steady_attention(self):
            hidden, _ = self.frames(inputs["features"], inputs["feature_lengths"])
            embeds = self.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
            prompts = embeds, inputs["attention_mask"], inputs["position_ids"]
            decoder = LanguageModelDecoder(self.llm.base_model, self.head, *prompts)
            limits = token_limits(max_new_tokens, len(embeds))
            options |= {"temperature": temperature, "keep_states": keep}
            outputs = answer(decoder, limits, eos_ids, beams, **options)
        self._greedy_outputs = outputs if keep else None
        return outputs


@contextmanager
def steady_attention(model: SpeechLLMModel) -> Iterator[None]:
    """SDPA in place of flex_attention, which would be compiled again for the shapes of every step."""
    config = model.llm.config
    before = config._attn_implementation
    if before == "stentor_flex":
        config._attn_implementation = "sdpa"
    try:
        yield
    finally:
        config._attn_implementation = before
