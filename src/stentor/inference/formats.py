"""Transcript formats: json, txt, ctm, textgrid, rttm, stm, seglst, and those of subtitles. Plain functions on the
transcript dict of the contract."""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from stentor.audio.suffixes import AUDIO_SUFFIXES
from stentor.data.rttm import format_rttm
from stentor.data.word_times import in_order
from stentor.errors import ConfigError
from stentor.inference.declarations import flag, given
from stentor.inference.options import CUES, SubtitleOptions
from stentor.inference.subtitle_formats import SubtitleFormat, to_ass, to_lrc, to_srt, to_tsv, to_vtt

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
    "ass": to_ass,
    "lrc": to_lrc,
    "tsv": to_tsv,
}
SUFFIXES = {name: {"textgrid": "TextGrid", "seglst": "seglst.json"}.get(name, name) for name in WRITERS}
NEED_WORDS = frozenset({"ctm", "textgrid"})
SUBTITLES = {name: writer for name, writer in WRITERS.items() if isinstance(writer, SubtitleFormat)}


def render(transcript: Transcript, format: str, rules: SubtitleOptions | None = None) -> str:
    """The transcript in one of the formats of `WRITERS`; `rules` are those of subtitles."""
    return WRITERS[format](transcript, rules) if format in SUBTITLES else WRITERS[format](transcript)


def check_subtitles(rules: SubtitleOptions, formats: Sequence[str]) -> None:
    """Raise ConfigError for rules of subtitles that exclude each other or that no format uses."""
    unused = [flag(field) for field, declared in given(rules) if declared.panel == "Subtitles"]
    highlighted = any(SUBTITLES[format].word for format in formats if format in SUBTITLES)
    wrong = {
        f"Unknown --cues {rules.cues}; known: {', '.join(CUES)}.": rules.cues not in CUES,
        f"{' and '.join(unused)}: only for subtitles, so add --format srt, vtt, ass, lrc or tsv, or leave it out.": (
            unused and SUBTITLES.keys().isdisjoint(formats)
        ),
        "--highlight-words is for --format vtt, ass and lrc: add one of them, or leave it out.": (
            rules.highlight_words and not highlighted
        ),
        "--max-cue-duration is less than --min-cue-duration (default 1): lower this one too.": (
            rules.max_cue_duration < rules.min_cue_duration
        ),
    }
    for message in (message for message, is_so in wrong.items() if is_so):
        raise ConfigError(message)


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


def _words(transcript: Transcript, name: str) -> list[dict[str, Any]]:
    if "words" not in transcript:
        raise ConfigError(f"The {name} format lists word times, and this transcript has none: add --words.")
    return transcript["words"]


def _intervals(words: list[dict[str, Any]], end: float) -> Iterator[tuple[float, float, str]]:
    """Words and the silence between them, without holes or overlaps, from 0 to `end`."""
    last = 0.0
    for word in in_order(words, end):
        if word["start"] > last:
            yield last, word["start"], ""
        last = word["end"]
        yield word["start"], last, word["word"]
    if last < end:
        yield last, end, ""


def _number(seconds: float) -> str:
    return f"{seconds:.6f}".rstrip("0").rstrip(".")


def _quote(text: str) -> str:
    return text.replace('"', '""')
