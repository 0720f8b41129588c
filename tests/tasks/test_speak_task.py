"""The task `speak`: records, what a training sample is told and hides, and how a model is heard and judged."""

import json
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from stentor.data.audio_base64 import decode_audio, encode_audio, is_encoded_audio
from stentor.data.batch import Example, Prediction
from stentor.data.conditions import Conditions, Spoken, draw
from stentor.data.cut import cut_from_record
from stentor.data.seeding import rng
from stentor.errors import ConfigError
from stentor.models.base import Bundle
from stentor.sources.base import Source
from stentor.tasks.base import Task
from stentor.tasks.speak.evaluator import LoadedEvaluator, SpeechEvaluator
from stentor.tasks.speak.task import Speak, seed_of


def cut(**fields):
    record = {"id": "a", "audio_path": "a.wav", "duration": 2.0, "text": "good morning", **fields}
    return cut_from_record(record, Path(), "test:1")


def test_fields_of_the_record():
    spoken = Speak().spoken(
        cut(language_id="de", instruct="male", text_pinyin="x1", clean_start_token_idx=9, speaker="anna")
    )
    assert spoken == Spoken("good morning", "de", "male", "x1", 9)


def test_another_field_may_stand_in_for_the_instruct():
    task = Speak(instruct_from="speaker")
    assert task.spoken(cut(speaker="anna")).instruct == "anna"
    assert task.spoken(cut(speaker="anna", instruct="low voice")).instruct == "low voice"
    assert task.spoken(cut()).instruct is None
    assert Speak().spoken(cut(speaker="anna")).instruct is None


def test_records_without_text_are_refused():
    assert Speak().drop_reason(cut(text="  "))[0] == "empty_text"
    assert Speak().drop_reason(cut()) is None


def test_samples_that_are_too_short_or_too_long_are_refused_with_a_reason():
    task = Speak(min_tokens=50, max_tokens=100)
    assert task.length_drop_reason(cut(), lambda: 49)[0] == "too_few_tokens"
    assert task.length_drop_reason(cut(), lambda: 101) == (
        "too_many_tokens",
        "a: 101 positions, more than `task.max_tokens` (100)",
    )
    assert task.length_drop_reason(cut(), lambda: 50) is None and task.length_drop_reason(cut(), lambda: 100) is None
    assert Speak().length_drop_reason(cut(), lambda: pytest.fail("nothing is counted without limits")) is None


def test_an_evaluation_draws_by_the_id_alone():
    task, record = Speak(), cut(language="en")
    one, two = task.example(record, None, None), task.example(record, None, None)
    assert one.extra["conditions"] == two.extra["conditions"]
    np.testing.assert_array_equal(one.rng.random(8), two.rng.random(8))
    other = task.example(cut(id="b", language="en"), None, None)
    assert other.extra["conditions"] != one.extra["conditions"]


def test_training_draws_from_the_randomness_of_the_item():
    task, record = Speak(), cut(language="en", instruct="male")
    masks = {task.example(record, None, rng(0, epoch, "a")).extra["conditions"].mask_ratio for epoch in range(5)}
    assert len(masks) == 5
    again = task.example(record, None, rng(0, 3, "a")).extra["conditions"].mask_ratio
    assert again in masks


def test_the_samples_of_a_set_are_the_same_whatever_its_order():
    task, ids = Speak(samples=3), [f"u{i}" for i in range(20)]
    chosen = task.prediction_subset(ids)
    assert len(chosen) == 3 and chosen == task.prediction_subset(ids[::-1])
    assert task.prediction_subset(ids[:2]) == set(ids[:2]) and Speak(samples=0).prediction_subset(ids) == set()
    assert task.prediction_subset([i for i in ids if i not in chosen]).isdisjoint(chosen)


def test_sound_as_plain_data():
    samples = np.linspace(-0.9, 0.9, 4000, dtype=np.float32)
    packed = encode_audio(samples, 24000)
    assert (
        is_encoded_audio(packed)
        and packed["rate"] == 24000
        and not is_encoded_audio({"text": "a"})
        and not is_encoded_audio("a")
    )
    np.testing.assert_allclose(decode_audio(packed), samples, atol=1e-4)
    assert decode_audio(encode_audio(2 * samples, 24000)).max() <= 1.0


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


@pytest.mark.parametrize("share, frames, prompt", [(0.0, 40, 0), (0.5, 40, 20), (0.99, 40, 39), (0.9, 1, 0)])
def test_the_prompt_can_be_set(bundle, share, frames, prompt):
    (output,) = Speak(sample_prompt=share).predict(bundle, [example("a", frames, "male")])
    assert output["frames"] == frames and output["prompt_seconds"] == pytest.approx(prompt / 100)


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
    assert sentence.startswith("2 training records have an instruct that is not used")


FULL = Spoken("hello", language="en", instruct="female, low pitch", pinyin="hel3lo")
N = 4000


def drawn(record=FULL, **settings) -> list[Conditions]:
    task = Speak(**settings)
    return [draw(record, task, rng(0, i)) for i in range(N)]


def share(flags) -> float:
    return float(np.mean(list(flags)))


def test_the_shares_are_those_of_the_ratios():
    conditions = drawn()
    conditional = [c for c in conditions if not c.unconditional]
    near = {"abs": 0.025}
    assert share(c.unconditional for c in conditions) == pytest.approx(0.1, **near)
    assert share(c.language is not None for c in conditional) == pytest.approx(0.8, **near)
    assert share(c.instruct is not None for c in conditional) == 1.0
    assert share(c.text == "hel3lo" for c in conditional) == pytest.approx(0.3, **near)
    assert share(c.prompt_frames_ratio == 0 for c in conditional) == pytest.approx(0.5, **near)
    prompts = [c.prompt_frames_ratio for c in conditional if c.prompt_frames_ratio]
    assert min(prompts) > 0 and max(prompts) < 0.3 and np.mean(prompts) == pytest.approx(0.15, abs=0.01)
    masks = [c.mask_ratio for c in conditions]
    assert np.mean(masks) == pytest.approx(0.5, **near) and np.var(masks) == pytest.approx(1 / 12, abs=0.01)


def test_an_unconditional_sample_is_the_audio_alone():
    conditions = drawn(drop_cond_ratio=1.0)
    assert all(c.unconditional and not c.denoise and c.prompt_frames(100) == 0 for c in conditions)
    assert {(c.language, c.instruct, c.text) for c in conditions} == {(None, None, "")}


def test_only_an_instruct_that_is_told_takes_the_prompt_away():
    with_prompt = {"prompt_ratio_range": (0.1, 0.3), "drop_cond_ratio": 0.0, "only_instruct_ratio": 1.0}
    assert all(c.prompt_frames_ratio == 0 for c in drawn(**with_prompt))
    assert all(c.prompt_frames_ratio >= 0.1 for c in drawn(instruct_ratio=0.0, **with_prompt))
    assert all(c.prompt_frames_ratio >= 0.1 for c in drawn(Spoken("hello"), **with_prompt))
    both = drawn(instruct_ratio=0.5, only_instruct_ratio=0.5, drop_cond_ratio=0.0, prompt_ratio_range=(0.1, 0.3))
    assert all(c.instruct is not None for c in both if c.prompt_frames_ratio == 0)
    assert share(c.prompt_frames_ratio == 0 for c in both) == pytest.approx(0.25, abs=0.025)


def test_a_noisy_beginning_is_the_prompt_and_is_never_dropped():
    conditions = drawn(Spoken("hello", instruct="x", clean_from=37), drop_cond_ratio=1.0, only_instruct_ratio=1.0)
    assert all(c.denoise and not c.unconditional and c.prompt_frames(100) == 37 for c in conditions)


def test_what_a_record_lacks_is_not_told():
    assert {(c.language, c.instruct, c.text) for c in drawn(Spoken("hello"), drop_cond_ratio=0.0)} == {
        (None, None, "hello")
    }


def test_a_changed_ratio_changes_nothing_else():
    a = drawn(drop_cond_ratio=0.0)
    b = drawn(drop_cond_ratio=0.0, language_ratio=0.0, use_pinyin_ratio=0.0, only_instruct_ratio=0.0)
    assert [c.mask_ratio for c in a] == [c.mask_ratio for c in b]
    assert all(y.prompt_frames_ratio in (x.prompt_frames_ratio, y.prompt_frames_ratio) for x, y in zip(a, b))
    assert [x.prompt_frames_ratio for x in a if x.prompt_frames_ratio] == [
        y.prompt_frames_ratio for x, y in zip(a, b) if x.prompt_frames_ratio
    ]


@pytest.mark.parametrize("ratio, frames, prompt", [(0.3, 10, 3), (0.29, 10, 2), (0.3, 3, 0), (0.99, 1, 0)])
def test_prompt_frames_are_rounded_down_and_leave_something_to_learn(ratio, frames, prompt):
    assert Conditions(False, ratio, None, None, "a", False, None, 0.5).prompt_frames(frames) == prompt


def test_a_noisy_beginning_as_long_as_the_audio_leaves_a_frame():
    assert Conditions(False, 0.0, None, None, "a", True, 12, 0.5).prompt_frames(12) == 11


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"prompt_ratio_range": [0.3, 0.1]}, "two shares between 0 and 1, the lower one first"),
        ({"mask_ratio_range": [0.0, 0.0]}, "nothing to learn"),
        ({"prompt_ratio_range": [0.0, 1.0]}, "leaves nothing to learn"),
        ({"min_tokens": 50, "max_tokens": 40}, "no record is left"),
        ({"drop_cond_ratio": 1.5}, "less than or equal to 1"),
        ({"drop_cond_ration": 0.5}, "Extra inputs"),
    ],
)
def test_settings_that_cannot_be_meant_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Task.model_validate({"type": "speak", **settings})


class Ear(SpeechEvaluator):
    """Hears a word for each tenth of a second that is louder than a half."""

    type: Literal["ear"] = "ear"
    gives: ClassVar = "text"

    def load(self, device="cpu"):
        def evaluate(clips, languages):
            return [
                " ".join("word" for i in range(0, len(c) - 99, 100) if abs(c[i : i + 100]).max() > 0.5) for c in clips
            ]

        return LoadedEvaluator(1000, evaluate)


class Voice(SpeechEvaluator):
    type: Literal["nobody"] = "nobody"
    gives: ClassVar = "voice"

    def load(self, device="cpu"):
        raise AssertionError("nothing here has a reference voice")


def test_samples_are_judged_beside_their_recordings():
    task = Speak.model_validate({"judges": ["ear", "nobody"]})
    loud, soft = np.ones(300, np.float32), np.full(300, 0.1, np.float32)
    codec = SimpleNamespace(sample_rate=1000)
    bundle = SimpleNamespace(model=torch.nn.Linear(1, 1), processor=SimpleNamespace(codec=codec))
    examples = [SimpleNamespace(audio=loud, language="en"), SimpleNamespace(audio=None, language=None)]
    rows = task._evaluate(bundle, examples, [loud[:200], soft], [loud, loud])  # type: ignore[arg-type]
    assert rows[0]["text"] == {"synthetic": "word word", "codec": "word word word", "real": "word word word"}
    assert rows[1]["text"] == {"synthetic": "", "codec": "word word word"} and "voice" not in rows[0]
    reference = {"text": "word word word", "language": None, "speaker": None}
    scores = task.score([Prediction(str(i), reference, {"heard": row}) for i, row in enumerate(rows)])
    assert scores["wer"].errors == 4 and scores["wer_codec"].errors == 0 and scores["wer_real"].total == 3
    assert json.dumps(rows)  # travels between ranks and into files


def test_without_judges_nothing_is_scored():
    task = Speak.model_validate({})
    assert task.score([Prediction("a", {"text": "x", "language": None, "speaker": None}, {"seconds": 1.0})]) == {}
