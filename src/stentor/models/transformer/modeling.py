"""Transformer model: an encoder, a decoder or both, with its heads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stentor.models.contracts import Capabilities, FrameOutput, GenerationOutput
from stentor.models.decoding.bias import Bias
from stentor.models.decoding.ctc import decode
from stentor.models.decoding.rescoring import ctc_log_probs, text_log_probs
from stentor.models.decoding.search import answer, token_limits
from stentor.models.encoders.cache import EncoderCache
from stentor.models.encoders.geometry import mask
from stentor.models.encoders.streaming.chunks import chunk_mask
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder, States
from stentor.models.encoders.streaming.layers import ChunkState, Lookahead, look_ahead
from stentor.models.transformer.config import Layers
from stentor.models.transformer.layers import initialise
from stentor.models.transformer.stack import Stack, StackOptions


@dataclass
class Heads:
    """Sizes of a model's outputs; None for those that it does not have."""

    classes: int | None = None
    """Classes of frames."""
    embedding: int | None = None
    """Values of a frame's speaker embedding."""
    vocabulary: int | None = None
    """Tokens of the decoder."""
    ctc_classes: int | None = None


class TransformerModel(EncoderCache):
    """Encoder, decoder or both, with the heads that the task needs.

    Parts: `frontend`, `input`, `encoder`, `tokens`, `decoder`, and the heads for frames, speaker embeddings, CTC and
    text; None where the model has no such part. A front-end without any trainable parameter stays in evaluation mode
    (no dropout).
    """

    frontend: Any
    input: Any
    encoder: Any
    tokens: Any
    decoder: Any
    frame_head: Any
    embedding_head: Any
    ctc_head: Any
    text_head: Any

    def __init__(
        self,
        encoder: Layers | None = None,
        decoder: Layers | None = None,
        inputs: int | None = None,
        frontend: nn.Module | None = None,
        heads: Heads | None = None,
        bos: int = 0,
        options: StackOptions | None = None,
    ):
        """`inputs`: values per frame that the encoder reads; `bos`: the first token of every text."""
        super().__init__()
        heads, options = heads or Heads(), options or StackOptions()
        self.bos = bos
        self.frontend = frontend
        self.encoder = self.input = self.decoder = self.tokens = self.text_head = None
        width = None
        if encoder is not None:
            width = encoder.d_model
            self.input = nn.Linear(inputs or 0, width)
            self.encoder = Stack(encoder, encoder.attention == "causal_linear", None, options)
            if options.lookahead:
                self.lookahead = Lookahead(width, options.lookahead)
            initialise(self.input, set())
        if decoder is not None:
            self.tokens = nn.Embedding(heads.vocabulary or 0, decoder.d_model)
            self.decoder = Stack(decoder, True, width, options)
            self.text_head = _head(decoder.d_model, heads.vocabulary)
        self.frame_head = _head(width, heads.classes) if heads.classes else None
        self.embedding_head = _head(width, heads.embedding, small=False) if heads.embedding else None
        self.ctc_head = _head(width, heads.ctc_classes) if heads.ctc_classes else None

    def train(self, mode: bool = True) -> TransformerModel:
        super().train(mode)
        if self.frontend is not None and not any(p.requires_grad for p in self.frontend.parameters()):
            self.frontend.eval()
        return self

    def encode(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Hidden states [B, T, width] and frames [B], from features [B, T, F] and their lengths [B], or with an SSL
        front-end from audio [B, samples] and its lengths in samples. `chunks`: as `chunk_mask` takes them."""
        if cached := self.cached(features, lengths):
            return cached[0], cached[1]
        states, frames = self._states(features, lengths, chunks)
        hidden = self.encoder.norm(states)
        self.store(features, lengths, hidden, frames)
        return hidden, frames

    def _states(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The output of `encode` before the last norm."""
        if self.frontend is not None:
            features, lengths = self.frontend(features, lengths)
        x = self.input(features)
        if torch.is_autocast_enabled(x.device.type):
            x = x.float()  # the residual stream; 16 bits would round each sum
        valid = mask(lengths, features.shape[1])
        x = look_ahead(self, x, valid)
        visible = None if chunks is None else chunk_mask(chunks, x.shape[1]) & valid[:, None]
        return self.encoder.states(x, valid, None, None, None, visible), lengths

    def forward(self, **inputs: Any) -> dict[str, dict[str, Any]]:
        """`label` for models that label frames, else `write`."""
        return self.write(**inputs) if self.frame_head is None else self.label(**inputs)

    def label(
        self,
        features: Tensor,
        lengths: Tensor,
        targets: Tensor | None = None,
        pools: Tensor | None = None,
        pool_labels: Any = None,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses, by what they score.

        `targets` are passed on. `pools` [B, K, T] are weights of frames, by which each item's frame embeddings are
        averaged to K speaker embeddings with the labels `pool_labels` [B, K].

        Returns `logits`: logits [B, T, classes] and targets; `hidden`: the encoder's states [B, T, width] before their
        last norm, which would make all of them equally large, and lengths [B]; `weights`: all parameters, and the
        lengths; with `pools` `embeddings`: float32 [B * K, size] of length 1, and labels [B * K].
        """
        states, frames = self._states(features, lengths)
        hidden = self.encoder.norm(states)
        outputs: dict[str, dict[str, Any]] = {
            "logits": {"logits": self.frame_head(hidden), "targets": targets},
            "hidden": {"hidden": states, "lengths": frames},
            "weights": {"weights": list(self.parameters()), "lengths": frames},
        }
        if self.embedding_head is not None and pools is not None:
            pooled = pools.to(hidden.dtype) @ self.embedding_head(hidden)
            outputs["embeddings"] = {
                "embeddings": F.normalize(pooled.float(), dim=-1).flatten(0, 1),
                "labels": pool_labels.flatten(),
            }
        return outputs

    @torch.no_grad()
    def label_frames(self, features: Tensor, lengths: Tensor) -> FrameOutput:
        """Labels of the frames, for inference; see `encode` for the inputs."""
        hidden, frames = self.encode(features, lengths)
        embeddings = self.embedding_head(hidden).float() if self.embedding_head is not None else None
        return FrameOutput(self.frame_head(hidden).float(), embeddings, frames)

    # Text

    def write(
        self,
        features: Tensor | None = None,
        lengths: Tensor | None = None,
        tokens: Tensor | None = None,
        targets: Any = None,
        ctc_targets: Tensor | None = None,
        ctc_lengths: Tensor | None = None,
        chunks: Tensor | None = None,
        hypotheses: dict[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """Arguments of the losses `text` and `ctc`, of the heads that there are, and log-probabilities of `hypotheses`.

        `features` and `lengths` are what `encode` takes (none for a language model); `tokens` [B, U] begin with the
        start token, `targets` [B, U] are the next ones, -100 at padding. `ctc_targets` are the classes of all items end
        to end, `ctc_lengths` [B] their numbers.
        """
        losses: dict[str, dict[str, Any]] = {}
        hidden: Any = None
        valid = None
        if self.encoder is not None:
            assert features is not None and lengths is not None
            hidden, frames = self.encode(features, lengths, chunks)
            valid = mask(frames, hidden.shape[1])
        if self.decoder is not None:  # padding comes last, where nothing that counts looks
            out = self.decoder(self.tokens(tokens), None, hidden, valid)
            losses["text"] = {**self.text(out.flatten(0, 1)), "targets": targets.flatten()}
        if self.ctc_head is not None:
            losses["ctc"] = {
                "log_probs": self.ctc_log_probs(hidden).transpose(0, 1),
                "lengths": frames,
                "targets": ctc_targets,
                "target_lengths": ctc_lengths,
            }
        if hypotheses is not None:
            losses["hypotheses"] = self.rescore(hidden, frames, **hypotheses)
        return losses

    def rescore(
        self, hidden: Tensor, frames: Tensor, clips: Tensor, targets: Tensor, temperature: float
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`, for encoded clips."""
        if self.decoder is None:
            return ctc_log_probs(self.ctc_log_probs(hidden), frames, clips, targets, blank=0)
        tokens = F.pad(targets[:, :-1].clamp(min=0), (1, 0), value=self.bos)
        out = self.decoder(self.tokens(tokens), None, hidden[clips], mask(frames, hidden.shape[1])[clips])
        return text_log_probs(self.text, out, targets, temperature)

    @property
    def capabilities(self) -> Capabilities:
        """Answers of a CTC head alone have no end token."""
        return Capabilities(ends_text=self.decoder is not None)

    def text(self, hidden: Tensor) -> dict[str, Tensor]:
        """The output layer and its inputs [N, width], in the form that the loss takes."""
        return {"hidden": hidden, "weight": self.text_head.weight, "bias": self.text_head.bias}

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the CTC classes [B, T, C], float32, from the encoder's states."""
        return self.ctc_head(hidden).float().log_softmax(-1)

    def chunk_encoder(self, processor: Any, seconds: tuple[float, float]) -> ChunkEncoder:
        return TransformerChunks(self, processor.features, seconds)

    @torch.no_grad()
    def ctc_classes(self, features: Tensor, lengths: Tensor, **_: Tensor) -> list[list[int]]:
        """The most likely CTC class of each frame, per clip."""
        hidden, frames = self.encode(features, lengths)
        best = self.ctc_log_probs(hidden).argmax(-1)
        return [row[:n].tolist() for row, n in zip(best, frames.tolist())]

    @torch.no_grad()
    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: int | list[int],
        eos_ids: set[int],
        beams: int = 1,
        bias: Bias | None = None,
        num_answers: int = 1,
        **options: Any,
    ) -> list[GenerationOutput]:
        """See `Recognizer.generate`.

        For a language model `tokens` [B, U] are the beginning of the text, start token included; for an encoder-decoder
        they may be given too. `options` are those of `decoding.search.answer`. A model without decoder gives classes of
        its CTC head, see `stentor.models.decoding.ctc`, and temperatures do nothing.
        """
        if self.decoder is None:
            hidden, frames = self.encode(inputs["features"], inputs["lengths"])
            return decode(self.ctc_log_probs(hidden), frames, 0, beams, bias, num_answers)
        decoder = _StepDecoder(self, inputs)
        limits = token_limits(max_new_tokens, len(decoder.log_probs))
        if (max_length := self.decoder.max_length) is not None:
            prefix = inputs["tokens"].shape[1] if "tokens" in inputs else 1
            limits = [min(limit, max_length - prefix) for limit in limits]
        return answer(decoder, limits, eos_ids, beams, num_answers, bias=bias, **options)


def _head(inputs: int | None, outputs: int | None, small: bool = True) -> nn.Linear:
    """An output layer. A `small` one begins with all classes nearly equally likely."""
    head = nn.Linear(inputs or 0, outputs or 0)
    initialise(head, set())
    if small:
        nn.init.normal_(head.weight, std=0.02)
    return head


class _StepDecoder:
    """The decoder with its states (keys and values, or the sums of linear attention); rows may be reordered, repeated
    or dropped."""

    def __init__(self, model: TransformerModel, inputs: dict[str, Tensor]):
        self.model = model
        self.context = self.mask = None
        if model.encoder is not None:
            self.context, frames = model.encode(inputs["features"], inputs["lengths"])
            self.mask = mask(frames, self.context.shape[1])
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


class TransformerChunks(ChunkEncoder):
    """The encoder of a `TransformerModel`, which is its `encoder`."""

    def start(self) -> States:
        return [layer.start_chunks(self.reach).tensors for layer in self.encoder.encoder.layers]

    def encode(self, features: Tensor, counts: Tensor, states: States) -> tuple[Tensor, States]:
        model, valid = self.encoder, mask(counts, features.shape[1])
        x = look_ahead(model, model.input(features), valid)
        layers = [ChunkState.of(tensors) for tensors in states]
        hidden = model.encoder.chunk(x[:, : self.chunk], valid[:, : self.chunk], layers)
        return hidden, [state.tensors for state in layers]
