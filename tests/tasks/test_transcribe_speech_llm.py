"""The task with a real (tiny, untrained) speech language model: decoding, its loss terms, its export."""

import json

import pytest
from tiny_speech_llm import TEXTS, examples

import stentor
from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.losses.base import Loss
from stentor.tasks.base import Task


@pytest.fixture(scope="module")
def bundle(build_speech_llm):
    return build_speech_llm("transcribe", ("text", "ctc"), ctc={}, prompt=None)


def test_a_batch_is_its_items(bundle):
    task = Task.model_validate("transcribe")
    together = task.predict(bundle, examples())
    alone = [task.predict(bundle, [example])[0] for example in examples()]
    for a, b in zip(together, alone):
        assert (a["text"], a["ctc"]) == (b["text"], b["ctc"])
        assert a["log_prob"] == pytest.approx(b["log_prob"], abs=1e-3)
        assert [w["word"] for w in a["words"]] == a["text"].split()
        assert all(0 < w["confidence"] <= 1 for w in a["words"])


def test_beams_and_fallback_run(bundle):
    task = Task.model_validate({"type": "transcribe", "beams": 3, "checks": {"mean_log_prob": -1e-6}})
    first, *_ = task.predict(bundle, examples(), checked=True)
    again, *_ = task.predict(bundle, examples(), checked=True)
    assert first == again
    assert first["failed"] == [] or "mean_log_prob" in first["failed"]


def test_losses_are_sums_over_the_counted_targets(bundle):
    task = Task.model_validate("transcribe")
    losses = {**task.losses(), "ctc": Loss.model_validate("ctc")}
    batch = task.collate(examples(), bundle.processor, packed=False)
    sums = task.loss_sums(bundle.model, batch, losses)
    assert set(sums) == {"text", "ctc"} == set(batch.counts)
    assert batch.counts["text"] == sum(len(text) + 1 for text in TEXTS)
    for term, value in sums.items():
        assert value.ndim == 0 and 0.1 < value.item() / batch.counts[term] < 50


def test_from_export_to_transcript(bundle, tmp_path):
    folder = tmp_path / "export"
    state = {name: tensor.detach().cpu() for name, tensor in bundle.model.state_dict().items()}
    bundle.family.save(bundle, state, folder)
    (folder / "training_config.json").write_text(json.dumps({"task": {"type": "transcribe", "checks": {"on": False}}}))
    model = stentor.load(folder, device="cpu")
    audio = say("one two").audio_at(16000)
    transcript = model.transcribe(audio, rate=16000)
    assert transcript["text"] == model.task.predict(bundle, [Example("a", audio)])[0]["text"] != ""
    assert transcript["duration"] == round(len(audio) / 16000, 3)
