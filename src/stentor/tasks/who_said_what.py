"""Speaker-attributed speech recognition with one model: the speaker, the times and the text of every turn.

A family that supports this task has, in addition to what `transcribe` needs:

* processor: `collate` writes examples with the key `turns` in `Example.extra` in the model's own format; in training
  these are `{"speaker", "start", "end", "text"}` as `turns_of` numbers them, their times as shares of the clip;
* processor: `answer_text(ids)`, the raw answer, and `parse(text)`, which returns the readable turns,
  `{"speaker", "start", "end", "span"}`, and whether the whole answer was readable. `speaker`, `start` and `end`
  (seconds) may be None; `span` are the characters [start, end) of the words in the answer; `written(text)` returns the
  words.
"""

from __future__ import annotations

import dataclasses
import math
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from stentor.data.cut import Cut, uem_of
from stentor.data.turns import numbered, turn_shares, turns_of
from stentor.section import Effect
from stentor.tasks.decode_checks import Checks, token_spans
from stentor.tasks.transcribe import Transcribe

if TYPE_CHECKING:
    import numpy as np

    from stentor.data.batch import Example, Prediction
    from stentor.losses.base import Loss
    from stentor.metrics.score import Direction, Score
    from stentor.models.base import Bundle


class WhoSaidWhat(Transcribe):
    """Speech recognition with speakers and times of turns, for models that output speakers."""

    type: Literal["who_said_what"] = "who_said_what"  # type: ignore[assignment]  # a kind of its own
    effects: ClassVar[Mapping[str, Effect]] = {**Transcribe.effects, "collar": "scores"}
    hypotheses: ClassVar[tuple[str, ...]] = ()
    metric: Literal["cpwer", "tcpwer", "der", "wer", "cer"] = "cpwer"  # type: ignore[assignment]
    """Metric that selects the best checkpoint: `cpwer` counts wrong words and wrong speakers, `tcpwer` also words far
    from their time, `der` the seconds of wrong speakers; `wer` and `cer` only consider the words."""
    collar: float = Field(5.0, gt=0)
    """Maximum difference in seconds between the times of two matching words, for `tcpwer`."""
    checks: Checks = Checks(compression_ratio=None)
    """Hallucination checks as in `transcribe`, without the compression ratio, because long recordings repeat words."""

    def is_a(self, kinds: Sequence[str]) -> bool:
        return self.type in kinds  # a family that transcribes may not support speakers

    def drop_reason(self, cut: Cut) -> tuple[str, str] | None:
        """In addition to the reasons of `transcribe`: `no_turns` if part of the speech has no text."""
        return super().drop_reason(cut) or (("no_turns", cut.id) if turns_of(cut) is None else None)

    def example(self, cut: Cut, audio: np.ndarray | None, rng: np.random.Generator | None) -> Example:
        example = super().example(cut, audio, rng)
        example.extra["turns"] = turn_shares(cut)
        return example

    def predict(self, bundle: Bundle, examples: Sequence[Example], checked: bool | None = None) -> list[dict[str, Any]]:
        """Like `Transcribe.predict`, with `segments`, `{"start", "end", "speaker", "text"}`, in answer order.

        `words` also have `speaker`, `start` and `end`, interpolated within the segment by their letters. `unread` is
        true if the answer was cut off or is not in the model's format, and only its readable part is returned. Times
        are in seconds. Speakers are called speaker_1, speaker_2 ... in the order of the answer. If the answer has no
        times, segments are distributed over the clip by their letters.
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
            text = processor.words_in(written[slice(*turn["span"])]).split()
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

    def metrics(self, losses: Mapping[str, Loss]) -> dict[str, Direction | None]:
        return {self.metric: "min", **dict.fromkeys(("cpwer", "tcpwer", "der"), "min"), **super().metrics(losses)}

    def score(self, predictions: Sequence[Prediction]) -> dict[str, Score]:
        """Return `cpwer`, `tcpwer` and `der` against the turns of the records, then the metrics of `transcribe`; the
        main one first. For `wer` and `cer`, words are in the order of the answer."""
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
    """Return start and end of each turn, within the clip. A turn without an end lasts until the next one begins, and an
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
    """Return the probability of the least certain token of each word in a span of the answer; never empty."""
    sure, at = [], span[0]
    ends = [end for _, end in spans]
    for word in written[slice(*span)].split():
        at = written.index(word, at) + len(word)
        # Tokens that end after the word begins and begin before it ends.
        first, after = bisect_right(ends, at - len(word)), bisect_left(spans, (at,))
        sure.append(round(math.exp(min(log_probs[first:after], default=0.0)), 4))
    return sure or [1.0]
