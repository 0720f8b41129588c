import json

import numpy as np
import pytest

from stentor.data.cut import UnusableRecord, text_of, words_of
from stentor.data.load_audio import load_audio
from stentor.errors import DataError
from stentor.sources.base import Source

LONG = {
    "type": "synth",
    "texts": ["one two three, four five. six seven eight nine ten"],
    "voices": ["en", "en-us+f3"],
    "silence": None,
}


def split(**options):
    return Source.model_validate({"type": "split", "source": LONG, "pause": 0.0, "silence": None, **options})


def test_pieces_are_stretches_of_the_whole():
    wholes = {c.id: (c, load_audio(c), words_of(c)) for c in Source.model_validate(LONG).cuts()}
    seen = set()
    for cut in split(count=40, words=[2, 4]).cuts():
        recording, audio, words = wholes[cut.id.rsplit("-split", 1)[0]]
        piece, shift = words_of(cut), cut.start - recording.start
        assert 2 <= len(piece) <= 4 and [w["word"] for w in piece] == text_of(cut).split()
        first = next(i for i, w in enumerate(words) if abs(w["start"] - shift - piece[0]["start"]) < 1e-5)
        assert [w["word"] for w in words[first : first + len(piece)]] == [w["word"] for w in piece]
        assert -4e-5 <= piece[0]["start"] <= 0.2001 and -4e-5 <= cut.duration - piece[-1]["end"] <= 0.2001
        at = round(shift * 16000)
        assert np.array_equal(load_audio(cut), audio[at : at + round(cut.duration * 16000)])
        seen.add((recording.id, first, len(piece)))
    assert len(seen) > 15


def test_text_is_as_written(tmp_path):
    from stentor.audio.io import write

    write(tmp_path / "a.wav", np.zeros(32000, np.float32) + 0.01, 16000)
    words = [{"word": w, "start": 0.4 * i, "end": 0.4 * i + 0.3} for i, w in enumerate(["hello", "big", "world"])]
    record = {"audio_path": "a.wav", "text": "Hello, big World!", "words": words}
    (tmp_path / "m.jsonl").write_text(json.dumps(record))
    source = {"type": "jsonl", "path": str(tmp_path / "m.jsonl")}
    texts = {text_of(c) for c in split(source=source, words=[2, 2], pause=0.1).cuts()}
    assert texts == {"Hello, big", "big World!"}
    for options in ({"words": [2, 2], "pause": 0.11}, {"words": [4, 9]}):
        with pytest.raises(DataError, match="jsonl source of a split has no record that can be cut: 1 no_piece"):
            list(split(source=source, **options).cuts())


def test_what_cannot_be_cut_is_counted(tmp_path):
    from stentor.audio.io import write

    write(tmp_path / "a.wav", np.zeros(32000, np.float32) + 0.01, 16000)
    words = [{"word": w, "start": s, "end": s + 0.5} for w, s in (("a", 0.0), ("b", 0.5), ("c", 1.2))]
    records = [
        {"id": "good", "audio_path": "a.wav", "text": "a b c", "words": words},
        {"id": "untimed", "audio_path": "a.wav", "text": "a b c"},
        {"id": "short", "audio_path": "a.wav", "text": "a", "words": words[:1]},
    ]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, records)))
    cuts = list(split(source={"type": "jsonl", "path": str(tmp_path / "m.jsonl")}, count=6).cuts())
    reasons = {c.id: c.reason for c in cuts if isinstance(c, UnusableRecord)}
    assert reasons == {"untimed": "no_words", "short": "no_piece"}
    assert {text_of(c) for c in cuts if not isinstance(c, UnusableRecord)} <= {"a b", "a b c", "b c"}


def test_deterministic_and_seeded():
    first, again, other = ([c.to_dict() for c in split(count=9, seed=seed).cuts()] for seed in (1, 1, 2))
    assert first == again and [c["start"] for c in first] != [c["start"] for c in other]


def test_a_joined_source_is_refused():
    with pytest.raises(DataError, match="join source of a split has no record that can be cut: 3 not_single"):
        list(split(source={"type": "join", "source": LONG, "count": 3}).cuts())


def test_pieces_have_room_unless_it_is_null():
    tight = {c.id: c for c in split(count=9).cuts()}
    for cut in split(count=9, silence=[0.1, 0.3]).cuts():
        piece, words = tight[cut.id], words_of(cut)
        before = words[0]["start"] - words_of(piece)[0]["start"]
        after = cut.duration - piece.duration - before
        assert 0.0999 < before < 0.3001 and 0.0999 < after < 0.3001 and text_of(cut) == text_of(piece)
        assert not load_audio(cut)[: round(before * 16000) - 1].any()
