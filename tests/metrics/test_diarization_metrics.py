"""Who spoke when: pyannote.metrics called directly, and cases computed by hand."""

import random
import warnings
from dataclasses import replace

import pytest
from pyannote.core import Annotation, Segment, Timeline
from pyannote.metrics.diarization import DiarizationErrorRate, JaccardErrorRate
from pyannote.metrics.identification import IdentificationErrorRate

from stentor.metrics.diarization import (
    DiarizedRecording,
    der,
    errors,
    frame_f1,
    jer,
    relative_change,
    scores,
    speaker_count,
)
from stentor.metrics.format import figure, label


def segments_of(*segments):
    return [{"speaker": speaker, "start": start, "end": end} for speaker, start, end in segments]


def conversation(seed, seconds=60.0, speakers=4):
    """Segments at random: overlaps, also of one speaker with himself, and silence."""
    rng = random.Random(seed)
    starts = [(f"s{rng.randrange(speakers)}", rng.uniform(0, seconds - 6)) for _ in range(25)]
    return segments_of(*((speaker, round(a, 3), round(a + rng.uniform(0.1, 5), 3)) for speaker, a in starts))


def annotation(segments):
    """As pyannote's users build one; what a speaker says twice at a time is merged, as `Annotation.support` does."""
    merged = Annotation()
    for i, s in enumerate(segments):
        merged[Segment(s["start"], s["end"]), i] = s["speaker"]
    return merged.support()


def direct(metric, file):
    """pyannote's own value."""
    spans = [[0.0, file.duration]] if file.uem is None else file.uem
    return metric(annotation(file.reference), annotation(file.hypothesis), uem=Timeline([Segment(*s) for s in spans]))


def pairs():
    for seed in range(12):
        cut = random.Random(seed)
        spans = None if seed % 3 == 0 else [[cut.uniform(0, 9), cut.uniform(12, 25)], [cut.uniform(30, 40), 55.0]]
        yield DiarizedRecording(
            f"f{seed}", conversation(seed), conversation(seed + 100, speakers=2 + seed % 4), spans, 60.0
        )


@pytest.mark.parametrize("collar", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("skip_overlap", [False, True])
def test_der_is_that_of_pyannote(collar, skip_overlap):
    files = list(pairs())
    metric = DiarizationErrorRate(collar=2 * collar, skip_overlap=skip_overlap)
    each = [direct(metric, f) for f in files]
    for file, expected in zip(files, each):
        assert der([file], collar, skip_overlap).value == pytest.approx(expected, abs=1e-9)
    pooled = der(files, collar, skip_overlap)
    assert pooled.value == pytest.approx(abs(metric), abs=1e-9)
    for ours, theirs in (("miss", "missed detection"), ("false_alarm", "false alarm"), ("confusion", "confusion")):
        assert pooled.details[ours] == pytest.approx(metric[theirs], abs=1e-3)
        assert pooled.details[f"{ours}_rate"] == pytest.approx(metric[theirs] / metric["total"])
    assert min(each) <= pooled.low < pooled.value < pooled.high <= max(each)


def test_jer_is_that_of_pyannote():
    metric = JaccardErrorRate()
    files = list(pairs())
    for file in files:
        assert jer([file]).value == pytest.approx(direct(metric, file))
    assert jer(files).value == pytest.approx(abs(metric))


def test_der_by_hand():
    """A talks 0-4, B 3-6; heard: X 0-3, Y 3-5, X 5-6, and X again in the silence at 8-9."""
    file = DiarizedRecording(
        "a",
        segments_of(("A", 0, 4), ("B", 3, 6)),
        segments_of(("X", 0, 3), ("Y", 3, 5), ("X", 5, 6), ("X", 8, 9)),
        None,
        10,
    )
    (parts,) = errors([file])
    assert (parts.total, parts.miss, parts.false_alarm, parts.confusion, parts.correct) == (7, 1, 1, 1, 5)
    assert der([file]).value == pytest.approx(3 / 7)
    # Without the overlap at 3-4: 5 s of speech, of which the last second is given to the wrong speaker.
    assert der([file], skip_overlap=True).value == pytest.approx(2 / 5)
    # Without a quarter of a second around 0, 3, 4 and 6: 2.5 + 2 * 0.5 + 1.5 s are left.
    assert der([file], collar=0.25).details["total"] == pytest.approx(5.0)
    assert der([file], collar=0.25).value == pytest.approx((0.5 + 1 + 0.75) / 5)
    # A: heard 3 of 4 s, and 2 s that are not his: 1 - 3 / 6; B: 2 of 3: 1 - 2 / 3.
    assert jer([file]).value == pytest.approx((1 / 2 + 1 / 3) / 2)
    f1 = frame_f1([file])
    assert f1.value == pytest.approx(2 * 5 / (7 + 7))
    assert f1.details["precision"] == pytest.approx(5 / 7) and f1.details["recall"] == pytest.approx(5 / 7)
    # Nothing is said about 5-10 s.
    file = replace(file, uem=[[0, 5]])
    assert der([file]).value == pytest.approx(1 / 6)


def test_a_speaker_who_talks_over_himself_counts_once():
    twice = segments_of(("A", 0, 4), ("A", 2, 6), ("A", 6, 7), ("B", 8, 9))
    once = segments_of(("A", 0, 7), ("B", 8, 9))
    for reference, hypothesis in ((twice, once), (once, twice)):
        file = DiarizedRecording("a", reference, hypothesis, None, 10)
        for name, score in scores([file]).items():
            assert score.value == (0 if "er" in name.split("_") or name == "jer" or "der" in name else 1), name
        assert der([file]).details["total"] == 8
        assert der([file], skip_overlap=True).details["total"] == 8


def test_recordings_in_which_nobody_speaks():
    silent, wrong = (
        DiarizedRecording("s", [], [], None, 10),
        DiarizedRecording("w", [], segments_of(("X", 1, 3)), None, 10),
    )
    talk = DiarizedRecording("t", segments_of(("A", 0, 4)), segments_of(("X", 0, 4)), None, 10)
    values = {name: score.value for name, score in scores([silent]).items()}
    assert values == {"der": 0, "der_collar": 0, "der_no_overlap": 0, "jer": 0, "speaker_count": 1, "frame_f1": 1}
    values = {name: score.value for name, score in scores([wrong]).items()}
    assert values == {"der": 1, "der_collar": 1, "der_no_overlap": 1, "jer": 1, "speaker_count": 0, "frame_f1": 0}
    # Beside others a silent recording adds its false alarms to the errors, nothing to the total.
    assert der([talk, wrong, silent]).value == pytest.approx(2 / 4)
    assert jer([talk, wrong]).value == 0
    assert (der([talk, wrong]).low, der([talk, wrong]).high) == (0.0, 1.0)
    nothing = DiarizedRecording(
        "n", segments_of(("A", 0, 4)), segments_of(("X", 0, 2)), [], 10
    )  # a UEM that scores nothing
    assert der([nothing]).value == 0 and frame_f1([nothing]).value == 1


def test_sets_without_recordings():
    assert der([]).value == 0 and der([]).details["items"] == 0
    assert speaker_count([]).as_dict()["value"] is None


def test_what_lies_beyond_the_known_length_is_scored():
    file = DiarizedRecording("a", segments_of(("A", 0, 4)), segments_of(("X", 0, 5)))  # its duration is not known
    assert der([file]).details["false_alarm"] == 1


def test_number_of_speakers():
    files = [
        DiarizedRecording("a", segments_of(("A", 0, 4), ("B", 4, 8)), segments_of(("X", 0, 8)), None, 10),
        DiarizedRecording("b", segments_of(("A", 0, 4), ("B", 4, 8)), segments_of(("X", 0, 4), ("Y", 4, 8)), None, 10),
        DiarizedRecording(
            "c", segments_of(("A", 0, 4), ("B", 6, 8)), segments_of(("X", 0, 4)), [[0, 5]], 10
        ),  # B is not scored
    ]
    score = speaker_count(files)
    assert (score.value, score.errors, score.total) == (pytest.approx(2 / 3), 1, 3)
    assert score.details["mean_error"] == pytest.approx(1 / 3)
    assert score.details["counts"] == [
        {"reference": 1, "hypothesis": 1, "items": 1},
        {"reference": 2, "hypothesis": 1, "items": 1},
        {"reference": 2, "hypothesis": 2, "items": 1},
    ]
    groups = der(files).details["by_speakers"]
    assert groups["1"] == {"value": 0, "items": 1}
    assert groups["2"]["value"] == pytest.approx(4 / 16)
    assert [w["id"] for w in der(files).details["worst"]] == ["a"]


def test_labels_that_are_no_speakers_are_compared_by_name():
    file = DiarizedRecording(
        "a",
        segments_of(("speech", 0, 4), ("overlap", 2, 3)),
        segments_of(("speech", 1, 5), ("overlap", 2, 3)),
        None,
        10,
    )
    measured = scores([file], speaker_labels=False)
    assert list(measured) == ["der", "der_collar", "frame_f1"]
    assert measured["der"].value == pytest.approx(direct(IdentificationErrorRate(), file)) == pytest.approx(2 / 5)
    swapped = DiarizedRecording("b", segments_of(("speech", 0, 4)), segments_of(("overlap", 0, 4)), None, 10)
    assert der([swapped], speaker_labels=False).value == 1 and der([swapped]).value == 0


def test_change_between_two_systems():
    files = list(pairs())
    better = [
        DiarizedRecording(f.id, f.reference, f.reference if i % 2 else f.hypothesis, f.uem, 60)
        for i, f in enumerate(files)
    ]
    change = relative_change(files, better)
    assert change.value == pytest.approx(der(better).value / der(files).value - 1)
    assert -1 < change.low < change.value < change.high < 0
    assert relative_change([DiarizedRecording(f.id, f.reference, f.reference) for f in files], files) is None


def test_nothing_is_guessed_or_warned_about():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert list(scores(list(pairs()))) == [
            "der",
            "der_collar",
            "der_no_overlap",
            "jer",
            "speaker_count",
            "frame_f1",
        ]


def test_how_they_are_written():
    shown = {m: (label(m), figure(m, 0.125)) for m in scores(list(pairs())[:1])}
    assert shown == {
        "der": ("DER", "12.50 %"),
        "der_collar": ("DER, 0.25 s collar", "12.50 %"),
        "der_no_overlap": ("DER without overlap", "12.50 %"),
        "jer": ("JER", "12.50 %"),
        "speaker_count": ("right speaker count", "12.50 %"),
        "frame_f1": ("frame F1", "12.50 %"),
    }
    assert (label("cpwer"), figure("cpwer", 0.125)) == ("cpWER", "12.50 %")
    assert (label("tcpwer"), figure("tcpwer", 0.125)) == ("tcpWER", "12.50 %")
