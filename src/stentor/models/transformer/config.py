"""Family `transformer`: a transformer trained from scratch on acoustic features or on text.

An encoder labels frames (for speaker diarization) or transcribes with CTC, an encoder-decoder transcribes (Vaswani et
al. 2017; with a CTC auxiliary, Watanabe et al. 2017), a decoder is a language model. Attention is softmax or linear in
time (FAVOR+, Choromanski et al. 2021); layers may have the Conformer's convolution (Gulati et al. 2020).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.base import Family
from stentor.models.encoders.features import Features
from stentor.models.encoders.streaming.chunks import Streaming
from stentor.models.pretrained.section import PretrainedSection, TransformersConfig
from stentor.section import ConfigConflict, Section

if TYPE_CHECKING:
    from stentor.models.contracts import ServedTask

SERVES = {"encoder": ("diarize", "transcribe"), "encoder_decoder": ("transcribe",), "decoder": ("language",)}
"""Tasks of each kind."""
NOT_OF = {"encoder": {"cross_attention"}, "decoder": {"conv_kernel"}}
"""Shared settings that a part has no use for."""


class Layers(Section):
    """A stack of layers: the encoder's, the decoder's, or the settings that both share."""

    d_model: int = Field(256, ge=4)
    """Width: values per position."""
    layers: int = Field(4, ge=1)
    """Number of layers."""
    heads: int = Field(4, ge=1)
    """Attention heads; `d_model` must be a multiple."""
    attention: Literal["softmax", "linear", "causal_linear"] = "softmax"
    """`softmax`: exact; time and memory grow with the square of the length. `linear`: FAVOR+; time and memory grow
    linearly. `causal_linear`: FAVOR+ that does not look ahead, as decoders need."""
    cross_attention: Literal["softmax", "linear"] | None = None
    """Attention of the decoder to the encoder. Null: `linear` where `attention` is linear, else `softmax`."""
    attention_features: int | None = Field(None, ge=8)
    """Random features of linear attention for each head. Null: d ln d for heads of d values."""
    qk_norm: bool = False
    """Normalise the queries and keys of each head to a learnt size (RMS norm), so that they do not grow with the
    weights. With linear attention the size is small at first, as random features need."""
    positions: Literal["rope", "sinusoidal", "learned", "none"] = "rope"
    """Position encoding: rotated queries and keys, sinusoids, learnt vectors, or none (for encoders with
    convolutions)."""
    max_positions: int = Field(4096, ge=1)
    """Longest sequence of `learned` positions."""
    norm: Literal["layernorm", "rmsnorm", "scalenorm", "rezero"] = "layernorm"
    """Norm at the beginning of each branch. `rezero`: no norm; each branch is scaled by a number that starts at 0."""
    activation: Literal["gelu", "relu", "silu", "geglu", "reglu", "swiglu"] = "gelu"
    """Activation of the feed-forward layers. The gated ones (`...glu`) have two thirds of the width, for equal size."""
    d_ff: float = Field(4.0, gt=0)
    """Width of the feed-forward layers as a multiple of `d_model`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout at the end of each branch, in the feed-forward layers and on the input."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of attention weights (softmax only)."""
    conv_kernel: int | None = Field(None, ge=3)
    """Frames that the Conformer's convolution module spans in each layer of the encoder; odd. Null: no convolution."""
    macaron: bool = False
    """Use two half feed-forward branches around attention and convolution instead of one, as in the Conformer."""


class SSL(PretrainedSection):
    """A pretrained encoder as front-end: a self-supervised one (WavLM, HuBERT, wav2vec 2.0), Whisper's or Parakeet's.

    The model reads its output or a mix of its layers. Clips for Whisper and Parakeet may be as long as their positions
    allow (Whisper: 30 s).
    """

    example: ClassVar[str] = "{model_type: wavlm, hidden_size: 144}"

    source: str | None = Field(None, alias="from")
    """Hub id or local folder, such as `microsoft/wavlm-base-plus` or `openai/whisper-tiny.en`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wavlm, hidden_size: 144}`."""
    mix: bool | None = None
    """Read a learnt mix of all layers, a sum with softmax weights (Yang et al. 2021, SUPERB), instead of the output.
    Null: true for self-supervised encoders, whose middle layers describe speech better than the last ones."""
    subsample: int = Field(1, ge=1)
    """Number of frames that are averaged into one: 5 makes 10 frames a second from Whisper's 50, which is enough to
    label speakers and makes stored frames five times smaller."""
    freeze: bool = True
    """Freeze the encoder; the mix of its layers is still trained. If you set it to false, give the encoder a lower
    learning rate, about a tenth, with `optim.groups: [{params: ["frontend.encoder.*"], lr: 1e-5}]`."""
    store: Path | None = None
    """Folder that stores the frames of a frozen encoder. Training audio that was encoded before, in this or another
    run, is not encoded again, so an epoch costs only the layers after the encoder. Whisper tiny takes 140 MB an hour,
    with `mix` five times as much. Use it where augmentation is off or makes few variants, such as `speed`. Null: clips
    are encoded each time."""
    normalize: bool | None = None
    """Normalise each clip of raw audio to zero mean and unit variance. Null: as in pretraining."""

    @model_validator(mode="after")
    def _stored_frames_stay(self) -> SSL:
        if self.store is not None and not self.freeze:
            raise ConfigConflict("store", "the frames of an encoder that is trained change: leave it out")
        return self


class TrainedTokenizer(Section):
    """The tokenizer of the output texts, built from the training texts."""

    type: Literal["characters", "bpe", "words"] = "characters"
    """`characters`: one token for each character. `bpe`: byte-level subwords. `words`: one for each word, for small
    vocabularies such as digits or commands; for the CTC head of an encoder alone."""
    size: int = Field(500, ge=260)
    """Vocabulary size of `bpe`, special tokens included."""


class Transformer(Family):
    """A transformer trained from scratch: encoder, decoder or both."""

    type: Literal["transformer"] = "transformer"
    kind: Literal["encoder", "decoder", "encoder_decoder"] = "encoder"
    """`encoder`: labels frames (task `diarize`) or transcribes with CTC (`transcribe`). `encoder_decoder`: transcribes
    with a decoder (`transcribe`). `decoder`: a language model (`language`)."""
    shared: Layers = Layers()
    """Settings of both encoder and decoder. The sections `encoder` and `decoder` override them."""
    encoder: Layers | None = None
    """The layers of the encoder. Null: as in `shared`."""
    decoder: Layers | None = None
    """The layers of the decoder. Null: as in `shared`."""
    features: Features = Features()
    """The acoustic features that the encoder reads."""
    streaming: Streaming | None = None
    """Train for streaming, chunk by chunk. Null: the model reads whole recordings."""
    ssl: SSL | None = None
    """A pretrained encoder whose frames are read instead of `features`. Null: none."""
    text: TrainedTokenizer = TrainedTokenizer()
    """The tokenizer of models that write text. A CTC head writes characters; an encoder's can also write `words`."""
    embedding: int | None = Field(None, ge=2)
    """Size of a speaker embedding for each frame, in addition to its labels. Null: none."""
    fixed_projection: bool = False
    """Keep the first random features of linear attention, even with the callback `redraw`."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `encoder.*`."""
    gradient_checkpointing: bool = False
    """Recompute the layers in the backward pass. This takes less memory and is about a third slower."""
    tasks: ClassVar[tuple[str, ...]] = ("diarize", "transcribe", "language")
    wrap_layers: ClassVar[tuple[str, ...]] = ("Layer",)
    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")
    implementation: ClassVar[str | None] = "stentor.models.transformer"

    @model_validator(mode="after")
    def _resolve_layers(self) -> Transformer:
        for part in ("encoder", "decoder"):
            if part in self.kind.split("_"):
                self.__dict__[part] = _joined(part, self.shared, getattr(self, part))
            elif getattr(self, part) is not None:
                raise ConfigConflict(part, f"a model of the kind {self.kind} has no {part}: leave it out")
        if self.kind == "decoder" and self.ssl is not None:
            raise ConfigConflict("ssl", "a decoder alone reads no audio: leave it out")
        if self.streaming is not None:
            self._check_streaming()
        if self.kind != "encoder" and self.text.type == "words":
            raise ConfigConflict("text.type", "only a model of the kind encoder writes whole words: use `bpe`")
        if self.kind != "encoder" and self.embedding is not None:
            raise ConfigConflict("embedding", "only a model of the kind encoder labels frames: leave it out")
        return self

    def _check_streaming(self) -> None:
        conflicts = {
            "kind": self.kind != "encoder" and "only a model of the kind encoder can",
            "ssl": self.ssl is not None and "pretrained encoders read whole recordings: leave it out",
            "features.normalize": self.features.normalize not in ("fixed", "none") and "write `fixed`",
            "features.dither": self.features.dither > 0 and "leave it out",
        }
        if self.encoder is not None:
            conflicts["encoder.attention"] = self.encoder.attention != "softmax" and "write `softmax`"
            conflicts["encoder.positions"] = self.encoder.positions not in ("rope", "none") and "write `rope` or `none`"
        for key, fix in conflicts.items():
            if fix:
                raise ConfigConflict(key, f"for `streaming`, which reads recordings chunk by chunk: {fix}")

    def incompatible_with(self, task: ServedTask) -> tuple[str, str] | None:
        if task.is_a(SERVES[self.kind]):
            return None
        kinds = [kind for kind, served in SERVES.items() if task.is_a(served)]
        return "kind", f"a model of the kind {self.kind} cannot {task.type}: use {' or '.join(kinds)}"

    def writes(self, search: str) -> bool:
        return super().writes(search) and (search == "best" or self.kind != "encoder")

    def decoding_options(self) -> frozenset[str]:
        return frozenset({"beams", "hotwords"} | ({"temperature"} if self.kind != "encoder" else set()))


def _joined(part: str, shared: Layers, layers: Layers | None) -> Layers:
    """The settings of a part: from its section where they are set there, else the shared ones that concern it."""
    layers = layers or Layers()
    inherited = shared.model_fields_set - layers.model_fields_set - NOT_OF[part]
    joined = layers.model_copy(update={key: getattr(shared, key) for key in inherited})

    def check(conflict: bool, keys: str, message: str) -> None:
        """The conflict is reported at the first of the keys that is set anywhere."""
        if conflict:
            candidates = [(section, key) for key in keys.split() for section in (part, "shared")]
            configured = {part: layers.model_fields_set, "shared": inherited}
            section, key = next((c for c in candidates if c[1] in configured[c[0]]), candidates[0])
            raise ConfigConflict(f"{section}.{key}", message)

    size, remainder = divmod(joined.d_model, joined.heads)
    check(remainder != 0, "heads d_model", f"d_model ({joined.d_model}) must be a multiple of heads ({joined.heads})")
    check(
        joined.positions == "rope" and size % 2 == 1,
        "positions heads d_model",
        f"rope needs heads of even size; d_model / heads is {size}",
    )
    check(
        joined.attention_dropout > 0 and joined.attention != "softmax",
        "attention_dropout",
        f"{joined.attention} attention has no weights to drop: leave it out",
    )
    kernel = joined.conv_kernel
    if part == "decoder":
        check(joined.attention == "linear", "attention", "a decoder must not look ahead: use `causal_linear`")
        check(kernel is not None, "conv_kernel", "only encoders have convolutions: leave it out")
    else:
        check(kernel is not None and kernel % 2 == 0, "conv_kernel", "must be odd")
        check(joined.cross_attention is not None, "cross_attention", "only decoders attend to another part")
    return joined
