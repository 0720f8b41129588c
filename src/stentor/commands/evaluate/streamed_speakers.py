"""`stentor evaluate --stream --diarizer`: speakers of words while one speaks, beside those of the whole recording."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from stentor.commands.evaluate.speaker_attributed import reference_words
from stentor.data.cut import language_of, segments_of
from stentor.inference.speaker_attribution import SpeakerTurns
from stentor.metrics.cpwer import Attributed, cpwer
from stentor.metrics.live_speakers import confused

if TYPE_CHECKING:
    from lhotse.cut import Cut

    from stentor.metrics.score import Score
    from stentor.metrics.stream import StreamedRecording

Words = Sequence[Mapping[str, Any]]


def speaker_scores(
    cuts: Sequence[Cut], recordings: Sequence[StreamedRecording], offline: Sequence[Words], normalizer: str
) -> dict[str, Score]:
    """`offline`: the segments of each recording as the same diarizer hears it whole. `cpwer` and `confused` (words with
    another speaker than the truth) of the stream; `cpwer_offline` and `confused_offline` of its words with the offline
    speakers; `moved`: words with another speaker than offline."""
    live = [[event for event in recording.events if event["type"] == "word"] for recording in recordings]
    with_offline = [_attributed(words, segments) for words, segments in zip(live, offline, strict=True)]
    with_truth = [_attributed(words, segments_of(cut)) for words, cut in zip(live, cuts, strict=True)]

    def rate(hypotheses: Iterable[Words]) -> Score:
        return cpwer(
            [
                Attributed(cut.id, reference_words(cut), {"words": words}, language_of(cut))
                for cut, words in zip(cuts, hypotheses, strict=True)
            ],
            normalizer,
        )

    return {
        "cpwer": rate(live),
        "cpwer_offline": rate(with_offline),
        "confused": confused(map(_pairs, live, with_truth)),
        "confused_offline": confused(map(_pairs, with_offline, with_truth)),
        "moved": confused(map(_pairs, live, with_offline)),
    }


def _attributed(words: Words, segments: Words) -> Words:
    speakers = SpeakerTurns([dict(s) for s in segments]).speakers([dict(word) for word in words])
    return [{**word, "speaker": speaker} for word, speaker in zip(words, speakers, strict=True)]


def _pairs(words: Words, others: Words) -> list[tuple[str | None, str | None]]:
    return [(a["speaker"], b["speaker"]) for a, b in zip(words, others, strict=True)]
