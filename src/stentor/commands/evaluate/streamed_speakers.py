"""`stentor evaluate --stream --diarizer`: speakers of words while one speaks, beside those of the whole recording."""

from __future__ import annotations

from collections.abc import Sequence
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


def speaker_scores(
    cuts: Sequence[Cut],
    recordings: Sequence[StreamedRecording],
    offline: Sequence[Sequence[dict[str, Any]]],
    normalizer: str,
) -> dict[str, Score]:
    """`offline`: the segments of each recording as the same diarizer hears it whole. `cpwer` and `confused` (words with
    another speaker than the truth) of the stream; `cpwer_offline` and `confused_offline` of its words with the offline
    speakers; `moved`: words with another speaker than offline."""
    live = [[event for event in recording.events if event["type"] == "word"] for recording in recordings]
    before = [_with_speakers(words, segments) for words, segments in zip(live, offline, strict=True)]
    truth = [_with_speakers(words, segments_of(cut)) for words, cut in zip(live, cuts, strict=True)]
    references = [(cut.id, reference_words(cut), language_of(cut)) for cut in cuts]

    def rate(hypotheses: list[list[dict[str, Any]]]) -> Score:
        rows = zip(references, hypotheses, strict=True)
        files = [Attributed(id, words, {"words": live}, language) for (id, words, language), live in rows]
        return cpwer(files, normalizer)

    return {
        "cpwer": rate(live),
        "cpwer_offline": rate(before),
        "confused": _confused(live, truth),
        "confused_offline": _confused(before, truth),
        "moved": _confused(live, before),
    }


def _with_speakers(words: Sequence[dict[str, Any]], segments: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    speakers = SpeakerTurns(segments).speakers(words)
    return [{**word, "speaker": speaker} for word, speaker in zip(words, speakers, strict=True)]


def _confused(hypotheses: list[list[dict[str, Any]]], references: list[list[dict[str, Any]]]) -> Score:
    return confused(
        [(a["speaker"], b["speaker"]) for a, b in zip(words, others, strict=True)]
        for words, others in zip(hypotheses, references, strict=True)
    )
