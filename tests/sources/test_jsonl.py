import gzip
import json

import numpy as np
import pytest
import soundfile

from stentor.data.cut import UnusableRecord, field_of, language_of, record_from_cut, speaker_of, text_of, words_of
from stentor.errors import DataError
from stentor.sources.base import Source, source_notes
from stentor.sources.manifest import Jsonl


@pytest.fixture
def folder(tmp_path):
    for name in ("a.wav", "b.wav"):
        soundfile.write(tmp_path / name, np.full(16000, 0.1), 16000)
    return tmp_path


def write(folder, *lines, name="train.jsonl"):
    path = folder / name
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def cuts(path, **options):
    return list(Source.model_validate({"type": "jsonl", "path": str(path), **options}).cuts())


def test_contract_record_comes_back_as_it_was_written(folder):
    record = {
        "id": "u1",
        "audio_path": "a.wav",
        "start": 0.2,
        "duration": 0.5,
        "text": "one two",
        "language": "en",
        "speaker": "ann",
        "instruct": "calm",
        "words": [{"word": "one", "start": 0.0, "end": 0.2}, {"word": "two", "start": 0.25, "end": 0.5}],
    }
    (cut,) = cuts(write(folder, record))
    assert record_from_cut(cut) == {**record, "audio_path": str(folder / "a.wav")}
    assert (text_of(cut), speaker_of(cut), language_of(cut)) == ("one two", "ann", "en")
    assert field_of(cut, "instruct") == "calm" and field_of(cut, "take") is None


def test_word_times_stay_true_when_a_cut_is_shortened(folder):
    words = [{"word": "one", "start": 0.0, "end": 0.2}, {"word": "two", "start": 0.25, "end": 0.5}]
    (cut,) = cuts(write(folder, {"audio_path": "a.wav", "start": 0.3, "duration": 0.6, "words": words}))
    (_, two) = words_of(cut.truncate(offset=0.1))
    assert (two["start"], two["end"]) == pytest.approx((0.15, 0.4))


def test_segments_keep_their_words_and_the_text(folder):
    record = {
        "id": "talk",
        "audio_path": "a.wav",
        "duration": 1.0,
        "text": "hi there you",
        "segments": [
            {"speaker": "A", "start": 0.0, "end": 0.5, "text": "hi there"},
            {"speaker": "B", "start": 0.4, "end": 1.0, "text": "you"},
        ],
        "words": [
            {"word": "hi", "start": 0.0, "end": 0.2},
            {"word": "there", "start": 0.2, "end": 0.5},
            {"word": "you", "start": 0.45, "end": 0.9},
        ],
    }
    (cut,) = cuts(write(folder, record))
    assert record_from_cut(cut) == {**record, "audio_path": str(folder / "a.wav")}
    assert [len(s.alignment["word"]) for s in cut.supervisions] == [2, 1]
    assert speaker_of(cut) is None


def test_founding_format_gzip_and_missing_durations(folder):
    path = folder / "m.jsonl.gz"
    with gzip.open(path, "wt") as file:
        file.write('{"audio_path": "a.wav", "text": "one"}\n\n{"audio_path": "b.wav", "text": "two"}\n')
    one, two = cuts(path)
    assert (one.id, one.duration, text_of(two)) == ("a.wav", 1.0, "two")


def test_ids_are_made_unique_but_given_ones_must_be(folder):
    same = {"audio_path": "a.wav", "duration": 1}
    assert [c.id for c in cuts(write(folder, same, same, {**same, "start": 0.5}))] == ["a.wav", "a.wav#2", "a.wav@0.5"]
    path = write(folder, {"id": "x", **same}, same, {"id": "x", **same})
    with pytest.raises(DataError, match=r"train.jsonl:3: the id 'x' was already given in line 1"):
        cuts(path)


def test_all_problems_of_a_file_are_reported_with_their_lines(folder):
    path = write(
        folder,
        {"audio_path": "a.wav", "duration": 1},
        '{"audio_path": "a.wav"',
        {"text": "no audio"},
        {"audio_path": "a.wav", "duration": "1.5"},
        {"audio_path": "a.wav", "duration": 1, "text": 7},
        {"audio_path": "a.wav", "duration": 1, "words": [{"word": "a", "start": 0.5, "end": 0.1}]},
        {"audio_path": "a.wav", "duration": 1, "segments": [{"start": 0.5, "end": 0.1}]},
        "[1, 2]",
    )
    with pytest.raises(DataError) as error:
        cuts(path)
    message = str(error.value)
    assert "7 lines" in message
    for number, words in (
        (2, "not JSON"),
        (3, "no `audio_path`"),
        (4, "`duration` must be a number of seconds, got '1.5'"),
        (5, "`text` must be a string, got 7"),
        (6, '"start" <= "end"'),
        (7, '"speaker"'),
        (8, "must be a JSON object"),
    ):
        assert f"train.jsonl:{number}: " in message and words in message


def test_twenty_problems_are_enough(folder):
    with pytest.raises(DataError, match=r"20 lines .* \(there may be more") as error:
        cuts(write(folder, *["nonsense"] * 50))
    assert str(error.value).count("\n") == 20


def test_missing_manifest_names_the_nearest(folder):
    write(folder, {"audio_path": "a.wav"}, name="train.jsonl")
    with pytest.raises(DataError, match=r"did you mean .*train\.jsonl"):
        cuts(folder / "trian.jsonl")
    with pytest.raises(DataError, match=r"The folder .*nowhere does not exist"):
        cuts(folder / "nowhere" / "train.jsonl")
    (folder / "empty.jsonl").write_text("\n")
    with pytest.raises(DataError, match="holds no records"):
        cuts(folder / "empty.jsonl")
    (folder / "latin.jsonl").write_bytes(b'{"audio_path": "\x81.wav"}\n')
    assert "latin.jsonl:1: not UTF-8" in cuts(folder / "latin.jsonl")[0].message


def test_broken_records_are_counted_not_raised(folder):
    (folder / "broken.wav").write_bytes(b"RIFF....")
    good, missing, gone, broken, past, zero = cuts(
        write(
            folder,
            {"audio_path": "a.wav", "duration": 1},
            {"id": "m", "audio_path": "nothing.wav", "duration": 1},
            {"id": "g", "audio_path": "nothing.wav"},
            {"id": "b", "audio_path": "broken.wav"},
            {"id": "p", "audio_path": "a.wav", "start": 3},
            {"id": "z", "audio_path": "a.wav", "duration": 0},
        )
    )
    assert not isinstance(good, UnusableRecord)
    assert [u.reason for u in (missing, gone, past, zero)] == ["missing", "missing", "empty", "empty"]
    assert isinstance(broken, UnusableRecord) and "train.jsonl:4" in broken.message


def test_where_exclude_limit_and_language(folder):
    rows = [
        {"id": f"u{i}", "audio_path": "a.wav", "duration": 1, "speaker": "abc"[i % 3], "take": i, "language_id": lang}
        for i, lang in enumerate(["de", None, None, None, None, None])
    ]
    path = write(folder, *rows)
    assert [c.id for c in cuts(path, where={"speaker": ["a", "b"]}, exclude={"take": [0, 4]})] == ["u1", "u3"]
    assert [c.id for c in cuts(path, where={"speaker": "c"}, limit=1)] == ["u2"]
    english = Jsonl(type="jsonl", path=path, language="en", limit=2)
    assert [language_of(c) for c in english.cuts()] == ["en", "en"]
    replaced = "train.language: en replaces the language of 1 record (de 1)."
    assert source_notes({"train": english}, "data") == [f"data.{replaced}"]
    german = Jsonl(
        type="jsonl", path=path, language="de-AT", where={"language": "de"}
    )  # the record's own, or else the source's
    assert len(list(german.cuts())) == 6 and source_notes({"train": german}, "data") == []
    assert [c.id for c in cuts(path, language="en", where={"language": "de"})] == ["u0"]
    everything = [c.id for c in cuts(path)]
    assert [c.id for c in cuts(path, limit=1)] + [c.id for c in cuts(path, skip=1)] == everything
    assert [c.id for c in cuts(path, skip=1, limit=1)] == everything[1:2]


def test_values_that_no_record_has_are_told(folder):
    rows = [{"audio_path": "a.wav", "duration": 1, "text": "one", "speaker": who} for who in ("ann", "ben")]
    inner = {"type": "jsonl", "path": str(write(folder, *rows)), "exclude": {"speaker": ["bent", "ben"]}}
    joined = Source.model_validate({"type": "join", "source": [inner], "count": 3})
    short = Source.model_validate(inner | {"where": {"speaker": "anna"}, "limit": 1})
    assert source_notes({"train": [joined]}, "data") == []  # it was not read
    assert len(list(joined.cuts())) == 3 and list(short.cuts()) == []
    assert source_notes({"train": [joined], "test": {"short": short}}, "data") == [
        "data.train.0.source.0.exclude: no record has the speaker bent; is it spelled right?"
    ]


def test_a_number_is_found_where_it_is_written_as_a_text(folder):
    """`where.chapter=141231` and `where: {chapter: 141231}` are numbers; manifests have texts."""
    chapters = enumerate(("12", "012", 12, "13", True))
    rows = [{"id": f"u{i}", "audio_path": "a.wav", "duration": 1, "chapter": chapter} for i, chapter in chapters]
    path = write(folder, *rows)
    source = Source.model_validate({"type": "jsonl", "path": str(path), "where": {"chapter": [12, 14]}})
    assert [c.id for c in source.cuts()] == ["u0", "u2"]
    assert source_notes({"source": source}, "data") == [
        "data.source.where: no record has the chapter 14; is it spelled right?"
    ]


def test_a_lhotse_manifest_is_told_apart(folder):
    path = write(folder, {"id": "c", "type": "MonoCut", "start": 0, "duration": 1, "channel": 0})
    with pytest.raises(DataError, match="load the file with `type: manifest`"):
        list(Jsonl(path=path).cuts())


def test_paths_from_a_folder(folder, monkeypatch):
    """As scripts write them that read audio from where they were started: one message names the key that helps."""
    (folder / "lists").mkdir()
    lines = [{"audio_path": f"{name}.wav", "text": "one"} for name in "ab"]
    path = write(folder, *lines, {"audio_path": "gone.wav", "duration": 1.0}, name="lists/train.jsonl")
    monkeypatch.chdir(folder)
    fix = "exists from {}, but {} from the working directory: set `audio_folder: .`"
    with pytest.raises(DataError, match=f"first 3 relative audio paths {fix.format(path.parent, 2)}"):
        cuts(path, limit=1)
    _, b, gone = cuts(path, audio_folder=".")
    assert (record_from_cut(b)["audio_path"], gone.reason) == (str(folder / "b.wav"), "missing")
    monkeypatch.chdir(path.parent)
    assert [c.id for c in cuts("train.jsonl", audio_folder=str(folder), limit=2)] == ["a.wav", "b.wav"]
    beside = write(folder, *lines)
    with pytest.raises(DataError, match="but 2 from its own folder: leave `audio_folder` out"):
        cuts(beside, audio_folder=str(folder / "lists"))
