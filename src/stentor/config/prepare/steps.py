"""Steps of `prepare:`: a corpus, segments, pseudo-labels, synthetic speech, word times, a codec, codec tokens. The keys
are options of the verbs."""

from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import ConfigDict, Field, SerializeAsAny

from stentor.config.prepare.base import ClusterPlace, Place, Preparation, options_of
from stentor.data.augment import Augment
from stentor.data.storage import StoragePath
from stentor.inference.segments.base import Stage
from stentor.inference.segments.hallucinations import HallucinationsStage
from stentor.inference.segments.label import Decoding
from stentor.inference.segments.vad import VadStage
from stentor.models.codecs.base import Codec
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
    """Seconds of silence before and after each utterance, both drawn; rooms and noise continue in it. Null: none."""


class SpeechKeys(ClusterPlace):
    """Texts, voices and the filter of synthetic speech."""

    data: SerializeAsAny[Source] | None = None
    """Source of the texts: any source; `{type: synth, texts: digits, count: 1000}` makes texts."""
    language_model: str | None = None
    """Run folder of a model for the task `language` that makes the texts, in the place of `data`."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the language model: below 1 it prefers likely texts."""
    count: int | None = Field(None, ge=1)
    """Utterances; texts and voices are used equally often. Null: each text once."""
    exclude: list[SerializeAsAny[Source]] = []
    """Records, such as those of a test set, whose texts are not spoken."""
    model: str | None = None
    """Speech synthesis model: run folder, export or Hub id of a model for the task `speak`. Null: the built-in
    voices."""
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
    """Classifier-free guidance of text and voice. Null: as in training."""
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


class CorpusStep(Preparation):
    """Manifests of a known corpus, taken from a folder or fetched: `PART.jsonl` in `to`."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["corpus"] = "corpus"
    name: str
    """Name of the lhotse recipe, such as librispeech."""
    from_: StoragePath | None = Field(None, alias="from")
    """Folder of the corpus as it was unpacked. Null with `download`: the folder `download` in `to`."""
    split: str | None = None
    """Only this part, such as dev-clean. Null: all."""
    download: bool = False
    """Fetch what is missing. Read the corpus's licence first."""
    recordings: bool = False
    """Whole recordings with segments, for diarization."""
    settings: dict[str, Any] = {}
    """Other options of the lhotse recipe."""
    option_names: ClassVar = {"from_": "source", "settings": "option"}

    @property
    def marker(self) -> Path:
        return self.to / f"{(self.split or self.name).replace('/', '-')}.prepared.json"

    def options(self) -> dict[str, Any]:
        from stentor.config.yaml_writer import inline

        return super().options() | {"option": [f"{key}={inline(value)}" for key, value in self.settings.items()]}


class DataStep(Place, Preparation):
    """A step that is made of records."""

    data: Source
    """The records."""


class ClusterStep(ClusterPlace, DataStep):
    """A step that can be done on a Ray cluster."""


class SegmentsStep(ClusterStep):
    """Segments of long recordings, as `manifest.jsonl` in `to`: see docs/corpus.md."""

    type: Literal["segments"] = "segments"
    stages: list[SerializeAsAny[Stage]] = Field(min_length=1)
    """Stages for the recordings, in order."""
    audio: bool = False
    """Write each segment as a FLAC file. False: records point into the recordings."""
    option_names: ClassVar = {"stages": "stage"}


class LabelKeys(ClusterPlace):
    """Labelling of audio, and the choice of labels."""

    decodings: list[Decoding] = [Decoding()]
    """Ways of decoding, of each model, the best one first."""
    labelled: Source | None = None
    """Records with texts, which no model was trained on: they calibrate the confidences and say which threshold keeps
    `max_error`."""
    max_error: float = Field(0.1, gt=0, le=1)
    """Word error rate that what is kept may have."""
    assurance: float = Field(0.8, ge=0.5, lt=1)
    """Required certainty that the error is not higher."""
    select: Literal["confidence", "random"] = "confidence"
    """`random` keeps as many seconds at random: the baseline of a filter."""
    hours: float | None = Field(None, gt=0)
    """Most hours that are kept. Null: no limit."""
    stages: list[SerializeAsAny[Stage]] = [VadStage()]
    """Stages before transcription, in order; empty for clips that stay whole."""
    filters: list[SerializeAsAny[Stage]] = [HallucinationsStage(min_confidence=None)]
    """Stages after transcription, in order."""
    audio: bool = False
    """Write each segment as a FLAC file. False: records point into the recordings."""
    seed: int = 0
    """Random seed."""


class LabelsStep(LabelKeys, ClusterStep):
    """Pseudo-labels of audio without transcripts, as `manifest.jsonl` in `to`: see docs/labels.md."""

    type: Literal["labels"] = "labels"
    models: list[str] = Field(min_length=1)
    """Recognisers, the best one first: run folders, exports or Hub ids."""
    round: int = Field(1, ge=0)
    """Round of labelling of this data; a key of the records."""
    option_names: ClassVar = {"models": "model", "decodings": "decoding", "stages": "stage", "filters": "filter"}

    def options(self) -> dict[str, Any]:
        from stentor.config.yaml_writer import inline

        options = super().options()
        decodings = [d.model_dump(mode="json", exclude_none=True) for d in self.decodings]
        return options | {
            "decoding": [",".join(f"{key}={inline(value)}" for key, value in keys.items()) for keys in decodings],
            "stage": options["stage"] or ["none"],
            "filter": options["filter"] or ["none"],
        }


class WordsStep(ClusterStep):
    """Word times, as a manifest."""

    type: Literal["words"] = "words"
    engine: str | None = None
    """aligner, transducer, ctc, whisper or voice. Null: what the model is for."""
    model: str | None = None
    """Run folder, export, transducer, CTC or Whisper model (a folder or Hub id)."""
    max_wer: float | None = Field(None, ge=0)
    """Drop records whose free transcription has a higher word error rate. Null: 0.3."""
    lag: float | None = None
    """Seconds that a Whisper model's attention is late. Null: as measured."""


class CodecStep(DataStep):
    """An audio codec that is fitted on the data, or a published one."""

    type: Literal["codec"] = "codec"
    codec: Codec
    """Its kind and settings."""
    hours: float = Field(2.0, ge=0)
    """Most hours of audio that are read for fitting."""
    seed: int = 0
    """Random seed of the fit."""

    def options(self) -> dict[str, Any]:
        option = [part for part in options_of(self.codec) if not part.startswith("type=")]
        return {**super().options(), "codec": self.codec.type, "option": option}


class TokensStep(ClusterStep):
    """Codec tokens, in tar shards."""

    type: Literal["tokens"] = "tokens"
    codec: str
    """A codec's folder, type or Hub id; none packs the audio."""
    samples_per_shard: int = Field(1000, ge=1)
    """Most samples in a shard."""
    min_shards: int = Field(32, ge=1)
    """Least shards."""
    min_seconds: float | None = Field(None, ge=0)
    """Leave out shorter records. Null: none."""
    max_seconds: float | None = Field(None, ge=0)
    """Leave out longer records. Null: none."""
    noisy_prompts: bool = False
    """Make the beginning of each utterance noisy."""
    seed: int = 0
    """Order of the samples."""
