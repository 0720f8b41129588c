"""What the task asks of a model to hear it speak, with a family of a few lines."""

import json
from types import SimpleNamespace

import numpy as np
import pytest

from stentor.data.audio_base64 import decode_audio
from stentor.data.batch import Example
from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.sources.base import Source
from stentor.tasks.speak.task import Speak, seed_of


class Codec:
    """A frame of codes is ten samples of its first code."""

    sample_rate, frame_rate = 1000, 100.0

    def decode(self, codes):
        return [np.repeat(c[0].astype(np.float32) / 100, 10) for c in codes]


class Processor:
    codec = Codec()

    def codes(self, example):
        return example.extra["codes"]

    def utterance(self, text, **asked):
        return {"text": text, **asked}


class Model:
    def __init__(self):
        self.asked = []

    def speak(self, utterances, seeds, **generation):
        self.asked.append((utterances, seeds, generation))
        return [np.full((2, u["frames"]), 50, np.int16) for u in utterances]


def example(name, frames, instruct=None):
    codes = np.stack([np.arange(frames), np.zeros(frames)]).astype(np.int16)
    return Example(name, text=f"text of {name}", language="en", extra={"codes": codes, "instruct": instruct})


@pytest.fixture
def bundle():
    family = SimpleNamespace(model_dump=lambda by_alias: {})
    return Bundle(Model(), Processor(), family)


def test_each_text_is_asked_for_in_its_voice_and_as_long_as_its_recording(bundle):
    task = Speak.model_validate({"generation": {"steps": 7, "seed": 3}})
    outputs = task.predict(bundle, [example("a", 20, "male"), example("b", 41)])
    ((utterances, seeds, generation),) = bundle.model.asked
    assert generation["steps"] == 7 and "seed" not in generation and seeds == [seed_of(3, "a"), seed_of(3, "b")]
    first, second = utterances
    assert (first["text"], first["instruct"], first["language"]) == ("text of a", "male", "en")
    assert first["frames"] == 20 and first["reference"] is None
    codes, reference_text = second["reference"]  # no instruct: it goes on in the voice of the recording's first quarter
    assert codes.shape == (2, 10) and reference_text == "" and second["frames"] == 31
    assert [(o["frames"], o["seconds"], o["prompt_seconds"]) for o in outputs] == [(20, 0.2, 0.0), (41, 0.41, 0.1)]


def test_the_sound_is_the_prompt_and_what_was_said_after_it(bundle):
    (output,) = Speak().predict(bundle, [example("b", 41)])
    sound, codec = decode_audio(output["audio"]), decode_audio(output["codec"])
    np.testing.assert_allclose(sound[:100], codec[:100], atol=1e-4)
    np.testing.assert_allclose(sound[100:], 0.5, atol=1e-4)
    np.testing.assert_allclose(codec, np.repeat(np.arange(41) / 100, 10), atol=1e-4)


@pytest.mark.parametrize("share, prompt", [(0.0, 0), (0.5, 20), (0.99, 39)])
def test_the_prompt_can_be_set(bundle, share, prompt):
    (output,) = Speak(sample_prompt=share).predict(bundle, [example("a", 40, "male")])
    assert output["prompt_seconds"] == pytest.approx(prompt / 100)


def test_a_single_frame_is_said_and_not_given(bundle):
    (output,) = Speak(sample_prompt=0.9).predict(bundle, [example("a", 1)])
    assert output["frames"] == 1 and output["prompt_seconds"] == 0


def test_without_a_codec_nothing_is_said(bundle):
    bundle.processor.codec = None
    assert Speak().predict(bundle, [example("a", 9)]) == [{"silent": "the model has no codec"}]
    assert bundle.model.asked == []


def test_seeds_are_of_the_record_and_the_section():
    assert seed_of(0, "a") == seed_of(0, "a") and len({seed_of(0, "a"), seed_of(0, "b"), seed_of(1, "a")}) == 3


def test_a_judge_that_is_not_there_is_told_of_at_once():
    with pytest.raises(ConfigError, match="no/such/recogniser"):
        Speak.model_validate({"judges": [{"type": "recognizer", "from": "no/such/recogniser/at-all"}]}).check()
    Speak().check()


def test_what_was_never_told_in_training_is_not_told_in_speaking():
    task = Speak(type="speak", language_ratio=0.0, instruct_ratio=0.5)
    assert task.learned_style("en", "ann") == {"language": None, "instruct": "ann"}
    task = Speak(type="speak", instruct_ratio=0.0)
    assert task.learned_style("en", "ann") == {"language": "en", "instruct": None}


def test_what_the_model_before_was_told_is_told(tmp_path):
    task = Speak(type="speak", instruct_ratio=0.0)
    assert task.learned_style("en", "ann", {"from": "k2-fsa/OmniVoice"})["instruct"] == "ann"
    for number, (ratio, origin, expected) in enumerate(
        [(0.5, None, "ann"), (0.0, None, None), (0.0, "k2-fsa/OmniVoice", "ann"), (0.0, str(tmp_path / "0"), "ann")]
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        config = {"task": {"type": "speak", "instruct_ratio": ratio}, "model": {"from": origin}}
        (folder / "training_config.json").write_text(json.dumps(config))
        assert task.learned_style("en", "ann", {"init": str(folder)})["instruct"] == expected


def test_instructs_that_training_leaves_out_are_told(tmp_path):
    (tmp_path / "a.wav").touch()
    records = [{"id": i, "audio_path": "a.wav", "duration": 1, "text": "a", "instruct": "x"} for i in ("a", "b")]
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    cuts = list(Source.model_validate({"type": "jsonl", "path": str(tmp_path / "m.jsonl")}).cuts())
    assert Speak(type="speak").data_warnings(cuts) == []
    (sentence,) = Speak(type="speak", instruct_ratio=0.0).data_warnings(cuts)
    assert sentence.startswith("2 training records have an instruct that the model is never told")
