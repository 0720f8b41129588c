import json
from pathlib import Path

import numpy as np
import pytest
import soundfile
from lhotse import CutSet, MonoCut, Recording, SupervisionSegment
from lhotse.supervision import AlignmentItem

from stentor.data.cut import UnusableRecord, audio_path, speaker_of, text_of, words_of
from stentor.data.load_audio import load_audio
from stentor.errors import DataError
from stentor.sources.base import Source


def source(path, **options):
    return Source.model_validate({"type": "manifest", "path": str(path), **options})


@pytest.fixture
def recording(tmp_path):
    """Four seconds of stereo: a ramp on the left, its negative half on the right."""
    ramp = np.linspace(0.1, 0.9, 4 * 8000)
    soundfile.write(tmp_path / "talk.wav", np.stack([ramp, -ramp / 2], 1), 8000, subtype="FLOAT")
    return Recording.from_file(tmp_path / "talk.wav")


def cut_of(recording, name="talk", channel=0, **options):
    supervisions = [
        SupervisionSegment(
            id=f"{name}-{i}",
            recording_id=recording.id,
            start=start,
            duration=1.0,
            text=text,
            speaker=speaker,
            channel=channel,
            alignment={"word": [AlignmentItem(text, options.get("start", 0.0) + start + 0.2, 0.5)]},
        )
        for i, (start, text, speaker) in enumerate([(0.5, "hello", "A"), (2.0, "there", "B")])
    ]
    fields = {"start": 0.0, "duration": 3.5, **options}
    return MonoCut(id=name, channel=channel, recording=recording, supervisions=supervisions, **fields)


def test_cut_manifest_with_channels_and_starts(recording, tmp_path):
    cuts = [cut_of(recording, "left"), cut_of(recording, "right", channel=1, start=0.5)]
    CutSet.from_cuts(cuts).to_file(tmp_path / "cuts.jsonl.gz")
    left, right = source(tmp_path / "cuts.jsonl.gz").cuts()
    assert audio_path(left) is None  # one channel of two, not the file's mean
    assert load_audio(left, 8000) == pytest.approx(np.linspace(0.1, 0.9, 32000)[:28000], abs=1e-4)
    assert load_audio(right, 8000) == pytest.approx(-np.linspace(0.1, 0.9, 32000)[4000:] / 2, abs=1e-4)
    assert len(load_audio(right)) == 16000 * 3.5
    assert text_of(right) == "hello there" and speaker_of(right) is None
    assert [(w["word"], w["start"], w["end"]) for w in words_of(right)] == [("hello", 0.7, 1.2), ("there", 2.2, 2.7)]


def test_utterances_of_long_recordings(recording, tmp_path):
    outside = cut_of(recording, "cropped", duration=1.5, start=1.0)
    CutSet.from_cuts([cut_of(recording), outside]).to_file(tmp_path / "cuts.jsonl")
    hello, there, cropped, lost = source(tmp_path / "cuts.jsonl", utterances=True).cuts()
    assert [(c.id, c.start, c.duration, text_of(c), speaker_of(c)) for c in (hello, there)] == [
        ("talk-0", 0.5, 1.0, "hello", "A"),
        ("talk-1", 2.0, 1.0, "there", "B"),
    ]
    assert words_of(there) == [{"word": "there", "start": 0.2, "end": 0.7}]
    assert load_audio(there, 8000) == pytest.approx(np.linspace(0.1, 0.9, 32000)[16000:24000], abs=1e-4)
    assert (cropped.start, cropped.duration) == (1.5, 1.0)
    assert isinstance(lost, UnusableRecord) and lost.reason == "empty"


def test_mixed_cuts_and_paths_beside_the_manifest(recording, tmp_path, monkeypatch):
    mixed = cut_of(recording).append(cut_of(recording, "more")).pad(10.0)
    mixed.id = "mixed"
    CutSet.from_cuts([mixed]).to_file(tmp_path / "cuts.jsonl")
    text = (tmp_path / "cuts.jsonl").read_text()
    (tmp_path / "cuts.jsonl").write_text(text.replace(f"{tmp_path}/", ""))
    (cut,) = source(tmp_path / "cuts.jsonl").cuts()
    assert text_of(cut) == "hello there hello there" and cut.duration == 10.0
    audio = load_audio(cut)
    assert len(audio) == 160000 and not audio[112100:].any()
    (tmp_path / "talk.wav").unlink()
    (cut,) = source(tmp_path / "cuts.jsonl").cuts()
    assert isinstance(cut, UnusableRecord) and cut.reason == "missing" and "cuts.jsonl:1" in cut.message


def test_shar_folder_is_read_in_any_order(recording, tmp_path):
    cuts = [cut_of(recording, f"c{i}", start=i * 0.1, duration=2.5) for i in range(5)]
    (tmp_path / "shar").mkdir()
    CutSet.from_cuts(cuts).to_shar(tmp_path / "shar", fields={"recording": "wav"}, shard_size=2)
    plan, stream = source(tmp_path / "shar"), source(tmp_path / "shar", stream=True)
    assert stream.streaming and not plan.streaming
    listed = list(plan.cuts())
    assert [c.id for c in listed] == ["c0", "c1", "c2", "c3", "c4"]
    expected = [np.linspace(0.1, 0.9, 32000)[i * 800 : i * 800 + 20000] for i in range(5)]
    for i in (4, 0, 3):
        assert load_audio(listed[i], 8000) == pytest.approx(expected[i], abs=2e-4)
    streamed = list(stream.cuts())
    assert [c.id for c in streamed] == [c.id for c in listed]
    assert load_audio(streamed[2], 8000) == pytest.approx(expected[2], abs=2e-4)
    assert text_of(listed[1]) == "hello there"
    (tmp_path / "shar" / "recording.000001.tar").unlink()
    with pytest.raises(DataError, match=r"recording.000001.tar does not exist"):
        list(plan.cuts())


def test_other_manifests_are_told_apart(recording, tmp_path):
    CutSet.from_cuts([cut_of(recording)]).to_file(tmp_path / "cuts.jsonl")
    for name, content, message in (
        ("recordings.jsonl", recording.to_dict(), "its supervisions are not beside it: expected supervisions.jsonl"),
        ("plain.jsonl", {"audio_path": "a.wav"}, "load a manifest of plain records with `type: jsonl`"),
        ("cut.jsonl", {"type": "MonoCut", "id": "x"}, "not a valid lhotse cut"),
    ):
        (tmp_path / name).write_text(json.dumps(content) + "\n")
        with pytest.raises(DataError, match=message):
            list(source(tmp_path / name).cuts())
    (tmp_path / "folder").mkdir()
    with pytest.raises(DataError, match="not a Shar folder"):
        list(source(tmp_path / "folder").cuts())
    with pytest.raises(DataError, match=r"did you mean .*cut.jsonl"):
        list(source(Path(tmp_path) / "cut.jsnl").cuts())
