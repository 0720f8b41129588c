"""Steps of `prepare:`: a corpus, segments, pseudo-labels, synthetic speech, word times, a codec, codec tokens. The keys
are the options of the commands."""

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
from stentor.text.languages import LanguageName


class BuiltInVoices(Voices):
    """Selection of built-in voices, with speed and pitch."""

    speed: IntRange = (140, 200)
    """Minimum and maximum speed in words per minute."""
    pitch: IntRange = (20, 80)
    """Minimum and maximum pitch, from 0 to 99."""


class SpeechAugment(Augment):
    """Augmentation of synthetic speech before it is stored, drawn for each utterance. By default only `silence`."""

    silence: Range | None = (0.1, 0.3)
    """Minimum and maximum seconds of silence before and after each utterance, drawn separately. Reverberation and noise
    continue in it. Null: none."""


class SpeechKeys(ClusterPlace):
    """Settings of synthetic speech: texts, voices and filters."""

    data: SerializeAsAny[Source] | None = None
    """Source of the texts; `{type: synth, texts: digits, count: 1000}` generates texts."""
    language_model: str | None = None
    """Run folder of a model for the task `language` that generates the texts, instead of `data`."""
    temperature: float = Field(1.0, gt=0)
    """Sampling temperature of the language model; lower values give more probable texts."""
    count: int | None = Field(None, ge=1)
    """Number of utterances; texts and voices are used equally often. Null: each text once."""
    exclude: list[SerializeAsAny[Source]] = []
    """Records, such as those of a test set, whose texts are not spoken."""
    model: str | None = None
    """Speech synthesis model: run folder, export or Hub id, for the task `speak`. Null: the built-in voices."""
    voice: list[str] = []
    """Saved voices of the model, by path or name, or built-in voices such as `en-us+f3`."""
    references: SerializeAsAny[Source] | None = None
    """Recordings with texts whose voices are cloned."""
    instruct: list[str] = []
    """Descriptions of voices in words, if the model was trained with them."""
    voices: BuiltInVoices | None = None
    """Selection of built-in voices. Null: all English ones."""
    language: LanguageName | None = None
    """Language of texts without a language. Null: unknown; for built-in voices, the language of the voice."""
    steps: int | None = Field(None, ge=1)
    """Number of unmasking steps of the model. Null: the model's setting."""
    guidance: float | None = Field(None, ge=0)
    """Guidance scale of the model; higher follows text and voice more closely. Null: the model's setting."""
    normalize: bool = False
    """Convert numbers to words before synthesis."""
    augment: SpeechAugment = SpeechAugment()
    """Silence, reverberation and noise."""
    recognizer: str | None = None
    """Speech recognition model that checks each utterance: run folder, export or Hub id."""
    max_wer: float | None = Field(None, ge=0)
    """Maximum word error rate of the recogniser's text; utterances above it are rejected. Null: 0.3."""
    seed: int = 0
    """Random seed of texts, voices and augmentation."""


class SpeechStep(SpeechKeys, Preparation):
    """Synthesize texts with a model or the built-in voices, as `manifest.jsonl` in `to`: see docs/speech_data.md."""

    type: Literal["speech"] = "speech"
    round: int = Field(0, ge=0)
    """Number of the training round that the speech is for."""


class CorpusStep(Preparation):
    """Prepare a known corpus, from a folder or a download, as manifests `PART.jsonl` in `to`."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)

    type: Literal["corpus"] = "corpus"
    name: str
    """Name of the lhotse recipe, such as librispeech."""
    from_: StoragePath | None = Field(None, alias="from")
    """Folder with the unpacked corpus. Null, with `download`: the folder `download` in `to`."""
    split: str | None = None
    """Only this part, such as dev-clean. Null: all."""
    download: bool = False
    """Download missing files. Read the licence of the corpus first."""
    recordings: bool = False
    """Create records of whole recordings with segments, for diarization."""
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
    """A step with records as input."""

    data: Source
    """Input records."""


class ClusterStep(ClusterPlace, DataStep):
    """A step that can run on a Ray cluster."""


class SegmentsStep(ClusterStep):
    """Cut long recordings into segments, as `manifest.jsonl` in `to`: see docs/corpus.md."""

    type: Literal["segments"] = "segments"
    stages: list[SerializeAsAny[Stage]] = Field(min_length=1)
    """Stages that process the recordings, in order."""
    audio: bool = False
    """Write each segment as a FLAC file. False: records point into the recordings."""
    option_names: ClassVar = {"stages": "stage"}


class LabelKeys(ClusterPlace):
    """Settings of pseudo-labelling: decoding, stages and selection."""

    decodings: list[Decoding] = [Decoding()]
    """Decodings of each model, the best one first."""
    labelled: Source | None = None
    """Records with texts that no model was trained on, to calibrate confidences and the threshold for `max_error`."""
    max_error: float = Field(0.1, gt=0, le=1)
    """Maximum word error rate of all kept labels together."""
    assurance: float = Field(0.8, ge=0.5, lt=1)
    """Required probability that the error rate is not higher than `max_error`."""
    select: Literal["confidence", "random"] = "confidence"
    """Criterion of selection. `random` keeps the same number of seconds, chosen at random, as a baseline."""
    hours: float | None = Field(None, gt=0)
    """Maximum hours to keep. Null: no limit."""
    stages: list[SerializeAsAny[Stage]] = [VadStage()]
    """Stages before the transcription, in order; empty to label whole clips."""
    filters: list[SerializeAsAny[Stage]] = [HallucinationsStage(min_confidence=None)]
    """Stages after the transcription, in order."""
    audio: bool = False
    """Write each segment as a FLAC file. False: records point into the recordings."""
    seed: int = 0
    """Random seed."""


class LabelsStep(LabelKeys, ClusterStep):
    """Pseudo-label untranscribed audio, as `manifest.jsonl` in `to`: see docs/labels.md."""

    type: Literal["labels"] = "labels"
    models: list[str] = Field(min_length=1)
    """Recognisers, the best one first: run folders, exports or Hub ids."""
    round: int = Field(1, ge=0)
    """Number of the labelling round, stored in the records."""
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
    """Add word times to records, as a manifest."""

    type: Literal["words"] = "words"
    engine: str | None = None
    """Alignment engine: aligner, transducer, ctc, whisper or voice. Null: the first one that the model supports."""
    model: str | None = None
    """Alignment model: run folder, export, or folder or Hub id of a transducer, CTC or Whisper model."""
    max_wer: float | None = Field(None, ge=0)
    """Drop records whose free transcription has a higher word error rate. Null: 0.3."""
    lag: float | None = None
    """Delay in seconds of a Whisper model's attention. Null: as measured."""


class CodecStep(DataStep):
    """Fit an audio codec on the data, or prepare a published one."""

    type: Literal["codec"] = "codec"
    codec: Codec
    """Type and settings of the codec."""
    hours: float = Field(2.0, ge=0)
    """Maximum hours of audio to fit on."""
    seed: int = 0
    """Random seed of the fit."""

    def options(self) -> dict[str, Any]:
        option = [part for part in options_of(self.codec) if not part.startswith("type=")]
        return {**super().options(), "codec": self.codec.type, "option": option}


class TokensStep(ClusterStep):
    """Encode audio as codec tokens, in tar shards."""

    type: Literal["tokens"] = "tokens"
    codec: str
    """Folder, type or Hub id of a codec; `none` packs the audio itself."""
    samples_per_shard: int = Field(1000, ge=1)
    """Maximum number of samples per shard."""
    min_shards: int = Field(32, ge=1)
    """Minimum number of shards."""
    min_seconds: float | None = Field(None, ge=0)
    """Minimum seconds of a record; shorter ones are left out. Null: no limit."""
    max_seconds: float | None = Field(None, ge=0)
    """Maximum seconds of a record; longer ones are left out. Null: no limit."""
    noisy_prompts: bool = False
    """Add noise to the beginning of each utterance."""
    seed: int = 0
    """Random seed of the order of the samples."""
