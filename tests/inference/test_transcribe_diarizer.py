"""`stentor transcribe --diarizer`: a speaker on every word and segment."""

import json

import pytest

from stentor.data.word_units import units
from stentor.inference.formats import to_srt, to_txt, to_vtt
from stentor.inference.speaker_attribution import SpeakerTurns, divide_at_turns, split_by_speaker
from stentor.inference.vad import Window

RATE = 16000


def turns(*segments):
    return SpeakerTurns([{"speaker": name, "start": start, "end": end} for name, start, end in segments])


@pytest.mark.parametrize(
    ("start", "end", "speaker"),
    [
        (0.0, 1.0, "A"),
        (1.8, 2.6, "B"),  # 0.2 s of A, 0.6 s of B
        (1.2, 2.2, "A"),
        (4.4, 4.6, "B"),  # nobody talks: the nearest
        (5.6, 5.9, "A"),
        (2.5, 2.5, "B"),  # a word without length
        (99.0, 99.5, "A"),
    ],
)
def test_a_word_is_said_by_whom_it_shares_most_time_with(start, end, speaker):
    assert turns(("A", 0, 2), ("B", 2, 4), ("A", 6, 8)).speaker(start, end) == speaker


def test_where_two_talk_a_word_goes_on_with_its_speaker_or_begins_a_new_turn():
    both = turns(("A", 0, 5), ("B", 3, 5))
    assert both.speaker(3.5, 4.0, before="A") == "A"
    assert both.speaker(3.5, 4.0, before="B") == "B"
    assert both.speaker(3.5, 4.0) == "B"
    assert turns().speaker(0, 1) is None


def test_windows_are_cut_between_two_speakers():
    window = Window(0, 10 * RATE, round(0.5 * RATE), round(9.5 * RATE))
    parts = divide_at_turns([window], turns(("A", 0.5, 3.0), ("B", 3.4, 6.0), ("B", 6.5, 7.0), ("A", 6.9, 9.5)), RATE)
    assert [(p.start / RATE, p.end / RATE) for p in parts] == [(0, 3.2), (3.2, 7.0), (7.0, 10)]
    assert all(p.start <= p.speech_start <= p.speech_end <= p.end for p in parts)
    # A short word in between is no turn of its own, and a window is not cut a moment from its edge.
    assert divide_at_turns([window], turns(("A", 0.5, 3.0), ("B", 1.0, 1.2), ("A", 3.1, 9.5)), RATE) == [window]
    assert divide_at_turns([window], turns(("A", 0, 0.3), ("B", 0.3, 10)), RATE) == [window]
    assert divide_at_turns([window], turns(), RATE) == [window]


def test_a_segment_is_divided_where_the_speaker_changes():
    text = "- Hello, you! «Yes» — really? No."
    names = [u["word"] for u in units(text, "en")]
    speakers = ["A", "A", "B", "B", "A"]
    words = [
        {"word": word, "start": i, "end": i + 0.5, "speaker": name}
        for i, (word, name) in enumerate(zip(names, speakers, strict=True))
    ]
    parts = split_by_speaker({"start": 0, "end": 5, "text": text, "log_prob": -0.1}, words)
    assert [p["speaker"] for p in parts] == ["A", "B", "A"]
    assert [p["text"] for p in parts] == ["- Hello, you!", "«Yes» — really?", "No."]
    assert [(p["start"], p["end"]) for p in parts] == [(0, 1.5), (2, 3.5), (4, 4.5)]
    assert " ".join(p["text"] for p in parts) == text
    assert list(parts[0]) == ["start", "end", "speaker", "text", "log_prob"]


def test_a_segment_without_spaces_is_divided_at_a_letter():
    words = [{"word": word, "start": i, "end": i + 0.5, "speaker": "AABB"[i]} for i, word in enumerate("你好世界")]
    parts = split_by_speaker({"start": 0, "end": 4, "text": "你好，世界"}, words)
    assert [(p["speaker"], p["text"]) for p in parts] == [("A", "你好，"), ("B", "世界")]


TWO = {
    "audio": "a.wav",
    "duration": 9.0,
    "language": "en",
    "text": "how are you fine and you",
    "model": "m",
    "segments": [
        {"start": 0.0, "end": 2.0, "speaker": "ann", "text": "how are you"},
        {"start": 4.0, "end": 5.0, "speaker": "bob", "text": "fine"},
        {"start": 7.0, "end": 8.0, "speaker": "bob", "text": "and you"},
    ],
}


def test_formats_name_the_speakers():
    assert to_txt(TWO) == "ann: how are you\nbob: fine\nbob: and you\n"
    texts = [block.split("\n", 2)[2] for block in to_srt(TWO).strip().split("\n\n")]
    assert texts == ["ann: how are you", "bob: fine", "and you"]  # once for each turn
    assert to_vtt(TWO).count("<v bob>") == 2 and "<v ann>how are you" in to_vtt(TWO)


def test_a_model_without_word_times_hears_each_turn_alone(export, diarizer, talk, run):
    path = talk("two.wav", 12, [(0, 0.5, 3.0), (1, 3.5, 6.0), (0, 6.5, 9.0), (0, 9.5, 11.5)])
    code, out, err = run("transcribe", export(), path, "--diarizer", diarizer(), "--format", "json", "--language", "en")
    assert (code, err) == (0, "")
    transcript = json.loads(out)
    assert [s["speaker"] for s in transcript["segments"]] == ["speaker_1", "speaker_2", "speaker_1"]
    assert all(list(s)[:4] == ["start", "end", "speaker", "text"] for s in transcript["segments"])
    assert "words" not in transcript
    edges = [(s["start"], s["end"]) for s in transcript["segments"]]
    assert edges[0][1] <= 3.5 <= edges[1][0] + 0.5 and edges[1][1] <= 6.5
    code, out, _ = run("transcribe", tmp(path, "model"), path, "--diarizer", tmp(path, "diarizer"))
    assert [line.split(":")[0] for line in out.splitlines()] == ["speaker_1", "speaker_2", "speaker_1"]


def tmp(path, name):
    return path.parent / name


def test_words_have_speakers_and_divide_the_segments(export, diarizer, talk, run):
    # The model says of any window: one word from 0.1 to 0.4 s, another from 0.5 s to its end.
    path = talk("two.wav", 6, [(0, 0.0, 0.4), (1, 0.5, 6.0)])
    model, second = export(task="words"), diarizer()
    code, out, _ = run("transcribe", model, path, "--diarizer", second, "--words", "--format", "json")
    transcript = json.loads(out)
    assert code == 0
    assert [(w["speaker"], w["start"]) for w in transcript["words"]] == [("speaker_1", 0.1), ("speaker_2", 0.5)]
    assert [(s["speaker"], s["text"]) for s in transcript["segments"]] == [
        (w["speaker"], w["word"]) for w in transcript["words"]
    ]
    # Word times are found for the speakers' sake, and not told when they were not asked for.
    code, out, _ = run("transcribe", model, path, "--diarizer", second, "--format", "json")
    without = json.loads(out)
    assert "words" not in without and without["segments"] == transcript["segments"]
    code, out, _ = run("transcribe", model, path, "--diarizer", second, "--words", "--format", "textgrid")
    assert 'name = "speaker_1"' in out and 'name = "speaker_2"' in out


def test_where_nobody_talks_nobody_is_named(export, diarizer, tone, run):
    code, out, _ = run(
        "transcribe", export(), tone("noise.wav", (2, -30)), "--diarizer", diarizer(), "--format", "json"
    )
    transcript = json.loads(out)
    assert code == 0 and transcript["segments"] and all("speaker" not in s for s in transcript["segments"])


def test_cpwer_of_a_recogniser_with_a_diarizer(export, diarizer, talk, tmp_path, run):
    path = talk("two.wav", 9, [(0, 0.5, 3.0), (1, 3.5, 6.0), (0, 6.5, 9.0)])
    segments = [
        {"speaker": name, "start": start, "end": start + 2.5, "text": "level 7"}
        for name, start in (("ann", 0.5), ("bob", 3.5), ("ann", 6.5))
    ]
    manifest = tmp_path / "set.jsonl"
    manifest.write_text(json.dumps({"audio_path": path.name, "segments": segments, "language": "en"}) + "\n")
    code, out, _ = run(
        "evaluate", export(), "--diarizer", diarizer(), "--data", manifest, "--json", tmp_path / "scores.json"
    )
    scores = json.loads((tmp_path / "scores.json").read_text())["eval"]
    assert code == 0 and "cpwer" in out
    assert (scores["cpwer"]["value"], scores["cpwer"]["total"]) == (0.0, 6)
    assert scores["der"]["value"] < 0.01
