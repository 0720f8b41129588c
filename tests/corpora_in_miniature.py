"""Corpora in miniature: small files laid out as publishers' archives unpack, and what a source reads from them."""

import gzip
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import soundfile

from stentor.data.cut import UnusableRecord, segments_of, text_of
from stentor.sources.base import Source

KINDS = {".opus": {"format": "OGG", "subtype": "OPUS"}, ".sph": {"format": "NIST", "subtype": "PCM_16"}}
"""Formats of endings that libsndfile does not know."""


@dataclass(frozen=True)
class Sound:
    """Noise of so many seconds (one number: of one channel; several: a channel each, padded with silence)."""

    seconds: float | tuple[float, ...] = 4.0
    level: float = 0.1
    rate: int = 16000


def lay_out(root, files):
    """Write a table of files, by path below `root`: a number (seconds of a mono recording) or a `Sound` as audio, text
    as it is, and anything else as JSON; names that end in `.jsonl` or `.jsonl.gz` hold one object a line."""
    for name, content in files.items():
        path = Path(root) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, int | float | Sound):
            sound = content if isinstance(content, Sound) else Sound(content)
            soundfile.write(path, samples(sound), sound.rate, **KINDS.get(path.suffix, {}))
            continue
        if not isinstance(content, str):
            lines = content if ".jsonl" in path.name else [content]
            content = "".join(json.dumps(line) + "\n" for line in lines)
        data = content.encode()
        path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return Path(root)


def samples(sound):
    parts = sound.seconds if isinstance(sound.seconds, tuple) else (sound.seconds,)
    audio = np.zeros((round(max(parts) * sound.rate), len(parts)))
    for channel, seconds in enumerate(parts):
        count = round(seconds * sound.rate)
        audio[:count, channel] = np.random.default_rng(channel).normal(0, sound.level, count)
    return audio


def rttm(name, *segments, channel=1):
    """RTTM lines of a recording: (start, duration, speaker) each."""
    return "".join(f"SPEAKER {name} {channel} {a} {d} <NA> <NA> {who} <NA> <NA>\n" for a, d, who in segments)


def cuts_of(name, folder, **keys):
    """Cuts and unusable records of a corpus."""
    keys = {"type": "corpus", "name": name, "from": folder and str(folder), **keys}
    return list(Source.model_validate(keys).cuts())


def recordings(name, folder, **keys):
    """Speaker segments of each recording of a corpus, by id; none may be unusable."""
    cuts = cuts_of(name, folder, **{"utterances": False, **keys})
    assert not (bad := [cut.message for cut in cuts if isinstance(cut, UnusableRecord)]), bad
    return {cut.id: spans(cut) for cut in cuts}


def utterances(name, folder, **keys):
    """Transcript of each utterance of a corpus, by id; none may be unusable."""
    cuts = cuts_of(name, folder, **keys)
    assert not (bad := [cut.message for cut in cuts if isinstance(cut, UnusableRecord)]), bad
    return {cut.id: text_of(cut) for cut in cuts}


def unusable(name, folder, **keys):
    """Reason and message of what cannot be used, by id."""
    cuts = cuts_of(name, folder, **{"utterances": False, **keys})
    return {cut.id: (cut.reason, cut.message) for cut in cuts if isinstance(cut, UnusableRecord)}


def spans(cut):
    return [(s["speaker"], s["start"], s["end"]) for s in segments_of(cut)]
