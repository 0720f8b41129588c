"""Graphs of a transducer, of which the formats `onnx`, `sherpa` and `web` are made: encoder, encoder of a stream,
predictor and joint, of our own models and of transformers' alike."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.decoding.transducer import State, start
from stentor.models.encoders.encode import encode
from stentor.models.encoders.geometry import mask
from stentor.models.encoders.streaming.encoder_stream import ChunkEncoder
from stentor.models.transducer.modeling import EncoderTransducer, TransducerModel


class EncoderGraph(nn.Module):
    """Features [B, mels, T] or audio [B, T] with lengths [B] to `states` [B, F, J] as the joint takes them, `lengths`
    [B], and where there are heads `ctc` [B, F, classes] (log-probabilities) and `distances` [B, F, 2] (frames)."""

    def __init__(self, model: TransducerModel, onnx_asr: bool = False):
        """`onnx_asr`: with `outputs` [B, J, F] and `encoded_lengths` [B], which it reads."""
        super().__init__()
        self.model, self.onnx_asr = model, onnx_asr
        ctc = isinstance(model, EncoderTransducer) and model.ctc_head is not None
        self.heads = [name for name, there in (("ctc", ctc), ("distances", model.times_head is not None)) if there]
        """Names of the outputs of heads."""

    @property
    def names(self) -> list[str]:
        """Names of the outputs."""
        return ["states", "lengths", *self.heads, *(["outputs", "encoded_lengths"] if self.onnx_asr else [])]

    def forward(self, audio_signal: Tensor, length: Tensor, prompt_ids: Tensor | None = None) -> tuple[Tensor, ...]:
        model: Any = self.model
        if model.shape is None:
            keep = mask(length, audio_signal.shape[2])
            prompts = {} if prompt_ids is None else {"prompt_ids": prompt_ids}
            features = (audio_signal * keep[:, None]).transpose(1, 2)
            output = model.recogniser.get_audio_features(features, attention_mask=keep, **model.context, **prompts)
            states, frames, heads = output.pooler_output, output.attention_mask.sum(-1), []
        else:
            hidden, frames = encode(model.encoder, model.shape, audio_signal, length)
            states, heads = model.project_encoder(hidden), self.of_heads(hidden)
        return states, frames, *heads, *((states.transpose(1, 2), frames + 0) if self.onnx_asr else ())

    def of_heads(self, hidden: Tensor, names: Sequence[str] = ("ctc", "distances")) -> list[Tensor]:
        """Outputs of the heads for the encoder's frames [B, F, width]."""
        make = {"ctc": lambda: self.model.ctc_log_probs(hidden), "distances": lambda: self.model.times_head(hidden)}
        return [make[name]() for name in self.heads if name in names]


class ChunkGraph(EncoderGraph):
    """The encoder of a stream: the features [B, mels, W] of the next chunk, of which each item has `length` [B] and
    zeros behind them, and `cache` [B, N], zeros at the start, to the states of its frames, how many there are, and the
    next cache: all states of `ChunkEncoder` in one tensor."""

    def __init__(self, model: TransducerModel, chunks: ChunkEncoder):
        super().__init__(model)
        self.chunks = chunks
        self.first = chunks.start()
        self.size = sum(prod(state.shape[1:]) for group in self.first for state in group)
        """Values of the cache."""
        self.features = (chunks.chunk + chunks.ahead) * chunks.factor
        """Features that it takes."""
        self.step = chunks.chunk * chunks.factor
        """Features after which the next ones begin."""
        with torch.no_grad():  # tensors that the encoder keeps for later must be there before the graph is traced
            self(**self.example(1))

    def forward(self, audio_signal: Tensor, length: Tensor, cache: Tensor) -> tuple[Tensor, ...]:  # type: ignore[override]
        hidden, states = self.chunks.encode(audio_signal.transpose(1, 2), length, self._unpack(cache))
        frames = self.chunks.frames(length).clamp(max=self.chunks.chunk)
        pairs = (pair for group, firsts in zip(states, self.first) for pair in zip(group, firsts))
        pieces = [(state.float() - first.float()).reshape(len(cache), -1) for state, first in pairs]
        heads = self.of_heads(hidden, ["distances"])
        return self.model.project_encoder(hidden), frames, *heads, torch.cat(pieces, 1)

    @property
    def names(self) -> list[str]:
        return ["states", "lengths", *(head for head in self.heads if head != "ctc"), "next_cache"]

    def example(self, batch: int) -> dict[str, Tensor]:
        """Inputs of so many streams."""
        mels = self.chunks.features.size
        lengths = torch.full((batch,), self.features)
        return {
            "audio_signal": torch.randn(batch, mels, self.features),
            "length": lengths,
            "cache": torch.zeros(batch, self.size),
        }

    def facts(self) -> dict[str, Any]:
        """Sizes for readers; `lead`: features of zeros before the first one."""
        chunks = self.chunks
        sizes = {"features": self.features, "step": self.step, "lead": chunks.lead, "frames": chunks.chunk}
        return {**sizes, "cache": self.size, "seconds": chunks.chunk * chunks.frame_seconds}

    def _unpack(self, cache: Tensor) -> list[list[Tensor]]:
        """States of the encoder; the cache has their difference to those at the start."""
        place, groups = 0, []
        for firsts in self.first:
            group = []
            for first in firsts:
                size = prod(first.shape[1:])
                state = cache[:, place : place + size].unflatten(1, first.shape[1:] or (1,)) + first.float()
                state = state.round().to(first.dtype) if not first.is_floating_point() else state
                group.append(state.flatten() if first.dim() == 1 else state)
                place += size
            groups.append(group)
        return groups


class PredictorGraph(nn.Module):
    """The predictor: the last token of each item [B, 1] and its states [layers, B, width] to its output [B, 1, J] and
    the next states."""

    def __init__(self, model: TransducerModel):
        super().__init__()
        # Not a submodule: the encoder's weights are none of this graph's.
        self.step = (_Own if isinstance(model, EncoderTransducer) else _Pretrained)(model)

    def forward(self, tokens: Tensor, state: list[Tensor]) -> tuple[Tensor, ...]:
        output, after = self.step(tokens, tuple(state))
        return output, *after


class LSTMGraph(nn.Module):
    """The predictor for readers of NeMo's, which have two states: of a GRU the second one stays."""

    def __init__(self, model: TransducerModel):
        super().__init__()
        self.predictor, self.used = PredictorGraph(model), len(first_states(model))

    def forward(self, tokens: Tensor, length: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        output, *after = self.predictor(tokens, list(states[: self.used]))
        # The lengths are all 1; an input without use would be left out of the graph.
        return (output + 0.0 * length[0], *after, *(state + 0.0 for state in states[self.used :]))


class _Own(nn.Module):
    def __init__(self, model: Any):
        super().__init__()
        self.predictor = model.predictor

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        gru, layers = self.predictor.gru, []
        output = self.predictor.embed(tokens[:, 0])
        for weights, hidden in zip(gru.all_weights, state[0]):
            output = torch.gru_cell(output, hidden, *weights)
            layers.append(output)
        return self.predictor.project(output)[:, None], (torch.stack(layers),)


class _Pretrained(nn.Module):
    def __init__(self, model: Any):
        super().__init__()
        self.decoder = model.recogniser.decoder

    def forward(self, tokens: Tensor, state: State) -> tuple[Tensor, State]:
        output, hidden, cells = self.decoder.embedding(tokens)[:, 0], [], []
        for weights, before, cell in zip(self.decoder.lstm.all_weights, *state):
            output, after = torch.lstm_cell(output, (before, cell), *weights)
            hidden.append(output)
            cells.append(after)
        return self.decoder.decoder_projector(output)[:, None], (torch.stack(hidden), torch.stack(cells))


class JointGraph(nn.Module):
    """The joint: a frame and the predictor's output [N, J] of each row to logits [N, V], with durations [N, V + D]."""

    def __init__(self, model: TransducerModel):
        super().__init__()
        self.joint = model.joint

    def forward(self, encoder: Tensor, predictor: Tensor) -> Tensor:
        return self.joint(encoder, predictor)


def first_states(model: TransducerModel) -> list[Tensor]:
    """States of the predictor [layers, 1, width] before the first token: zeros."""
    return [torch.zeros_like(part) for part in start(model, 1, torch.device("cpu"))[1]]
