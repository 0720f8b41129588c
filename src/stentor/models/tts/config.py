"""Family `tts`: pretrained models that speak, as transformers has them: one model with a processor and a codec, which
makes frames of audio one after the other.

What differs between such models is one class a model, in `kinds/` (see `stentor.models.tts.processor`), known by the
`model_type` of transformers' config. Exports are what plain transformers or PEFT loads, with the codec beside.
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
"""Models that speak whose `forward` in transformers refuses labels (5.23: "Training is not implemented yet for Bark",
"Training of VITS is not supported yet")."""


class TTSLora(Lora):
    """Low-rank adapters (PEFT). With adapters nothing else is trained."""

    targets: list[str] = Field([f"*.{x}_proj" for x in "qkvo"], min_length=1)
    """Globs on module paths, as transformers names them; `*` matches anything. Each must match at least one linear
    layer. Where none are given: all attention layers but those of a codec."""


class TTSGeneration(Section):
    """Sampling of the next frame. Null keys are taken from the model's generation_config.json."""

    temperature: float | None = Field(None, ge=0)
    """Sampling temperature. 0: always the most likely."""
    top_k: int | None = Field(None, ge=1)
    """Chosen among so many of the likeliest."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Chosen among the likeliest that together have this probability."""
    guidance: float | None = Field(None, ge=1)
    """Classifier-free guidance: weight of the text over the model without it, for models that were trained
    without it too (Dia). 1: not at all."""

    flow_steps: int | None = Field(None, ge=1)
    """Steps from noise to the next frame, of models with continuous codes (Pocket TTS). More: closer to what was
    learned."""


class TTS(TransformersFamily):
    """A pretrained model that speaks, full or with LoRA: CSM, Dia and others. Which one it is follows from its
    `model_type`."""

    type: Literal["tts"] = "tts"
    codec: Codec | None = None
    """The audio codec. Null: the model's own."""
    lora: TTSLora | None = None
    """Low-rank adapters. Null: all weights are trained but those in `freeze`, and a codec's."""
    generation: TTSGeneration = TTSGeneration()
    """Sampling of the next frame; `task.generation` is about models that fill in masks."""
    aliases: ClassVar[tuple[str, ...]] = ("csm", "dia", "higgs_audio_v2", "pocket_tts", "gradium_phonon_tts")
    tasks: ClassVar[tuple[str, ...]] = ("speak",)
    implementation: ClassVar[str | None] = __package__
    example: ClassVar[str] = "{model_type: csm, hidden_size: 64}"
    among: ClassVar[str] = "no model that speaks known here: give one that docs/speak.md lists"
    other_purpose: ClassVar[str] = "does not speak"

    @model_validator(mode="after")
    def _trained_in_float32(self) -> TTS:
        if self.dtype != "float32" and self.lora is None:
            raise ConfigConflict("dtype", "without `lora` all parts are trained or beside such, in float32")
        return self

    @classmethod
    def unknown(cls, model_type: str) -> str:
        if model_type in WITHOUT_LOSS:
            return "which transformers runs but cannot train: its class takes no labels. Give one of docs/speak.md."
        return super().unknown(model_type)

    def losses(self, task: ServedTask) -> dict[str, Loss]:
        return {"codes": ModelLoss()}
