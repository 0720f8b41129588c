"""How good synthetic speech is, from what second models heard in it: words, voices, a number for quality; and how fast.

Everything is measured in the same way on synthetic speech, on real audio that went through the codec, and on the real
audio itself: what a recogniser gets wrong there is no fault of the model, and what it gets wrong behind the codec is
the best that a model of these codes can reach.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stentor.metrics.wer import bootstrap
from stentor.metrics.wer import score as error_rate

if TYPE_CHECKING:
    import numpy as np

    from stentor.metrics.score import Score

SYNTHETIC, CODEC, REAL = "synthetic", "codec", "real"
COLUMNS = (SYNTHETIC, CODEC, REAL)
"""What is measured: the model's speech, the real audio decoded from its codes, the real audio."""
SHRINK = 0.3
"""Share of the identity in the within-speaker correlations of embeddings that are compared in relation to the set."""


def metric(name: str, column: str) -> str:
    """A metric's name in results: `wer` of the synthetic speech, `wer_codec`, `wer_real`."""
    return name if column == SYNTHETIC else f"{name}_{column}"


def intelligibility(
    texts: Sequence[str],
    heard: Mapping[str, Sequence[str | None]],
    normalizer: str = "whisper_basic",
    languages: Sequence[str | None] | None = None,
    groups: dict[str, Sequence[str | None]] | None = None,
) -> dict[str, Score]:
    """`wer` and `cer` of what a recogniser heard in each column against the texts that were to be spoken.

    `heard` maps a column to one answer per text, None where there was nothing to hear (a record without real audio);
    columns without any answer are left out.
    """
    found: dict[str, Score] = {}
    for column, answers in heard.items():
        known = [i for i, answer in enumerate(answers) if answer is not None]
        if not known:
            continue
        said = [texts[i] for i in known]
        got = [str(answers[i]) for i in known]
        tongues = None if languages is None else [languages[i] for i in known]
        parts = {name: [labels[i] for i in known] for name, labels in (groups or {}).items()}
        found[metric("wer", column)] = error_rate(said, got, normalizer, tongues, groups=parts)
        found[metric("cer", column)] = error_rate(said, got, normalizer, tongues, "character", groups=parts)
    return {name: found[name] for base in ("wer", "cer") for column in heard if (name := metric(base, column)) in found}


def mean(values: Sequence[float | None]) -> Score:
    """The mean of the values that are known, with a bootstrap interval over items; NaN for none."""
    import numpy as np

    from stentor.metrics.score import Score

    known = np.array([v for v in values if v is not None], np.float64)
    if not len(known):
        return Score(float("nan"))
    low, high = bootstrap(known, np.ones(len(known)))
    return Score(float(known.mean()), low=low, high=high, details={"items": len(known)})


def share(right: Sequence[bool | None]) -> Score:
    """The share of the known answers that are right, with how many are wrong; NaN for none."""
    known = [value for value in right if value is not None]
    found = mean([float(value) for value in known])
    if known:
        found.errors, found.total = len(known) - sum(known), len(known)
    return found


def real_time_factor(computing: float, spoken: float) -> Score:
    """Seconds of computing for a second of speech: below 1 is faster than real time."""
    from stentor.metrics.score import Score

    details = {"computing_seconds": round(computing, 3), "speech_seconds": round(spoken, 3)}
    return Score(computing / spoken if spoken else float("nan"), details=details)


def level(audio: np.ndarray) -> float:
    """The root mean square of float [samples] in dB relative to full scale; -inf for silence."""
    import numpy as np

    power = float(np.square(audio, dtype=np.float64).mean()) if len(audio) else 0.0
    return 10 * float(np.log10(power)) if power > 0 else float("-inf")


@dataclass
class Voices:
    """The voices of real audio: where embeddings are compared, and the centroid of each speaker."""

    names: list[str]
    centroids: np.ndarray
    """Unit vectors [speakers, E]."""
    centre: np.ndarray
    spread: np.ndarray
    """[E, E]: what a vector less `centre` is multiplied with."""

    @classmethod
    def of(cls, vectors: np.ndarray, speakers: Sequence[str | None], relative: bool) -> Voices:
        """From embeddings [N, E] of real audio. Where they are `relative`, a vector means something only beside others:
        they are centred and divided by their scatter within speakers (WCCN: Hatch, Kajarekar and Stolcke 2006), whose
        correlations are shrunk towards none."""
        import numpy as np

        size = vectors.shape[1]
        centre, spread = np.zeros(size), np.eye(size)
        names = sorted({s for s in speakers if s is not None})
        members = [[i for i, s in enumerate(speakers) if s == name] for name in names]
        if relative:
            centre = vectors.mean(0)
            groups = [vectors[rows] for rows in members if len(rows) > 1]
            inner = np.concatenate([g - g.mean(0) for g in groups]) if groups else vectors - centre
            scale = np.maximum(inner.std(0), 1e-6)
            if len(groups) and len(inner) > len(groups) + 1:
                scaled = inner / scale
                correlations = (1 - SHRINK) * (scaled.T @ scaled) / len(scaled) + SHRINK * np.eye(size)
                spread = np.diag(1 / scale) @ np.linalg.cholesky(np.linalg.inv(correlations))
            else:
                spread = np.diag(1 / scale)
        placed = _unit((vectors - centre) @ spread)
        centroids = _unit(np.stack([placed[rows].mean(0) for rows in members])) if names else np.zeros((0, size))
        return cls(names, centroids, centre, spread)

    def place(self, vectors: np.ndarray) -> np.ndarray:
        """Unit vectors [N, E]: their products are the cosines."""
        return _unit((vectors - self.centre) @ self.spread)

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The speaker whose centroid each vector [N, E] is most similar to."""
        return [self.names[i] for i in (self.place(vectors) @ self.centroids.T).argmax(1)]


def similarity(
    vectors: Mapping[str, Sequence[np.ndarray | None]],
    base: str,
    speakers: Sequence[str | None],
    references: Sequence[int | None],
    relative: bool = False,
) -> dict[str, Score]:
    """Of each column, `similarity`, the mean cosine with the reference's voice, and `voice_accuracy`, the share whose
    most similar speaker of the set is the right one.

    `vectors` maps a column to one embedding [E] per item, None where there is none. Of the column `base` (the real
    audio, or what stands for it) come the references, one item's number per item, and the speakers' centroids. An
    item's own recording never helps it: the set is halved, speaker by speaker, and the centroids (and the scale of
    `relative` embeddings) that an item is compared with are those of the other half. Speakers of a single recording
    have no `voice_accuracy`; of a column whose item is its own reference, there is no `similarity`.

    `relative` embeddings also lose what sets a column as a whole off from `base`, as a codec's sound does: what is the
    same in all voices is no voice (the idea of cepstral mean subtraction: Atal 1974).
    """
    import numpy as np

    turn: dict[str | None, int] = {}
    halves = []
    for speaker, vector in zip(speakers, vectors[base], strict=True):
        if vector is None:
            halves.append(0)
            continue
        halves.append(turn.get(speaker, 0) % 2)
        turn[speaker] = turn.get(speaker, 0) + 1
    voices = []
    for half in (0, 1):
        rows = [i for i, v in enumerate(vectors[base]) if v is not None and halves[i] != half]
        rows = rows or [i for i, v in enumerate(vectors[base]) if v is not None]
        if not rows:
            return {}
        table = np.stack([vectors[base][i] for i in rows]).astype(np.float64)
        voices.append(Voices.of(table, [speakers[i] for i in rows], relative))
    several = len({s for s in speakers if s is not None}) > 1
    cosines: dict[str, Score] = {}
    right: dict[str, Score] = {}
    for column, own in vectors.items():
        near: list[float | None] = []
        found: list[bool | None] = []
        shifts = [np.zeros(1), np.zeros(1)]
        if relative and column != base:
            shifts = [_shift(own, vectors[base], [h != half for h in halves]) for half in (0, 1)]
        for i, vector in enumerate(own):
            if vector is None:
                continue
            known = voices[halves[i]]
            there = vector[None].astype(np.float64) - shifts[halves[i]]
            j = references[i]
            reference = None if j is None or (column == base and j == i) else vectors[base][j]
            if reference is not None:
                near.append(float((known.place(there) @ known.place(reference[None].astype(np.float64)).T)[0, 0]))
            if several and speakers[i] in known.names:
                found.append(known.nearest(there)[0] == speakers[i])
        if near:
            cosines[metric("similarity", column)] = mean(near)
        if found:
            right[metric("voice_accuracy", column)] = share(found)
    return {**cosines, **right}


def _shift(
    column: Sequence[np.ndarray | None], base: Sequence[np.ndarray | None], chosen: Sequence[bool]
) -> np.ndarray:
    """How far a column lies from the base on the average of the chosen items (of all where there are none): [E]."""
    import numpy as np

    pairs = [(a, b, use) for a, b, use in zip(column, base, chosen) if a is not None and b is not None]
    pairs = [pair for pair in pairs if pair[2]] or pairs
    return np.mean([a.astype(np.float64) - b for a, b, _ in pairs], axis=0) if pairs else np.zeros(1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    import numpy as np

    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
