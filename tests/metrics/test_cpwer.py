"""Word error rates with speakers: cases by hand, all assignments and alignments tried, meeteval where it is installed,
and what a transcript may look like."""

import random
from functools import cache
from itertools import permutations

import pytest

from stentor.errors import DataError
from stentor.metrics.cpwer import Attributed, by_letters, cpwer, segments_of, tcpwer

WORDS = ["one", "two", "three", "four", "five", "six", "seven"]


def segment(speaker, start, end, text):
    return {"speaker": speaker, "start": start, "end": end, "text": text}


def transcript(*segments):
    """Words at even steps through each segment."""
    words = []
    for s in segments:
        spoken = s["text"].split()
        step = (s["end"] - s["start"]) / max(len(spoken), 1)
        words += [
            {"word": w, "start": s["start"] + i * step, "end": s["start"] + (i + 1) * step, "speaker": s["speaker"]}
            for i, w in enumerate(spoken)
        ]
    words.sort(key=lambda w: w["start"])
    return {"text": " ".join(w["word"] for w in words), "words": words}


def meeting(seed, speakers=3, errors=0.0):
    """Turns one after the other, some words replaced and some given to another speaker."""
    rng, talk = random.Random(seed), random.Random(seed // 1000)
    at, turns = 0.0, []
    for _ in range(12):
        words = [talk.choice(WORDS) for _ in range(talk.randint(1, 6))]
        speaker, length = talk.randrange(speakers), len(words) * 0.4
        recognized = [w if rng.random() >= errors else "wrong" for w in words if rng.random() >= errors / 3]
        attributed = speaker if rng.random() >= errors else rng.randrange(speakers)
        turns.append(segment(f"s{attributed}", at, at + length, " ".join(recognized)))
        at += length + talk.uniform(0, 2)
    return [t for t in turns if t["text"]]


def test_insertions_are_no_words_that_are_wrong():
    said = Attributed("x", [segment("a", 0, 1, "one two")], transcript(segment("a", 0, 1, "one two four five")))
    assert (cpwer([said] * 2).low, cpwer([said] * 2).high) == (1.0, 1.0)


def seglst(segments):
    from meeteval.io import SegLST

    return SegLST(
        [
            {
                "session_id": "x",
                "speaker": s["speaker"],
                "words": s["text"],
                "start_time": s["start"],
                "end_time": s["end"],
            }
            for s in segments
        ]
    )


def least_errors(reference, hypothesis, collar):
    """All assignments of speakers, and for each pair the recursion of the definition."""

    def words(segments, speaker):
        return [
            timed
            for s in sorted(segments, key=lambda s: s["start"])
            if s["speaker"] == speaker
            for timed in by_letters(s["text"].split(), s["start"], s["end"])
        ]

    def distance(a, b):
        @cache
        def rest(i, k):
            if i == len(a) or k == len(b):
                return len(a) - i + len(b) - k
            (word, start, end), (other, *times) = a[i], b[k]
            middle = sum(times) / 2
            best = 1 + min(rest(i + 1, k), rest(i, k + 1))
            if start < middle + collar and end > middle - collar:
                best = min(best, rest(i + 1, k + 1) + (word != other))
            return best

        return rest(0, 0)

    sides = [[words(side, name) for name in sorted({s["speaker"] for s in side})] for side in (reference, hypothesis)]
    for side in sides:
        side += [[]] * (max(map(len, sides)) - len(side))
    return min(sum(map(distance, sides[0], order)) for order in permutations(sides[1]))


def test_errors_are_the_fewest_of_all_assignments_and_alignments():
    for i in range(30):
        reference, hypothesis = meeting(i * 1000), meeting(i * 1000 + 1, speakers=2 + i % 3, errors=0.02 * i)
        file = Attributed("a", reference, {"segments": hypothesis})
        assert cpwer([file]).errors == least_errors(reference, hypothesis, 1e9)
        for collar in (0.1, 1.0, 5.0):
            score = tcpwer([file], collar=collar)
            assert score.errors == least_errors(reference, hypothesis, collar)
            assert score.errors == sum(score.details[k] for k in ("substitutions", "deletions", "insertions"))
            added = score.details["insertions"] - score.details["deletions"]
            assert added == sum(len(s["text"].split()) for s in hypothesis) - score.total


def test_both_are_those_of_meeteval():
    pytest.importorskip("meeteval")
    from meeteval.wer import cp_word_error_rate
    from meeteval.wer import time_constrained_minimum_permutation_word_error_rate as timed

    files = [
        Attributed(f"m{i}", meeting(i * 1000), {"segments": meeting(i * 1000 + 1, errors=0.05 * i)}) for i in range(8)
    ]
    for ours, theirs in ((cpwer, cp_word_error_rate), (tcpwer, lambda r, h: timed(r, h, collar=5))):
        each = [theirs(seglst(f.reference), seglst(f.hypothesis["segments"])) for f in files]
        for file, expected in zip(files, each):
            score = ours([file])
            assert (score.errors, score.total) == (expected.errors, expected.length)
            assert score.value == pytest.approx(expected.error_rate)
        pooled, total = ours(files), sum(each[1:], each[0])
        assert (pooled.errors, pooled.total) == (total.errors, total.length)
        assert pooled.details["scored_speakers"] == total.scored_speaker
        assert 0 < pooled.low < pooled.value < pooled.high


def test_a_word_of_the_wrong_speaker_is_two_errors():
    reference = [segment("A", 0, 2, "hello there you"), segment("B", 2, 3, "fine thanks")]
    hypothesis = transcript(segment("x", 0, 1.5, "hello there"), segment("y", 1.5, 3, "you fine thanks"))
    score = cpwer([Attributed("a", reference, hypothesis)])
    assert (score.errors, score.total) == (2, 5)
    assert score.details == {
        "items": 1,
        "substitutions": 0,
        "deletions": 1,
        "insertions": 1,
        "scored_speakers": 2,
        "missed_speakers": 0,
        "false_alarm_speakers": 0,
        "normalizer": "multilingual",
        "unit": "word",
    }


def test_words_far_from_their_time_are_not_paired():
    reference = [segment("A", 0, 1, "hello there"), segment("A", 60, 61, "good bye")]
    hypothesis = transcript(segment("x", 0, 1, "hello there"), segment("x", 90, 91, "good bye"))
    file = Attributed("a", reference, hypothesis)
    assert cpwer([file]).errors == 0
    assert tcpwer([file]).errors == 4 and tcpwer([file], collar=40).errors == 0
    assert tcpwer([file]).details["collar"] == 5


def test_both_sides_are_normalised():
    reference = [segment("A", 0, 2, "Hello, there!"), segment("A", 2, 3, "...")]
    file = Attributed("a", reference, {"segments": [segment("x", 0, 2, "hello THERE")]})
    assert cpwer([file]).errors == 0 and cpwer([file]).total == 2
    assert cpwer([file], normalizer="none").errors == 3
    chinese = Attributed("b", [segment("A", 0, 2, "你好吗")], {"segments": [segment("x", 0, 2, "你好")]}, "zh")
    assert (cpwer([chinese]).errors, cpwer([chinese]).total) == (1, 3)


def test_turns_of_a_transcript():
    hypothesis = transcript(segment("x", 0, 1, "a b"), segment("y", 1, 2, "c d"), segment("y", 3, 4, "e"))
    assert segments_of(hypothesis) == [
        segment("x", 0, 1, "a b"),
        segment("y", 1, 2, "c d"),
        segment("y", 3, 4, "e"),  # a second later
    ]
    # Words without a speaker are one's of their own, and so is a transcript that no diarizer has seen.
    for word in hypothesis["words"]:
        del word["speaker"]
    assert {s["speaker"] for s in segments_of(hypothesis)} == {""}
    assert segments_of({"segments": [{"start": 0, "end": 1, "text": "a"}]}) == [segment("", 0, 1, "a")]
    reference = [segment("A", 0, 1, "a b"), segment("B", 1, 2, "c d")]
    assert cpwer([Attributed("a", reference, hypothesis)]).details["missed_speakers"] == 1


def test_recordings_without_words():
    nothing = Attributed("a", [], {"words": []})
    extra = Attributed("b", [], transcript(segment("x", 0, 1, "a b")))
    missed = Attributed("c", [segment("A", 0, 1, "a b c d")], {"words": []})
    for rate in (cpwer, tcpwer):
        assert (rate([nothing]).value, rate([nothing]).errors) == (0, 0)
        assert (rate([extra]).value, rate([extra]).errors, rate([extra]).total) == (2, 2, 0)
        assert rate([missed]).value == 1
        assert rate([nothing, extra, missed]).value == pytest.approx(6 / 4)
        assert rate([extra]).details["false_alarm_speakers"] == 1
        assert rate([missed]).details["missed_speakers"] == 1
        assert rate([]).value == 0


def test_references_that_cannot_be_scored_are_refused():
    hypothesis = {"words": []}
    with pytest.raises(DataError, match=r"clip-7: the segment at 1.5 s has no text"):
        cpwer([Attributed("clip-7", [{"speaker": "A", "start": 1.5, "end": 2}], hypothesis)])
    with pytest.raises(DataError, match=r"clip-7: the segment at 0 s has no speaker"):
        cpwer([Attributed("clip-7", [{"text": "a", "start": 0, "end": 2}], hypothesis)])
