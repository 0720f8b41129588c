"""Word times of known texts from a trained alignment module, behind the same door as the other engines."""

import json

import numpy as np
import pytest

from stentor.inference.align.ctc import CTCAligner
from stentor.inference.align.engines import TrainedAligner, clip_of, engine_of, open_aligner
from stentor.inference.recording import ArrayRecording

RATE = 16000


@pytest.fixture(scope="module")
def export(tmp_path_factory, tiny_family):
    """An export of ours for the task words, with an alignment module and a CTC head, untrained."""
    from stentor.models.base import TaskRequirements

    family = tiny_family(aligner={"layers": 1, "heads": 2, "width": 32})
    texts = ["one two three four five six"]
    bundle = family.build(TaskRequirements("words", ("text", "ctc", "alignment"), texts=lambda: texts))
    folder = tmp_path_factory.mktemp("words") / "export"
    family.save(bundle, bundle.model.state_dict(), folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "words"}}))
    return folder


@pytest.fixture(scope="module")
def aligner(export):
    return open_aligner(str(export), device="cpu")


def clip(seconds: float, text: str, name: str = "a"):
    rng = np.random.default_rng(len(text))
    audio = 0.1 * rng.normal(size=round(seconds * RATE)) * (np.arange(round(seconds * RATE)) // 8000 % 2)
    return clip_of(ArrayRecording(audio.astype(np.float32), RATE, RATE, name), text)


def test_a_words_model_aligns_with_its_aligner_unless_told_otherwise(export, aligner):
    assert isinstance(aligner, TrainedAligner)
    assert engine_of(str(export)) == (export, "aligner")
    assert isinstance(open_aligner(str(export), "ctc", "cpu"), CTCAligner)


def test_together_as_alone_and_what_does_not_fit_is_told_apart(aligner):
    clips = [clip(2.0, "one two"), clip(0.2, "one " * 60), clip(1.0, "–"), clip(1.0, ""), clip(3.0, "six five four")]
    together = aligner.align(clips)
    assert [f.reason for f in together if f.reason != "mismatch"][:3] == ["too_long_text", "no_words", "no_words"]
    assert [w.word for w in together[4].words] == ["six", "five", "four"]
    for item, batched in zip(clips, together, strict=True):
        (alone,) = aligner.align([item])
        assert [w.word for w in alone.words] == [w.word for w in batched.words]
        assert [w.start for w in alone.words] == pytest.approx([w.start for w in batched.words], abs=0.02)


@pytest.mark.parametrize(
    ("confidence", "placed", "reason"), [(0.9, 0.6, None), (0.9, 0.3, "mismatch"), (0.01, 0.9, "mismatch")]
)
def test_a_text_that_is_not_what_was_said(aligner, monkeypatch, confidence, placed, reason):
    word = {"word": "one", "start": 0.1, "end": 0.4, "confidence": confidence, "signs": [0.5, placed]}
    monkeypatch.setattr(type(aligner.task), "align", lambda *_: [[word]])
    (alignment,) = aligner.align([clip(1.0, "one")])
    assert alignment.reason == reason and alignment.cost == pytest.approx(1 - confidence)
    assert [w.as_dict() for w in alignment.words] == [{k: v for k, v in word.items() if k != "signs"}]


def test_long_audio_goes_window_by_window(aligner, monkeypatch):
    """What the model hears cuts the text; here it hears three words in every window."""
    windows = []

    def recognize(_clip, window):
        windows.append(window)
        return f"{len(windows)}a {len(windows)}b {len(windows)}c"

    monkeypatch.setattr(aligner, "_recognize", recognize)
    text = " ".join(f"{i}{letter}" for i in (1, 2, 3) for letter in "abc")
    (alignment,) = aligner.align([clip(70.0, text)])
    assert len(windows) == 3 and max(w.end - w.start for w in windows) <= 30 * RATE
    assert [w.word for w in alignment.words] == text.split()
    for i, window in enumerate(windows):
        for word in alignment.words[3 * i : 3 * i + 3]:
            assert window.start / RATE - 0.01 <= word.start <= word.end <= window.end / RATE + 0.01
