"""The task `words`: which words a text has and where its tokens are, what is refused, times from text to export."""

import json
import unicodedata
from functools import partial

import numpy as np
import pytest
import tiny_speech_llm
import torch
from tiny_speech_llm import TEXTS

import stentor
from stentor.audio.synth import say
from stentor.data.batch import Example, Prediction
from stentor.data.cut import cut_from_record
from stentor.data.trained_speech import TrainedSpeech, with_room
from stentor.data.word_units import timed_units, units
from stentor.errors import ConfigError
from stentor.models.speech_llm.processor import SpeechLLMProcessor
from stentor.models.text.tokenizers import bpe, characters
from stentor.tasks.base import Task

ALIGNER = {"width": 16, "heads": 2}
SECONDS = (1.0, 0.5625, 1.5)


@pytest.fixture(scope="module")
def make(build_speech_llm):
    """Builds a model with an alignment module; keywords are other keys of `model:`."""
    return partial(build_speech_llm, "words", ("text", "alignment"), aligner=ALIGNER)


@pytest.fixture(scope="module")
def bundle(make):
    return make()


def examples(texts=TEXTS):
    return tiny_speech_llm.examples(SECONDS, texts)


# Words and tokens ------------------------------------------------------------------------------------------------

ODD = "  Well — naïve O'Neill said: 3,5 €…\tthe-end 日本 "


def spelled_words(text, language=None):
    spans = units(text, language)
    assert all(text[slice(*u["span"])] == u["word"] for u in spans)
    return [u["word"] for u in spans]


def test_words_lie_between_spaces():
    assert spelled_words(ODD) == ["Well", "naïve", "O'Neill", "said:", "3,5", "the-end", "日本"]
    assert spelled_words("") == spelled_words(" - … ") == []


def test_without_spaces_each_character_is_a_word():
    assert spelled_words("日本語、です。", "ja") == list("日本語です")
    assert spelled_words("これ は", "Japanese") == list("これは")
    thai = "น้ำดี"
    assert "".join(spelled_words(thai, "th")) == thai
    assert not any(unicodedata.category(word[0]).startswith("M") for word in spelled_words(thai, "th"))


def unigram():
    """As SentencePiece makes them: a space is a part of the word's first piece."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    pieces = [
        "<unk>",
        "</s>",
        "▁",
        "▁the",
        "▁s",
        "aid",
        "▁we",
        "ll",
        "end",
        "▁Well",
        *"abcdefghijklmnopqrstuvwxyz',:-3日本ï€—…W",
    ]
    model = Tokenizer(models.Unigram([(p, -float(i)) for i, p in enumerate(pieces)], unk_id=0, byte_fallback=False))
    model.pre_tokenizer = pre_tokenizers.Metaspace()
    model.decoder = decoders.Metaspace()
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>", unk_token="<unk>", pad_token="</s>")


def loose():
    """A BPE without splitting at spaces: tokens go across words."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    model = Tokenizer(models.BPE())
    model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    model.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400, special_tokens=["</s>"], initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet())
    )
    model.train_from_iterator(["it is a ", "it is the end ", "said it is"] * 9, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=model, eos_token="</s>", pad_token="</s>")


TOKENIZERS = {
    "characters": lambda: characters([ODD]),
    "bytes": lambda: bpe(["x"], 260),
    "bpe": lambda: bpe([ODD, "the end is well said"] * 5, 330),
    "unigram": unigram,
    "loose": loose,
}


@pytest.mark.parametrize("kind", TOKENIZERS)
@pytest.mark.parametrize("text", [ODD, "it is the end said it is a well", "日本 naïve"])
def test_every_word_has_exactly_its_tokens(kind, text, bundle):
    tokenizer = TOKENIZERS[kind]()
    shape, prompt = bundle.processor.shape, bundle.processor.prompt
    processor = SpeechLLMProcessor(tokenizer, shape, 4, prompt, tokenizer_type="bpe" if tokenizer.bos_token else None)
    words = units(text, None)
    ends, parts = processor.word_tokens(text, [w["span"] for w in words])
    encoded = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    for (first, last), (before, upto), word in zip(ends, parts, words, strict=True):
        start, end = word["span"]
        # The word's tokens are those that have one of its characters; no other token has one.
        owners = [i for i, (a, b) in enumerate(encoded["offset_mapping"]) if max(a, start) < min(b, end)]
        assert (first, last) == (owners[0], owners[-1])
        a, b = encoded["offset_mapping"][first]
        assert (before > 0) == bool(text[a:start].strip())
        a, b = encoded["offset_mapping"][last]
        assert (upto < 1) == bool(text[end:b].strip())
    assert len({(e, p) for e, p in zip(ends, parts)}) == len(words)  # no two words look the same


def test_the_tokens_of_the_mapping_are_those_the_model_reads(bundle):
    text = "zero two seven"
    batch = bundle.processor.collate(
        [Example("0", np.zeros(16000, np.float32), text, extra={"words": units(text, None)})]
    )
    ids = batch.inputs["input_ids"].flatten()[batch.inputs["text_rows"][0]]
    for (first, last), word in zip(batch.inputs["word_tokens"][0].tolist(), text.split()):
        assert bundle.processor.decode(ids[first : last + 1]) == word


# Times given -----------------------------------------------------------------------------------------------------


def timed_words(*words):
    return [{"word": w, "start": a, "end": b} for w, a, b in words]


def test_times_go_to_the_words_that_are_the_same():
    transferred = timed_units(
        "Well, hello — World!", timed_words(("well", 0, 1), ("hello", 1, 2), ("world", 3, 4)), None
    )
    assert [(w["word"], w["start"], w["end"]) for w in transferred] == [
        ("Well,", 0, 1),
        ("hello", 1, 2),
        ("World!", 3, 4),
    ]
    transferred = timed_units("well uh hello words", timed_words(("well", 0, 1), ("hello", 1, 2), ("word", 3, 4)), None)
    assert [w.get("start") for w in transferred] == [0, None, 1, None]


def test_characters_share_the_time_of_their_word():
    transferred = timed_units("日本 です。", timed_words(("日本", 0.0, 0.4), ("です。", 0.5, 0.9)), "ja")
    assert [(w["word"], w["start"], w["end"]) for w in transferred] == [
        ("日", 0.0, 0.2),
        ("本", 0.2, 0.4),
        ("で", 0.5, pytest.approx(0.7)),
        ("す", pytest.approx(0.7), 0.9),
    ]


def cut(text, words, tmp_path):
    record = {"id": "a", "audio_path": "a.wav", "duration": 2.0, "text": text, "words": words}
    return cut_from_record(record, tmp_path, "x:1")


def test_what_is_refused(tmp_path):
    task = Task.model_validate("words")
    assert task.drop_reason(cut("", [], tmp_path))[0] == "empty_text"
    assert task.drop_reason(cut("one two", [], tmp_path))[0] == "no_words"
    assert task.drop_reason(cut("one two three", timed_words(("one", 0, 1)), tmp_path))[0] == "words_differ"
    assert task.drop_reason(cut("one two three", timed_words(("one", 0, 1), ("three", 1, 2)), tmp_path)) is None


def test_times_follow_the_speed_of_the_audio(tmp_path):
    task = Task.model_validate("words")
    item = cut("one two", timed_words(("one", 0.5, 1.0), ("two", 1.0, 1.5)), tmp_path)
    fast = task.example(item, np.zeros(16000, np.float32), None)
    assert [(w["start"], w["end"]) for w in fast.extra["words"]] == [(0.25, 0.5), (0.5, 0.75)]


# Times found -----------------------------------------------------------------------------------------------------


def test_times_of_a_known_text(bundle):
    task = Task.model_validate("words")
    aligned = task.align(bundle, examples())
    for words, text, seconds in zip(aligned, TEXTS, SECONDS):
        assert [w["word"] for w in words] == text.split()
        flat = [t for w in words for t in (w["start"], w["end"])]
        assert flat == sorted(flat) and flat[0] >= 0 and flat[-1] <= seconds
        assert all(0 < w["confidence"] < 1 for w in words)
    assert task.align(bundle, examples(["", " — ", "one"]))[:2] == [[], []]


def test_text_and_audio_that_do_not_belong_together(bundle):
    task = Task.model_validate("words")
    assert task.align(bundle, examples([" ".join(["zero"] * 300), "one"]))[0] is None


def test_transcripts_have_times_for_their_words(bundle):
    task = Task.model_validate("words")
    timed_outputs = task.predict(bundle, examples())
    plain = Task.model_validate("transcribe").predict(bundle, examples())
    assert [o["text"] for o in timed_outputs] == [o["text"] for o in plain]
    assert any(o["words"] for o in timed_outputs)
    for output, example in zip(timed_outputs, examples()):
        (known,) = task.align(bundle, [Example("x", example.audio, output["text"])])
        assert [(w["word"], w["start"]) for w in known] == [
            (w["word"], pytest.approx(w["start"], abs=2e-3)) for w in output["words"]
        ]
    assert "start" not in task.predict(bundle, examples(), words=False)[0]["words"][0]


def test_a_model_without_aligner_is_told(build_speech_llm):
    bundle = build_speech_llm("transcribe", ("text",))
    with pytest.raises(ConfigError, match="no alignment module"):
        Task.model_validate("words").align(bundle, examples())


def test_scores_of_a_perfect_answer():
    task = Task.model_validate("words")
    words = timed_words(("one", 0.1, 0.2), ("two", 0.3, 0.5))
    answer = {"text": "one two", "words": [w | {"confidence": 0.9} for w in words]}
    scores = task.score([Prediction("a", {"text": "one two", "words": words, "language": None}, answer, 1.0)])
    name, mode = task.main_metric()
    assert (scores[name].value, mode) == (0.0, "min") and scores["wer"].value == 0.0
    assert scores["ece"].value == pytest.approx(0.1) and scores["within_20ms"].value == 1.0


def test_times_count_from_the_clip_and_not_from_the_room_before_it():
    bundle = tiny_speech_llm.build(aligner=ALIGNER, freeze=["aligner.*"], token_rate=1.0)
    task, processor = Task.model_validate("words"), bundle.processor
    clip = Example("a", say("one two three").audio_at(16000), text="one two three")
    processor.trained_speech = TrainedSpeech(room=0.5)
    (roomy,), (earlier,) = with_room(processor.trained_speech, processor, [clip])
    (words,) = task.align(bundle, [clip])
    processor.trained_speech = None
    (later,) = task.align(bundle, [roomy])
    within = [min(max(word["end"] - earlier, 0.0), len(clip.audio) / 16000) for word in later]
    assert earlier > 0.3 and [word["end"] for word in words] == pytest.approx(within, abs=2e-3)
    assert min(within) < len(clip.audio) / 16000 and max(within) > 0


# Exports ---------------------------------------------------------------------------------------------------------


def test_export_and_load_give_the_same_times(bundle, tmp_path):
    task = Task.model_validate("words")
    bundle.model.aligner.calibration.copy_(torch.tensor([0.7, 0.4, -0.3]))
    bundle.family.save(bundle, bundle.model.state_dict(), tmp_path / "export")
    (tmp_path / "export" / "training_config.json").write_text(json.dumps({"task": task.model_dump(mode="json")}))
    loaded = stentor.load(tmp_path / "export")
    assert loaded.task.type == "words"
    assert loaded.bundle.model.aligner.calibration.tolist() == pytest.approx([0.7, 0.4, -0.3])
    assert task.align(loaded.bundle, examples()) == task.align(bundle, examples())
    assert loaded.task.predict(loaded.bundle, examples()) == task.predict(bundle, examples())


def test_the_audio_is_encoded_once(bundle, monkeypatch):
    from stentor.models.encoders import cache

    counted = []
    real = cache.encode
    monkeypatch.setattr(cache, "encode", lambda *a: counted.append(1) or real(*a))
    Task.model_validate("words").predict(bundle, examples())
    assert len(counted) == 1
    Task.model_validate("words").align(bundle, examples())
    Task.model_validate("words").align(bundle, examples())
    assert len(counted) == 3 and bundle.model._encoded == [], "outside, nothing is kept"
