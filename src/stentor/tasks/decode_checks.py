"""Checks of decoded texts: word confidences and hallucination checks.

The checks and the fallback to higher temperatures are those of Whisper (Radford et al. 2022, arXiv:2212.04356,
section 4.5), with a check of the speaking rate added.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from pydantic import Field, field_validator

from stentor.section import Section
from stentor.section.explain import validated
from stentor.text.written_words import written_words


class Checks(Section):
    """Hallucination checks. An item that fails one is decoded again at a higher temperature."""

    on: bool = True
    """Check texts when transcribing files."""
    evaluate: bool = False
    """Also check texts in evaluations. If false, an evaluation scores the first text of each item, so it needs one
    decoding per item, and loops of the model show in the metrics."""
    compression_ratio: float | None = Field(2.4, gt=1)
    """Maximum ratio of the bytes of the text to its bytes after zlib, high for repetitive text. Null: no limit."""
    mean_log_prob: float | None = Field(-1.0, lt=0)
    """Minimum mean log-probability of the tokens. Null: no limit."""
    no_speech: float | None = Field(0.6, gt=0, le=1)
    """Maximum no-speech probability (Whisper's `<|nospeech|>`), for texts under `mean_log_prob`. A text above it is
    left out without decoding again. Null: no limit."""
    words_per_second: tuple[float, float] | None = (0.0, 10.0)
    """Minimum and maximum words, separated by spaces, per second of audio. Null: no limit."""
    temperatures: list[float] = [0.0, 0.2, 0.4, 0.6, 0.8]
    """Sampling temperatures, tried in turn for items that fail a check. If all fail, the text that fails the fewest
    checks is kept, and among equals the most probable one."""

    @field_validator("words_per_second")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError("the minimum must be at least 0 and below the maximum")
        return value

    @field_validator("temperatures")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if not value or value[0] < 0 or any(b <= a for a, b in pairwise(value)):
            raise ValueError("must be one or more temperatures of at least 0, in ascending order")
        return value

    def with_limits(self, limits: dict[str, float]) -> Checks:
        """Return the checks, switched on, with other limits. Raises ConfigError for an invalid limit."""
        return validated(Checks, {**self.model_dump(), **limits, "on": True})

    def failed(self, output: dict[str, Any], seconds: float) -> list[str]:
        """Return the names of the checks that a task output fails; `seconds` is the duration of its audio."""
        failures = []
        if self.compression_ratio is not None and output["compression_ratio"] > self.compression_ratio:
            failures.append("compression_ratio")
        if self.mean_log_prob is not None and output["log_prob"] < self.mean_log_prob:
            failures.append("mean_log_prob")
            if self.no_speech is not None and output.get("no_speech_prob", 0.0) > self.no_speech:
                failures.append("no_speech")
        if self.words_per_second is not None and seconds > 0:
            least, most = self.words_per_second
            if not least <= len(output["text"].split()) / seconds <= most:
                failures.append("words_per_second")
        return failures


def compression_ratio(text: str) -> float:
    """Return the UTF-8 bytes of the text over its bytes after zlib; 0 for an empty text."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def token_spans(ids: Sequence[int], decode: Callable[[list[int]], str]) -> tuple[str, list[tuple[int, int]]]:
    """Return the decoded text and, for each token, the characters [start, end) that it adds.

    Works for any tokenizer because it only decodes: a token ends where the text of all tokens up to it stops agreeing
    with the whole text. A token that completes no character (part of a multi-byte character) has an empty span.
    """
    ids = list(ids)
    text = decode(ids)
    pieces = [decode([i]) for i in ids]
    if "".join(pieces) == text:
        ends = list(accumulate(map(len, pieces)))
    else:
        prefixes = (_common_prefix(decode(ids[:n]), text) for n in range(1, len(ids) + 1))
        ends = list(accumulate(prefixes, max))
    return text, list(zip([0, *ends], ends))


def word_tokens(ids: Sequence[int], decode: Callable[[list[int]], str]) -> list[tuple[str, list[int]]]:
    """Return the words of the decoded text (see `written_words`), each with the positions of its tokens.

    Tokens without a letter (white space, parts of a character) belong to the next word. A token of two words belongs to
    both. Every word has at least one token.
    """
    text, spans = token_spans(ids, decode)
    words: list[tuple[str, list[int]]] = []
    token = word_end = 0
    for word in written_words(text):
        word_end = text.index(word, word_end) + len(word)
        positions = []
        while token < len(spans):
            start, end = spans[token]
            if start >= word_end:
                break
            positions.append(token)
            if end >= word_end:
                # The next word uses this token too if it reaches beyond the last letter of this word.
                if not text[word_end:end].strip():
                    token += 1
                break
            token += 1
        words.append((word, positions))
    return words


def word_confidences(
    ids: Sequence[int],
    log_probs: Sequence[float],
    decode: Callable[[list[int]], str],
    spans: Sequence[tuple[float, float]] | None = None,
    calibration: Sequence[float] = (1.0, 0.0, 0.0),
    groups: Sequence[tuple[str, Sequence[int]]] | None = None,
) -> list[dict[str, Any]]:
    """Return `[{"word", "confidence"}]`: the probability of the least certain token of each word.

    The minimum is used because a product would penalise long words and fine-grained tokenizers. With `spans`, the start
    and end of each token in seconds, words also have `start`, `end` and `signs`, the lowest and the mean probability
    of the tokens, from which `calibration` computes the confidence (see `stentor.metrics.calibration`). `groups`: the
    words with the positions of their tokens, if known (see `word_tokens`).
    """
    from stentor.metrics.calibration import confidence

    words = []
    for word, positions in word_tokens(ids, decode) if groups is None else groups:
        probabilities = [math.exp(log_probs[i]) for i in positions]
        least = min(probabilities)
        if spans is None:
            words.append({"word": word, "confidence": round(least, 4)})
            continue
        signs = (least, sum(probabilities) / len(probabilities))
        letters = [i for i in positions if decode([ids[i]]).strip()] or positions
        words.append(
            {
                "word": word,
                "start": round(spans[letters[0]][0], 3),
                "end": round(spans[letters[-1]][1], 3),
                "confidence": round(confidence(signs, calibration), 4),
                "signs": [round(sign, 6) for sign in signs],
            }
        )
    return words


def _common_prefix(a: str, b: str) -> int:
    if b.startswith(a):
        return len(a)
    return next(i for i, (x, y) in enumerate(zip(a + "\0", b + "\1", strict=False)) if x != y)
