"""Moonshine streaming: as Moonshine, with an encoder of causal convolutions and sliding windows over frames of 5 ms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from stentor.data.batch import Example
from stentor.models.collate import pad_shortest
from stentor.models.encoders.geometry import Geometry, mask
from stentor.models.seq2seq import moonshine
from stentor.models.seq2seq.modeling import Seq2SeqModel


class Processor(moonshine.Processor):
    """Audio in whole frames: what is left over at the end of a clip, under 5 ms, is cut off, as the model's own mask
    does. The limit is that of the positions that the decoder gives the frames."""

    processor_class = "MoonshineStreamingProcessor"

    def geometry(self, config: Any) -> Geometry:
        self.grain = round(config.encoder_config.sample_rate * config.encoder_config.frame_ms / 1000)
        # A causal convolution with a step of two makes a frame of every second one, the first included.
        convs = ((self.grain, self.grain, 0), (1, 2, 0), (1, 2, 0))
        return Geometry("wave", convs, normalize=self.extractor.do_normalize, max_frames=config.max_position_embeddings)

    @classmethod
    def complete(cls, config: Any) -> None:
        config.num_key_value_heads = config.num_attention_heads

    def audio_inputs(self, examples: Sequence[Example]) -> dict[str, Tensor]:
        clips = [pad_shortest(e.audio) for e in examples]
        cut = [clip[: len(clip) // self.grain * self.grain] for clip in clips]
        return super().audio_inputs([replace(e, audio=clip) for e, clip in zip(examples, cut)])


class Model(Seq2SeqModel):
    """Moonshine streaming, whose clips give the same frames in any batch; transformers' own convolutions make one or
    two more where padding follows."""

    def adjust(self) -> None:
        embedder = self.model.encoder.embedder
        for name in ("conv1", "conv2"):
            setattr(embedder, name, _ExactConv(getattr(embedder, name)))
        # FSDP2 divides no single number: the steepness of the compression stays unchanged.
        steepness = embedder.comp.log_k.detach()
        del embedder.comp.log_k
        embedder.comp.register_buffer("log_k", steepness)

    def encoder_states(self, features: Tensor, lengths: Any) -> tuple[Tensor, Tensor | None]:
        out = self.model.encoder(features, attention_mask=mask(lengths, features.shape[1]))
        # The decoder adds positions in place.
        return out.last_hidden_state.clone(), out.attention_mask


class _ExactConv(nn.Conv1d):
    """A causal convolution [B, C, T] with a step, and the mask [B, T] of its frames: those at frames of the clip."""

    def __init__(self, conv: Any):
        super().__init__(conv.in_channels, conv.out_channels, conv.kernel_size[0], conv.stride[0])
        self.left_pad = conv.left_pad
        self.load_state_dict(conv.state_dict())

    def forward(self, x: Tensor, keep: Tensor | None = None) -> tuple[Tensor, Tensor | None]:  # type: ignore[override]
        x = super().forward(nn.functional.pad(x, (self.left_pad, 0)))
        if keep is None:
            return x, None
        keep = keep[:, :: self.stride[0]]
        return x * keep[:, None], keep
