"""Speech to text with the speaker and the times of every turn, from one model.

A family that serves this task gives, besides what `transcribe` asks for:

* processor: `collate` answers examples with the key `turns` in `Example.extra` in the model's own format; in training
  these are `{"speaker", "start", "end", "text"}` as `turns_of` numbers them, their times as shares of the clip;
* processor: `answer_text(ids)`, the answer as it was written, and `parse(text)`: the turns that can be read in it,
  `{"speaker", "start", "end", "span"}`, and whether all of it could be read. `speaker`, `start` and `end` (seconds) may
  be None, `span` are the characters [start, end) of the words in the answer; `written(text)` are the words themselves.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.data.cut import Cut, uem_of
from stentor.data.turns import numbered, turn_shares, turns_of
from stentor.tasks.decode_checks import Checks, token_spans
from stentor.tasks.transcribe import Transcribe

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Example, Prediction
    from stentor.metrics.score import Score
    from stentor.models.base import Bundle


class WhoSaidWhat(Transcribe):
    """Write down who says what, and when: for models that answer with speakers."""

    type: Literal["who_said_what"] = "who_said_what"  # type: ignore[assignment]  # a kind of its own
    hypotheses: ClassVar[tuple[str, ...]] = ()
    metric: Literal["cpwer", "tcpwer", "der", "wer", "cer"] = "cpwer"  # type: ignore[assignment]
    """The metric that picks the best checkpoint: `cpwer` counts wrong words and wrong speakers, `tcpwer` also words far
    from their time, `der` the seconds of wrong speakers; `wer` and `cer` look at the words alone."""
    collar: float = Field(5.0, gt=0)
    """Seconds by which the times of two words may differ for `tcpwer`."""
    checks: Checks = Checks(compression_ratio=None)
    """As for `transcribe`, but for the compression ratio: a long recording repeats words by right."""

    def is_a(self, kinds: Sequence[str]) -> bool:
        return self.type in kinds  # a family that transcribes may know no speakers

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """Besides what `transcribe` refuses: `no_turns`, when it is not known what is said in a part of the speech."""
        return super().drop_reason(cut) or (("no_turns", cut.id) if turns_of(cut) is None else None)

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        example = super().example(cut, audio, rng)
        example.extra["turns"] = turn_shares(cut)
        return example

    def predict(self, bundle: Bundle, examples: Sequence[Example], checked: bool | None = None) -> list[dict[str, Any]]:
        """As `Transcribe.predict`, with `segments`, `{"start", "end", "speaker", "text"}` in the order of the answer;
        `words` have `speaker`, `start` and `end` too, by their letters within the segment. `unread` is true when the
        answer was cut off or is not in the model's format: what can be read is there. All times in seconds.

        Speakers are called speaker_1, speaker_2 ... in the order of the answer. Where it has no times, segments stand
        by their letters over the whole clip.
        """
        asked = [dataclasses.replace(e, extra={"turns": [], **e.extra}) for e in examples]
        return super().predict(bundle, asked, checked)

    def answer(
        self, processor: Any, ids: list[int], log_probs: list[float], seconds: float, **timing: Any
    ) -> dict[str, Any]:
        from stentor.metrics.cpwer import by_letters

        written, spans = token_spans(ids, processor.answer_text)
        turns, complete = processor.parse(written)
        segments: list[dict[str, Any]] = []
        words: list[dict[str, Any]] = []
        for turn, (start, end) in zip(numbered(turns), _times(turns, seconds), strict=True):
            text = processor.written(written[slice(*turn["span"])]).split()
            if not text:
                continue
            speaker = f"speaker_{turn['speaker'] + 1}"
            segments.append({**_rounded(start, end), "speaker": speaker, "text": " ".join(text)})
            sure = _confidences(written, turn["span"], spans, log_probs)
            sure = sure if len(sure) == len(text) else [min(sure)] * len(text)
            for (word, *times), confidence in zip(by_letters(text, start, end), sure, strict=True):
                words.append({"word": word, **_rounded(*times), "confidence": confidence, "speaker": speaker})
        answer = {"text": " ".join(s["text"] for s in segments), "words": words, "segments": segments}
        cut_off = len(ids) >= processor.max_new_tokens(seconds)
        return answer if complete and not cut_off else {**answer, "unread": True}

    def reference(self, cut: Cut) -> dict[str, Any]:
        more = {"segments": turns_of(cut) or [], "uem": uem_of(cut), "duration": cut.duration}
        return {**super().reference(cut), **more}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """`cpwer`, `tcpwer` and `der` against the turns of the records, then those of `transcribe`; the main one
        first. The words of the plain rates are in order of the answer."""
        from stentor.metrics.cpwer import Attributed, cpwer, tcpwer
        from stentor.metrics.diarization import DiarizedRecording, der

        files = [
            Attributed(p.id, p.reference["segments"], {"segments": p.output["segments"]}, p.reference.get("language"))
            for p in predictions
        ]
        turns = [
            DiarizedRecording(
                p.id, p.reference["segments"], p.output["segments"], p.reference["uem"], p.reference["duration"]
            )
            for p in predictions
        ]
        scores = {
            "cpwer": cpwer(files, self.normalizer, self.spelling),
            "tcpwer": tcpwer(files, self.collar, self.normalizer, self.spelling),
            "der": der(turns),
            **super().score(predictions),
        }
        return {self.metric: scores[self.metric], **scores}


def _times(turns: Sequence[dict[str, Any]], seconds: float) -> list[tuple[float, float]]:
    """Start and end of each turn, within the clip: what the answer leaves open ends where the next turn begins, and an
    answer without times is divided by its letters."""
    from stentor.metrics.cpwer import by_letters

    if all(t["start"] is None for t in turns):
        return [(a, b) for _, a, b in by_letters(["x" * (t["span"][1] - t["span"][0]) for t in turns], 0.0, seconds)]
    times, after = [], seconds
    for turn in reversed(turns):
        start = min(turn["start"] if turn["start"] is not None else after, seconds)
        end = min(turn["end"] if turn["end"] is not None else max(after, start), seconds)
        times.append((start, max(start, end)))
        after = start
    return times[::-1]


def _rounded(start: float, end: float) -> dict[str, float]:
    return {"start": round(start, 3), "end": round(end, 3)}


def _confidences(
    written: str, span: tuple[int, int], spans: Sequence[tuple[int, int]], log_probs: Sequence[float]
) -> list[float]:
    """The probability of the least certain token of each word between spaces in a span of the answer; never empty."""
    sure, at = [], span[0]
    ends = [end for _, end in spans]
    for word in written[slice(*span)].split():
        at = written.index(word, at) + len(word)
        # Tokens that end after the word begins and begin before it ends.
        first, after = bisect_right(ends, at - len(word)), bisect_left(spans, (at,))
        sure.append(round(math.exp(min(log_probs[first:after], default=0.0)), 4))
    return sure or [1.0]
