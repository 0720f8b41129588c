"""Speech between pauses: recordings of one window are cut at long ones, texts that leave speech out are replaced."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from stentor.data.batch import Example
from stentor.inference.covered_speech import answers, with_pieces
from stentor.inference.load import load
from stentor.inference.recording import FileRecording
from stentor.inference.subtitles import cues
from stentor.inference.vad import Window

RATE = 16000
TRANSDUCER = Path(__file__).parents[1] / "frozen" / "exports" / "transducer" / "export"
SPEECH = ((0, 3 * RATE), (4 * RATE, 6 * RATE), (7 * RATE, 9 * RATE))
WINDOW = Window(0, 9 * RATE, 0, 9 * RATE, SPEECH)
LONG = ((3, -10), (4, None), (3, -20), (4, None), (3, -30))


def test_a_recording_of_one_window_is_cut_at_long_pauses(export, tone):
    transcript = load(export()).transcribe(tone("a.wav", *LONG))
    assert transcript.text == "level 10 level 20 level 30" and "notes" not in transcript
    times = [(s["start"], s["end"]) for s in transcript.segments]
    np.testing.assert_allclose(times, [(0, 3), (7, 10), (14, 17)], atol=0.1)


@pytest.mark.parametrize(("trained", "count"), [({"pause": 6.0, "room": 0.2}, 1), ({"pause": 6.0}, 1), ({}, 3)])
def test_a_model_that_was_trained_with_long_pauses_gets_them(trained, count, tone, tmp_path):
    folder = shutil.copytree(TRANSDUCER, tmp_path / "export")
    facts = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(
        json.dumps(facts | {"trained_speech": {"longest": 25.0, **trained}})
    )
    plan = load(folder).transcriber().plan(FileRecording(tone("a.wav", *LONG), RATE))
    assert len(plan.windows) == count


def test_a_text_that_leaves_speech_out_is_replaced_by_that_of_the_pieces(export, tone, caplog):
    model = load(export())
    transcript = model.transcribe(tone("a.wav", (3, -10), (1, None), (3, -20)))
    assert transcript.text == "level 10 level 20" and len(model.bundle.model.batches) == 2
    times = [(s["start"], s["end"]) for s in transcript.segments]
    np.testing.assert_allclose(times, [(0, 3), (4, 7)], atol=0.1)
    (note,) = transcript["notes"]
    assert "The text of 1 of 1 windows left out speech" in note and f"{transcript['audio']}: {note}" in caplog.messages


def decoded(text, window=WINDOW, failed=(), again="two words", words=()):
    """The output of a window with `text`, whose pieces get the text `again`, and the number of decoded items."""
    items = []

    def decode(examples):
        items.extend(examples)
        texts = [text if len(e.audio) == 9 * RATE else again for e in examples]
        return [{"text": t, "words": list(words), "failed": list(failed)} for t in texts]

    example = Example("a", np.zeros(9 * RATE, np.float32), extra={"window": window})
    (output,) = with_pieces([example], decode, RATE)
    return output, len(items)


def test_pieces_replace_a_text_only_where_they_have_more():
    output, count = decoded("too short")
    assert count == 4 and [(w.start, w.end) for w, _ in output["pieces"]] == [
        (0, 3.5 * RATE),
        (3.5 * RATE, 6.5 * RATE),
        (6.5 * RATE, 9 * RATE),
    ]
    output, count = decoded("too short", again="no")
    assert count == 4 and "pieces" not in output


@pytest.mark.parametrize(
    "options",
    [
        {"text": "a text that is long enough for so much speech"},
        {"text": "one", "window": Window(0, 9 * RATE, 0, 9 * RATE, ((0, 9 * RATE),))},
        {"text": "", "failed": ["mean_log_prob", "no_speech"]},
        {"text": "one two three", "words": [{"start": s, "end": s + 0.5} for s in (1, 5, 8)]},
    ],
)
def test_what_covers_the_speech_is_decoded_once(options):
    assert decoded(**options)[1] == 1


def test_word_times_show_what_is_missing():
    words = [{"start": 1.0, "end": 1.5}, {"start": 5.0, "end": 5.2}]
    assert decoded("a text that is long enough for so much speech", words=words)[1] > 1


def test_words_lie_within_the_speech():
    words = [{"start": -0.1, "end": 0.5}, {"start": 2.5, "end": 5.0}, {"start": 3.6, "end": 3.7}, {"word": "untimed"}]
    ((_, output),) = answers([WINDOW], {0: {"text": "", "words": words}}, RATE)
    assert [tuple(w.values()) for w in output["words"]] == [(0.0, 0.5), (3.85, 5.0), (3.85, 3.85), ("untimed",)]


def test_subtitles_without_word_times_leave_the_pauses_out():
    segment = {"start": 0.0, "end": 9.0, "speech": [[0.0, 3.0], [7.0, 9.0]], "text": "three whole seconds, then two"}
    shown = cues({"duration": 20.0, "language": "en", "text": segment["text"], "segments": [segment]})
    assert [(c.start, c.text) for c in shown] == [(0.0, "three whole seconds,"), (7.0, "then two")] and shown[
        0
    ].end < 4.5
