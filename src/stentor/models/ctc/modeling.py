"""The model of the family `ctc`: a transformers CTC model, run so that a clip gives the same frames in any batch."""

from typing import Any

import torch
from torch import Tensor, nn

from stentor.models.contracts import Capabilities, GenerationOutput, Recognizer
from stentor.models.decoding.bias import Bias
from stentor.models.decoding.ctc import decode
from stentor.models.decoding.rescoring import ctc_log_probs
from stentor.models.encoders.cache import HearsChunks
from stentor.models.encoders.encode import encode
from stentor.models.encoders.geometry import Geometry


class CTCModel(HearsChunks, Recognizer, nn.Module):
    """`recogniser` is the transformers model, whose weights and names an export keeps.

    Its convolutions, group norms and attention never see padding (`encoders.encode.encode`): every clip gives
    what transformers gives for it alone, also with a group norm, which transformers itself cannot batch exactly.
    """

    capabilities = Capabilities(ends_text=False)
    before: dict[str, Any]
    """Settings of the encoder as the base had them, which an export gets back."""

    def __init__(self, recogniser: Any, shape: Geometry):
        super().__init__()
        self.recogniser = recogniser
        self.shape = shape
        self.blank = int(recogniser.config.pad_token_id)

    @property
    def encoder(self) -> nn.Module:
        """The transformers encoder."""
        return encoder_of(self.recogniser)

    def log_probs(self, features: Tensor, lengths: Tensor, chunks: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Log-probabilities [B, T, classes] in float32 and frames [B], from log-mel [B, mels, T] or audio [B, T] and
        their lengths [B] in the same steps. `chunks`: as `encode` takes them."""
        hidden, frames = encode(self.encoder, self.shape, features, lengths, chunks)
        return self.ctc_log_probs(hidden), frames

    def ctc_log_probs(self, hidden: Tensor) -> Tensor:
        """Log-probabilities of the classes [B, T, classes], float32, of encoder frames."""
        if self.shape.kind == "wave":
            logits = self.recogniser.lm_head(self.recogniser.dropout(hidden))
        else:
            logits = self.recogniser.ctc_head(hidden)
        return logits.float().log_softmax(-1)

    def forward(
        self,
        features: Tensor,
        lengths: Tensor,
        targets: Tensor,
        target_lengths: Tensor,
        chunks: Tensor | None = None,
        hypotheses: dict[str, Any] | None = None,
    ) -> dict[str, dict[str, Any]]:
        """For the loss term `ctc`: the keyword arguments of its `sum`, which wants blank as class 0; and
        log-probabilities of `hypotheses`."""
        log_probs, frames = self.log_probs(features, lengths, chunks)
        rescored = {} if hypotheses is None else {"hypotheses": self.rescore(log_probs, frames, **hypotheses)}
        if self.blank:
            before, blank, after = log_probs.split([self.blank, 1, log_probs.shape[2] - self.blank - 1], dim=2)
            log_probs = torch.cat([blank, before, after], dim=2)
            targets = targets + (targets < self.blank)
        prediction = {"log_probs": log_probs.transpose(0, 1), "lengths": frames}
        return {"ctc": {**prediction, "targets": targets, "target_lengths": target_lengths}, **rescored}

    def rescore(
        self, log_probs: Tensor, frames: Tensor, clips: Tensor, targets: Tensor, temperature: float
    ) -> dict[str, Tensor]:
        """See `stentor.models.decoding.rescoring`. There are no distributions over tokens that had a temperature."""
        return ctc_log_probs(log_probs, frames, clips, targets, self.blank)

    def generate(
        self,
        inputs: dict[str, Tensor],
        max_new_tokens: list[int],
        eos_ids: Any = (),
        beams: int = 1,
        bias: Bias | None = None,
        num_answers: int = 1,
        **_: Any,
    ) -> list[GenerationOutput]:
        """Classes without repeats and blanks, see `stentor.models.decoding.ctc`. Frames do not depend on one another:
        temperatures do not affect it."""
        return decode(*self.log_probs(inputs["features"], inputs["lengths"]), self.blank, beams, bias, num_answers)


def encoder_of(recogniser: Any) -> Any:
    """The encoder of a transformers CTC model."""
    return recogniser.encoder if recogniser.config.model_type == "parakeet_ctc" else recogniser.base_model


def head_of(recogniser: Any) -> Any:
    """The last layer of a transformers CTC model."""
    return recogniser.ctc_head if recogniser.config.model_type == "parakeet_ctc" else recogniser.lm_head
