"""Metrics of synthetic speech from the outputs of evaluators: intelligibility, voice similarity, quality, speed.

Everything is measured in the same way on synthetic speech, on real audio that went through the codec, and on the real
audio itself: a recogniser's errors there are not the model's, and its errors after the codec are the best that a model
of these codes can reach.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from stentor.metrics.score import Score, bootstrap, rate_interval
from stentor.metrics.wer import count_errors, normalized_pairs, rate
from stentor.metrics.wer import score as error_rate
from stentor.text.normalize import DEFAULT, plain_text, words

SYNTHETIC, CODEC, REAL = "synthetic", "codec", "real"
COLUMNS = (SYNTHETIC, CODEC, REAL)
"""Kinds of audio that are measured: the model's speech, the real audio decoded from its codes, the real audio."""
REFERENCE = "reference"
"""The recording that the voice was cloned from, with which the voices of all of these are compared."""
SHRINK = 0.3
"""Share of the identity in the within-speaker correlations of embeddings that are compared in relation to the set."""


def metric(name: str, column: str) -> str:
    """A metric's name in results: `wer` of the synthetic speech, `wer_codec`, `wer_real`."""
    return name if column == SYNTHETIC else f"{name}_{column}"


def intelligibility(
    texts: Sequence[str],
    transcripts: Mapping[str, Sequence[str | None]],
    normalizer: str = DEFAULT,
    languages: Sequence[str | None] | None = None,
    groups: dict[str, Sequence[str | None]] | None = None,
) -> dict[str, Score]:
    """`wer` and `cer` of a recogniser's transcripts of each column against the texts that were to be spoken.
    `transcripts` maps a column to one transcript per text, None where there is no audio (a record without real audio);
    columns without any transcript are left out."""
    wer: dict[str, Score] = {}
    cer: dict[str, Score] = {}
    for column, hypotheses in transcripts.items():
        known = [i for i, hypothesis in enumerate(hypotheses) if hypothesis is not None]
        if not known:
            continue
        pairs = [texts[i] for i in known], [str(hypotheses[i]) for i in known]
        tags = None if languages is None else [languages[i] for i in known]
        parts = {name: [labels[i] for i in known] for name, labels in (groups or {}).items()}
        wer[metric("wer", column)] = error_rate(*pairs, normalizer, tags, groups=parts)
        cer[metric("cer", column)] = error_rate(*pairs, normalizer, tags, "character", groups=parts)
    return wer | cer


def item_error_rate(
    texts: Sequence[str],
    transcripts: Sequence[str | None],
    normalizer: str = DEFAULT,
    languages: Sequence[str | None] | None = None,
) -> Score:
    """The mean of the items' own word error rates, as Seed-TTS-eval has it: short texts weigh as much as long ones."""
    known = [i for i, transcript in enumerate(transcripts) if transcript is not None]
    tags = None if languages is None else [languages[i] for i in known]
    hypotheses = [str(transcripts[i]) for i in known]
    pairs = normalized_pairs([texts[i] for i in known], hypotheses, normalizer, tags, "word", None)
    return mean([rate(count_errors([pair])) for pair in pairs])


def mean(values: Sequence[float | None]) -> Score:
    """The mean of the values that are known, with a bootstrap interval over items; NaN for none."""
    known = np.array([v for v in values if v is not None], np.float64)
    if not len(known):
        return Score(float("nan"))
    low, high = bootstrap(known, np.ones(len(known)))
    return Score(float(known.mean()), low=low, high=high, details={"items": len(known)})


def share(right: Sequence[bool | None]) -> Score:
    """The share of the known answers that are right, with how many are wrong; NaN for none."""
    known = [value for value in right if value is not None]
    score = mean([float(value) for value in known])
    if known:
        score.errors, score.total = len(known) - sum(known), len(known)
        score.low, score.high = rate_interval(np.array(known, np.int64), np.ones(len(known), np.int64))
    return score


def real_time_factor(computing: float, spoken: float) -> Score:
    """Seconds of computing for a second of speech: below 1 is faster than real time."""
    details = {"computing_seconds": round(computing, 3), "speech_seconds": round(spoken, 3)}
    return Score(computing / spoken if spoken else float("nan"), details=details)


def speaking_rate(
    texts: Sequence[str], seconds: Mapping[str, Sequence[float | None]], languages: Sequence[str | None]
) -> dict[str, Score]:
    """`speaking_rate` of each column: characters per second of audio, without spaces and punctuation, over all items;
    words per second are in the details. `seconds` maps a column to the length of each item, None where it has none."""
    plain = [plain_text(text) for text in texts]
    lengths = np.array([len(text.replace(" ", "")) for text in plain], np.float64)
    counts = np.array([len(words(text, language)) for text, language in zip(plain, languages, strict=True)])
    rates = {}
    for column, durations in seconds.items():
        known = [i for i, duration in enumerate(durations) if duration]
        times = np.array([durations[i] for i in known], np.float64)
        if known:
            low, high = bootstrap(lengths[known], times, ratio=np.divide)
            details = {"items": len(known), "words_per_second": round(float(counts[known].sum() / times.sum()), 4)}
            rates[metric("speaking_rate", column)] = Score(
                float(lengths[known].sum() / times.sum()), low=low, high=high, details=details
            )
    return rates


def level(audio: np.ndarray) -> float:
    """The root mean square of float [samples] in dB relative to full scale; -inf for silence."""
    power = float(np.square(audio, dtype=np.float64).mean()) if len(audio) else 0.0
    return 10 * float(np.log10(power)) if power > 0 else float("-inf")


@dataclass
class VoiceSpace:
    """Voices of real audio: the space in which embeddings are compared, and the centroid of each speaker."""

    names: list[str]
    centroids: np.ndarray
    """Unit vectors [speakers, E]."""
    centre: np.ndarray
    spread: np.ndarray
    """[E, E]: what a vector less `centre` is multiplied with."""

    @classmethod
    def of(cls, vectors: np.ndarray, speakers: Sequence[str | None], relative: bool) -> VoiceSpace:
        """From embeddings [N, E] of real audio. Where they are `relative`, a vector means something only in relation to
        others: they are centred and divided by their scatter within speakers (WCCN: Hatch, Kajarekar and Stolcke 2006),
        whose correlations are shrunk towards none."""
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
        projected = _unit((vectors - centre) @ spread)
        centroids = _unit(np.stack([projected[rows].mean(0) for rows in members])) if names else np.zeros((0, size))
        return cls(names, centroids, centre, spread)

    def project(self, vectors: np.ndarray) -> np.ndarray:
        """Unit vectors [N, E]: their products are the cosines."""
        return _unit((vectors - self.centre) @ self.spread)

    def nearest(self, vectors: np.ndarray) -> list[str]:
        """The speaker whose centroid each vector [N, E] is most similar to."""
        return [self.names[i] for i in (self.project(vectors) @ self.centroids.T).argmax(1)]


def similarity(
    vectors: Mapping[str, Sequence[np.ndarray | None]],
    base: str,
    speakers: Sequence[str | None],
    references: Sequence[int | None],
    relative: bool = False,
) -> dict[str, Score]:
    """For each column, `similarity`, the mean cosine with the reference's voice, and `voice_accuracy`, the share whose
    most similar speaker of the set is the right one.

    `vectors` maps a column to one embedding [E] per item, None where there is none. Of the column `base` (the real
    audio, or what stands for it) come the references, one item's number per item, and the speakers' centroids. An
    item's own recording never helps it: the set is halved, speaker by speaker, and the centroids (and the scale of
    `relative` embeddings) that an item is compared with are those of the other half. Speakers of a single recording
    have no `voice_accuracy`; of a column whose item is its own reference, there is no `similarity`.

    `relative` embeddings also lose what sets a column as a whole off from `base`, as a codec's sound does: what is the
    same in all voices is no voice (the idea of cepstral mean subtraction: Atal 1974).
    """
    available = [i for i, vector in enumerate(vectors[base]) if vector is not None]
    if not available:
        return {}
    halves = _halves(vectors[base], speakers)
    spaces = []
    for half in (0, 1):
        rows = [i for i in available if halves[i] != half] or available
        table = np.stack([v for i in rows if (v := vectors[base][i]) is not None]).astype(np.float64)
        spaces.append(VoiceSpace.of(table, [speakers[i] for i in rows], relative))
    several = len({s for s in speakers if s is not None}) > 1
    similarities: dict[str, Score] = {}
    accuracies: dict[str, Score] = {}
    for column, embeddings in vectors.items():
        cosines: list[float | None] = []
        hits: list[bool | None] = []
        shifts = [np.zeros(1), np.zeros(1)]
        if relative and column != base:
            shifts = [_shift(embeddings, vectors[base], [h != half for h in halves]) for half in (0, 1)]
        for i, vector in enumerate(embeddings):
            if vector is None:
                continue
            space = spaces[halves[i]]
            shifted = vector[None].astype(np.float64) - shifts[halves[i]]
            j = references[i]
            reference = None if j is None or (column == base and j == i) else vectors[base][j]
            if reference is not None:
                both = space.project(shifted), space.project(reference[None].astype(np.float64))
                cosines.append(float((both[0] @ both[1].T)[0, 0]))
            if several and speakers[i] in space.names:
                hits.append(space.nearest(shifted)[0] == speakers[i])
        if cosines:
            similarities[metric("similarity", column)] = mean(cosines)
        if hits:
            accuracies[metric("voice_accuracy", column)] = share(hits)
    return similarities | accuracies


def _halves(embeddings: Sequence[np.ndarray | None], speakers: Sequence[str | None]) -> list[int]:
    """The half, 0 or 1, of each item: items of a speaker take turns, items without an embedding are in half 0."""
    counts: Counter[str | None] = Counter()
    halves = []
    for speaker, vector in zip(speakers, embeddings, strict=True):
        halves.append(0 if vector is None else counts[speaker] % 2)
        counts[speaker] += vector is not None
    return halves


def _shift(
    column: Sequence[np.ndarray | None], base: Sequence[np.ndarray | None], chosen: Sequence[bool]
) -> np.ndarray:
    """Mean difference of a column from the base over the chosen items (over all where there are none): [E]."""
    pairs = [(a, b, use) for a, b, use in zip(column, base, chosen) if a is not None and b is not None]
    pairs = [pair for pair in pairs if pair[2]] or pairs
    return np.mean([a.astype(np.float64) - b for a, b, _ in pairs], axis=0) if pairs else np.zeros(1)


def _unit(vectors: np.ndarray) -> np.ndarray:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-9)
