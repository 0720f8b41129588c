"""Scores of texts against references: word and character error rates, and chrF of translations.

Errors are counted along the Levenshtein alignment, with a bootstrap interval and the most frequent ones. A rate is
corpus-level: all errors over all reference words. An item with an empty reference adds its insertions to the errors and
nothing to the total; when the whole set has no reference words the rate is the number of insertions (total taken as 1),
as jiwer defines it.
"""

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from difflib import SequenceMatcher
from typing import Any, Literal

import numpy as np

from stentor.errors import require
from stentor.metrics.score import Score, by_unit, rate_interval, resampled
from stentor.text.languages import language_code
from stentor.text.normalize import DEFAULT, characters, counted_in, normalize, warn_of_marks, words

Operation = Literal["equal", "substitute", "delete", "insert"]
Unit = Literal["word", "character", "compound"]
"""Unit of the errors. `compound`: words, of which several match one that is written together, see
`count_merged`."""

SUBSTITUTIONS, DELETIONS, INSERTIONS, REFERENCE = range(4)
NOTHING = "\u2400"
"""Stands for no word in an alignment."""
ORDER, BETA = 6, 2
"""Parameters of chrF: characters of the longest n-grams, and how much more recall weighs than precision."""


def align(
    reference: str | Sequence[str], hypothesis: str | Sequence[str], unit: Unit = "word"
) -> list[tuple[Operation, str | None, str | None]]:
    """A shortest edit script: `(operation, reference word, hypothesis word)`, None where a side has no word. Strings
    are split at white space; pass lists for other units. With the unit `compound` a side may be several words."""
    from rapidfuzz.distance import Levenshtein

    ref = reference.split() if isinstance(reference, str) else list(reference)
    hyp = hypothesis.split() if isinstance(hypothesis, str) else list(hypothesis)
    if unit == "compound":
        return [(_operation(a, b), a, b) for a, b in align_merged(ref, hyp)]
    steps: list[tuple[Operation, str | None, str | None]] = []
    for code in Levenshtein.opcodes(ref, hyp):
        deleted, inserted = ref[code.src_start : code.src_end], hyp[code.dest_start : code.dest_end]
        if code.tag == "delete":
            steps += [("delete", word, None) for word in deleted]
        elif code.tag == "insert":
            steps += [("insert", None, word) for word in inserted]
        else:
            name: Operation = "equal" if code.tag == "equal" else "substitute"
            steps += [(name, a, b) for a, b in zip(deleted, inserted, strict=True)]
    return steps


def _operation(reference: str | None, hypothesis: str | None) -> Operation:
    if reference is None or hypothesis is None:
        return "insert" if reference is None else "delete"
    return "equal" if reference.replace(" ", "") == hypothesis.replace(" ", "") else "substitute"


def matches(reference: Sequence[Hashable], hypothesis: Sequence[Hashable]) -> list[tuple[int, int]]:
    """(reference position, hypothesis position) of the units that the alignment of `align` pairs as equal, in order."""
    from rapidfuzz.distance import Levenshtein

    return [
        pair
        for code in Levenshtein.opcodes(reference, hypothesis)
        if code.tag == "equal"
        for pair in zip(range(code.src_start, code.src_end), range(code.dest_start, code.dest_end), strict=True)
    ]


def count_errors(pairs: Iterable[tuple[Sequence[Any], Sequence[Any]]], unit: Unit = "word") -> np.ndarray:
    """Errors of each (reference units, hypothesis units) pair: int64 [pairs, 4]. Columns: substitutions, deletions,
    insertions, reference length. Raises ConfigError for `compound` without the package kaldialign."""
    from rapidfuzz.distance import Levenshtein

    rows = []
    for reference, hypothesis in pairs:
        if unit == "compound":
            rows.append(count_merged(reference, hypothesis))
            continue
        counts = Counter(edit.tag for edit in Levenshtein.editops(reference, hypothesis))
        rows.append((counts["replace"], counts["delete"], counts["insert"], len(reference)))
    return np.array(rows, dtype=np.int64).reshape(-1, 4)


def text_errors(reference: str, hypothesis: str, language: str | None = None, normalizer: str = DEFAULT) -> np.ndarray:
    """`count_errors` of one pair of texts: int64 [1, 4]."""
    return count_errors(normalized_pairs([reference], [hypothesis], normalizer, [language], "word", None))


def rate(counts: np.ndarray) -> float:
    """Errors over reference units of a `count_errors` table; a fraction, above 1 when insertions abound."""
    return float(counts[:, :REFERENCE].sum() / max(counts[:, REFERENCE].sum(), 1))


def frequent_errors(
    pairs: Iterable[tuple[Sequence[str], Sequence[str]]], top: int = 20, unit: Unit = "word"
) -> dict[str, list[list[Any]]]:
    """The most frequent errors over (reference words, hypothesis words) pairs, most frequent first. `{"substitutions":
    [[reference, hypothesis, count]], "deletions": [[word, count]], "insertions": [[word, count]]}`. Ties are in
    alphabetical order, so that the list does not depend on the order of the items."""
    counters: dict[str, Counter[tuple[str, ...]]] = {"substitute": Counter(), "delete": Counter(), "insert": Counter()}
    for reference, hypothesis in pairs:
        for operation, *units in align(reference, hypothesis, unit):
            if operation != "equal":
                counters[operation][tuple(word for word in units if word is not None)] += 1
    return {
        name: [[*key, n] for key, n in sorted(counter.items(), key=lambda item: (-item[1], item[0]))[:top]]
        for name, counter in zip(("substitutions", "deletions", "insertions"), counters.values())
    }


def normalized_pairs(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normalizer: str,
    languages: Sequence[str | None] | None,
    unit: Unit,
    spelling: str | None,
) -> list[tuple[list[str], list[str]]]:
    """(reference units, hypothesis units) of each item after the normaliser; arguments as for `score`. Without a
    language the script of the reference decides the units of both."""
    split = characters if unit == "character" else words
    pairs = []
    for *texts, language in zip(references, hypotheses, languages or [None] * len(references), strict=True):
        like = texts[0].strip() or texts[1]
        r, h = (split(normalize(text, normalizer, language, spelling), language, like) for text in texts)
        joined = unit == "compound" and language_code(language) not in (None, "en")
        pairs.append(joined_alike(r, h) if joined else (r, h))
    return pairs


def score(
    references: Sequence[str],
    hypotheses: Sequence[str],
    normalizer: str = DEFAULT,
    languages: Sequence[str | None] | None = None,
    unit: Unit = "word",
    groups: Mapping[str, Sequence[str | None]] | None = None,
    spelling: str | None = None,
) -> Score:
    """The corpus-level error rate after `normalizer`, with its interval and details. `groups` names ways to break the
    rate down: `{"speaker": [one label per item]}` adds `details["by_speaker"]` when there is more than one label, and
    the interval draws speakers where there are enough (`stentor.metrics.score`).
    `languages` (one per item) picks the units, see `stentor.text.normalize.words`."""
    pairs = normalized_pairs(references, hypotheses, normalizer, languages, unit, spelling)
    counts, tags = count_errors(pairs, unit), languages or [None] * len(references)
    errors, totals = counts[:, :REFERENCE].sum(1), counts[:, REFERENCE]
    drawn, sums_by_unit = by_unit((groups or {}).get("speaker"), errors, totals)
    sums = counts.sum(0)
    low, high = rate_interval(sums_by_unit[0], sums_by_unit[1], insertions=int(sums[INSERTIONS]))
    details: dict[str, Any] = {
        "items": len(pairs),
        "items_with_errors": int((errors > 0).sum()),
        "substitutions": int(sums[SUBSTITUTIONS]),
        "deletions": int(sums[DELETIONS]),
        "insertions": int(sums[INSERTIONS]),
        "normalizer": normalizer,
        "unit": "character",
    }
    if unit != "character":
        details |= counted_in([r.strip() or h for r, h in zip(references, hypotheses)], tags)
    if lost := warn_of_marks(references, normalizer, tags):
        details["words_without_marks"] = lost
    if unit == "compound":
        details["compounds"] = "merged"
    if unit != "character":
        details["frequent"] = frequent_errors(pairs, unit=unit)
    for name, labels in (groups or {}).items():
        if len(set(labels)) > 1:
            details[f"by_{name}"] = {
                str(label): {
                    "value": rate(part),
                    "errors": int(part[:, :REFERENCE].sum()),
                    "total": int(part[:, REFERENCE].sum()),
                    "items": len(part),
                }
                for label in sorted(set(labels), key=str)
                for part in (counts[[i for i, other in enumerate(labels) if other == label]],)
            }
    return Score(rate(counts), int(errors.sum()), int(totals.sum()), low, high, details, **drawn)


def _kaldialign() -> Any:
    require("evaluate", "The scoring open_asr", "kaldialign")
    import kaldialign

    return kaldialign


def joined_alike(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[list[str], list[str]]:
    """The words of both sides; where they differ and have the same letters (`a bc` and `ab c`), as one word each."""
    pair: tuple[list[str], list[str]] = [], []
    for tag, i, j, k, m in SequenceMatcher(None, reference, hypothesis).get_opcodes():
        sides = reference[i:j], hypothesis[k:m]
        alike = tag != "equal" and "".join(sides[0]) == "".join(sides[1])
        for joined, side in zip(pair, sides):
            joined += ["".join(side)] if alike else side
    return pair


def count_merged(reference: Sequence[str], hypothesis: Sequence[str]) -> tuple[int, int, int, int]:
    """Substitutions, deletions, insertions and reference length, where words written apart match the same ones written
    together at no cost (`white paper`, `whitepaper`).

    As the Open ASR Leaderboard counts since June 2026 (normalizer/eval_utils.py at d1e99b2 of 2026-08-21): the
    alignment of kaldialign with `merge_compounds`. In languages other than English both sides are `joined_alike` first.
    """
    counts = _kaldialign().edit_distance(reference, hypothesis, merge_compounds=True)
    return counts["sub"], counts["del"], counts["ins"], counts["ref_len"]


def align_merged(reference: Sequence[str], hypothesis: Sequence[str]) -> list[tuple[str | None, str | None]]:
    """Pairs of words (joined by spaces where several match one), None where a side has none."""
    steps = _kaldialign().align(reference, hypothesis, NOTHING, merge_compounds=True)
    return [(None if a == NOTHING else a, None if b == NOTHING else b) for a, b in steps]


def relative_change(
    references: Sequence[str],
    before: Sequence[str],
    after: Sequence[str],
    normalizer: str = DEFAULT,
    languages: Sequence[str | None] | None = None,
    unit: Unit = "word",
    spelling: str | None = None,
    speakers: Sequence[str | None] | None = None,
) -> Score | None:
    """Relative change of the corpus-level error rate from `before` to `after`: -0.25 is a quarter fewer errors. The
    interval resamples items with both systems' errors on them together (paired bootstrap, Bisani and Ney 2004), so it
    is much narrower than the two rates' own intervals suggest. Enough `speakers` (one label an item) are drawn whole,
    see `stentor.metrics.score`. `details` has the share of the resamples with fewer errors, `better`. None when
    `before` makes no error."""

    def errors(hypotheses: Sequence[str]) -> np.ndarray:
        pairs = normalized_pairs(references, hypotheses, normalizer, languages, unit, spelling)
        return count_errors(pairs, unit)[:, :REFERENCE].sum(1)

    first, second = errors(before), errors(after)
    if not first.sum():
        return None
    drawn, (change, before_sums) = by_unit(speakers, second - first, first)
    changes = resampled(change, before_sums)
    low, high = map(float, np.quantile(changes, [0.025, 0.975]))
    value = float((second.sum() - first.sum()) / first.sum())
    details = {"items": len(first), "better": float((changes < 0).mean())}
    return Score(value, low=low, high=high, details=details, **drawn)


def chrf(references: Sequence[str], hypotheses: Sequence[str]) -> Score:
    """The character n-gram F-score of a set, from 0 to 1, with a bootstrap interval over its items. The texts count as
    they are, with case and punctuation. NaN for no items.

    Popović 2015, "chrF: character n-gram F-score for automatic MT evaluation", with the settings that sacreBLEU (which
    prints it times 100) calls `nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no`: n-grams of 1 to 6 characters, without
    white space, recall twice as important as precision, counts of the whole set.
    """
    counts = np.array([_counts(r, h) for r, h in zip(references, hypotheses, strict=True)], dtype=np.float64)
    n = len(counts)
    if n == 0:
        return Score(float("nan"))
    counts = counts.reshape(n, 3 * ORDER)
    draws = np.random.default_rng(0).multinomial(n, [1 / n] * n, size=1000)  # how often each item is drawn
    low, high = np.quantile(_f_score(draws @ counts), [0.025, 0.975])
    return Score(float(_f_score(counts.sum(0))), low=float(low), high=float(high), details={"items": n})


def _counts(reference: str, hypothesis: str) -> list[tuple[int, int, int]]:
    """(n-grams of the hypothesis, of the reference, in both) for n from 1 to `ORDER`."""
    texts = ["".join(text.split()) for text in (hypothesis, reference)]
    rows = []
    for n in range(1, ORDER + 1):
        first, second = (Counter(text[i : i + n] for i in range(len(text) - n + 1)) for text in texts)
        rows.append((first.total(), second.total(), (first & second).total()))
    return rows


def _f_score(sums: np.ndarray) -> np.ndarray:
    """F-score [...] of summed counts [..., 3 * ORDER]: precision and recall are means over the n-gram lengths that
    both sides have."""
    hypothesis, reference, both = (sums[..., i::3] for i in range(3))
    counted = (hypothesis > 0) & (reference > 0)
    orders = np.maximum(counted.sum(-1), 1)
    precision = (both / np.maximum(hypothesis, 1) * counted).sum(-1) / orders
    recall = (both / np.maximum(reference, 1) * counted).sum(-1) / orders
    denominator = BETA**2 * precision + recall
    return np.divide((1 + BETA**2) * precision * recall, denominator, out=np.zeros_like(recall), where=denominator > 0)
