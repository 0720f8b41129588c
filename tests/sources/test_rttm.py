"""The source `rttm`: RTTM, audio and UEM."""

import re

import numpy as np
import pytest
import soundfile

from stentor.config.load import parse_source
from stentor.data.cut import UnusableRecord, segments_of, uem_of
from stentor.data.load_audio import load_audio
from stentor.data.rttm import read_rttm
from stentor.errors import DataError
from stentor.sources.base import Source
from stentor.sources.rttm import Rttm


def audio(path, seconds=4.0, channels=1, rate=16000):
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(len(path.name)).normal(0, 0.1, (round(seconds * rate), channels))
    soundfile.write(str(path), noise, rate)


def rttm(path, *lines):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"SPEAKER {f} 1 {start} {duration} <NA> <NA> {who} <NA> <NA>\n" for f, start, duration, who in lines)
    )
    return path


def listed(**keys):
    cuts = list(Rttm(**keys).cuts())
    return [c for c in cuts if not isinstance(c, UnusableRecord)], [c for c in cuts if isinstance(c, UnusableRecord)]


def test_a_path_on_the_command_line_is_enough(tmp_path):
    audio(tmp_path / "a.flac")
    audio(tmp_path / "b.Mix-Headset.wav", channels=2, rate=8000)
    audio(tmp_path / "other.wav")
    path = rttm(tmp_path / "x.rttm", ("b", 0.5, 1.0, "ben"), ("a", 1.0, 2.0, "ann"), ("a", 2.0, 2.0, "ben"))
    source = parse_source(str(path))
    assert source.type == "rttm"
    b, a = source.cuts()
    assert (a.id, a.duration, b.id, b.duration) == ("a", 4.0, "b", 4.0)
    assert segments_of(a) == [
        {"speaker": "ann", "start": 1.0, "end": 3.0},
        {"speaker": "ben", "start": 2.0, "end": 4.0},
    ]
    assert uem_of(a) is None
    both, _ = soundfile.read(tmp_path / "b.Mix-Headset.wav")
    # Channels are mixed, and resampled to 16 kHz.
    assert len(load_audio(b)) == 64000 and np.abs(load_audio(b)[::2] - both.mean(1)).max() < 0.2 * np.abs(both).max()


def test_folders_patterns_and_uem(tmp_path):
    for name in ("a", "b", "c"):
        audio(tmp_path / "audio" / name / f"{name}.far.wav")
        audio(tmp_path / "audio" / name / f"{name}.near.wav")
        rttm(tmp_path / "rttm" / f"{name}.rttm", (name, 0.5, 1.0, "ann"))
    (tmp_path / "all.uem").write_text("a 1 0 1.5\na 1 1.0 2.0\na 1 3 9\nb 1 0 4\nd 1 0 4\n")
    cuts, left = listed(
        path=tmp_path / "rttm" / "*.rttm", audio=tmp_path / "audio" / "{id}" / "*.near.wav", uem=tmp_path / "all.uem"
    )
    assert [(c.id, uem_of(c)) for c in cuts] == [("a", [[0.0, 2.0], [3.0, 4.0]]), ("b", [[0.0, 4.0]])]
    assert cuts[0].recording.sources[0].source.endswith("a.near.wav")
    assert [(u.id, u.reason) for u in left] == [("c", "not_in_uem"), ("d", "no_segments")]
    assert "c.rttm:1: the recording 'c' has no line in the UEM" in left[0].message
    assert (
        "all.uem:5: no RTTM line names the recording 'd'; if it holds no speech, set `empty: true`." in left[1].message
    )
    with pytest.raises(DataError, match=r"'a' could be .*a.far.wav or .*a.near.wav; say which with a pattern such as"):
        listed(path=tmp_path / "rttm", audio=tmp_path / "audio")


def test_recordings_in_which_nobody_speaks(tmp_path):
    audio(tmp_path / "a.wav")
    audio(tmp_path / "quiet.wav")
    path = rttm(tmp_path / "x.rttm", ("a", 1.0, 2.0, "ann"))
    (tmp_path / "x.uem").write_text("a 1 0 4\nquiet 1 0 4\n")
    cuts, left = listed(path=path, uem=tmp_path / "x.uem", empty=True)
    assert [(c.id, len(segments_of(c))) for c in cuts] == [("a", 1), ("quiet", 0)] and not left
    # Audio of a folder that was given, without a line anywhere.
    cuts, left = listed(path=path, audio=tmp_path)
    assert [(u.id, u.reason) for u in left] == [("quiet", "no_segments")]
    assert "quiet.wav: no RTTM line names this recording." in left[0].message


def test_overlapping_segments_of_one_speaker_are_merged_and_counted(tmp_path):
    audio(tmp_path / "a.wav")
    path = rttm(tmp_path / "x.rttm", ("a", 0.5, 2.0, "ann"), ("a", 1.0, 2.0, "ann"), ("a", 1.0, 2.0, "ben"))
    (cut,), _ = listed(path=path)
    assert [(s["speaker"], s["start"], s["end"]) for s in segments_of(cut)] == [("ann", 0.5, 3.0), ("ben", 1.0, 3.0)]
    assert cut.custom["merged_segments"] == 1


def test_segments_without_a_duration_or_past_the_audio_are_counted_and_mended(tmp_path):
    """As annotation tools write them: the recording stays."""
    audio(tmp_path / "a.wav")
    lines = [("a", 0.5, 1.0, "ann"), ("a", 2.0, 0.0, "ann"), ("a", 3.0, 1.2, "ben"), ("a", 4.1, 0.3, "cid")]
    path = rttm(tmp_path / "x.rttm", *lines)
    (tmp_path / "x.uem").write_text("a 1 0 4.2\n")
    (cut,), left = listed(path=path, uem=tmp_path / "x.uem")
    assert [(s["speaker"], s["start"], s["end"]) for s in segments_of(cut)] == [("ann", 0.5, 1.5), ("ben", 3.0, 4.0)]
    assert (cut.custom["clipped_segments"], cut.custom["empty_segments"], left) == (2, 1, [])
    assert uem_of(cut) == [[0.0, 4.0]] and "merged_segments" not in cut.custom
    assert [s["speaker"] for s in read_rttm(path)["a"]] == ["ann", "ben", "cid"]


@pytest.mark.parametrize(
    ("make", "reason", "message"),
    [
        (lambda f: None, "missing", "x.rttm:1: there is no audio of the recording 'a' in"),
        (lambda f: f.write_bytes(b""), "empty", "is empty"),
        (lambda f: soundfile.write(str(f), np.zeros(0), 16000), "empty", "x.rttm:1: .*a.wav.* has no samples"),
        (lambda f: f.write_bytes(b"RIFFnonsense" * 40), "unreadable", "a.wav"),
        (lambda f: audio(f, 2.0), "truncated", r"rttm:2: a segment of ben goes from 1.5 to 4 s, but .* at 2.00 s"),
    ],
)
def test_audio_that_cannot_be_used_is_counted_with_its_place(tmp_path, make, reason, message):
    make(tmp_path / "a.wav")
    audio(tmp_path / "b.wav")
    path = rttm(tmp_path / "x.rttm", ("a", 0.5, 1.0, "ann"), ("a", 1.5, 2.5, "ben"), ("b", 0.0, 4.05, "ann"))
    (b,), (unusable,) = listed(path=path)
    # A twentieth of a second beyond the end is rounding.
    assert segments_of(b) == [{"speaker": "ann", "start": 0.0, "end": 4.0}]
    assert (unusable.id, unusable.reason) == ("a", reason)
    assert re.search(message, unusable.message)


def test_what_is_wrong_with_the_files(tmp_path):
    audio(tmp_path / "a.wav")
    one = rttm(tmp_path / "r" / "one.rttm", ("a", 0.5, 1.0, "ann"), ("a", 0.5, -1.0, "ann"))
    two = rttm(tmp_path / "r" / "two.rttm", ("a", 0.5, -0.5, "ann"), ("b", 0.5, 1.0, "ann"))
    with pytest.raises(DataError) as error:
        listed(path=tmp_path / "r", audio=tmp_path)
    assert f"{one}:2: the duration is -1 s" in str(error.value) and f"{two}:1: the duration is -0.5 s" in str(
        error.value
    )
    rttm(two, ("a", 0.5, 1.0, "ann"))
    rttm(one, ("a", 2.0, 1.0, "ann"))
    with pytest.raises(DataError, match=r"two.rttm:1: the recording 'a' stands in .*one.rttm already; keep one"):
        listed(path=tmp_path / "r", audio=tmp_path)
    for keys, message in [
        ({"path": tmp_path / "r" / "on.rttm"}, r"on.rttm does not exist \(did you mean .*one.rttm\?\)"),
        ({"path": tmp_path / "z*.rttm"}, r"No file fits .*z\*.rttm"),
        ({"path": tmp_path / "r" / "one.rttm", "audio": tmp_path / "wavs"}, "wavs does not exist"),
        ({"path": tmp_path / "r" / "one.rttm", "audio": tmp_path / "a.wav"}, r"`audio` of an rttm source is a folder"),
        ({"path": tmp_path / "r" / "one.rttm", "uem": tmp_path / "x.uem"}, r"x.uem does not exist"),
    ]:
        with pytest.raises(DataError, match=message):
            listed(**keys)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match=r"empty holds no \*.rttm files"):
        listed(path=tmp_path / "empty")


def test_real_meetings(shared_data):
    source = Source.model_validate(
        {"type": "rttm", "path": str(shared_data / "ami" / "dev.rttm"), "uem": str(shared_data / "ami" / "dev.uem")}
    )
    cuts = list(source.cuts())
    assert [c.id for c in cuts] == ["dev00", "dev01"] and uem_of(cuts[0]) == [[0.0, 30.0]]
    by_manifest = list(parse_source(str(shared_data / "ami" / "dev.jsonl")).cuts())
    for ours, theirs in zip(cuts, by_manifest):
        assert len(segments_of(ours)) == len(segments_of(theirs)) > 0
        assert len(load_audio(ours)) == round(ours.duration * 16000)
