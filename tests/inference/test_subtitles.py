"""The reading rules of subtitles: lines, lengths, times, speakers."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stentor.inference.options import SubtitleOptions
from stentor.inference.subtitles import cues
from stentor.inference.timed_text import columns

RULES = SubtitleOptions()
LINE, LINES, LONGEST, SPEED = RULES.max_line_width, RULES.max_line_count, RULES.max_cue_duration, RULES.reading_speed


def transcript(words=None, segments=None, text=None, language="en", duration=None):
    text = text if text is not None else " ".join(w["word"] for w in words)
    end = max(x["end"] for x in words or segments)
    segments = segments or [{"start": words[0]["start"], "end": end, "text": text}]
    fields = {"duration": duration or end, "language": language, "text": text, "segments": segments}
    return fields | ({"words": words} if words is not None else {})


def spoken(text, seconds=0.3, gap=0.0, start=0.0, **more):
    """Words one after the other."""
    words = []
    for i, word in enumerate(text.split()):
        at = start + i * (seconds + gap)
        words.append({"word": word, "start": round(at, 3), "end": round(at + seconds, 3), **more})
    return words


def texts(subtitles):
    return [cue.text for cue in subtitles]


def test_a_line_holds_42_columns_and_wide_characters_take_two():
    assert columns("ab") == 2 and columns("今日") == 4 and columns("e\u0301") == 1
    subtitles = cues(transcript(spoken("今 日 は " * 28, 0.1), text="今日は" * 28, language="ja"))
    lines = [line for cue in subtitles for line in cue.text.split("\n")]
    assert " " not in "".join(lines) and max(map(columns, lines)) == LINE
    assert "".join(lines) == "今日は" * 28


def test_sentences_and_pauses_end_subtitles():
    text = "It was late already, and it rained. Nobody came to open the door, and so we all went home."
    assert texts(cues(transcript(spoken(text, 0.3)))) == [
        "It was late already, and it rained.",
        "Nobody came to open the door,\nand so we all went home.",
    ]
    words = spoken("we waited", 0.3) + spoken("and waited", 0.3, start=2.0)
    assert texts(cues(transcript(words))) == ["we waited", "and waited"]


def test_short_ones_stay_to_be_read_where_there_is_silence():
    words = spoken("yes", 0.2) + spoken("no", 0.2, start=1.4) + spoken("perhaps", 0.2, start=9.0)
    assert [(c.start, c.end) for c in cues(transcript(words, duration=9.5))] == [(0, 1.0), (1.4, 2.4), (9, 9.5)]
    close = spoken("yes.", 0.2) + spoken("no.", 0.2, start=1.22)
    assert cues(transcript(close))[0].end == 1.0
    closer = spoken("yes.", 0.2) + spoken("no.", 0.2, start=1.05)
    assert [c.start for c in cues(transcript(closer))] in ([0.0], [0.0, 1.05])


def test_they_stay_as_long_as_it_takes_to_read_them():
    (cue,) = cues(transcript(spoken("abcd " * 8, 0.05), duration=30.0))
    assert (cue.start, cue.end) == (0.0, pytest.approx(39 / SPEED, abs=1e-3))


def test_a_short_one_joins_its_neighbour_where_there_is_no_time_for_it():
    end = spoken("It is done. Yes.", 0.3, start=5.0)
    assert texts(cues(transcript(end))) == ["It is done. Yes."]
    assert texts(cues(transcript(end, duration=8.0))) == ["It is done. Yes."]
    quick = spoken("It is done at last, I think. Yes. And now we all go home again.", 0.2)
    assert all(c.end - c.start >= 0.5 for c in cues(transcript(quick)))


def test_rules_of_the_caller():
    source = transcript(spoken("one two three four five six seven eight nine ten eleven twelve", 0.5), duration=9.0)
    lines = [c.text.split("\n") for c in cues(source, SubtitleOptions(max_line_width=11, max_line_count=3))]
    assert max(map(len, lines)) == 3 and max(columns(line) for cue in lines for line in cue) <= 11
    lines = "\n".join(texts(cues(source, SubtitleOptions(max_line_width=3)))).split("\n")
    assert lines == source["text"].split(), "long words stay whole"
    assert max(c.end - c.start for c in cues(source, SubtitleOptions(max_cue_duration=2.0))) <= 2.0
    slow = SubtitleOptions(reading_speed=2.0, min_cue_duration=0.0, cue_gap=0.5)
    words = spoken("yes", 0.2) + spoken("no", 0.2, start=2.0) + spoken("perhaps", 0.2, start=4.0)
    assert [(c.start, c.end) for c in cues(transcript(words, duration=9.0), slow)] == [(0, 1.5), (2, 3), (4, 7.5)]
    turns = [{"start": 0.0, "end": 1.0, "text": "a b"}, {"start": 1.0, "end": 2.0, "text": "c d"}]
    source = transcript(segments=turns, text="a b c d")
    assert [texts(cues(source, r)) for r in (RULES, SubtitleOptions(cues="segments"))] == [["a b c d"], ["a b", "c d"]]


def test_a_pause_ends_one_even_where_it_leaves_little_time_to_read():
    words = spoken("abcd " * 12, 0.05) + spoken("yes", 0.3, start=1.6)
    assert [c.start for c in cues(transcript(words, duration=9.0))] == [0.0, 1.6]


def test_no_line_begins_with_a_closing_sign():
    for text in ("今日は、とても良い天気ですね。" * 6, "これは「テスト」です。" * 8):
        words = [{"word": c, "start": i * 0.1, "end": i * 0.1 + 0.1} for i, c in enumerate(text)]
        for cue in cues(transcript(words, text=text, language="ja")):
            assert all(line[0] not in "、。」" for line in cue.text.split("\n"))


def test_signs_that_stand_alone_go_with_the_word_beside_them():
    words = spoken("Bonjour ça va oui", 0.5)
    source = transcript(words, text="« Bonjour ! » ça va ? – oui.", language="fr")
    assert texts(cues(source, SubtitleOptions(cues="words"))) == ["« Bonjour ! »", "ça", "va ? –", "oui."]
    ja = [{"word": c, "start": i / 2, "end": i / 2 + 0.5} for i, c in enumerate("今日はいい")]
    source = transcript(ja, text="今日は。「いい」", language="ja")
    assert texts(cues(source, SubtitleOptions(cues="words"))) == ["今", "日", "は。", "「い", "い」"]


def test_words_that_are_not_in_the_text_are_not_shown():
    source = transcript(spoken("one two three"), text="something else two")
    assert texts(cues(source)) == ["something else two"]


def test_speakers_take_turns_and_share_what_they_say_together():
    turns = spoken("how are you", 0.3, speaker="A") + spoken("fine", 0.3, start=1.0, speaker="B")
    turns += spoken("good", 0.3, start=1.4, speaker="A")
    segments = [
        {"start": 0.0, "end": 1.7, "speaker": "A", "text": "how are you good"},
        {"start": 1.0, "end": 1.3, "speaker": "B", "text": "fine"},
    ]
    assert texts(cues(transcript(turns, segments))) == ["how are you", "fine", "good"]
    both = spoken("yes", 1.0, start=1.0, speaker="A") + spoken("no", 0.5, start=1.2, speaker="B")
    segments = [
        {"start": 1.0, "end": 2.0, "speaker": "A", "text": "yes"},
        {"start": 1.2, "end": 1.7, "speaker": "B", "text": "no"},
    ]
    (cue,) = cues(transcript(both, segments))
    assert (cue.start, cue.end, cue.text) == (1.0, 2.0, "- yes\n- no")
    assert texts(cues(transcript(segments=segments, text="yes no"))) == ["- yes\n- no"]


@pytest.mark.parametrize("kind", ["lines", "words"])
def test_words_without_length_and_at_the_same_time_have_a_subtitle(kind):
    words = [{"word": w, "start": 1.0, "end": 1.0} for w in "abc"]
    subtitles = cues(transcript(words, duration=1.0), SubtitleOptions(cues=kind))
    assert " ".join(c.text for c in subtitles) == "a b c"
    assert all(c.start < c.end for c in subtitles)


def check(subtitles, source):
    """What holds for all subtitles."""
    last = 0.0
    for cue in subtitles:
        assert last <= cue.start < cue.end
        assert cue.end - cue.start <= LONGEST + 1e-3 + 1e-6  # times are rounded to milliseconds
        last = cue.end
        lines = cue.text.split("\n")
        assert len(lines) <= LINES and max(map(columns, lines)) <= LINE
        assert all(line == line.strip() and line for line in lines)
    assert "".join("".join(c.text.split()) for c in subtitles) == "".join(source["text"].split())


TEXT = st.lists(st.text(st.sampled_from("abcdefg今日は.,"), min_size=1, max_size=60), min_size=1, max_size=60).map(
    " ".join
)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(TEXT, st.integers(1, 30_000), st.integers(0, 5000)), min_size=1, max_size=4))
def test_without_word_times_no_letter_is_lost(parts):
    at, segments = 0.0, []
    for text, length, gap in parts:
        start = at + gap / 1000
        at = start + max(length / 1000, len(text) / 40)
        segments.append({"start": round(start, 3), "end": round(at, 3), "text": text})
    source = transcript(segments=segments, text=" ".join(s["text"] for s in segments), language=None)
    check(cues(source), source)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.text("abcdefgh.今", min_size=1, max_size=50), st.integers(0, 1500), st.integers(0, 3000)),
        min_size=1,
        max_size=60,
    )
)
def test_with_word_times_they_begin_with_a_word_and_end_with_one_or_in_silence(items):
    at, words = 0.0, []
    for word, gap, length in items:
        start = round(at + gap / 1000, 3)
        at = round(start + length / 1000 + 0.05, 3)
        words.append({"word": word, "start": start, "end": at})
    source = transcript(words, duration=at + 2)
    subtitles = cues(source)
    check(subtitles, source)
    check([c for c in cues(source, SubtitleOptions(cues="words")) if c.end - c.start <= LONGEST], source)
    for cue, following in zip(subtitles, [*subtitles[1:], None]):
        # Nothing is shown while a word of the next subtitle is said, and none is too short where it can stay.
        assert following is None or cue.end <= following.start
        room = (source["duration"] if following is None else following.start) - cue.start
        assert cue.end - cue.start >= min(0.5, room) - 2e-3
        inside = [w for w in words if w["start"] < cue.end - 1e-9 and w["end"] > cue.start + 1e-9]
        assert inside or not words
