"""Checks of decoded texts: confidence per word, and signs that the model made the text up.

The checks and the fallback to higher temperatures are those of Whisper (Radford et al. 2022, arXiv:2212.04356,
section 4.5), with a check of the speaking rate added.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import Any

from pydantic import Field, ValidationError, field_validator

from stentor.errors import ConfigError
from stentor.section import Section
from stentor.text.written_words import written_words


class Checks(Section):
    """Signs of an answer that was not heard in the audio; an item that shows one is decoded again, hotter."""

    on: bool = True
    """Check answers when transcribing files."""
    evaluate: bool = False
    """Check answers in evaluations as well. Off, an evaluation scores the model's first answer: it takes one decoding
    per item, and a model that begins to loop is seen in the figures."""
    compression_ratio: float | None = Field(2.4, gt=1)
    """Most that zlib may compress the text (bytes before over bytes after): a looping model repeats itself. Null: not
    checked."""
    mean_log_prob: float | None = Field(-1.0, lt=0)
    """Least mean log-probability of the answer's tokens. Null: not checked."""
    no_speech: float | None = Field(0.6, gt=0, le=1)
    """Highest no-speech probability, for models that have one (Whisper's `<|nospeech|>`), for an answer under
    `mean_log_prob`; with a higher one it is not decoded again. Null: not checked."""
    words_per_second: tuple[float, float] | None = (0.0, 10.0)
    """Least and most words between spaces per second of audio. Null: not checked."""
    temperatures: list[float] = [0.0, 0.2, 0.4, 0.6, 0.8]
    """Sampling temperatures that are tried in turn for items that fail a check. When all fail, the answer with the
    fewest signs is kept, of those the most probable."""

    @field_validator("words_per_second")
    @classmethod
    def _ordered(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and not 0 <= value[0] < value[1]:
            raise ValueError("the least must be at least 0 and smaller than the most")
        return value

    @field_validator("temperatures")
    @classmethod
    def _rising(cls, value: list[float]) -> list[float]:
        if not value or value[0] < 0 or any(b <= a for a, b in pairwise(value)):
            raise ValueError("give at least one temperature, none negative, in rising order")
        return value

    def with_limits(self, limits: dict[str, float]) -> Checks:
        """The checks, on, with other limits by their names. Raises ConfigError for one that is impossible."""
        try:
            return Checks.model_validate({**self.model_dump(), **limits, "on": True})
        except ValidationError as error:
            first = error.errors()[0]
            raise ConfigError(f"The threshold {first['loc'][0]} {first['input']:g}: {first['msg']}.") from None

    def failed(self, output: dict[str, Any], seconds: float) -> list[str]:
        """Names of the checks that a task output fails; `seconds` is the length of its audio."""
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
    """UTF-8 bytes of the text over its bytes after zlib; 0 for an empty text."""
    data = text.encode("utf-8")
    return len(data) / len(zlib.compress(data)) if data else 0.0


def token_spans(ids: Sequence[int], decode: Callable[[list[int]], str]) -> tuple[str, list[tuple[int, int]]]:
    """The decoded text and, for each token, the characters [start, end) that it adds to it.

    Works for any tokenizer, as it only decodes: a token ends where the text of all tokens up to it stops agreeing with
    the whole text. A token that completes no character by itself (a part of a multi-byte character) spans nothing.
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
    """The words of the decoded text (see `written_words`), each with the positions of the tokens that spell it.

    Tokens that span no letter of their own (white space, parts of a character) belong to the word that follows. A token
    that reaches into two words belongs to both. Every word has at least one token.
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
                # The next word looks at this token again when it reaches beyond this word's last letter.
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
    """`[{"word", "confidence"}]`: the probability of each word's least certain token.

    The least, not the product: a product punishes long words and fine-grained tokenizers. With the tokens' `spans`, the
    first and the last second of each, also `start` and `end`, and `signs`: the least and the mean probability of the
    tokens, of which `calibration` makes the confidence (see `stentor.metrics.calibration`).
    `groups` are the words with the positions of their tokens, where these are known (see `word_tokens`).
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
