"""The text of a window and the speech in it: what to decode again where it leaves speech out, and where words can lie.

A recogniser that was trained on clips without long pauses may stop at one, or skip what follows it.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

from stentor.data.batch import Example
from stentor.inference.vad import Window

LEAST, MISSED, GAIN, MARGIN = 5.0, 1.0, 1.2, 0.15
"""Bytes of text (UTF-8) for a second of speech that a window with pauses needs (measured: 12 to 25 in 176 clips of
LibriSpeech); its seconds of speech that may be without words of known times; how many times as long the text of its
pieces must be to replace it; seconds by which a word may begin before the speech that was found, or end after it."""


def with_pieces(
    examples: Sequence[Example], decode: Callable[[Sequence[Example]], list[dict[str, Any]]], rate: int
) -> list[dict[str, Any]]:
    """Decode examples, and those whose text does not cover the speech of their window (`Example.extra["window"]`) again
    in pieces. Where these have clearly more text, the output has them as `pieces`, each a window and its output."""
    outputs, again = decode(examples), list[tuple[int, Example]]()
    for i, (example, output) in enumerate(zip(examples, outputs, strict=True)):
        window = example.extra.get("window")
        if window is None or covers(window, output, rate):
            continue
        pauses = [(b - a, (a + b) // 2) for (_, a), (b, _) in pairwise(window.speech)]
        cuts = [middle for length, middle in pauses if 2 * length >= max(pauses)[0]]
        for part in (window.part(a, b) for a, b in pairwise([window.start, *cuts, window.end])):
            audio = example.audio[part.start - window.start : part.end - window.start]  # type: ignore[index]
            again.append((i, replace(example, audio=audio, extra={**example.extra, "window": part})))
    answered = with_pieces([piece for _, piece in again], decode, rate) if again else []
    for i in {i for i, _ in again}:
        answered_parts = [
            (piece.extra["window"], output) for (j, piece), output in zip(again, answered, strict=True) if j == i
        ]
        pieces = [pair for window, output in answered_parts for pair in output.get("pieces", [(window, output)])]
        if sum(_bytes(output) for _, output in pieces) > GAIN * _bytes(outputs[i]):
            outputs[i] = {**outputs[i], "pieces": pieces}
    return outputs


def covers(window: Window, output: dict[str, Any], rate: int) -> bool:
    """Return whether the output of a window covers its speech, by its word times, otherwise by the length of its text.
    Speech without pauses, and what the model takes for no speech, count as covered."""
    if len(window.speech) < 2 or "no_speech" in output["failed"]:
        return True
    words = [[window.start + w[k] * rate for k in ("start", "end")] for w in output["words"] if "start" in w]
    if words:
        missed = [b - a for a, b in window.speech if not any(start < b and end > a for start, end in words)]
        return sum(missed) < MISSED * rate
    return _bytes(output) * rate >= LEAST * sum(b - a for a, b in window.speech)


def answers(
    windows: Sequence[Window], outputs: Mapping[int, dict[str, Any]], rate: int
) -> Iterator[tuple[Window, dict[str, Any]]]:
    """Yield each window with its output, or its pieces with theirs. Words with times lie within the speech."""
    for i, window in enumerate(windows):
        for piece, output in outputs[i].get("pieces", [(window, outputs[i])]):
            yield piece, {**output, "words": [_in_speech(piece, word, rate) for word in output["words"]]}


def note_on(windows: Sequence[Window], outputs: Mapping[int, dict[str, Any]], rate: int) -> list[str]:
    """Return a sentence about the windows that were decoded again in pieces; empty without any."""
    times = [f"{window.start / rate:.1f} s" for i, window in enumerate(windows) if "pieces" in outputs[i]]
    text = f"The text of {len(times)} of {len(windows)} windows left out speech between pauses. It was replaced by that"
    return [f"{text} of their pieces (windows from {', '.join(times)})."] if times else []


def _in_speech(window: Window, word: dict[str, Any], rate: int) -> dict[str, Any]:
    """Return a word within the stretch of speech that it shares most time with, or that is nearest."""
    if "start" not in word or not window.speech:
        return word
    stretches = [((a - window.start) / rate - MARGIN, (b - window.start) / rate + MARGIN) for a, b in window.speech]
    a, b = max(stretches, key=lambda s: min(s[1], word["end"]) - max(s[0], word["start"]))
    return word | {name: round(min(max(word[name], a, 0.0), b), 3) for name in ("start", "end")}


def _bytes(output: dict[str, Any]) -> int:
    """Return the length of the text of an output if it passed the checks; `no_room` only affects word times."""
    return 0 if set(output["failed"]) - {"no_room"} else len(output["text"].encode())
