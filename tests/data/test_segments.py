"""Who speaks when, of any kind of cut and of windows of it; RTTM and UEM files."""

import pytest
from lhotse.cut import MixedCut, PaddingCut
from lhotse.cut.set import MixTrack

from stentor.data.cut import cut_from_record, field_of, record_from_cut, segments_of, uem_of
from stentor.data.rttm import format_rttm, read_rttm, read_uem_lines, write_rttm
from stentor.data.spans import merge_segments, merge_spans
from stentor.errors import DataError


def recording(tmp_path, name="a", start=0.0, duration=20.0, **keys):
    record = {"id": name, "audio_path": f"{name}.wav", "start": start, "duration": duration, **keys}
    return cut_from_record(record, tmp_path, "x.jsonl:1")


def spans(cut):
    return [(s["speaker"], s["start"], s["end"]) for s in segments_of(cut)]


SEGMENTS = [
    {"speaker": "ben", "start": 4.0, "end": 9.0},
    {"speaker": "ann", "start": 1.0, "end": 5.0},
    {"speaker": "ann", "start": 4.5, "end": 6.0},
    {"speaker": "ann", "start": 12.0, "end": 15.5},
]


def test_segments_are_in_order_and_merged_per_speaker(tmp_path):
    cut = recording(tmp_path, segments=SEGMENTS)
    assert spans(cut) == [("ann", 1.0, 6.0), ("ben", 4.0, 9.0), ("ann", 12.0, 15.5)]


def test_a_window_has_its_own_times(tmp_path):
    cut = recording(tmp_path, start=3.0, segments=SEGMENTS, uem=[[0.5, 8.0], [14, 20]])
    window = cut.truncate(offset=4.5, duration=8.0, preserve_id=True)
    assert spans(window) == [("ann", 0.0, 1.5), ("ben", 0.0, 4.5), ("ann", 7.5, 8.0)]
    assert uem_of(window) == [[0.0, 3.5]]
    # A window of a window, and one in which nothing is scored and nobody speaks.
    assert spans(window.truncate(offset=4.0, duration=1.0)) == [("ben", 0.0, 0.5)]
    assert uem_of(window.truncate(offset=4.0, duration=1.0)) == []
    assert segments_of(cut.truncate(offset=16.0, duration=2.0)) == []


def test_a_whole_clip_of_one_speaker_is_one_segment_and_of_none_is_none(tmp_path):
    assert spans(recording(tmp_path, speaker="ann", text="hello")) == [("ann", 0.0, 20.0)]
    assert spans(recording(tmp_path, text="hello")) == []
    assert uem_of(recording(tmp_path, text="hello")) is None


def test_a_recording_in_which_nobody_speaks_says_so(tmp_path):
    quiet = recording(tmp_path, segments=[])
    assert segments_of(quiet) == [] and field_of(quiet, "segments") == []
    assert record_from_cut(quiet)["segments"] == []
    assert field_of(recording(tmp_path), "segments") is None


def test_mixed_cuts_and_their_windows(tmp_path):
    first = recording(tmp_path, "a", duration=10.0, segments=SEGMENTS[:3], uem=[[0.0, 9.5]])
    second = recording(tmp_path, "b", duration=4.0, speaker="ann")
    silence = PaddingCut(id="p", duration=20.0, sampling_rate=16000, feat_value=0.0, num_samples=320000)
    muted = recording(tmp_path, "c", duration=20.0, speaker="ben")
    mixed = MixedCut(
        "m", [MixTrack(first, offset=0.0), MixTrack(second, offset=8.0), MixTrack(silence), MixTrack(muted, mute=True)]
    )
    assert spans(mixed) == [("ann", 1.0, 6.0), ("ben", 4.0, 9.0), ("ann", 8.0, 12.0)]
    # The part without a UEM counts whole.
    assert uem_of(mixed) == [[0.0, 12.0]]
    window = mixed.truncate(offset=5.0, duration=6.0)
    assert spans(window) == [("ann", 0.0, 1.0), ("ben", 0.0, 4.0), ("ann", 3.0, 6.0)]
    assert segments_of(mixed.truncate(offset=15.0, duration=3.0)) == []


def test_the_record_of_a_cut_says_the_same(tmp_path):
    cut = recording(tmp_path, start=3.0, segments=SEGMENTS, uem=[[2.0, 8.0]]).truncate(offset=2.0, duration=8.0)
    again = cut_from_record(record_from_cut(cut), tmp_path, "y.jsonl:1")
    assert record_from_cut(cut)["start"] == 5.0
    assert segments_of(again) == segments_of(cut) and uem_of(again) == uem_of(cut) == [[0.0, 6.0]]


@pytest.mark.parametrize("uem", ["all", [1, 2], [[3.0, 1.0]], [[0.0]]])
def test_a_bad_uem_in_a_manifest(tmp_path, uem):
    with pytest.raises(DataError, match=r"x.jsonl:1: .*uem.*\[start, end\]"):
        recording(tmp_path, uem=uem)


def test_rttm_is_written_and_read_again(tmp_path):
    segments = [
        {"speaker": "ann b", "start": 0.5, "end": 2.25},
        {"speaker": "c", "start": 0.1234, "end": 1.0},
        {"speaker": "c", "start": 4.0, "end": 4.0001},
    ]
    assert format_rttm("talk 1", segments) == [
        "SPEAKER talk_1 1 0.123 0.877 <NA> <NA> c <NA> <NA>",
        "SPEAKER talk_1 1 0.500 1.750 <NA> <NA> ann_b <NA> <NA>",
    ]
    write_rttm(tmp_path / "out" / "x.rttm", {"talk 1": segments, "quiet": []})
    assert read_rttm(tmp_path / "out" / "x.rttm") == {
        "talk_1": [{"speaker": "c", "start": 0.123, "end": 1.0}, {"speaker": "ann_b", "start": 0.5, "end": 2.25}]
    }
    (tmp_path / "x.uem").write_text("talk 1 0.000 5.000\ntalk 1 4.000 7.500\n")
    assert merge_spans((line.start, line.end) for line in read_uem_lines(tmp_path / "x.uem")) == [[0.0, 7.5]]
    assert [p.name for p in sorted(tmp_path.rglob(".*"))] == []


def test_comments_other_lines_and_overlaps_of_one_speaker(tmp_path):
    (tmp_path / "x.rttm").write_text(
        ";; made by hand\nSPKR-INFO a 1 <NA> <NA> <NA> adult ann <NA> <NA>\n\n"
        "SPEAKER a 1 1.0 2.0 <NA> <NA> ann <NA> <NA>\nSPEAKER a 1 2.5 1.0 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 2.5 1.0 <NA> <NA> ben <NA> <NA>\nSPEAKER a 1 3.5 1.0 <NA> <NA> ben <NA>\n"
    )
    assert [(s["speaker"], s["start"], s["end"]) for s in read_rttm(tmp_path / "x.rttm")["a"]] == [
        ("ann", 1.0, 3.5),
        ("ben", 2.5, 3.5),
        ("ben", 3.5, 4.5),
    ]
    same = [{"speaker": "a", "start": t, "end": t + 2} for t in (0.0, 1.0, 1.5, 5.0)]
    assert merge_segments(same) == (
        [{"speaker": "a", "start": 0.0, "end": 3.5}, {"speaker": "a", "start": 5.0, "end": 7.0}],
        2,
    )


def test_all_bad_lines_are_told_with_the_mend(tmp_path):
    path = tmp_path / "x.rttm"
    path.write_text(
        "SPEAKER a 1 5.0 2.0 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 5.0 -1.5 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 5.0 -0.5 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 -5.0 2.0 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 five 2.0 <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 5.0 nan <NA> <NA> ann <NA> <NA>\n"
        "SPEAKER a 1 5.0 2.0 ann\n"
        "a 1 5.0 7.0\n"
        "SPEAKER a 1 5.0 2.0 <NA> <NA> <NA> <NA> <NA>\n"
    )
    with pytest.raises(DataError) as error:
        read_rttm(path)
    message = str(error.value)
    assert f"The RTTM {path} has 8 lines that cannot be used:" in message
    for line, text in {
        2: "the duration is -1.5 s; give the seconds from start to end, or remove the line.",
        3: "the duration is -0.5 s; give",
        4: "the segment starts at -5 s; recordings begin at 0",
        5: "'five' is not a number of seconds",
        6: "'nan' is not a number of seconds",
        7: "6 fields where an RTTM line has ten: SPEAKER <recording>",
        8: "'a' is not a type of RTTM lines; a line begins with SPEAKER.",
        9: "the segment names no speaker (field 8).",
    }.items():
        assert f"{path}:{line}: {text}" in message
    (tmp_path / "x.uem").write_text("a 1 0 5\na 1 9 5\na 0 5\na 1 0 end\n")
    with pytest.raises(DataError) as error:
        list(read_uem_lines(tmp_path / "x.uem"))
    for text in (
        "x.uem:2: the part goes from 9 to 5 s",
        "x.uem:3: 3 fields where a UEM line has four",
        "x.uem:4: 'end'",
    ):
        assert text in str(error.value)


@pytest.mark.parametrize("text", ["", ";; nothing\n", "SPKR-INFO a 1 <NA> <NA> <NA> adult ann <NA> <NA>\n"])
def test_a_file_without_speaker_lines(tmp_path, text):
    (tmp_path / "x.rttm").write_text(text)
    with pytest.raises(DataError, match=r"x.rttm holds no SPEAKER lines; is it an RTTM file\?"):
        read_rttm(tmp_path / "x.rttm")
