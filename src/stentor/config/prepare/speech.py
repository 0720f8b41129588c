"""Step `speech` of `prepare:`: texts to synthetic speech for training a recogniser."""

from typing import Literal

from pydantic import Field, SerializeAsAny

from stentor.config.prepare.base import ClusterPlace, Preparation
from stentor.data.augment import Augment
from stentor.section import IntRange, Range
from stentor.sources.base import Source
from stentor.sources.synth import Voices


class BuiltInVoices(Voices):
    """A choice of the built-in voices, and how they speak."""

    speed: IntRange = (140, 200)
    """Words per minute."""
    pitch: IntRange = (20, 80)
    """Pitch, 0 to 99."""


class SpeechAugment(Augment):
    """Changes of synthetic speech before it is stored, drawn for each utterance. Everything is off unless it is given,
    but for the silence."""

    silence: Range | None = (0.1, 0.3)
    """Seconds of silence before and after each utterance, both drawn; rooms and noise go on in it. Null: none."""


class SpeechKeys(ClusterPlace):
    """What is spoken, by whom, and what of it is kept."""

    data: SerializeAsAny[Source] | None = None
    """Whose texts are spoken: any source; `{type: synth, texts: digits, count: 1000}` makes texts."""
    language_model: str | None = None
    """Run folder of a model for the task `language` that makes the texts, in the place of `data`."""
    temperature: float = Field(1.0, gt=0)
    """Of the language model: below 1 it writes what is likelier."""
    count: int | None = Field(None, ge=1)
    """Utterances; texts and voices are used equally often. Null: each text once."""
    exclude: list[SerializeAsAny[Source]] = []
    """Records, such as those of a test set, whose texts are not spoken."""
    model: str | None = None
    """What speaks: run folder, export or Hub id of a model for the task `speak`. Null: the built-in voices."""
    voice: list[str] = []
    """Saved voices of the model, by path or name, or built-in voices such as `en-us+f3`."""
    references: SerializeAsAny[Source] | None = None
    """Recordings with texts, in whose voices the model speaks."""
    instruct: list[str] = []
    """Voices in words, as the model was trained."""
    voices: BuiltInVoices | None = None
    """A choice of the built-in voices. Null: all English ones."""
    language: str | None = None
    """Language of texts that name none. Null: of the built-in voices, their own."""
    steps: int | None = Field(None, ge=1)
    """Passes through the speaking model. Null: as it was trained."""
    guidance: float | None = Field(None, ge=0)
    """How closely text and voice are followed. Null: as it was trained."""
    normalize: bool = False
    """Write numbers in words before the model speaks them."""
    augment: SpeechAugment = SpeechAugment()
    """Silence, rooms and noise."""
    recognizer: str | None = None
    """A recogniser that listens to each utterance: run folder, export or Hub id."""
    max_wer: float | None = Field(None, ge=0)
    """Highest word error rate of the recogniser's text; what is above is rejected. Null: 0.3."""
    seed: int = 0
    """Draws texts, voices and changes."""


class SpeechStep(SpeechKeys, Preparation):
    """Texts, spoken by a model or by the built-in voices, as `manifest.jsonl` in `to`: see docs/speech_data.md."""

    type: Literal["speech"] = "speech"
    round: int = Field(0, ge=0)
    """Round of training that the speech is made for."""
