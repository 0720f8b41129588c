import json
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import soundfile
from pydantic import ValidationError

from stentor.data.cut import language_of, record_from_cut, set_language, speaker_of, text_of, words_of
from stentor.data.load_audio import load_audio, load_record
from stentor.errors import DataError
from stentor.sources.base import Source

CLIPS = {"type": "synth", "texts": ["one", "two", "three"], "voices": ["en", "en-us+f3"], "silence": None}


def join(**options):
    return Source.model_validate({"type": "join", "source": CLIPS, **options})


def test_duration_text_words_and_audio_agree():
    clips = {(text_of(c), speaker_of(c)): load_audio(c) for c in Source.model_validate(CLIPS).cuts()}
    for cut in join(count=8, items=[2, 4], pause=[0.1, 0.2], silence=[0.05, 0.3]).cuts():
        audio, words = load_audio(cut), words_of(cut)
        assert len(audio) == round(cut.duration * 16000)
        assert [w["word"] for w in words] == text_of(cut).split()
        tracks = [t for t in cut.tracks if t.type == "MonoCut"]
        for track, word in zip(tracks, words):
            at, clip = round(track.offset * 16000), clips[word["word"], speaker_of(cut)]
            assert np.array_equal(audio[at : at + len(clip)], clip)
            assert track.offset - 1e-6 <= word["start"] < word["end"] <= track.offset + len(clip) / 16000 + 1e-6
        pauses = [b.offset - a.offset - a.cut.duration for a, b in pairwise(tracks)]
        assert all(0.0999 <= p <= 0.2001 for p in pauses)
        after = cut.duration - tracks[-1].offset - tracks[-1].cut.duration
        assert all(0.0499 <= s <= 0.3001 for s in (tracks[0].offset, after))


def test_deterministic_and_seeded():
    first, again, other = (list(join(count=5, seed=seed).cuts()) for seed in (1, 1, 2))
    assert [c.to_dict() for c in first] == [c.to_dict() for c in again]
    assert [text_of(c) for c in first] != [text_of(c) for c in other]


def test_one_speaker_each_unless_any_may_join():
    assert all(speaker_of(c) for c in join(count=20).cuts())
    assert any(speaker_of(c) is None for c in join(count=20, same=None).cuts())


def test_clips_are_used_equally_often():
    used = Counter(word for c in join(count=300, same=None, items=[1, 3]).cuts() for word in text_of(c).split())
    assert max(used.values()) - min(used.values()) <= 2


def test_language_is_set_on_the_clips_themselves():
    (cut,) = join(count=1).cuts()
    for track in cut.tracks:
        for supervision in track.cut.supervisions:
            supervision.language = None
    set_language(cut, "fr")
    assert language_of(cut) == "fr"


def test_snr_of_a_track_is_obeyed():
    (cut,) = join(count=1, items=[2, 2], pause=[0, 0], silence=[0, 0]).cuts()
    first, second = (t for t in cut.tracks if t.type == "MonoCut")
    second.offset, second.snr = 0.0, 10.0
    noise = load_audio(cut)[: round(second.cut.duration * 16000)].astype(float)
    clean = load_audio(first.cut).astype(float)
    noise[: len(clean)] -= clean[: len(noise)]
    assert 10 * np.log10(np.mean(clean**2) / np.mean(noise**2)) == pytest.approx(10.0, abs=0.1)


def test_clips_of_several_sources_come_together():
    digits = {"type": "synth", "texts": ["one", "two"], "silence": None, "voices": ["en"]}
    colours = {"type": "synth", "texts": ["red", "green", "blue"], "silence": None, "voices": ["en-us+f3"]}
    cuts = list(join(source=[digits, colours], count=50, items=[2, 2], same=None).cuts())
    used = Counter(word for cut in cuts for word in text_of(cut).split())
    assert used == dict.fromkeys(["one", "two", "red", "green", "blue"], 20)
    assert any(
        {"one", "two"} & set(words) and {"red", "green", "blue"} & set(words)
        for words in map(str.split, map(text_of, cuts))
    )


def test_no_sources_are_refused():
    with pytest.raises(ValidationError, match="at least 1 item"):
        join(source=[])


def test_record_of_a_joined_cut_names_no_single_file():
    (cut,) = join(count=1).cuts()
    record = record_from_cut(cut)
    assert record["audio_path"] is None and record["text"] == text_of(cut) and "voice" not in record


def test_record_of_a_joined_cut_sounds_the_same(tmp_path):
    for i, seed in enumerate((1, 2, 3)):
        soundfile.write(tmp_path / f"{i}.wav", 0.1 * np.random.default_rng(seed).standard_normal(8000), 8000)
    lines = [json.dumps({"audio_path": f"{i}.wav", "start": 0.25, "duration": 0.5, "text": "a"}) for i in range(3)]
    (tmp_path / "clips.jsonl").write_text("\n".join(lines))
    clips = {"type": "jsonl", "path": str(tmp_path / "clips.jsonl")}
    for source in (join(count=3, silence=[0.1, 0.2]), join(count=3, source=clips, same=None)):
        for cut in source.cuts():
            record = json.loads(json.dumps(record_from_cut(cut)))
            assert np.abs(load_record(record) - load_audio(cut)).max() < 1e-4
    (spoken,) = Source.model_validate({**CLIPS, "voices": ["en"], "texts": ["one"], "silence": [0.2, 0.3]}).cuts()
    assert np.abs(load_record(record_from_cut(spoken)) - load_audio(spoken)).max() < 1e-4


def test_nothing_to_join_is_refused():
    with pytest.raises(DataError, match="has no usable clip"):
        list(join(source={**CLIPS, "where": {"speaker": "nobody"}}).cuts())
    with pytest.raises(DataError, match="No clip of the joined source has the field `chapter`"):
        list(join(same="chapter").cuts())
