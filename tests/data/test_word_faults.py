"""Word times that cannot be right: found, not learnt, and reported with their place."""

import json

import numpy as np
import pytest
import soundfile

from stentor.data.cut import cut_from_record, record_from_cut, words_of
from stentor.data.word_faults import timed_and_untimed, untimed_words, word_faults
from stentor.data.word_times import faults
from stentor.errors import DataError
from stentor.sources.base import Source
from stentor.tasks.base import Task

ROW = {"id": "r", "audio_path": "a.wav", "duration": 3.0, "text": "one two three four"}


def write_clip(path, seconds):
    soundfile.write(path, 0.1 * np.random.default_rng(0).standard_normal(round(16000 * seconds)), 16000)


def words(*spans, names=("one", "two", "three", "four")):
    return [{"word": w, "start": a, "end": b} for w, (a, b) in zip(names, spans)]


def cut(tmp_path, *spans, **keys):
    names = keys.pop("names", ("one", "two", "three", "four"))
    return cut_from_record({**ROW, "words": words(*spans, names=names), **keys}, tmp_path, "m.jsonl:1")


@pytest.mark.parametrize(
    ("spans", "wrong"),
    [
        ([(0, 0.5), (0.5, 1), (1.2, 2), (2, 3)], {}),
        ([(0.1, 0.5), (0, 0), (1.2, 2), (2, 3)], {1: "unaligned"}),
        ([(0.1, 0.5), (0.7, 0.7), (1.2, 2), (2, 3)], {1: "zero length"}),
        ([(0.1, 0.5), (0.5, 1), (1.2, 2), (2, 3.2)], {3: "outside the recording"}),
        ([(2.5, 2.6), (0.5, 1), (1.2, 2), (2, 3)], {0: "out of order"}),
        ([(0.1, 0.5), (0.5, 1), (0.2, 0.3), (2, 3)], {2: "out of order"}),
        ([(0.1, 0.5), (0.5, 1.5), (1.2, 2), (2, 3)], {2: "overlap"}),
        ([(0.1, 2.9), (0.5, 1), (1.2, 2), (2, 3)], {0: "overlap"}),
        ([(0.1, 0.52), (0.5, 1), (1.2, 2), (2, 3.04)], {}),
    ],
)
def test_each_fault_is_found_at_its_word(spans, wrong):
    assert {i: fault for i, fault in enumerate(faults(words(*spans), 0.0, 3.0)) if fault} == wrong


def test_times_that_cannot_be_right_are_not_used_and_nothing_is_lost(tmp_path):
    spans = [(0.1, 0.5), (0, 0), (1.2, 2), (2, 3)]
    record = cut(tmp_path, *spans)
    assert [w["word"] for w in words_of(record)] == ["one", "three", "four"]
    assert [w["start"] for w in timed_and_untimed(record)] == [0.1, None, 1.2, 2]
    assert record_from_cut(record)["words"] == words(*spans)
    example = Task.model_validate({"type": "words"}).example(record, np.zeros(48000, np.float32), None)
    assert [("start" in w) for w in example.extra["words"]] == [True, False, True, True]
    assert example.text == "one two three four"
    (line,) = untimed_words([record])
    assert "1 unaligned" in line and "r: 'two' unaligned" in line
    assert untimed_words([cut(tmp_path, *[(0.1, 0.5), (0.5, 1), (1.2, 2), (2, 3)])]) == []


@pytest.mark.parametrize(
    ("text", "names", "language", "wrong"),
    [
        ("One, two three-four!", ("one", "two", "three-four"), "en", []),
        ("one two", ("one", "too"), "en", [("too", "not in the text"), ("two", "without times")]),
        ("कि की", ("की", "की"), "hi", [("की", "not in the text"), ("कि", "without times")]),
        ("cafe\u0301 two", (" café", " two"), "fr", []),
        ("你好吗", ("你", "好吗"), "zh", []),
    ],
)
def test_words_are_those_of_the_text(text, names, language, wrong, tmp_path):
    spans = [(0.5 * i, 0.5 * i + 0.4) for i in range(len(names))]
    assert word_faults(cut(tmp_path, *spans, names=names, text=text, language=language)) == wrong


def test_the_check_names_the_line_and_the_word(tmp_path, capsys):
    from stentor.cli import main

    write_clip(tmp_path / "a.wav", 3.0)
    good, bad = [(0.1, 0.5), (0.5, 1), (1.2, 2), (2, 3)], [(0.1, 0.5), (0, 0), (1.2, 1.2), (2, 3)]
    rows = [{**ROW, "id": str(i), "words": words(*spans)} for i, spans in enumerate((good, bad))]
    (tmp_path / "m.jsonl").write_text("\n".join(map(json.dumps, rows)))
    main(["prepare", "check", str(tmp_path / "m.jsonl"), "--to", str(tmp_path / "out")])
    said = capsys.readouterr().out
    assert f"1 x unaligned words, such as {tmp_path / 'm.jsonl'}:2: 'two' unaligned" in said
    assert f"1 x word times that do not fit, such as {tmp_path / 'm.jsonl'}:2: 'three' zero length" in said


def test_a_split_needs_the_times_of_all_words(tmp_path):
    write_clip(tmp_path / "a.wav", 3.0)
    row = {**ROW, "words": words((0.1, 0.5), (0, 0), (1.2, 2), (2, 3))}
    (tmp_path / "m.jsonl").write_text(json.dumps(row))
    source = {"type": "split", "source": {"type": "jsonl", "path": str(tmp_path / "m.jsonl")}, "count": 2}
    with pytest.raises(DataError, match="1 word_times"):
        list(Source.model_validate(source).cuts())
