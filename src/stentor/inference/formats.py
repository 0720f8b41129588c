"""Transcript formats: json, txt, srt, vtt, ctm, textgrid, rttm, stm, seglst. Plain functions on the transcript dict of
the contract."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stentor.audio.io import AUDIO_SUFFIXES
from stentor.data.rttm import format_rttm
from stentor.errors import ConfigError
from stentor.inference.subtitles import cues

Transcript = dict[str, Any]
UNKNOWN = "unknown"
"""The speaker in formats that need one, where none is known."""


def to_json(transcript: Transcript) -> str:
    """One JSON object, indented."""
    return json.dumps(transcript, ensure_ascii=False, indent=2) + "\n"


def to_txt(transcript: Transcript) -> str:
    """The text; a line for each segment, with its speaker in front, when speakers are known."""
    if any("speaker" in s for s in transcript["segments"]):
        return "".join(f"{s.get('speaker', '?')}: {s['text']}\n" for s in transcript["segments"])
    return transcript["text"] + "\n"


def to_srt(transcript: Transcript, cue: str = "lines") -> str:
    """SubRip subtitles; `cue`: `lines`, or `words` for a subtitle per word. Where there are several speakers, the name
    stands before the first of each one's lines."""
    subtitles, several, last = [], _several(transcript) and cue == "lines", None
    for n, c in enumerate(cues(transcript, cue), 1):
        name = f"{c.speaker}: " if several and c.speaker not in (None, last) else ""
        last = c.speaker
        subtitles.append(f"{n}\n{_clock(c.start, ',')} --> {_clock(c.end, ',')}\n{name}{c.text}\n\n")
    return "".join(subtitles)


def to_vtt(transcript: Transcript, cue: str = "lines") -> str:
    """WebVTT subtitles; `cue`: `lines`, or `words` for a subtitle per word. Where there are several speakers, each
    subtitle has its voice (`<v name>`)."""

    def escape(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    several = _several(transcript)
    return "WEBVTT\n\n" + "".join(
        f"{_clock(c.start, '.')} --> {_clock(c.end, '.')}\n"
        f"{f'<v {escape(c.speaker)}>' if several and c.speaker else ''}{escape(c.text)}\n\n"
        for c in cues(transcript, cue)
    )


def _several(transcript: Transcript) -> bool:
    return len({s["speaker"] for s in transcript["segments"] if s.get("speaker")}) > 1


def to_ctm(transcript: Transcript, channel: str | None = None) -> str:
    """NIST CTM: `file channel start duration word confidence` per line, channels from 1; needs word times."""
    name = _name(transcript)
    channel = channel or str(transcript.get("channel", 0) + 1)
    return "".join(
        f"{name} {channel} {w['start']:.3f} {w['end'] - w['start']:.3f} {'_'.join(w['word'].split())} "
        f"{w.get('confidence', 1.0):.3f}\n"
        for w in _words(transcript, "ctm")
    )


def to_textgrid(transcript: Transcript) -> str:
    """A Praat TextGrid (long format): one tier of words per speaker, or `words` where there are none."""
    end = round(transcript["duration"], 3)
    tiers: dict[str, list[dict[str, Any]]] = {}
    for word in _words(transcript, "textgrid"):
        tiers.setdefault(word.get("speaker") or "words", []).append(word)
    tiers = tiers or {"words": []}
    lines = ['File type = "ooTextFile"', 'Object class = "TextGrid"', "", "xmin = 0", f"xmax = {_number(end)}"]
    lines += ["tiers? <exists>", f"size = {len(tiers)}", "item []:"]
    for i, (name, words) in enumerate(tiers.items(), 1):
        intervals = list(_intervals(words, end))
        lines += [f"    item [{i}]:", '        class = "IntervalTier"', f'        name = "{_quote(name)}"']
        lines += ["        xmin = 0", f"        xmax = {_number(end)}", f"        intervals: size = {len(intervals)}"]
        for n, (a, b, text) in enumerate(intervals, 1):
            lines += [f"        intervals [{n}]:", f"            xmin = {_number(a)}"]
            lines += [f"            xmax = {_number(b)}", f'            text = "{_quote(text)}"']
    return "\n".join(lines) + "\n"


def to_rttm(transcript: Transcript) -> str:
    """NIST RTTM: who speaks when, a line for each segment; without speakers all is said by `unknown`."""
    segments = [{**s, "speaker": s.get("speaker") or UNKNOWN} for s in transcript["segments"]]
    lines = format_rttm(_name(transcript), segments, transcript.get("channel") or 0)
    return "".join(line + "\n" for line in lines)


def to_stm(transcript: Transcript) -> str:
    """NIST STM: `file channel speaker start end text` for each segment, channels from 1."""
    place = f"{_name(transcript)} {transcript.get('channel', 0) + 1}"
    return "".join(
        f"{place} {'_'.join((s.get('speaker') or UNKNOWN).split())} {s['start']:.3f} {s['end']:.3f} {s['text']}\n"
        for s in transcript["segments"]
    )


def to_seglst(transcript: Transcript) -> str:
    """SegLST, a JSON list of segments, as the CHiME challenges and meeteval take it."""
    rows = [
        {
            "session_id": _name(transcript),
            "speaker": s.get("speaker") or UNKNOWN,
            "start_time": s["start"],
            "end_time": s["end"],
            "words": s["text"],
        }
        for s in transcript["segments"]
    ]
    return json.dumps(rows, ensure_ascii=False, indent=2) + "\n"


WRITERS: dict[str, Callable[..., str]] = {
    "json": to_json,
    "txt": to_txt,
    "srt": to_srt,
    "vtt": to_vtt,
    "ctm": to_ctm,
    "textgrid": to_textgrid,
    "rttm": to_rttm,
    "stm": to_stm,
    "seglst": to_seglst,
}
SUFFIXES = {name: {"textgrid": "TextGrid", "seglst": "seglst.json"}.get(name, name) for name in WRITERS}
NEED_WORDS = frozenset({"ctm", "textgrid"})
SUBTITLES = frozenset({"srt", "vtt"})


def render(transcript: Transcript, format: str, cue: str = "lines") -> str:
    """The transcript in one of the formats of `WRITERS`; `cue` is what a subtitle holds: `lines` or `words`."""
    return WRITERS[format](transcript, cue) if format in SUBTITLES else WRITERS[format](transcript)


def file_names(paths: Sequence[str]) -> list[str]:
    """A name for each input's output files, without suffix, none twice (not even on disks that ignore case).

    The stem where that is enough; else with as many folders in front as it takes (`ann_take1`), with the input's
    suffix (`take1_mp3`) when both are in one folder, and with a number when a path is given twice.
    """
    folders = [Path(path).absolute().parts[1:-1] for path in paths]
    names = [Path(path).stem for path in paths]
    for depth in range(1, max(map(len, folders), default=0) + 1):
        for group in _clashes(names):
            if len({folders[i] for i in group}) > 1:
                for i in group:
                    names[i] = "_".join([*folders[i][-depth:], Path(paths[i]).stem])
    for group in _clashes(names):
        if len({Path(paths[i]).suffix.lower() for i in group}) > 1:
            for i in group:
                names[i] += Path(paths[i]).suffix.replace(".", "_")
    return _numbered(names)


def record_names(ids: Sequence[str]) -> list[str]:
    """A name for the outputs of each record, none twice: its id without the suffix of an audio file. Folders in ids, as
    those of `audio_folder` have, stay."""
    parts = [[part for part in PurePosixPath(name).parts if part.strip("/") not in ("", "..")] for name in ids]
    return _numbered([_without_suffix("/".join(path) or "record") for path in parts])


def _without_suffix(name: str) -> str:
    """Ids may have other dots in them."""
    return name[: -len(suffix)] if (suffix := PurePosixPath(name).suffix).lower() in AUDIO_SUFFIXES else name


def _numbered(names: list[str]) -> list[str]:
    """The names with a number behind those that were there before."""
    seen: set[str] = set()
    for i, name in enumerate(names):
        number = 1
        while names[i].lower() in seen:
            number += 1
            names[i] = f"{name}-{number}"
        seen.add(names[i].lower())
    return names


def _clashes(names: list[str]) -> list[list[int]]:
    """Positions of names that are the same but for case, together."""
    groups: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        groups.setdefault(name.lower(), []).append(i)
    return [group for group in groups.values() if len(group) > 1]


def _name(transcript: Transcript) -> str:
    """The recording, or the record, in formats of NIST: one word, without folders and suffix."""
    name = _without_suffix(Path(transcript["id"]).name) if "id" in transcript else Path(transcript["audio"]).stem
    return "_".join(name.split())


def _clock(seconds: float, point: str) -> str:
    ms = max(0, round(seconds * 1000))
    return f"{ms // 3_600_000:02d}:{ms // 60_000 % 60:02d}:{ms // 1000 % 60:02d}{point}{ms % 1000:03d}"


def _words(transcript: Transcript, name: str) -> list[dict[str, Any]]:
    if "words" not in transcript:
        raise ConfigError(f"The {name} format lists word times, and this transcript has none: add --words.")
    return transcript["words"]


def _intervals(words: list[dict[str, Any]], end: float) -> Iterator[tuple[float, float, str]]:
    """Words and the silence between them, without holes or overlaps, from 0 to `end`.

    No word is lost: each has a millisecond at least, taken from the silence around it or from its neighbours.
    """
    total = max(round(1000 * end), len(words))
    spans, stop = [], 0
    for word in words:
        start = max(stop, round(1000 * word["start"]))
        stop = max(start + 1, round(1000 * word["end"]))
        spans.append([start, stop])
    limit = total
    for span in reversed(spans):
        span[1] = min(span[1], limit)
        span[0] = limit = min(span[0], span[1] - 1)
    last = 0
    for (start, stop), word in zip(spans, words, strict=True):
        if start > last:
            yield last / 1000, start / 1000, ""
        yield start / 1000, stop / 1000, word["word"]
        last = stop
    if last < total:
        yield last / 1000, end, ""


def _number(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _quote(text: str) -> str:
    return text.replace('"', '""')
