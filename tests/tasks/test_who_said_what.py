"""Who said what: turns of records, answers that are read back whatever happens to them, and scores by hand."""

import json

import pytest

from stentor.data.batch import Prediction
from stentor.data.cut import cut_from_record
from stentor.data.turns import turn_shares, turns_of
from stentor.models.audio_llm.kinds.moss_transcribe_diarize import MossTranscribeDiarize
from stentor.models.audio_llm.kinds.nemotron3_5_transcribe import Nemotron35Transcribe
from stentor.models.audio_llm.kinds.vibevoice_asr import VibeVoiceAsr
from stentor.tasks.base import Task
from stentor.tasks.who_said_what import WhoSaidWhat

TASK = WhoSaidWhat(normalizer="none")


def cut(tmp_path, duration=10.0, **record):
    return cut_from_record({"audio_path": "a.wav", "duration": duration, **record}, tmp_path, "here")


def segment(speaker, start, end, text=None):
    return {"speaker": speaker, "start": start, "end": end} | ({} if text is None else {"text": text})


class Letters:
    """A processor whose tokens are letters, with the format of a kind of model."""

    def __init__(self, kind, limit=10_000):
        self.kind, self.limit = kind.__new__(kind), limit

    def answer_text(self, ids):
        return "".join(map(chr, ids))

    def parse(self, text):
        return self.kind.parse(text)

    def words_in(self, text):
        return self.kind.words_in(text)

    def max_new_tokens(self, seconds):
        return self.limit


def answer(kind, text, seconds=10.0, **options):
    ids = [ord(letter) for letter in text]
    return TASK.answer(Letters(kind, **options), ids, [-0.1] * len(ids), seconds)


def said(output):
    return [(s["speaker"], s["start"], s["end"], s["text"]) for s in output["segments"]]


def test_turns_are_numbered_as_they_begin(tmp_path):
    segments = [segment("bob", 4, 6, "fine"), segment("ann", 1, 3, " hello  there "), segment("ann", 5, 7, "good")]
    turns = turns_of(cut(tmp_path, segments=segments))
    assert [(t["speaker"], t["start"], t["text"]) for t in turns] == [
        (0, 1, "hello  there"),
        (1, 4, "fine"),
        (0, 5, "good"),
    ]
    assert turn_shares(cut(tmp_path, segments=segments))[1]["start"] == 0.4


def test_texts_come_from_words_and_plain_records_are_one_speakers(tmp_path):
    words = [{"word": w, "start": s, "end": s + 0.4} for w, s in (("one", 1.0), ("two", 1.5), ("six", 6.2))]
    spoken = turns_of(cut(tmp_path, segments=[segment("a", 1, 2), segment("b", 6, 7)], words=words))
    assert [(t["speaker"], t["text"]) for t in spoken] == [(0, "one two"), (1, "six")]
    assert turns_of(cut(tmp_path, text="one two")) == [{"speaker": 0, "start": 0.0, "end": 10.0, "text": "one two"}]
    one = turns_of(cut(tmp_path, text="one two", segments=[segment("a", 1, 2), segment("a", 6, 7)]))
    assert one == [{"speaker": 0, "start": 1, "end": 7, "text": "one two"}]


def test_unknown_speech_leaves_a_record_out(tmp_path):
    part = cut(tmp_path, text="x", segments=[segment("a", 0, 5, "one"), segment("b", 5, 9)])
    assert turns_of(part) is None and TASK.drop_reason(part) == ("no_turns", part.id)
    little = cut(tmp_path, segments=[segment("a", 0, 9, "one"), segment("b", 9.5, 10)])
    assert [t["text"] for t in turns_of(little)] == ["one"] and TASK.drop_reason(little) is None


def test_answers_in_each_format():
    whole = [("speaker_1", 0.0, 1.25, 'say "x"'), ("speaker_2", 1.5, 61.5, "yes no")]
    json_text = json.dumps(
        [
            {"Start": 0, "End": 1.25, "Speaker": 0, "Content": 'say "x"'},
            {"Start": 1.5, "End": 61.5, "Speaker": 1, "Content": "yes no"},
        ]
    )
    for text in (json_text, f"assistant\n{json_text}\n"):
        output = answer(VibeVoiceAsr, text, 70.0)
        assert said(output) == whole and "unread" not in output
        assert output["text"] == 'say "x" yes no' and len(output["words"]) == 4
    output = answer(MossTranscribeDiarize, '[0.00][S02]say "x"[1.25] [1.50][S01]yes no[1:01.5]', 70.0)
    assert said(output) == whole and "unread" not in output
    # Without times, turns stand by their letters: 4 of 6 and 2 of 6.
    output = answer(Nemotron35Transcribe, "<spk:3>abc <spk:0> z", 6.0)
    assert said(output) == [("speaker_1", 0.0, 4.0, "abc"), ("speaker_2", 4.0, 6.0, "z")]


def test_words_share_their_turn_by_letters():
    (first, second) = answer(MossTranscribeDiarize, "[1.00][S01]abc d[3.00]")["words"]
    assert first == {"word": "abc", "start": 1.0, "end": 2.5, "confidence": 0.9048, "speaker": "speaker_1"}
    assert (second["start"], second["end"]) == (2.5, 3.0)


@pytest.mark.parametrize(
    ("kind", "text", "turns"),
    [
        (VibeVoiceAsr, '[{"Start":1,"End":2,"Speaker":0,"Content":"one two', [("speaker_1", 1, 2, "one two")]),
        (VibeVoiceAsr, '[{"Start":1,"End":2,"Speaker":0,"Content":"one \\', [("speaker_1", 1, 2, "one")]),
        (VibeVoiceAsr, '[{"Start":1,"End":2,"Content":"a"},{"Start":3,"End', [("speaker_1", 1, 2, "a")]),
        (VibeVoiceAsr, '[{"Start":1,"End":2,"Speaker":0,"Content":"a"},,]', [("speaker_1", 1, 2, "a")]),
        (VibeVoiceAsr, "no JSON at all", []),
        (
            MossTranscribeDiarize,
            "[1.00][S01]one[2.00][3.00][S02]tw",
            [("speaker_1", 1, 2, "one"), ("speaker_2", 3, 10, "tw")],
        ),
        (
            MossTranscribeDiarize,
            "[1.00][S01]one[3.00][S02]z[4.00]",
            [("speaker_1", 1, 3, "one"), ("speaker_2", 3, 4, "z")],
        ),
        (MossTranscribeDiarize, "what[1.00][S01]one [laughs][2.00]", [("speaker_1", 1, 2, "one [laughs]")]),
    ],
)
def test_what_can_be_read_of_a_broken_answer(kind, text, turns):
    output = answer(kind, text)
    assert said(output) == turns and output["unread"] is True


def test_an_answer_at_the_limit_was_cut_off():
    text = "<spk:0>abc <spk:1>z"
    assert answer(Nemotron35Transcribe, text, limit=len(text))["unread"]
    assert "unread" not in answer(Nemotron35Transcribe, text, limit=len(text) + 1)


def test_times_stay_within_the_clip():
    (turn,) = answer(MossTranscribeDiarize, "[5.00][S01]one[99.00]", 8.0)["segments"]
    assert (turn["start"], turn["end"]) == (5.0, 8.0)


def prediction(reference, output):
    reference = {"text": " ".join(s["text"] for s in reference), "segments": reference, "uem": None, "duration": 10.0}
    return Prediction("a", {**reference, "language": "en"}, output)


def test_scores_by_hand():
    """Five words; the second speaker's first word goes to the first one (2 errors), a word is wrong (1): 3 / 5. The
    second turn begins a second late, in the place of the other speaker: 1 of 4 s."""
    reference = [segment(0, 0, 2, "a b"), segment(1, 2, 4, "c d e")]
    output = answer(MossTranscribeDiarize, "[0.00][S01]a b c[3.00][3.00][S02]d x[4.00]")
    scores = TASK.score([prediction(reference, output)])
    assert list(scores)[:3] == ["cpwer", "tcpwer", "der"] and TASK.main_metric() == ("cpwer", "min")
    assert (scores["cpwer"].errors, scores["cpwer"].total) == (3, 5)
    assert scores["tcpwer"].errors == 3 and scores["wer"].errors == 1
    assert scores["der"].value == pytest.approx(0.25)
    # 20 s late, words are not paired at all.
    late = {**output, "segments": [{**s, "start": s["start"] + 20, "end": s["end"] + 20} for s in output["segments"]]}
    assert TASK.score([prediction(reference, late)])["tcpwer"].errors == 10
    assert next(iter(WhoSaidWhat(metric="der").score([prediction(reference, output)]))) == "der"


def test_only_families_that_name_the_task_serve_it():
    task = Task.model_validate({"type": "who_said_what"})
    assert task.is_a(("transcribe", "who_said_what")) and not task.is_a(("transcribe", "words"))
