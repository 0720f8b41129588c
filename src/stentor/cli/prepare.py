"""`stentor prepare ...`: make data ready for training, and look at it."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from stentor.cli import verb_group
from stentor.cli.options import Device, Lag, takes_options

prepare = verb_group("prepare", "Make data ready for training, and look at it.")
Data = Annotated[str, typer.Argument(help="A manifest path, or type=...,key=value: records with texts.")]
Jobs = Annotated[int, typer.Option(min=1, help="Processes, of one thread each when more than one.")]
Plugins = Annotated[list[Path], typer.Option(help="A Python file whose classes extend Stentor. May be repeated.")]


@dataclass
class CorpusOptions:
    name: Annotated[str, typer.Argument(help="Name of the lhotse recipe, such as librispeech or commonvoice.")]
    to: Annotated[Path, typer.Option("--to", help="Folder for the manifests: one PART.jsonl for each part.")]
    source: Annotated[Path | None, typer.Option("--from", help="Folder of the corpus as it was unpacked.")] = None
    split: Annotated[str | None, typer.Option(help="Only this part, such as dev-clean. Default: all.")] = None
    download: Annotated[bool, typer.Option("--download", help="Download what is missing (into TO/download).")] = False
    recordings: Annotated[
        bool, typer.Option("--recordings", help="Whole recordings with segments, for diarization.")
    ] = False
    option: Annotated[list[str], typer.Option(help="KEY=VALUE for the recipe. May be given several times.")] = field(
        default_factory=list
    )


@prepare.command("corpus")
@takes_options
def prepare_corpus(options: CorpusOptions) -> None:
    """Write manifests of a known corpus, on disk or downloaded."""
    from stentor.commands.prepare.corpus import prepare_corpus

    prepare_corpus(options)


@dataclass
class CheckOptions:
    data: Annotated[list[str], typer.Argument(help="Manifest paths, or type=...,key=value. Several are compared.")]
    model: Annotated[str | None, typer.Option(help="Compare the texts with this model's tokenizer.")] = None
    to: Annotated[Path, typer.Option(help="Folder for check.html and check.json.")] = Path("data-check")
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes that decode audio. Default: all cores.")] = None
    plugin: Plugins = field(default_factory=list)


@prepare.command("check")
@takes_options
def prepare_check(options: CheckOptions) -> None:
    """Decode and inspect all records; write a page with what there is and what looks wrong."""
    from stentor.commands.prepare.check import check_data

    check_data(options)


@dataclass
class WordsOptions:
    data: Data
    to: Annotated[Path, typer.Option("--to", help="The manifest to write (.jsonl), with `words`.")]
    engine: Annotated[
        str | None,
        typer.Option(help="aligner, ctc, whisper or voice (the built-in voice). Default: what the model is for."),
    ] = None
    model: Annotated[
        str | None, typer.Option(help="Run folder, export, CTC or Whisper model (a folder or Hub id).")
    ] = None
    jobs: Jobs = 1
    max_wer: Annotated[
        float | None,
        typer.Option(min=0.0, help="Drop records whose free transcription has a higher word error rate (0.3)."),
    ] = None
    device: Device = "auto"
    lag: Lag = None
    plugin: Plugins = field(default_factory=list)


@prepare.command("words")
@takes_options
def prepare_words(options: WordsOptions) -> None:
    """Find out when each word of a transcribed corpus was said. The same command goes on after a kill."""
    from stentor.commands.prepare.words import prepare_words

    prepare_words(options)


@dataclass
class FeaturesOptions:
    to: Annotated[Path, typer.Option("--to", help="Folder to fill; train with `model.features.store: TO`.")]
    data: Annotated[
        str | None,
        typer.Argument(help="A manifest path, or type=...,key=value. Default: what the run of --config trains on."),
    ] = None
    config: Annotated[
        Path | None, typer.Option(help="A run's YAML: its features and, for diarization, its chunks are taken.")
    ] = None
    option: Annotated[
        list[str],
        typer.Option(help="KEY=VALUE of `model.features`, such as num_mel_bins=40. May be given several times."),
    ] = field(default_factory=list)
    jobs: Jobs = 1
    plugin: Plugins = field(default_factory=list)


@prepare.command("features")
@takes_options
def prepare_features(options: FeaturesOptions) -> None:
    """Compute the features of a data set and store them for training. The same command goes on after a kill."""
    from stentor.commands.prepare.features import prepare_features

    prepare_features(options)


@dataclass
class CodecOptions:
    data: Annotated[str, typer.Argument(help="A manifest path, or type=...,key=value: speech.")]
    to: Annotated[Path, typer.Option("--to", help="Folder for the codec: a new one.")]
    codec: Annotated[
        str, typer.Option(help="mel_rvq (fitted on the data), higgs_audio_v2, mimi, dac, encodec, xcodec2 or another.")
    ] = "mel_rvq"
    option: Annotated[
        list[str], typer.Option(help="KEY=VALUE of `model.codec`, such as codebooks=8. May be given several times.")
    ] = field(default_factory=list)
    hours: Annotated[float, typer.Option(min=0.0, help="Most hours of audio that are read for fitting.")] = 2.0
    seed: Annotated[int, typer.Option(help="Of the fit, and of the records that are kept out of it.")] = 0
    device: Device = "auto"
    plugin: Plugins = field(default_factory=list)


@prepare.command("codec")
@takes_options
def prepare_codec(options: CodecOptions) -> None:
    """Fit an audio codec on a data set (or take a published one), and report what speech loses in it."""
    from stentor.commands.prepare.codec import prepare_codec

    prepare_codec(options)


@dataclass
class TokensOptions:
    data: Data
    codec: Annotated[
        str,
        typer.Option(
            help="A codec's folder, type or Hub id; mel_rvq is fitted on DATA first; none packs the audio (FLAC)."
        ),
    ]
    to: Annotated[Path, typer.Option("--to", help="Folder for the shards, data.lst and errors.jsonl.")]
    jobs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Processes, dealt over the devices; of one thread each when more than one. "
            "Default: one for each device.",
        ),
    ] = None
    samples_per_shard: Annotated[int, typer.Option(min=1, help="Most samples in a shard.")] = 1000
    min_shards: Annotated[
        int, typer.Option(min=1, help="Least shards: as many as GPUs times data workers in training.")
    ] = 32
    num_machines: Annotated[int, typer.Option(min=1, help="Machines that share the work (and the folder).")] = 1
    machine_index: Annotated[int, typer.Option(min=0, help="Which of them this is, from 0.")] = 0
    min_seconds: Annotated[float | None, typer.Option(min=0.0, help="Leave out shorter records.")] = None
    max_seconds: Annotated[float | None, typer.Option(min=0.0, help="Leave out longer records.")] = None
    device: Annotated[str, typer.Option(help="auto (all GPUs), cpu, cuda:N, several as cuda:0,1, or mps.")] = "auto"
    seed: Annotated[int, typer.Option(help="Order of the samples, and what is drawn for noisy prompts.")] = 0
    noisy_prompts: Annotated[
        bool, typer.Option("--noisy-prompts", help="Make the beginning of each utterance noisy, with made noise.")
    ] = False
    noise: Annotated[
        list[Path], typer.Option(help="Noisy prompts with these noises: a folder, manifest or file. May be repeated.")
    ] = field(default_factory=list)
    reverb: Annotated[
        list[Path], typer.Option(help="Noisy prompts in these rooms (impulse responses): as --noise. May be repeated.")
    ] = field(default_factory=list)
    rate: Annotated[int | None, typer.Option(min=1000, help="Hz, with --codec none. Default: 24000.")] = None
    plugin: Plugins = field(default_factory=list)


@prepare.command("tokens")
@takes_options
def prepare_tokens(options: TokensOptions) -> None:
    """Encode a data set for speech synthesis, into tar shards. The same command goes on after a kill."""
    from stentor.commands.prepare.tokens import prepare_tokens

    prepare_tokens(options)


@dataclass
class MixturesOptions:
    data: Annotated[
        str | None, typer.Argument(help="What to mix, as type=conversation,source.type=...,count=1000.")
    ] = None
    to: Annotated[Path, typer.Option("--to", help="Folder for manifest.jsonl, reference.rttm and the audio.")] = Path(
        "mixtures"
    )
    config: Annotated[
        Path | None, typer.Option(help="A YAML file with the keys of the source, instead of the argument.")
    ] = None
    jobs: Annotated[int, typer.Option(min=1, help="Processes that mix audio.")] = 1
    plugin: Plugins = field(default_factory=list)


@prepare.command("mixtures")
@takes_options
def prepare_mixtures(options: MixturesOptions) -> None:
    """Store simulated conversations with who speaks when. The same command goes on after a kill."""
    from stentor.commands.prepare.mixtures import prepare_mixtures

    prepare_mixtures(options)


@dataclass
class RunOptions:
    config: Annotated[Path, typer.Argument(help="The YAML (or JSON) file of the run.")]
    overrides: Annotated[
        list[str], typer.Argument(metavar="[KEY=VALUE]...", help="Overrides, such as prepare.0.jobs=4.")
    ] = field(default_factory=list)
    plugin: Plugins = field(default_factory=list)


@prepare.command("run")
@takes_options
def prepare_for_run(options: RunOptions) -> None:
    """Do what a run's section `prepare:` asks for, as `stentor train` does first."""
    from stentor.commands.prepare.run import listing, prepare_run
    from stentor.config.load import load

    steps = load(options.config, options.overrides).config.prepare
    prepare_run(steps, options.plugin)
    for line in listing(steps):
        typer.echo(line)
