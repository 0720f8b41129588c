"""Encoder-decoder recognisers: what holds for Whisper, Moonshine, Moonshine streaming and Cohere ASR alike."""

import json
import pickle

import pytest
import torch
from tiny_families import save
from tiny_seq2seq import CONFIGS, LORA, answers, build, example, family, loss

from stentor.errors import ConfigError, DataError
from stentor.models.base import Family, TaskRequirements
from stentor.models.seq2seq.config import MODELS
from stentor.tasks.transcribe import Transcribe

torch.set_num_threads(1)

OTHERS = tuple(set(MODELS) - {"whisper"})
CLIPS = (example(0.5, "one two three"), example(1.2, "four"), example(2, "five six"))


@pytest.fixture(scope="module", params=MODELS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def tiny(kind):
    bundle = build(kind)
    bundle.model.eval()
    return bundle


@pytest.fixture(scope="module")
def plain(kind, tiny, tmp_path_factory):
    """(model, processor, folder) of an export as transformers alone reads it."""
    from transformers import AutoModelForSpeechSeq2Seq, AutoProcessor

    folder = save(tiny, tmp_path_factory.mktemp(kind))
    processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    return AutoModelForSpeechSeq2Seq.from_pretrained(folder, trust_remote_code=False).eval(), processor, folder


def plain_inputs(kind, processor, clip):
    """What transformers' own processor makes of a clip."""
    options = {"language": clip.language} if kind == "cohere_asr" else {}
    inputs = processor(clip.audio, sampling_rate=16000, return_tensors="pt", **options)
    return {name: value for name, value in inputs.items() if name != "audio_chunk_index"}


def test_the_loss_of_a_batch_is_the_sum_of_the_models_own_of_its_clips(kind, tiny, plain):
    """... each of which transformers makes of what its own processor makes of the clip alone."""
    model, processor, _ = plain
    batch = tiny.processor.collate(CLIPS)
    theirs = 0.0
    for clip in CLIPS:
        alone = tiny.processor.collate([clip])
        rows, width = alone.inputs["input_ids"].shape
        labels = torch.full((rows * width,), -100)
        labels[alone.inputs["label_index"]] = alone.inputs["targets"]
        inputs = plain_inputs(kind, processor, clip) | {"decoder_input_ids": alone.inputs["input_ids"]}
        answer = model(**inputs, labels=labels.view(rows, width))
        theirs += answer.loss * alone.counts["text"]
        assert labels[-1] == tiny.processor.eos_id, "the end of the text is learnt"
    torch.testing.assert_close(loss(tiny, *CLIPS), theirs, rtol=1e-5, atol=1e-4)
    texts = sum(len(tiny.processor.text_ids(clip.text, clip.language)) for clip in CLIPS)
    assert batch.counts["text"] == texts + len(CLIPS) * (2 if kind == "whisper" else 1)


def test_padding_is_not_looked_at(tiny):
    """Whatever stands behind a clip, in features that have a length."""
    batch = tiny.processor.collate(CLIPS)
    if "lengths" not in batch.inputs:
        pytest.skip("the silence behind a clip is part of Whisper's window")
    before = tiny.model(**batch.inputs)["text"]["hidden"]
    short = batch.inputs["features"][0, ..., int(batch.inputs["lengths"][0]) :]
    assert short.numel() and not short.any()
    short += torch.randn_like(short)
    torch.testing.assert_close(tiny.model(**batch.inputs)["text"]["hidden"], before)


@pytest.mark.parametrize("kind", OTHERS, indirect=True)
def test_greedy_answers_are_those_of_transformers_generate(kind, tiny, plain):
    """Of Whisper, whose `generate` has ways of its own, see test_pretrained_runs.py."""
    model, processor, _ = plain
    for (ids, *_), clip in zip(answers(tiny, *CLIPS), CLIPS):
        theirs = model.generate(**plain_inputs(kind, processor, clip), max_new_tokens=12, do_sample=False)[0].tolist()
        prompt = tiny.processor.prompt(clip.language)
        assert theirs[: len(prompt)] == prompt and len(ids) > 0
        assert [i for i in theirs[len(prompt) :] if i != tiny.processor.eos_id] == ids
        assert processor.decode(theirs, skip_special_tokens=True) == tiny.processor.decode(ids)


def test_a_frozen_half_has_no_trainable_parameter_and_stays_in_evaluation_mode(kind):
    bundle = build(kind, lora=LORA, freeze=["model.encoder.*"])
    trained = {n for n, p in bundle.model.named_parameters() if p.requires_grad}
    assert trained and all(".lora_" in n and n.startswith("model.decoder.") for n in trained)
    assert not bundle.model.model.encoder.training and bundle.model.model.decoder.training
    loss(bundle, CLIPS[0]).backward()
    assert all(p.grad is not None for n, p in bundle.model.named_parameters() if n in trained)


def test_adapters_lie_in_both_halves_and_nothing_else_is_trained(kind):
    names = {n for n, p in build(kind, lora=LORA).model.named_parameters() if p.requires_grad}
    assert all(".lora_" in n for n in names)
    for half in ("encoder", "decoder"):
        assert {n.split(".lora_")[0].rpartition(".")[2] for n in names if n.startswith(f"model.{half}.")} == {
            "q_proj",
            "k_proj",
            "v_proj",
            "out_proj" if kind == "whisper" else "o_proj",
        }


def test_what_does_not_fit_is_refused_and_counted(kind, tiny):
    processor = pickle.loads(pickle.dumps(tiny.processor))
    room = processor.most - len(processor.prompt("en")) - len(processor.text_ids("x", "en")) + 1
    longest = {"whisper": 30, "moonshine": 30, "moonshine_streaming": 6, "cohere_asr": 35}[kind]
    assert processor.max_seconds == longest
    fits, long = example(1, "x" * room, name="fits"), example(1, "x" * (room + 1), name="long")
    batch = processor.collate([fits, long, example(longest, name="whole"), example(longest + 0.1, name="loud")])
    assert batch.ids == ["fits", "whole"] and batch.inputs["input_ids"].shape[1] == processor.most
    assert [d[:2] for d in batch.dropped] == [("long", "text_too_long"), ("loud", "too_long")]
    assert tiny.model(**batch.inputs)["text"]["hidden"].shape[0] == batch.counts["text"]
    assert f"{MODELS[kind].title} reads at most {longest} s" in batch.dropped[1][2]
    with pytest.raises(DataError, match=f"reads at most {longest} s. Cut it"):
        processor.collate([example(longest + 1)], labels=False)


def test_the_prompt_of_cohere_asr_is_its_processors():
    from transformers import CohereAsrProcessor

    bundle = build("cohere_asr")
    theirs = CohereAsrProcessor(bundle.processor.extractor, bundle.processor.tokenizer)
    for name, code in {"de": "de", "pt-BR": "pt", "Japanese": "ja"}.items():
        assert bundle.processor.prompt(name) == theirs.get_decoder_prompt_ids(code)
    batch = bundle.processor.collate([example(1, language=None), example(1, language="ru"), example(1, name="b")])
    assert batch.ids == ["b"] and {reason for _, reason, _ in batch.dropped} == {"unknown_language"}
    assert "names no language (`language`, `--language`), which this model needs" in batch.dropped[0][2]
    assert "'ru', and Cohere ASR knows ar, de, el" in batch.dropped[1][2]


def test_moonshine_takes_any_language():
    assert build("moonshine").processor.collate([example(1, language="xx"), example(1, language=None)]).dropped == []


def test_translations_are_asked_for_in_whispers_prompt(kind, tiny):
    asked = example(1, "eins", "de", extra={"translate": True})
    assert tiny.family.translates() == (kind == "whisper")
    if kind != "whisper":
        with pytest.raises(ConfigError, match=r"task\.translate: this .* transcribes and does not translate"):
            tiny.processor.collate([asked])
        return
    vocabulary = tiny.processor.tokenizer.get_vocab()
    for labels in (True, False):
        row = tiny.processor.collate([asked], labels=labels).inputs["input_ids"][0].tolist()
        prompt = [vocabulary[f"<|{token}|>"] for token in ("startoftranscript", "de", "translate", "notimestamps")]
        assert row[:4] == prompt
    japanese = example(1, "one", "ja", extra={"translate": True})
    assert tiny.processor.sequence(japanese)[0][4:] == tiny.processor.sequence(example(1, "one", "en"))[0][4:]


def test_mistakes_are_told(kind):
    title = MODELS[kind].title
    with pytest.raises(ConfigError, match=f"{title} has no such output"):
        family(kind).build(TaskRequirements("transcribe", ("text", "ctc")))
    with pytest.raises(ConfigError, match="vocab_size comes from the tokenizer"):
        build(kind, config={**CONFIGS[kind], "vocab_size": 100})
    if kind != "whisper":
        for key, value in {"merges": 3, "timestamps": 0.1, "full_window": 0.5}.items():
            with pytest.raises(ConfigError, match=f"model.{key}: {title} does not have it: leave it out"):
                build(kind, **{key: value})


def test_other_models_are_told_in_one_sentence():
    for model_type in ("wav2vec2", "no_such_thing"):
        with pytest.raises(ConfigError, match=f"a {model_type} model, which the family seq2seq has not; give whisper"):
            build(config={"model_type": model_type})
    with pytest.raises(ValueError, match="`config` needs `model_type`"):
        family(config={"d_model": 8})


def test_the_former_name_of_the_family_is_read_and_never_written(tmp_path):
    keys = {k: v for k, v in CONFIGS["whisper"].items() if k != "model_type"}
    before = Family.model_validate({"type": "whisper", "config": keys, "timestamps": 0.25})
    assert before == family(timestamps=0.25)
    folder = save(build(timestamps=0.25), tmp_path)
    facts = json.loads((folder / "stentor.json").read_text())
    assert facts["family"]["type"] == "seq2seq"
    facts["family"] |= {"type": "whisper", "config": keys}
    (folder / "stentor.json").write_text(json.dumps(facts))
    assert type(before).load(folder).family.model_dump() == before.model_dump()


def test_the_task_decodes_them(tiny):
    outputs = Transcribe(type="transcribe").predict(tiny, CLIPS)
    assert [set(o) >= {"text", "words", "log_prob"} for o in outputs] == [True] * 3
