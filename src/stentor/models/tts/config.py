"""Family `tts`: pretrained speech synthesis models of transformers: one model with a processor and a codec, which
generates frames of audio one after the other.

The differences between models are in one class per model, in `kinds/` (see `stentor.models.tts.processor`), selected by
the `model_type` of transformers' config. Exports load with plain transformers or PEFT, and contain the codec.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field, model_validator

from stentor.losses.token import ModelLoss
from stentor.models.codecs.base import Codec
from stentor.models.pretrained.family import TransformersFamily
from stentor.models.pretrained.lora import Lora
from stentor.section import ConfigConflict, Section

if TYPE_CHECKING:
    from stentor.losses.base import Loss
    from stentor.models.contracts import ServedTask

WITHOUT_LOSS = ("bark", "vits")
"""Speech synthesis models whose `forward` in transformers refuses labels (5.23: "Training is not implemented yet for
Bark", "Training of VITS is not supported yet")."""


class TTSLora(Lora):
    """Low-rank adapters (PEFT). Only the adapters are trained."""

    targets: list[str] = Field([f"*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths, as transformers names them; `*` matches anything. Each must match at least one linear
    layer. Where none are given: all attention layers but those of a codec."""


class TTSGeneration(Section):
    """Sampling of the next frame. Null keys take their value from the model's generation_config.json."""

    temperature: float | None = Field(None, ge=0)
    """Sampling temperature. 0: always choose the most likely code."""
    top_k: int | None = Field(None, ge=1)
    """Sample only from this number of the most likely codes."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Sample only from the most likely codes whose probabilities add up to this value."""
    guidance: float | None = Field(None, ge=1)
    """Classifier-free guidance, for models trained for it (Dia): how strongly the text is followed. 1: off."""

    flow_steps: int | None = Field(None, ge=1)
    """Number of steps from noise to the next frame, for models with continuous codes (Pocket TTS). More steps follow
    the learnt distribution more closely."""


class TTS(TransformersFamily):
    """A pretrained speech synthesis model (CSM, Dia and others), trained in full or with LoRA."""

    type: Literal["tts"] = "tts"
    codec: Codec | None = None
    """The audio codec. Null: the model's own."""
    lora: TTSLora | None = None
    """Low-rank adapters. Null: all weights are trained except those in `freeze` and those of a codec."""
    generation: TTSGeneration = TTSGeneration()
    """Sampling of the next frame. (`task.generation` is for models that predict masked codes.)"""
    aliases: ClassVar[tuple[str, ...]] = ("csm", "dia", "higgs_audio_v2", "pocket_tts", "gradium_phonon_tts")
    tasks: ClassVar[tuple[str, ...]] = ("speak",)
    implementation: ClassVar[str | None] = __package__
    example: ClassVar[str] = "{model_type: csm, hidden_size: 64}"
    among: ClassVar[str] = "no model that speaks known here: give one that docs/speak.md lists"
    other_purpose: ClassVar[str] = "does not speak"

    @model_validator(mode="after")
    def _trained_in_float32(self) -> TTS:
        if self.dtype != "float32" and self.lora is None:
            raise ConfigConflict("dtype", "without `lora` the model is trained in float32: leave it out, or set `lora`")
        return self

    @classmethod
    def unknown(cls, model_type: str) -> str:
        if model_type in WITHOUT_LOSS:
            return "which transformers runs but cannot train: its class takes no labels. Give one of docs/speak.md."
        return super().unknown(model_type)

    def losses(self, task: ServedTask) -> dict[str, Loss]:
        return {"codes": ModelLoss()}
