"""Evaluator scores: outputs of several evaluators on the same speech, and metrics over them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from stentor.metrics.format import figure, interval, text_table
from stentor.metrics.score import Direction, Score
from stentor.metrics.speech import (
    COLUMNS,
    REAL,
    REFERENCE,
    SYNTHETIC,
    intelligibility,
    item_error_rate,
    mean,
    metric,
    similarity,
    speaking_rate,
)
from stentor.tasks.speak.evaluator import SpeechEvaluator, evaluate_clips
from stentor.text.normalize import DEFAULT
from stentor.text.protocols import BY_CHARACTERS


def evaluate_items(
    evaluators: Sequence[SpeechEvaluator],
    sounds: Mapping[str, Sequence[np.ndarray | None]],
    rate: int,
    languages: Sequence[str | None],
    device: str = "cpu",
) -> list[dict[str, dict[str, Any]]]:
    """The evaluators' outputs for each item: `{"text": {column: str}, "voice": {column: float32 [E]}, "quality":
    {evaluator's type: {column: float}}}`, without the kinds that no evaluator gives, and always `{"seconds": {column:
    float}}`.

    `sounds` maps a column (`synthetic`, `codec`, `real`) to one clip per item, float32 [samples] at `rate` Hz or None.
    """
    rows: list[dict[str, dict[str, Any]]] = [
        {"seconds": {column: len(clip) / rate for column, clips in sounds.items() if (clip := clips[i]) is not None}}
        for i in range(len(languages))
    ]
    for evaluator in evaluators:
        for column, clips in sounds.items():
            present = {i: clip for i, clip in enumerate(clips) if clip is not None}
            outputs = evaluate_clips(evaluator, list(present.values()), rate, [languages[i] for i in present], device)
            for i, output in zip(present, outputs, strict=True):
                if evaluator.gives == "quality":
                    rows[i].setdefault("quality", {}).setdefault(evaluator.type, {})[column] = float(output)
                else:
                    rows[i].setdefault(evaluator.gives, {})[column] = output
    return rows


def directions(evaluators: Sequence[SpeechEvaluator]) -> dict[str, Direction | None]:
    """Metrics of `scores` without comparison of voices, with their directions; a speaking rate has none."""
    measured: dict[str, Direction | None] = {}
    if any(evaluator.gives == "text" for evaluator in evaluators):
        measured |= {"wer": "min", "cer": "min"}
    measured |= {evaluator.type: "max" for evaluator in evaluators if evaluator.gives == "quality"}
    measured |= {"speaking_rate": None} if evaluators else {}
    return {metric(name, column): direction for name, direction in measured.items() for column in COLUMNS}


def scores(
    rows: Sequence[Mapping[str, Any]],
    texts: Sequence[str],
    languages: Sequence[str | None],
    speakers: Sequence[str | None],
    references: Sequence[int | None] | None = None,
    relative: bool = False,
    normalizer: str = DEFAULT,
    item_means: bool = False,
) -> dict[str, Score]:
    """Metrics over the rows of `evaluate_items`: error rates, similarity of voices, the mean of each quality, and the
    speaking rate.

    `texts` are the items' texts. `references` numbers the item whose real audio each voice is compared with (see
    `stentor.metrics.speech.similarity`), or whose `reference` where rows have that column; None: no voices are
    compared. `relative`: of the evaluator of voices. `item_means`: `wer_mean` too, the mean of the items' error rates.
    """
    results: dict[str, Score] = {}
    if any("text" in row for row in rows):
        transcripts = {c: [row.get("text", {}).get(c) for row in rows] for c in COLUMNS}
        groups = {"language": languages, "speaker": speakers}
        results |= intelligibility(texts, transcripts, normalizer, languages, groups)
        if normalizer in BY_CHARACTERS:  # their words are characters
            results = {name: score for name, score in results.items() if not name.startswith("cer")}
        if item_means:
            results["wer_mean"] = item_error_rate(texts, transcripts[SYNTHETIC], normalizer, languages)
    if references is not None and any("voice" in row for row in rows):
        columns = (*COLUMNS, REFERENCE)
        voices = {c: [row.get("voice", {}).get(c) for row in rows] for c in columns}
        voices = {c: v for c, v in voices.items() if any(x is not None for x in v)}
        # Without recordings, the decoded codec tokens stand for the real audio.
        base = next((c for c in (REFERENCE, REAL, "codec") if c in voices), None)
        if base is not None:
            compared = similarity(voices, base, speakers, references, relative)
            results |= {name: score for name, score in compared.items() if not name.endswith(REFERENCE)}
    for name in sorted({name for row in rows for name in row.get("quality", {})}):
        for column in COLUMNS:
            values = [row.get("quality", {}).get(name, {}).get(column) for row in rows]
            if any(value is not None for value in values):
                results[metric(name, column)] = mean(values)
    seconds = {c: [row.get("seconds", {}).get(c) for row in rows] for c in COLUMNS}
    return results | speaking_rate(texts, seconds, languages)


def table(results: Mapping[str, Score]) -> list[str]:
    """Format scores as a table: a line for each metric, with the model's speech (and its 95 % interval), the codec's
    and the real audio's."""
    bases = list(dict.fromkeys(name.removesuffix("_codec").removesuffix("_real") for name in results))
    columns = [c for c in COLUMNS if c == SYNTHETIC or any(name.endswith(f"_{c}") for name in results)]
    lines: list[tuple[str, ...]] = [("", *columns)]
    for base in bases:
        cells = []
        for column in columns:
            score = results.get(metric(base, column))
            text = "–" if score is None else figure(base, score.value)
            bounds = "" if score is None else interval(base, {"low": score.low, "high": score.high})
            cells.append(f"{text} ({bounds})" if bounds and column == SYNTHETIC else text)
        lines.append((base, *cells))
    return text_table(lines)
