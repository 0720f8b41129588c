"""Family `speech_llm`: audio encoder + projector + causal language model.

The encoder turns audio into frames, the projector stacks or convolves frames down to about 12.5 a second and maps them
to the width of the language model, which reads them between the prompt and the transcript and is trained to continue
with the transcript and an end token. The design follows SLAM-ASR (Ma et al. 2024), Qwen-Audio and VoxLM.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, Literal

from pydantic import Field, model_validator

from stentor.models.base import Bundle
from stentor.models.delayed.config import DelayedStream
from stentor.models.encoders.section import EncoderSection
from stentor.models.pretrained.lora import Lora
from stentor.models.pretrained.quantize import Bits, check
from stentor.models.pretrained.section import PretrainedFamily, PretrainedSection
from stentor.models.text.tokenizers import CTCHeadSection, TokenizerSection
from stentor.section import ConfigConflict, Section


class ProjectorSection(Section):
    """The projector from encoder frames to positions of the language model."""

    type: Literal["mlp", "conv"] = "mlp"
    """`mlp`: stacked neighbouring frames, then two linear layers. `conv`: a strided convolution, then two linear
    layers."""
    rate: float = Field(12.5, gt=0)
    """Positions per second that the language model reads. The encoder's frame rate must be a multiple of it."""
    hidden: int | None = Field(None, ge=1)
    """Width of the hidden layer. Null: the width of the language model."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout between the two linear layers."""


class LLMSection(PretrainedSection):
    """The causal language model, anything that transformers' AutoModelForCausalLM loads."""

    attention: Literal["sdpa", "flex", "eager"] | None = None
    """Attention kernel. Null: `sdpa` where the model has it, else `eager`. `flex` is for packed batches on a GPU."""


class AlignerSection(Section):
    """Alignment module, which finds the time of each word of a text. The task `words` trains it."""

    kind: Literal["attention", "slots"] = "attention"
    """`attention`: each word attends to its frames, and dynamic programming keeps the words in order. `slots`: start
    and end of a word are each classified over the frames, and corrected when out of order."""
    layers: int = Field(2, ge=1)
    """Layers of cross-attention from the text to the audio."""
    heads: int = Field(4, ge=1)
    """Number of attention heads."""
    width: int = Field(128, ge=8)
    """Width of its layers."""
    dropout: float = Field(0.1, ge=0, lt=1)
    """Dropout in its layers."""
    warp: float = Field(0.7, ge=0, le=2)
    """Time warping of half of the training clips, so that the aligner also learns changing speed and long pauses:
    standard deviation of the logarithm of the speed between stretches. 0: off."""
    rate: Literal[50, 100] = 100
    """Grid points per second at which boundaries are searched; times are interpolated between the points. Encoders that
    read raw audio always have 50."""

    @model_validator(mode="after")
    def _divisible(self) -> AlignerSection:
        if self.width % self.heads:
            raise ConfigConflict("width", f"must be a multiple of `heads` ({self.heads})")
        return self


class PromptSection(Section):
    """The prompt that the language model reads before the transcript."""

    instruction: str | None = "Transcribe the following audio."
    """Instruction before the audio. Use null for small models trained from scratch."""
    language: bool = True
    """Name the language of the audio in the prompt where it is known."""
    context: bool = True
    """Include the item's context (names and terms to expect) in the prompt where it has one."""
    audio_start: str = "\n"
    """Text between the prompt and the audio, such as a token that marks the start of audio."""
    audio_end: str = "\n"
    """Text between the audio and the transcript. Tokenizers made from the data mark this place with a token."""
    dropout: float = Field(0.1, ge=0, le=1)
    """Share of training items whose language is left out and, drawn independently, whose context is left out, so that
    the model also works without them."""


class SpeechLLMStream(DelayedStream):
    """Streaming transcription: at each position the language model reads a frame of audio added to the previous token,
    and writes each word a fixed delay after it was said. Needs `encoder.streaming` and records with word times."""

    reach: float = Field(20.48, gt=0)
    """Seconds of history that the language model attends to."""
    token_dropout: float = Field(0.0, ge=0, lt=1)
    """Word dropout (Bowman et al. 2016): share of the previous tokens that are replaced by pauses in training, so that
    the model relies on the audio more than on its own text."""


class SpeechLLMLora(Lora):
    """Low-rank adapters (PEFT). A part with adapters is frozen except for the adapters."""

    targets: list[str] = Field(["llm.*.q_proj", "llm.*.k_proj", "llm.*.v_proj", "llm.*.o_proj"], min_length=1)
    """Globs on module paths; `*` matches anything. Each must match at least one linear layer."""


class SpeechLLM(PretrainedFamily):
    """Audio encoder, projector and causal language model."""

    type: Literal["speech_llm"] = "speech_llm"
    encoder: EncoderSection
    projector: ProjectorSection = ProjectorSection()
    llm: LLMSection
    tokenizer: TokenizerSection | None = None
    """Null: the language model's own tokenizer. Required when the language model is built from a config."""
    ctc: CTCHeadSection | None = None
    """Auxiliary CTC head. Null: none."""
    aligner: AlignerSection | None = None
    """Alignment module, for word times. Null: none."""
    prompt: PromptSection = PromptSection()
    stream: SpeechLLMStream | None = None
    """Streaming: write each word a delay after it was said. Null: write after the whole recording was read."""
    lora: SpeechLLMLora | None = None
    """Low-rank adapters. Null: none."""
    quantize: Bits | None = None
    """Keep the frozen weights of parts with adapters in 8 or 4 bits (QLoRA): this takes less memory and is a little
    slower. `4bit` needs bitsandbytes. Null: no quantisation."""
    freeze: list[str] = []
    """Globs on parameter names that are not trained, such as `encoder.*`; adapters are never added there."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass. This takes less memory and is about a third slower."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type in which frozen pretrained parts are stored. Trained weights are always float32."""
    token_rate: float | None = Field(None, gt=0)
    """Most tokens per second of audio that generation may write, on top of 16. Null: 25 for characters, else 6."""
    tasks: ClassVar[tuple[str, ...]] = ("transcribe", "words")
    layouts: ClassVar[tuple[str, ...]] = ("padded", "packed")
    hypotheses: ClassVar[tuple[str, ...]] = ("best", "sampled")
    implementation: ClassVar[str | None] = __package__

    @model_validator(mode="after")
    def _tokenizer_given_once(self) -> SpeechLLM:
        check(self.quantize, self.lora)
        if self.llm.config is not None and self.tokenizer is None:
            raise ValueError(
                "a language model built from `config` has no tokenizer of its own: set `tokenizer: {type: characters}` "
                "or `tokenizer: {type: bpe, size: 500}`"
            )
        if self.llm.source is not None and self.tokenizer is not None:
            raise ValueError("a pretrained language model comes with its own tokenizer: leave `tokenizer` out")
        return self

    @model_validator(mode="after")
    def _goes_with_stream(self) -> SpeechLLM:
        if self.stream is None:
            return self
        conflicts = {
            "encoder.streaming": self.encoder.streaming is None and "set it, for example to {chunk: [0.08, 0.32]}",
            "projector.type": self.projector.type != "mlp" and "`conv` looks ahead: write `mlp`",
            "prompt": self.prompt != PromptSection() and "there is no prompt: leave it out",
            "aligner": self.aligner is not None and "it gives word times itself: leave it out",
            "llm.attention": self.llm.attention not in (None, "sdpa") and "write `sdpa`, or leave it out",
        }
        for key, fix in conflicts.items():
            if fix:
                raise ConfigConflict(key, f"for `stream`, which transcribes during the recording: {fix}")
        return self

    @classmethod
    def from_voxlm(cls, path: Path) -> tuple[Bundle, list[str]]:
        """A bundle of a checkpoint of VoxLM, to be saved, and what is not in it. Raises ConfigError."""
        module = cls._module("voxlm")
        return module.imported(module.read(path))  # type: ignore[no-any-return]

    def writes(self, search: str) -> bool:
        return super().writes(search) and self.stream is None

    def decoding_options(self) -> frozenset[str]:
        return super().decoding_options() | ({"context"} if self.prompt.context and self.stream is None else set())
