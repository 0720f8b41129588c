"""Corpora of mixed utterances as they lie on disk: LibriMix and LibriheavyMix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

from stentor.data.cut import Cut, UnusableRecord, cut_from_record
from stentor.data.jsonl import each_line
from stentor.errors import AudioError, ConfigError, DataError
from stentor.sources.layouts import Parts
from stentor.sources.manifest import deserialize

MIXTURES = ("mix_clean", "mix_both", "mix_single")
BLOCK = 16000
"""Samples that are read at once from the end of a source, to find where it ends."""


def librimix(
    folder: Path, n_src: int | None = None, rate: str | None = None, mode: str | None = None, mix: str = "mix_clean"
) -> Parts:
    """The splits of LibriMix as its script writes it: `Libri2Mix/wav16k/max/dev/mix_clean/A-1-2_B-3-4.wav` with the
    sources in `s1`, `s2` ... beside it. Options say which of several there are: `n_src: 2|3`, `rate: 8k|16k`,
    `mode: min|max`, `mix: mix_clean|mix_both|mix_single`. A source speaks from the start to the last sample that is not
    0. Raises `ConfigError` and `DataError`."""
    if mix not in MIXTURES:
        raise ConfigError(f"The option `mix` of the librimix corpus is one of {', '.join(MIXTURES)}, got {mix}.")
    patterns = {0: f"Libri{n_src or '?'}Mix", 1: f"wav{rate or '*'}", 2: mode or "m??"}
    splits = sorted(p.parent for p in folder.glob(f"**/{mix}") if p.is_dir() and _fits(p, patterns.values()))
    roots = sorted({split.parent for split in splits})
    if len(roots) != 1:
        several = "there are " + ", ".join(map(str, roots)) + ": choose one with `options: {n_src, rate, mode}`"
        raise DataError(several if roots else f"there is no {'/'.join(patterns.values())}/SPLIT/{mix} in {folder}")
    return {split.name: partial(_mixtures, split, mix) for split in splits}


def _fits(folder: Path, patterns: Any) -> bool:
    return all(Path(part).match(pattern) for part, pattern in zip(folder.parts[-5:-2], patterns))


def _mixtures(split: Path, mix: str) -> Iterator[Cut | UnusableRecord]:
    from stentor.audio.io import probe

    for file in sorted((split / mix).glob("*.wav")):
        names = file.stem.split("_")
        names = names[:1] if mix == "mix_single" else names
        segments = []
        try:
            seconds = probe(file).duration
            for number, name in enumerate(names, 1):
                source = split / f"s{number}" / file.name
                if not source.exists():
                    raise AudioError(f"{file}: its source {source} does not exist.", "missing")
                segments.append({"speaker": name.split("-")[0], "start": 0.0, "end": min(_end(source), seconds)})
        except AudioError as error:
            yield UnusableRecord(file.stem, error.reason, str(error))
            continue
        record = {"id": file.stem, "audio_path": str(file), "duration": seconds, "language": "en", "segments": segments}
        yield cut_from_record(record, Path(), str(file))


def _end(path: Path) -> float:
    """Seconds up to the last sample of a file that is not 0."""
    import soundfile

    with soundfile.SoundFile(path) as file:
        last = file.frames
        while last > 0:
            first = max(0, last - BLOCK)
            file.seek(first)
            loud = file.read(last - first, dtype="float32", always_2d=True).any(axis=1).nonzero()[0]
            if len(loud):
                return (first + int(loud[-1]) + 1) / file.samplerate
            last = first
    raise AudioError(f"{path} holds nothing but silence.", "silent")


CUTS = re.compile(r"lsheavymix_cuts_(?P<part>.+?)_(?P<speakers>\d)spk(?P<variant>.*)\.jsonl\.gz")
VARIANTS = ("_snr_aug_mono_rir_fixed", "_snr_aug_mono_rir", "_snr_aug_mono", "")
"""Manifests of one part, the best first: later ones lack rooms, or levels."""


def libriheavy_mix(
    folder: Path, dataset_parts: str | Sequence[str] | None = None, speaker_counts: int | Sequence[int] | None = None
) -> Parts:
    """The parts of LibriheavyMix by name, such as `dev_2spk`, from its manifests of lhotse cuts; audio is found by the
    name of its file. A part `small` in a folder of that name (`small/2spk/lsheavymix_cuts_dev_2spk.jsonl.gz`) is
    `small_2spk`. `dataset_parts` and `speaker_counts` select. Raises `DataError`."""
    manifests: dict[str, tuple[int, Path]] = {}
    asked_parts = [dataset_parts] if isinstance(dataset_parts, str) else dataset_parts
    counts = [speaker_counts] if isinstance(speaker_counts, int) else speaker_counts
    for file in sorted(folder.glob("**/lsheavymix_cuts_*.jsonl.gz")):
        if (match := CUTS.fullmatch(file.name)) is None or match["variant"] not in VARIANTS:
            continue
        above = file.parent.parent.name if file.parent.name == f"{match['speakers']}spk" else ""
        part = above if above in ("small", "medium", "large", "dev", "test") else match["part"].removeprefix("train_")
        if (asked_parts and part not in asked_parts) or (counts and int(match["speakers"]) not in counts):
            continue
        best = (VARIANTS.index(match["variant"]), file)
        name = f"{part}_{match['speakers']}spk"
        manifests[name] = min(manifests.get(name, best), best)
    if not manifests:
        raise DataError(f"there is no lsheavymix_cuts_PART_NUMBERspk*.jsonl.gz in {folder} that the options select")
    audio: dict[str, list[Path]] = {}
    for path in folder.glob("**/*"):
        if path.suffix in (".flac", ".wav"):
            audio.setdefault(path.name, []).append(path)
    return {name: partial(_heavy, file, audio) for name, (_, file) in sorted(manifests.items())}


def _heavy(manifest: Path, audio: dict[str, list[Path]]) -> Iterator[Cut | UnusableRecord]:
    from lhotse.cut import MixedCut, PaddingCut

    def make(record: dict[str, Any], number: int, where: str) -> Cut | UnusableRecord:
        cut = deserialize(record, where)
        for part in [track.cut for track in cut.tracks] if isinstance(cut, MixedCut) else [cut]:
            for i, source in enumerate(() if isinstance(part, PaddingCut) else part.recording.sources):
                file = _nearest(audio.get(Path(source.source).name, []), source.source)
                if file is None:
                    message = f"{where}: the audio file {source.source} is not there, nor below `from`."
                    return UnusableRecord(cut.id, "missing", message)
                part.recording.sources[i] = replace(source, source=str(file))
        return cut

    yield from each_line(manifest, make, UnusableRecord)


def _nearest(files: list[Path], asked: str) -> Path | None:
    """The file whose last folders are most like those of the path in the manifest."""
    parts = Path(asked).parts[::-1]

    def alike(file: Path) -> int:
        return len(list(takewhile(lambda pair: pair[0] == pair[1], zip(file.parts[::-1], parts))))

    return max(files, key=alike, default=None)
