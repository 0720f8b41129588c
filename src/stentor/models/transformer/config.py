"""Family `transformer`: a transformer trained from scratch on acoustic features or on text.

An encoder labels frames (who speaks when) or spells by CTC, an encoder-decoder transcribes (Vaswani et al.
2017; with a CTC auxiliary, Watanabe et al. 2017), a decoder is a language model. Attention is softmax or linear in time
(FAVOR+, Choromanski et al. 2021); layers may have the Conformer's convolution (Gulati et al. 2020).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.data.cut import Cut
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
    """A stack of layers: that of the encoder, that of the decoder, or what both share."""

    d_model: int = Field(256, ge=4)
    """Width: values per position."""
    layers: int = Field(4, ge=1)
    """Number of layers."""
    heads: int = Field(4, ge=1)
    """Attention heads; `d_model` must be a multiple."""
    attention: Literal["softmax", "linear", "causal_linear"] = "softmax"
    """`softmax`: exact, time and memory grow with the square of the length. `linear`: FAVOR+, grows with the length.
    `causal_linear`: FAVOR+ that looks back only, as decoders need it."""
    cross_attention: Literal["softmax", "linear"] | None = None
    """Attention of the decoder to the encoder. Null: linear where `attention` is."""
    attention_features: int | None = Field(None, ge=8)
    """Random features of linear attention for each head. Null: d ln d for heads of d values."""
    qk_norm: bool = False
    """Bring the queries and keys of each head to a size that is learnt (RMS norm), so that it does not grow with the
    weights. That of linear attention is small at first, as random features want it."""
    positions: Literal["rope", "sinusoidal", "learned", "none"] = "rope"
    """Position encoding: rotated queries and keys, added sinusoids, added learnt vectors, or not at all (an
    encoder with convolutions needs none)."""
    max_positions: int = Field(4096, ge=1)
    """Longest sequence of `learned` positions."""
    norm: Literal["layernorm", "rmsnorm", "scalenorm", "rezero"] = "layernorm"
    """Norm at the beginning of each branch. `rezero`: no norm; each branch is scaled by a number that starts at 0."""
    activation: Literal["gelu", "relu", "silu", "geglu", "reglu", "swiglu"] = "gelu"
    """Activation of the feed-forward layers. The gated ones (`...glu`) project twice, to two thirds of the width, so
    that the number of parameters stays."""
    d_ff: float = Field(4.0, gt=0)
    """Width of the feed-forward layers as a multiple of `d_model`."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout at the end of each branch, in the feed-forward layers and on the input."""
    attention_dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of attention weights (softmax only)."""
    conv_kernel: int | None = Field(None, ge=3)
    """Frames that the Conformer's convolution module spans in each layer of the encoder; odd. Null: no convolution."""
    macaron: bool = False
    """Two half feed-forward branches around attention and convolution, as the Conformer has them, in place of one."""


class SSL(PretrainedSection):
    """A pretrained encoder as front-end: a self-supervised one (WavLM, HuBERT, wav2vec 2.0), Whisper's or Parakeet's.

    The model reads its output or a mix of its layers. Clips for Whisper and Parakeet are no longer than what these have
    positions for (Whisper: 30 s).
    """

    example: ClassVar[str] = "{model_type: wavlm, hidden_size: 144}"

    source: str | None = Field(None, alias="from")
    """Hub id or local folder, such as `microsoft/wavlm-base-plus` or `openai/whisper-tiny.en`."""
    config: TransformersConfig = None
    """Build it untrained from a transformers config, such as `{model_type: wavlm, hidden_size: 144}`."""
    mix: bool | None = None
    """Read a learnt mix of all its layers, their sum weighted by a softmax (Yang et al. 2021, SUPERB), and not the
    output. Null: of a self-supervised one, whose last layers are less about speech than those in the middle."""
    subsample: int = Field(1, ge=1)
    """Number of frames that are averaged into one: 5 makes 10 frames a second of Whisper's 50, enough to label
    speakers, and what is stored as much smaller."""
    freeze: bool = True
    """Leave it as it was pretrained; the mix of its layers is trained all the same. When it is trained as well, give it
    a learning rate of its own, about a tenth, by `optim.groups: [{params: ["frontend.encoder.*"], lr: 1e-5}]`."""
    store: Path | None = None
    """Folder for the frames of a frozen encoder: training audio that it has heard before, in this run or another, is
    not encoded again, and an epoch costs what the layers behind it cost. Whisper tiny takes 140 MB an hour, with
    `mix` five times as much. For audio that augmentation leaves as it is or changes in a few ways, such as `speed`.
    Null: encoded each time."""
    normalize: bool | None = None
    """Bring each clip of raw audio to zero mean and unit variance. Null: as it was pretrained."""

    @model_validator(mode="after")
    def _stored_frames_stay(self) -> SSL:
        if self.store is not None and not self.freeze:
            raise ConfigConflict("store", "the frames of an encoder that is trained change: leave it out")
        return self


class TrainedTokenizer(Section):
    """The tokenizer of what is written, made from the training texts."""

    type: Literal["characters", "bpe", "words"] = "characters"
    """`characters`: one token for each character. `bpe`: byte-level subwords. `words`: one for each word, for small
    vocabularies such as digits or commands; for the CTC head of an encoder alone."""
    size: int = Field(500, ge=260)
    """Vocabulary size of `bpe`, special tokens included."""


class Transformer(Family):
    """A transformer trained from scratch: encoder, decoder or both."""

    type: Literal["transformer"] = "transformer"
    kind: Literal["encoder", "decoder", "encoder_decoder"] = "encoder"
    """`encoder`: labels frames (task `diarize`) or spells by CTC (`transcribe`). `encoder_decoder`: writes what it
    hears (`transcribe`). `decoder`: a language model (`language`)."""
    shared: Layers = Layers()
    """Settings of both encoder and decoder; their own sections go before."""
    encoder: Layers | None = None
    """The layers of the encoder. Null: as in `shared`."""
    decoder: Layers | None = None
    """The layers of the decoder. Null: as in `shared`."""
    features: Features = Features()
    """The acoustic features that the encoder reads."""
    streaming: Streaming | None = None
    """Train it to hear a recording while it comes, chunk by chunk. Null: it hears recordings as a whole."""
    ssl: SSL | None = None
    """A pretrained encoder whose frames are read in place of `features`. Null: none."""
    text: TrainedTokenizer = TrainedTokenizer()
    """The tokenizer, where text is written. A CTC head spells characters, that of an encoder alone perhaps `words`."""
    embedding: int | None = Field(None, ge=2)
    """Size of a speaker embedding for each frame, beside its labels. Null: none."""
    fixed_projection: bool = False
    """Keep the random features of linear attention as first drawn, whatever the callback `redraw` says."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `encoder.*`."""
    gradient_checkpointing: bool = False
    """Recompute the layers in the backward pass: less memory, about a third slower."""
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
            raise ConfigConflict("ssl", "a decoder alone hears no audio: leave it out")
        if self.streaming is not None:
            self._check_streaming()
        if self.kind != "encoder" and self.text.type == "words":
            raise ConfigConflict("text.type", "only a model of the kind encoder writes whole words: take `bpe`")
        if self.kind != "encoder" and self.embedding is not None:
            raise ConfigConflict("embedding", "only a model of the kind encoder labels frames: leave it out")
        return self

    def _check_streaming(self) -> None:
        conflicts = {
            "kind": self.kind != "encoder" and "only a model of the kind encoder can",
            "ssl": self.ssl is not None and "pretrained encoders hear recordings as a whole: leave it out",
            "features.normalize": self.features.normalize not in ("fixed", "none") and "write `fixed`",
            "features.dither": self.features.dither > 0 and "leave it out",
        }
        if self.encoder is not None:
            conflicts["encoder.attention"] = self.encoder.attention != "softmax" and "write `softmax`"
            conflicts["encoder.positions"] = self.encoder.positions not in ("rope", "none") and "write `rope` or `none`"
        for key, fix in conflicts.items():
            if fix:
                raise ConfigConflict(key, f"for `streaming`, which reads recordings as they arrive: {fix}")

    def incompatible_with(self, task: ServedTask) -> tuple[str, str] | None:
        if task.is_a(SERVES[self.kind]):
            return None
        kinds = [kind for kind, served in SERVES.items() if task.is_a(served)]
        return "kind", f"a model of the kind {self.kind} cannot {task.type}: take {' or '.join(kinds)}"

    def writes(self, search: str) -> bool:
        return super().writes(search) and (search == "best" or self.kind != "encoder")

    def decoding_options(self) -> frozenset[str]:
        return frozenset({"beams", "hotwords"} | ({"temperature"} if self.kind != "encoder" else set()))

    def drop_reason(self, processor: Any, cut: Cut, training: bool) -> tuple[str, str] | None:
        """Besides records that the processor drops, clips and texts that there are not enough learnt positions for."""
        reason: tuple[str, str] | None = processor.drop_reason(cut, training)
        if reason is not None:
            return reason
        sizes = {}
        if self.encoder is not None and (training or processor.has_text):  # else it is labelled in windows
            sizes["encoder"] = ("too_long", processor.frames(round(cut.duration * processor.sample_rate)), "frames")
        if self.decoder is not None and (training or self.encoder is None):
            sizes["decoder"] = ("text_too_long", processor.text_tokens(cut), "tokens")
        for part, (name, size, unit) in sizes.items():
            layers = getattr(self, part)
            if layers.positions == "learned" and size > layers.max_positions:
                return name, (
                    f"{cut.id}: its {size} {unit} are more than the {layers.max_positions} learnt positions of the "
                    f"{part} (`model.{part}.max_positions`)."
                )
        return None


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
        check(joined.attention == "linear", "attention", "a decoder may only look back: take `causal_linear`")
        check(kernel is not None, "conv_kernel", "only encoders have convolutions: leave it out")
    else:
        check(kernel is not None and kernel % 2 == 0, "conv_kernel", "must be odd")
        check(joined.cross_attention is not None, "cross_attention", "only decoders attend to another part")
    return joined
