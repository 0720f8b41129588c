"""Options of `stentor prepare ...`: make data ready for training, and look at it."""

from dataclasses import dataclass
from pathlib import Path

from stentor.commands.shared_options import LAG
from stentor.inference.declarations import REQUIRED, Argument, Flag, Option, verb, verb_group
from stentor.pipeline.options import DEVICE, RAY, Cluster, Workers

PREPARE = verb_group("prepare", "Prepare and check training data.")
DATA = "A manifest path, or type=...,key=value: records with texts."
PLUGINS = "A Python file whose classes extend Stentor. May be repeated."


@dataclass(kw_only=True)
class AllGpus(Workers):
    """Options of verbs that use all GPUs of this machine."""

    device: str = Option("auto (all GPUs), cpu, cuda:N, several as cuda:0,1, or mps.", "auto")


@verb("corpus", "stentor.commands.prepare.corpus:prepare_corpus", PREPARE)
@dataclass(kw_only=True)
class CorpusOptions:
    """Write manifests of a known corpus, on disk or downloaded."""

    name: str = Argument("Name of the corpus, such as librispeech, ami or commonvoice.")
    to: Path = Option("Folder for the manifests: one PART.jsonl for each part.", REQUIRED, output=True)
    source: Path | None = Option("Folder of the corpus as it was unpacked.", flags="--from")
    split: str | None = Option("Only this part, such as dev-clean. Default: all.")
    download: bool = Flag("Download what is missing (into TO/download).")
    recordings: bool = Flag("Whole recordings with segments, for diarization.")
    empty: bool = Flag("Include recordings without annotation, as recordings without speech.")
    option: list[str] = Option("KEY=VALUE for the recipe. May be repeated.", [])


@verb("index", "stentor.commands.prepare.index:prepare_index", PREPARE)
@dataclass(kw_only=True)
class IndexOptions:
    """Index manifests of many records, so that training holds none of them in memory and starts in seconds."""

    data: list[str] = Argument(
        "Manifests (.jsonl), with the keys of a source that selects records, such as FILE,limit=1000: the index of "
        "each is written next to it, as MANIFEST.index."
    )
    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("check", "stentor.commands.prepare.check:check_data", PREPARE)
@dataclass(kw_only=True)
class CheckOptions(Cluster):
    """Decode and inspect all records; write a page with what there is and what looks wrong."""

    data: list[str] = Argument("Manifest paths, or type=...,key=value. Several are compared.")
    model: str | None = Option("Compare the texts with this model's tokenizer.")
    to: Path = Option("Folder for check.html and check.json.", Path("data-check"), output=True)
    jobs: int | None = Option("Processes that decode audio. Default: all cores.", min=1)


@verb("segments", "stentor.commands.prepare.segments.command:prepare_segments", PREPARE)
@dataclass(kw_only=True)
class SegmentsOptions(AllGpus):
    """Turn long recordings into training records, with a page of what was kept and why. The same command resumes after
    a kill."""

    data: str = Argument("A folder of recordings, a manifest path, or type=...,key=value.")
    to: Path = Option("Folder for manifest.jsonl, rejects.jsonl, summary.json and corpus.html.", REQUIRED, output=True)
    stage: list[str] = Option(
        "Stage as TYPE,KEY=VALUE,..., such as vad, speakers,model=RUN or duplicates. Repeat it, in order.", []
    )
    audio: bool = Flag("Write each segment as a FLAC file. Otherwise records point into the recordings.")


@verb("speech", "stentor.commands.prepare.speech.command:prepare_speech", PREPARE)
@dataclass(kw_only=True)
class SpeechOptions(AllGpus):
    """Speak texts, by a model or the built-in voices, and keep what a recogniser understands, as records for training
    one. The same command resumes after a kill."""

    to: Path = Option("Folder for manifest.jsonl, rejects.jsonl, summary.json and the audio.", REQUIRED, output=True)
    data: str | None = Argument(
        "Source of the texts: a text file, a manifest, or type=...,key=value; type=synth,texts=digits,count=1000 "
        "makes texts.",
        None,
    )
    language_model: str | None = Option("Run folder of a model for the task language that makes the texts.")
    temperature: float = Option(
        "Sampling temperature of the language model: below 1 it prefers likely texts.", 1.0, needs="language_model"
    )
    count: int | None = Option(
        "Number of utterances; texts and voices are used equally often. Default: each text once.", min=1
    )
    exclude: list[str] = Option("Records, such as a test set, whose texts are not spoken. May be repeated.", [])
    model: str | None = Option("What speaks: run folder, export or Hub id. Default: the built-in voices.")
    voice: list[str] = Option(
        "A saved voice of the model, or a built-in one such as en-us+f3. May be repeated.", [], local=True
    )
    references: str | None = Option("Records with texts whose voices the model uses.", needs="model")
    instruct: list[str] = Option("The voice in words, as the model was trained. May be repeated.", [], needs="model")
    voices: str | None = Option("A choice of built-in voices, as count=50,part=train,accents=[de].")
    language: str | None = Option("Language of texts that name none, as a code such as en.")
    steps: int | None = Option("Passes through the speaking model.", min=1, needs="model")
    guidance: float | None = Option("Classifier-free guidance of the speech model.", min=0.0, needs="model")
    normalize: bool = Flag("Read numbers as words (needs stentor[speak]).", needs="model")
    augment: str | None = Option(
        "KEY=VALUE,... of `data.augment`, and silence: silence=[0.1,0.5],noise.builtin=[pink],noise.snr=[5,20]."
    )
    recognizer: str | None = Option("Recogniser that checks each utterance: run folder, export or Hub id.", local=True)
    max_wer: float | None = Option(
        "Reject utterances with a higher word error rate (default 0.3).", min=0.0, needs="recognizer"
    )
    round: int = Option("Round of training that the speech is made for.", 0, min=0)
    seed: int = Option("Random seed of texts, voices and augmentation.", 0)


@verb("labels", "stentor.commands.prepare.labels:prepare_labels", PREPARE)
@dataclass(kw_only=True)
class LabelsOptions(AllGpus):
    """Label audio with recognisers, and keep what is likely right, as training records. The same command resumes
    after a kill."""

    data: str = Argument("A folder of recordings, a manifest path, or type=...,key=value. Texts in it are not read.")
    to: Path = Option("Folder for manifest.jsonl, rejects.jsonl, summary.json and corpus.html.", REQUIRED, output=True)
    model: list[str] = Option("A recogniser: run folder, export or Hub id, the best one first. Repeat it.", REQUIRED)
    decoding: list[str] = Option(
        "Decoding as KEY=VALUE,... for each model (beams, temperature, speed, language_model), the best one "
        "first. Repeat it.",
        [],
    )
    labelled: str | None = Option(
        "Transcribed records that no model was trained on: they calibrate the confidences and the threshold "
        "for --max-error."
    )
    max_error: float = Option("Highest expected word error rate of the kept labels.", 0.1, min=0.0, max=1.0)
    assurance: float = Option("Required certainty that the error is not higher, from 0.5.", 0.8, min=0.5, max=0.999)
    select: str = Option(
        "confidence, or random: the same amount at random, as a baseline for the filter.", "confidence"
    )
    hours: float | None = Option("Most hours to keep.", min=0.0)
    round: int = Option("Round of labelling, written into the records.", 1, min=0)
    stage: list[str] = Option(
        "Stage before transcription as TYPE,KEY=VALUE,...; none keeps clips whole. Repeat it.", ["vad"]
    )
    filter: list[str] = Option(
        "Stage after transcription as TYPE,KEY=VALUE,..., such as language; or none. Repeat it.",
        ["hallucinations,min_confidence=null"],
    )
    audio: bool = Flag("Write each segment as a FLAC file. Otherwise records point into the recordings.")
    seed: int = Option("Random seed.", 0)


@verb("words", "stentor.commands.prepare.words:prepare_words", PREPARE)
@dataclass(kw_only=True)
class WordsOptions(Workers):
    """Time every word of a transcribed corpus. The same command resumes after a kill."""

    data: str = Argument(DATA)
    to: Path = Option("The manifest to write (.jsonl), with `words`.", REQUIRED, output=True)
    engine: str | None = Option("aligner, transducer, ctc, whisper or voice (built-in). Default: by the model.")
    model: str | None = Option("Run folder, export, transducer, CTC or Whisper model (a folder or Hub id).")
    max_wer: float | None = Option("Drop records whose free transcription has a higher word error rate (0.3).", min=0.0)
    lag: float | None = Option(LAG)


@verb("features", "stentor.commands.prepare.features:prepare_features", PREPARE)
@dataclass(kw_only=True)
class FeaturesOptions(Cluster):
    """Compute the features of a data set and store them for training. The same command resumes after a kill."""

    to: Path = Option("Folder to fill; train with `model.features.store: TO`.", REQUIRED, output=True)
    data: str | None = Argument("A manifest path, or type=...,key=value. Default: the training data of --config.", None)
    config: Path | None = Option("Run file whose features and, for diarization, chunks are used.")
    option: list[str] = Option("KEY=VALUE of `model.features`, such as num_mel_bins=40. May be repeated.", [])


@verb("codec", "stentor.commands.prepare.codec:prepare_codec", PREPARE)
@dataclass(kw_only=True)
class CodecOptions:
    """Fit an audio codec on a data set (or use a published one), and report its loss of quality."""

    data: str = Argument("A manifest path, or type=...,key=value: speech.")
    to: Path = Option("Folder for the codec; must be new.", REQUIRED, output=True)
    codec: str = Option(
        "mel_rvq (fitted on the data), higgs_audio_v2, mimi, dac, encodec, xcodec2 or another.", "mel_rvq"
    )
    option: list[str] = Option("KEY=VALUE of `model.codec`, such as codebooks=8. May be repeated.", [])
    hours: float = Option("Most hours of audio to fit on.", 2.0, min=0.0)
    seed: int = Option("Random seed of the fit, and of the held-out records.", 0)
    device: str = Option(DEVICE, "auto")
    plugin: list[Path] = Option(PLUGINS, [], local=True)


@verb("tokens", "stentor.commands.prepare.tokens.command:prepare_tokens", PREPARE)
@dataclass(kw_only=True)
class TokensOptions(AllGpus):
    """Encode a data set for speech synthesis, into tar shards. The same command resumes after a kill."""

    data: str = Argument(DATA)
    codec: str = Option(
        "A codec's folder, type or Hub id; mel_rvq is fitted on DATA first; none packs the audio (FLAC).", REQUIRED
    )
    to: Path = Option("Folder for the shards, data.lst and errors.jsonl.", REQUIRED)
    jobs: int | None = Option(
        "Number of processes, divided among the devices; with one thread each if more than one. Default: one for each "
        "device; with --ray what the cluster offers.",
        min=1,
    )
    samples_per_shard: int = Option("Most samples in a shard.", 1000, min=1)
    min_shards: int = Option("Smallest number of shards: GPUs times data workers in training.", 32, min=1)
    min_seconds: float | None = Option("Drop records shorter than this, in seconds.", min=0.0)
    max_seconds: float | None = Option("Drop records longer than this, in seconds.", min=0.0)
    seed: int = Option("Random seed of the order of samples and of noisy prompts.", 0)
    noisy_prompts: bool = Flag("Add generated noise to the beginning of each utterance.")
    noise: list[Path] = Option("Noise for noisy prompts: a folder, manifest or file. May be repeated.", [])
    reverb: list[Path] = Option("Impulse responses for noisy prompts, given as --noise. May be repeated.", [])
    rate: int | None = Option("Hz, with --codec none. Default: 24000.", min=1000)


@verb("mixtures", "stentor.commands.prepare.mixtures:prepare_mixtures", PREPARE)
@dataclass(kw_only=True)
class MixturesOptions(Cluster):
    """Store simulated conversations with speaker labels. The same command resumes after a kill."""

    data: str | None = Argument("Source of conversations, as type=conversation,source.type=...,count=1000.", None)
    to: Path = Option("Folder for manifest.jsonl, reference.rttm and the audio.", Path("mixtures"), output=True)
    config: Path | None = Option("A YAML file with the keys of the source, instead of the argument.")


@verb("run", "stentor.commands.prepare.run:prepare_for_run", PREPARE)
@dataclass(kw_only=True)
class RunOptions:
    """Run the steps of a run file's section `prepare:`, as `stentor train` does first."""

    config: Path = Argument("The YAML (or JSON) file of the run.")
    overrides: list[str] = Argument("Overrides, such as prepare.0.jobs=4.", [], metavar="[KEY=VALUE]...")
    ray: str | None = Option(RAY)
    plugin: list[Path] = Option(PLUGINS, [], local=True)
