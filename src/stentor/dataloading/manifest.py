"""Manifests: JSONL files of records, written in the contract's format."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote

from stentor.data.atomic_write import atomic_path
from stentor.data.cut import Cut, UnusableRecord, record_from_cut
from stentor.data.storage import as_path, is_remote
from stentor.errors import AudioError

if TYPE_CHECKING:
    from stentor.sources.corpus import Corpus


@dataclass
class WrittenManifest:
    """A manifest that was written, and the records that were not."""

    path: Path
    records: int = 0
    hours: float = 0.0
    mixed: int = 0
    """Records whose audio was written beside the manifest."""
    unusable: list[UnusableRecord] = field(default_factory=list)


def write_manifest(cuts: Iterable[Cut | UnusableRecord], path: Path) -> WrittenManifest:
    """Write cuts as a JSONL manifest, through a temporary file that is renamed. Audio paths below the manifest's
    folder become relative. Audio that is not in one file, such as that of several microphones, is mixed to mono and
    written to `audio` beside the manifest."""
    path.parent.mkdir(parents=True, exist_ok=True)
    written = WrittenManifest(path)
    folder = path.parent.absolute()
    with atomic_path(path) as part, open(part, "w", encoding="utf-8") as file:
        for cut in cuts:
            if isinstance(cut, UnusableRecord):
                written.unusable.append(cut)
                continue
            record = record_from_cut(cut)
            if record["audio_path"] is None:
                try:
                    beside = _mixed(cut, folder / "audio")
                except AudioError as error:
                    written.unusable.append(UnusableRecord(cut.id, error.reason, f"{cut.id}: {error}"))
                    continue
                record = {k: v for k, v in record.items() if k not in ("start", "channel", "parts")}
                record["audio_path"] = str(beside)
                written.mixed += 1
            audio = as_path(record["audio_path"])
            inside = not is_remote(audio) and audio.is_relative_to(folder)
            record["audio_path"] = audio.relative_to(folder).as_posix() if inside else str(audio)
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
            written.records += 1
            written.hours += cut.duration / 3600
    return written


def _mixed(cut: Cut, folder: Path) -> Path:
    """Write a cut's audio to a folder. Raises `AudioError`."""
    from stentor.audio.io import write
    from stentor.data.load_audio import load_audio

    folder.mkdir(exist_ok=True)
    file = folder / f"{quote(cut.id, safe=' ')}.flac"
    write(file, load_audio(cut, cut.sampling_rate), cut.sampling_rate)
    return file


def write_corpus(corpus: Corpus, to: Path) -> list[WrittenManifest]:
    """Write one manifest per part of a corpus into the folder `to`: `train.jsonl`, `en-train.jsonl` ..."""
    parts = corpus.parts()
    names = list(parts) if corpus.split is None else [corpus.pick(list(parts))]
    return [write_manifest(corpus.shaped(parts[name]()), to / f"{name.replace('/', '-')}.jsonl") for name in names]
