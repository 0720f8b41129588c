"""Suffixes of audio and video files, and the audio files of a folder."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path, PurePath

_LIBSNDFILE = """
    wav wave bwf flac mp3 ogg oga ogx opus sph nist aiff aif aifc au snd w64 rf64 caf mp2 mpa mpga m2a voc gsm vox
    ircam sf paf avr pvf sds svx wve
"""
_FFMPEG = """
    m4a m4b m4r aac adts wma amr awb webm weba mp4 mkv mov m4v mka 3gp 3gpp 3g2 avi ts mts m2ts mpg mpeg vob ogv ogm
    wmv asf flv f4v qt divx mxf nut dv wtv rm ra rmvb spx ape wv tta tak shn mpc ac3 eac3 ec3 dts dtshd mlp thd latm
    loas sbc g722 g729 sln qcp dss oma aa3 dsf lc3 qoa
"""
AUDIO_SUFFIXES = tuple(f".{name}" for name in (_LIBSNDFILE + _FFMPEG).split())
"""Suffixes of audio files, for searches in folders; those of the second group need FFmpeg. Formats whose suffix other
kinds of files have as often (`.mat`, `.iff`, `.dat`) are read when such a file is named."""
_COMPANIONS = """
    txt lab json jsonl srt vtt ass ssa lrc tsv csv ctm stm rttm uem textgrid eaf trs xml md yaml yml log html gz
"""
_NAMED = 3
"""Suffixes and files that a message about skipped files names."""


def is_audio(name: PurePath) -> bool:
    """Whether a file is audio by its name, below the folder that is searched. A hidden one is not (`._a.wav`
    holds what a Mac knows about `a.wav`)."""
    return name.suffix.lower() in AUDIO_SUFFIXES and not any(part.startswith(".") for part in name.parts)


def find_audio(folder: Path, report: Callable[[str], None] | None = None) -> list[Path]:
    """The audio files in a folder and its subfolders, sorted. `report` is called with what is skipped, if anything;
    hidden files and the usual companions of audio (texts, subtitles, tables) are not worth a word."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    # TypeScript has the suffixes of video streams.
    found = [p for p in files if is_audio(p.relative_to(folder)) and not (p.suffix in (".ts", ".mts") and is_text(p))]
    others = (p.relative_to(folder) for p in sorted({*files} - {*found}))
    skipped = [p for p in others if not any(part.startswith(".") for part in p.parts)]
    if report and (text := _by_suffix(p for p in skipped if p.suffix.lower().lstrip(".") not in _COMPANIONS.split())):
        report(f"{folder}: files without a suffix of audio or video are skipped: {text}. To read one, give its name.")
    return found


def _by_suffix(files: Iterable[PurePath]) -> str:
    """Counts and examples."""
    groups: dict[str, list[PurePath]] = defaultdict(list)
    for file in files:
        groups[file.suffix.lower() or "without suffix"].append(file)
    named = sorted(groups.items(), key=lambda item: -len(item[1]))[:_NAMED]
    parts = [f"{len(files)} {suffix} ({', '.join(map(str, files[:_NAMED]))})" for suffix, files in named]
    rest = sum(map(len, groups.values())) - sum(len(files) for _, files in named)
    return ", ".join([*parts, f"{rest} others"] if rest else parts)


def is_text(path: Path) -> bool:
    """Whether a file begins as plain text does."""
    with path.open("rb") as raw:
        head = raw.read(512)
    return all(byte >= 32 or byte in b"\t\r\n" for byte in head) and head.isascii()
