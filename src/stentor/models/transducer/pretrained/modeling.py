"""A transducer of transformers, run so that a clip gives the same frames in any batch."""

from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.decoding.transducer import State
from stentor.models.encoders.encode import encode
from stentor.models.encoders.geometry import mask
from stentor.models.transducer.config import TransducerKind
from stentor.models.transducer.modeling import TransducerModel


class PretrainedTransducer(TransducerModel):
    """`recogniser` is the transformers model, whose weights and names an export keeps."""

    before: dict[str, Any]
    """Settings of the encoder as the base had them, which an export gets back."""
    shape: Any = None
    """The geometry of an encoder that hears chunk by chunk."""

    def __init__(self, recogniser: Any, kind: TransducerKind, frame_seconds: float):
        super().__init__()
        config = recogniser.config
        self.recogniser, self.term, self.frame_seconds = recogniser, kind.term, frame_seconds
        self.blank, self.max_symbols = int(config.blank_token_id), int(config.max_symbols_per_step)
        self.durations = tuple(config.durations) if kind.head == "TDT" else None
        lookahead = config.encoder_config.to_dict().get("default_num_lookahead_tokens")
        self.context = {} if lookahead is None else {"num_lookahead_tokens": lookahead}
        self.register_buffer("calibration", torch.tensor([1.0, 0.0, 0.0]))
        self.register_buffer("delays", None)

    @property
    def encoder(self) -> nn.Module:  # type: ignore[override]
        """transformers' encoder."""
        encoder: nn.Module = self.recogniser.encoder
        return encoder

    @property
    def joint(self) -> nn.Module:  # type: ignore[override]
        """transformers' joint, whose two arguments are added."""
        joint: nn.Module = self.recogniser.joint
        return joint

    def encode(self, features: Tensor, lengths: Tensor, **conditions: Tensor) -> tuple[Tensor, Tensor]:
        """See `TransducerModel.encode`; `prompt_ids` [B] name the language of each item where the model has prompts."""
        if self.shape is not None:  # it hears chunk by chunk
            hidden, frames = encode(self.encoder, self.shape, features, lengths, **conditions)  # type: ignore[arg-type]
            return self.project_encoder(hidden), frames
        keep = mask(lengths, features.shape[2])
        output = self.recogniser.get_audio_features(
            (features * keep[:, None]).transpose(1, 2), attention_mask=keep, **self.context, **conditions
        )
        frames = output.attention_mask.sum(-1)
        return output.pooler_output[:, : int(frames.max())], frames

    def project_encoder(self, hidden: Tensor) -> Tensor:
        states: Tensor = self.recogniser.encoder_projector(hidden)
        return states

    def predict(self, tokens: Tensor, state: State | None) -> tuple[Tensor, State]:
        decoder = self.recogniser.decoder
        embedded = decoder.embedding(tokens)
        if state is not None and tokens.shape[1] == 1 and embedded.device.type == "cpu":
            outputs, state = _one_step(decoder.lstm, embedded, state)
        else:
            outputs, state = decoder.lstm(embedded, state)
        return decoder.decoder_projector(outputs), state

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        hypotheses: dict[str, Any] | None = None,
        **conditions: Tensor,
    ) -> dict[str, dict[str, Any]]:
        """For the loss term of the model, `tdt` or `rnnt`: the arguments of its `sum`; and log-probabilities of
        `hypotheses`."""
        states, frames = self.encode(features, lengths, **conditions)
        rescored = {} if hypotheses is None else {"hypotheses": self.rescore(states, frames, **hypotheses)}
        return {self.term: self.joint_arguments(states, frames, targets, target_lengths), **rescored}


def _one_step(lstm: nn.LSTM, inputs: Tensor, state: State) -> tuple[Tensor, State]:
    """Output of an LSTM for one token of each row [B, 1, width]. On CPUs torch puts the weights of a whole LSTM into
    another order in each call, which takes four times as long as the step itself."""
    outputs, layers = inputs[:, 0], []
    for weights, hidden, cell in zip(lstm.all_weights, *state, strict=True):
        layers.append(torch.lstm_cell(outputs, (hidden, cell), *weights))
        outputs = layers[-1][0]
    hidden_states, cells = (torch.stack(parts) for parts in zip(*layers))
    return outputs[:, None], (hidden_states, cells)
