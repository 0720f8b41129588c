"""Several judges on the same speech: what each heard in it, and the scores that this makes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stentor.metrics.speech import COLUMNS, REAL, SYNTHETIC, intelligibility, mean, metric, similarity
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips

if TYPE_CHECKING:
    import numpy as np

    from stentor.metrics.score import Score


def evaluate_items(
    judges: Sequence[SpeechEvaluator],
    sounds: Mapping[str, Sequence[np.ndarray | None]],
    rate: int,
    languages: Sequence[str | None],
    device: str = "cpu",
) -> list[dict[str, dict[str, Any]]]:
    """What the judges say about each item: `{"text": {column: str}, "voice": {column: float32 [E]}, "quality":
    {judge's type: {column: float}}}`, without what no judge is there for.

    `sounds` maps a column (`synthetic`, `codec`, `real`) to one clip per item, float32 [samples] at `rate` Hz or None.
    """
    rows: list[dict[str, dict[str, Any]]] = [{} for _ in languages]
    for judge in judges:
        for column, clips in sounds.items():
            there = [i for i, clip in enumerate(clips) if clip is not None]
            said = evaluate_clips(judge, [clips[i] for i in there], rate, [languages[i] for i in there], device)  # type: ignore[misc]
            for i, answer in zip(there, said, strict=True):
                if judge.gives == "quality":
                    rows[i].setdefault("quality", {}).setdefault(judge.type, {})[column] = float(answer)
                else:
                    rows[i].setdefault(judge.gives, {})[column] = answer
    return rows


def scores(
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    languages: Sequence[str | None],
    speakers: Sequence[str | None],
    references: Sequence[int | None] | None = None,
    relative: bool = False,
    normalizer: str = "whisper_basic",
) -> dict[str, Score]:
    """The scores of items that `hear` was asked about: error rates, voices, and the mean of each quality.

    `texts` is what was to be said. `references` numbers the item whose real audio each voice is compared with (see
    `stentor.metrics.speech.similarity`); None: no voices are compared. `relative`: of the judge of voices.
    """
    found: dict[str, Score] = {}
    if any("text" in row for row in rows):
        heard = {c: [row.get("text", {}).get(c) for row in rows] for c in COLUMNS}
        groups = {"language": languages, "speaker": speakers}
        found |= intelligibility(texts, heard, normalizer, languages, groups)
    if references is not None and any("voice" in row for row in rows):
        voices = {c: [row.get("voice", {}).get(c) for row in rows] for c in COLUMNS}
        # Where only codes were kept, what they sound like stands for the real audio.
        base = REAL if any(v is not None for v in voices[REAL]) else "codec"
        own = {c: v for c, v in voices.items() if any(x is not None for x in v)}
        if base in own:
            found |= similarity(own, base, speakers, references, relative)
    for name in sorted({name for row in rows for name in row.get("quality", {})}):
        for column in COLUMNS:
            values = [row.get("quality", {}).get(name, {}).get(column) for row in rows]
            if any(value is not None for value in values):
                found[metric(name, column)] = mean(values)
    return found


def table(found: Mapping[str, Score]) -> list[str]:
    """Scores for people: a line for each metric, with the model's speech (and its 95 % interval) beside the codec's and
    the real audio's."""
    from stentor.metrics.format import figure, interval

    bases = list(dict.fromkeys(name.removesuffix("_codec").removesuffix("_real") for name in found))
    lines = [("", *COLUMNS)]
    for base in bases:
        cells = []
        for column in COLUMNS:
            score = found.get(metric(base, column))
            text = "–" if score is None else figure(base, score.value)
            bounds = "" if score is None else interval(base, {"low": score.low, "high": score.high})
            cells.append(f"{text} ({bounds})" if bounds and column == SYNTHETIC else text)
        lines.append((base, *cells))
    widths = [max(len(line[i]) for line in lines) for i in range(len(COLUMNS) + 1)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(line, widths)).rstrip() for line in lines]
