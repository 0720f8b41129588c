"""The layouts of known corpora on disk: options that their lhotse recipe needs, or the reader of this project.

A corpus needs a row of `KNOWN` where lhotse has no recipe for it or the recipe does not read the publisher's folders
with `from` alone. What a row adds is only a default: the user's `options` win.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stentor.sources import layouts, speech_layouts
from stentor.sources.lhotse_recipe import plain_name
from stentor.sources.mixture_corpora import libriheavy_mix, librimix


@dataclass(frozen=True)
class KnownCorpus:
    """A row of the table."""

    lies: str
    """Files below `from`, for error messages."""
    reader: Callable[..., layouts.Parts] | None = None
    """Own reader: gets the folder and the options, answers the parts by name. It is used instead of lhotse's recipe
    unless `options` hold one that only the recipe has."""
    options: Callable[[Path, bool], Mapping[str, Any]] | None = None
    """Options of the recipe for a folder, and whether records are whole recordings."""
    extra: str = ""
    """Extra of the package that the recipe needs."""
    constants: Callable[[Path], Mapping[str, Any]] = lambda folder: {}
    """Constants of the recipe's module that depend on the folder."""
    splits: Mapping[str, str] = field(default_factory=dict)
    """Other names of the splits."""

    def reader_for(self, options: Mapping[str, Any]) -> Callable[..., layouts.Parts] | None:
        """The own reader, if it takes these options."""
        taken = inspect.signature(self.reader).parameters if self.reader else {}
        return self.reader if set(options) <= {*taken} else None


def above(folder: Path, pattern: str, levels: int) -> Path | None:
    """The folder so many levels above the first file that fits the pattern."""
    return next((file.parents[levels - 1] for file in sorted(folder.glob(pattern))), None)


AMI_NOTES = "*/corpusResources/meetings.xml"
AMI_AUDIO = {
    "ihm-mix": "**/*.Mix-Headset.wav",
    "sdm": "**/*.Array1-01.wav",
    "mdm8-bf": "**/*_MDM8.wav",
    "ihm": "**/*.Headset-?.wav",
    "mdm": "**/*.Array?-0?.wav",
}


def ami(folder: Path, recordings: bool) -> dict[str, Any]:
    """Whole recordings are of the first microphone that is there; utterances of `ihm`, the default of the recipe, if it
    is there."""
    there = [microphone for microphone, pattern in AMI_AUDIO.items() if any(folder.glob(pattern))]
    options: dict[str, Any] = {"mic": "ihm" if "ihm" in there and not recordings else there[0]} if there else {}
    return options | {"annotations_dir": above(folder, AMI_NOTES, 2) or above(folder.parent, AMI_NOTES, 2)}


def chime6(folder: Path, recordings: bool) -> dict[str, Any]:
    """The parts that are there: the recipe takes all for granted."""
    home = above(folder, "**/transcriptions/*/S*.json", 3)
    return {"corpus_dir": home, "dataset_parts": sorted(chime6_sessions(folder))} if home else {}


def chime6_sessions(folder: Path) -> dict[str, list[str]]:
    """The sessions of each part that are there."""
    sessions: dict[str, list[str]] = {}
    for file in sorted(folder.glob("**/transcriptions/*/S*.json")):
        sessions.setdefault(file.parent.name, []).append(file.stem)
    return sessions


def dihard3(folder: Path, recordings: bool) -> dict[str, Any]:
    """The folders of the two discs, of which one is enough."""
    dev, evaluation = (above(folder, f"**/flac/DH_{part}_*.flac", 3) for part in ("DEV", "EVAL"))
    return {"eval_audio_dir": evaluation} | ({"dev_audio_dir": dev} if dev or evaluation else {})


KNOWN: dict[str, KnownCorpus] = {
    "librispeech": KnownCorpus("LibriSpeech/SPLIT/SPEAKER/CHAPTER/*.flac and *.trans.txt", speech_layouts.librispeech),
    "ami": KnownCorpus(
        "MEETING/audio/MEETING.Mix-Headset.wav (or Headset-0, Array1-01 ...) and ami_public_manual_1.6.2/", options=ami
    ),
    "voxconverse": KnownCorpus("dev/*.rttm and test/*.rttm, and audio of those names", layouts.VOXCONVERSE),
    "msdwild": KnownCorpus(
        "few.train.rttm, few.val.rttm, many.val.rttm and ID.wav",
        layouts.MSDWILD,
        splits={"train": "few_train", "dev": "few_val", "test": "many_val"},
    ),
    "ava_avd": KnownCorpus(
        "dataset/split/*.list, rttms/VIDEO_c_01.rttm, and waves/VIDEO_c_01.wav or videos/VIDEO.*", layouts.AVA_AVD
    ),
    "ego4d": KnownCorpus("annotations/av_train.json, av_val.json and clips/CLIP_UID.mp4 or .wav", layouts.EGO4D),
    "libriheavy_mix": KnownCorpus(
        "lsheavymix_cuts_PART_NUMBERspk*.jsonl.gz and the audio that they name", libriheavy_mix
    ),
    "librimix": KnownCorpus("Libri2Mix/wav16k/max/SPLIT/{mix_clean,s1,s2}/*.wav", librimix),
    "aishell4": KnownCorpus(
        "train_L, train_M, train_S or test, each with wav/*.flac and TextGrid/*.TextGrid", extra="corpora"
    ),
    "ali_meeting": KnownCorpus(
        "Train_Ali_far, Eval_Ali/Eval_Ali_far ..., with audio_dir/*.wav and textgrid_dir/", extra="corpora"
    ),
    "callhome_english": KnownCorpus(
        "the disc of LDC2001S97 with *.sph, and sre2000-key/fullref.rttm",
        layouts.callhome,
        options=lambda folder, recordings: {"absolute_paths": True},
    ),
    "chime6": KnownCorpus(
        "audio/{train,dev,eval}/S02_U01.CH1.wav and transcriptions/{train,dev,eval}/S02.json",
        options=chime6,
        constants=lambda folder: {"DATASET_PARTS": chime6_sessions(folder)},
    ),
    "dihard2": KnownCorpus("data/single_channel/{flac,rttm,uem}/DH_DEV_0001.*", layouts.DIHARD2),
    "dihard3": KnownCorpus(
        "LDC2020E12/data/{flac,rttm,uem}/DH_DEV_0001.*, the same for DH_EVAL in LDC2021E02, and docs/recordings.tbl",
        options=dihard3,
    ),
    "commonvoice": KnownCorpus("LANGUAGE/SPLIT.tsv and LANGUAGE/clips/*.mp3", speech_layouts.COMMON_VOICE),
    "fleurs": KnownCorpus("LANGUAGE/SPLIT.tsv and LANGUAGE/audio/SPLIT/*.wav", speech_layouts.FLEURS),
    "voxpopuli": KnownCorpus(
        "transcribed_data/LANGUAGE/asr_SPLIT.tsv and LANGUAGE/YEAR/*.ogg", speech_layouts.VOXPOPULI
    ),
    "mls": KnownCorpus("mls_LANGUAGE_opus/SPLIT/transcripts.txt and audio/SPEAKER/BOOK/*.opus", speech_layouts.MLS),
    "libritts": KnownCorpus("SPLIT/SPEAKER/CHAPTER/*.trans.tsv and *.wav", speech_layouts.LIBRITTS),
    "librittsr": KnownCorpus("SPLIT/SPEAKER/CHAPTER/*.trans.tsv and *.wav", speech_layouts.LIBRITTS),
    "vctk": KnownCorpus("txt/p225/p225_001.txt and wav48_silence_trimmed/p225/*.flac", speech_layouts.VCTK),
    "emilia": KnownCorpus("DE/DE_B00000.jsonl and DE/DE_B00000/", speech_layouts.emilia),
    "granary": KnownCorpus(
        "manifests (*.jsonl) with audio_filepath; `options: {audio_folder: ...}` for audio elsewhere",
        speech_layouts.granary,
    ),
    "tedlium": KnownCorpus("legacy/SPLIT/stm/*.stm and legacy/SPLIT/sph/*.sph", speech_layouts.TEDLIUM),
    "gigaspeech": KnownCorpus("GigaSpeech.json and audio/", speech_layouts.gigaspeech),
}
ALIASES = {"mswild": "msdwild", "avaavd": "ava_avd", "dihard": "dihard3", "callhome": "callhome_english"}
SAME_SPLITS = {"val", "valid", "validation", "dev"}
"""Names of one split, of which a corpus has one."""


def known_name(name: str, recipes: list[str]) -> str:
    """The name of a corpus in the table or of a lhotse recipe, whatever its case and hyphens: `AISHELL-4`, `mswild`.
    Unknown names come back unchanged."""
    plain = plain_name(name)
    names = {plain_name(known): known for known in (*recipes, *KNOWN)}
    return names.get(plain) or ALIASES.get(plain) or name


def known_splits(name: str, split: str, parts: list[str]) -> list[str]:
    """The parts that a split means: by its name, the last folder of it, or another name of it."""
    names = SAME_SPLITS if split in SAME_SPLITS else {split}
    others = KNOWN[name].splits if name in KNOWN else {}
    other = next((others[n] for n in sorted(names) if n in others), split)
    matches = [p for p in parts if p == other] or [p for p in parts if p.split("/")[-1] == other]
    return matches or [p for p in parts if p.split("/")[-1] in names]
