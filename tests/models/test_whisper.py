"""Whisper: prompts and targets, equality with transformers, decoding, training, and exports that transformers reads."""

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
from tiny_families import save
from tiny_seq2seq import LORA, answers, build, example, family, loss
from tokenizers.models import BPE

from stentor.errors import ConfigError
from stentor.models.base import TaskRequirements
from tiny_configs import WHISPER

torch.set_num_threads(1)


@pytest.fixture(scope="module")
def tiny():
    return build()


@pytest.fixture(scope="module")
def english(tmp_path_factory):
    """A folder with a pretrained English-only Whisper, as transformers writes it."""
    folder = save(build(), tmp_path_factory.mktemp("english"))
    facts = json.loads((folder / "generation_config.json").read_text())
    del facts["lang_to_id"], facts["task_to_id"]
    (folder / "generation_config.json").write_text(json.dumps({**facts, "is_multilingual": False}))
    (folder / "stentor.json").unlink()
    return folder


def spoken(processor, example):
    """A training item's tokens as text."""
    return "".join(
        t.replace("Ġ", " ") for t in processor.tokenizer.convert_ids_to_tokens(processor.sequence(example)[0])
    )


@pytest.mark.parametrize("language", ["de", "de-DE", "DE_at", "German"])
def test_the_prompt_is_transformers_own(tiny, language):
    asked = tiny.processor.tokenizer
    asked.set_prefix_tokens(language="german", task="transcribe", predict_timestamps=False)
    ids, prompt = tiny.processor.sequence(example(1, language=language))
    assert ids == asked(" one two").input_ids and ids[:prompt] == asked.prefix_tokens


def test_an_english_only_model_gets_neither_language_nor_task(english):
    processor = build(**{"from": str(english)}).processor
    assert spoken(processor, example(1)) == "<|startoftranscript|><|notimestamps|> one two<|endoftext|>"
    batch = processor.collate([example(1), example(1, language=None), example(1, language="de", name="b")])
    assert "detect" not in batch.inputs and batch.counts == {"text": 18}
    assert [d[:2] for d in batch.dropped] == [("b", "unknown_language")] and "English only" in batch.dropped[0][2]
    ((_, reason, message),) = build().processor.collate([example(1, language="xx")]).dropped
    assert reason == "unknown_language" and "this Whisper does not know the language 'xx'" in message


def test_texts_begin_with_a_space_where_the_language_has_spaces(tiny):
    assert spoken(tiny.processor, example(1, "a", "ja")).endswith("<|notimestamps|>a<|endoftext|>")


def test_word_times_become_timestamp_tokens(tiny):
    p = tiny.processor
    times = [("One.", 0.1, 0.51), ("two", 0.6, 0.9), ("three", 1.0, 1.2), ("four", 2.0, 30.0)]
    words = [{"word": w, "start": s, "end": e} for w, s, e in times]
    ids = p.timed_ids("One. two three four", words, "en")
    zero = p.plain_id + 1
    text = p.tokenizer.decode
    marks = [i - zero for i in ids if i >= zero]
    assert marks == [5, 26, 30, 60, 100, 1500]  # in 20 ms: after the full stop and after the pause a new segment begins
    assert text([i for i in ids if zero + 30 > i or i > zero + 60]).count("four") == 1
    assert p.decode(ids) == " One. two three four"
    assert p.timed_ids("One. two", words, "en") is None  # the times are not those of this text
    assert p.timed_ids("ab", [{"word": w, "start": 0, "end": 1} for w in "ab"], "ja")[1:-1] == p._ids("ab", "ja")


def test_timestamps_are_mixed_in_by_share(tiny):
    times = [{"word": "one", "start": 0.0, "end": 0.5}, {"word": "two", "start": 0.5, "end": 1.0}]
    p = pickle.loads(pickle.dumps(tiny.processor))

    def timed(share, **keys):
        p.timestamps = share
        drawn = [
            p.sequence(example(1, rng=np.random.default_rng(i), extra={"times": times}, **keys)) for i in range(200)
        ]
        return sum(p.plain_id not in ids and ids[-1] == p.eos_id for ids, _ in drawn)

    assert (timed(0.0), timed(1.0)) == (0, 200) and 70 < timed(0.5) < 130
    assert timed(1.0, text="one two three") == 0
    p.timestamps = 1.0
    evaluated = p.sequence(example(1, extra={"times": times}))
    assert p.plain_id in evaluated[0]


def test_fewer_merges_cut_texts_into_smaller_tokens_also_after_an_export(english, tmp_path):
    from transformers import WhisperTokenizer

    asked = WhisperTokenizer.from_pretrained(english)
    vocabulary, merges = dict(asked.get_vocab()), [("Ġ", "o"), ("Ġo", "n"), ("Ġon", "e")]
    # Tokens of bytes make room for those of the merges: the ids of special tokens must stay.
    for unused, (a, b) in zip("ÿþý", merges):
        vocabulary[a + b] = vocabulary.pop(unused)
    asked.backend_tokenizer.model = BPE(vocab=vocabulary, merges=merges)
    folder = shutil.copytree(english, tmp_path / "base")
    asked.save_pretrained(folder)
    bundle = build(**{"from": str(folder), "merges": 2})
    for processor in (bundle.processor, type(bundle.family).load(save(bundle, tmp_path / "export")).processor):
        ids = processor._ids("one", "en")
        assert processor.tokenizer.convert_ids_to_tokens(ids) == ["Ġon", "e"]
        assert processor.eos_id == asked.eos_token_id and processor.decode(ids) == " one"
    unchanged = build(**{"from": str(folder)}).processor
    assert unchanged.tokenizer.convert_ids_to_tokens(unchanged._ids("one", "en")) == ["Ġone"]


def training(lengths, seed=0, **extra):
    """Examples as training has them, with a generator each."""
    return [
        example(s, name=str(i), rng=np.random.default_rng((seed, i)), extra=dict(extra)) for i, s in enumerate(lengths)
    ]


def test_training_fills_the_window_unless_told_otherwise(tiny):
    clips = training([0.5, 3])
    evaluated, trained = (tiny.processor.collate(c).inputs for c in ([example(0.5), example(3)], clips))
    assert trained.keys() == evaluated.keys() and all(trained[k].equal(evaluated[k]) for k in trained)
    untouched = [np.random.default_rng((0, i)).bit_generator.state for i in range(2)]
    assert [e.rng.bit_generator.state for e in clips] == untouched


@pytest.mark.parametrize("longest, frames", [(0.5, 150), (1.0, 200), (1.01, 250), (28.9, 3000), (30, 3000)])
def test_a_short_window_ends_a_second_after_the_longest_clip(tiny, longest, frames):
    processor = build(full_window=0.0).processor
    masked = {"spec_augment": {"time_masks": 1, "freq_masks": 1}}
    full, short = (p.collate(training([longest, 0.3], **masked)) for p in (tiny.processor, processor))
    assert short.inputs["features"].equal(full.inputs["features"][:, :, :frames])
    assert short.num_positions == full.num_positions - 2 * (1500 - frames // 2) and short.counts == full.counts
    for labels in (True, False):  # evaluation and generation do as plain transformers
        fixed = processor.collate([example(longest), example(0.3)], labels=labels).inputs["features"]
        assert fixed.shape[2] == 3000


def test_a_short_windows_loss_repeats_and_moves_the_whole_encoder():
    bundle = build(full_window=0.0)
    losses = [loss(bundle, *training([0.5, 2])) for _ in range(2)]
    assert losses[0].equal(losses[1])
    losses[0].backward()
    assert all(p.grad.abs().sum() > 0 for p in bundle.model.model.encoder.layers.parameters() if p.ndim > 1)


def test_a_short_window_is_transformers_encoder_with_as_many_positions(tiny):
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    tiny.model.eval()
    encoder = tiny.model.model.encoder
    config = type(encoder.config)(**{**encoder.config.to_dict(), "max_source_positions": 75})
    short = WhisperEncoder._from_config(config, attn_implementation="sdpa").eval()
    weights = encoder.state_dict()
    weights["embed_positions.weight"] = weights["embed_positions.weight"][:75]
    short.load_state_dict(weights)
    features = tiny.processor.features([example(0.5), example(1.4)])[:, :, :150]
    assert tiny.model.encode(features)[0].equal(short(features).last_hidden_state)


def test_the_share_of_whole_windows_is_drawn_from_the_items():
    processor = build(full_window=0.3).processor
    drawn = [processor.window(training([1.0, 2.0], seed)) for seed in range(300)]
    assert set(drawn) == {48000, 480000} and 60 < drawn.count(480000) < 120
    again = pickle.loads(pickle.dumps(processor))
    assert drawn == [again.window(training([1.0, 2.0], seed)) for seed in range(300)]


def test_an_unnamed_language_is_heard(tiny):
    tiny.model.eval()
    inputs = tiny.processor.collate([example(2, language=None), example(2)], labels=False).inputs
    ids = tiny.model.prompted(tiny.model.encode(inputs["features"]), inputs["input_ids"], inputs["detect"])
    assert ids[0, 1] in tiny.processor.languages.values() and ids[0, 0] == ids[1, 0]
    assert ids[1].tolist() == tiny.processor.prompt("en")
    code = next(c for c, i in tiny.processor.languages.items() if i == ids[0, 1])
    assert answers(tiny, example(2, language=None))[0][0] == answers(tiny, example(2, language=code))[0][0]
    batch = tiny.processor.collate([example(2, language=None)])
    assert batch.inputs["targets"].tolist() == [*tiny.processor._ids("one two", None), tiny.processor.eos_id]


def test_the_probability_that_nobody_speaks_is_that_of_its_token(tiny):
    """As in Whisper: the token's probability after the start token, whatever the prompt goes on with."""
    item, other = example(1), example(2, name="b", language=None)
    probabilities = [output.no_speech for output in answers(tiny, item, other)]
    model, id = tiny.model, tiny.processor.tokenizer.get_vocab()["<|nospeech|>"]
    features = tiny.processor.collate([item, other], labels=False).inputs["features"]
    start = torch.full((2, 1), tiny.processor.start_id)
    with torch.no_grad():
        states = model.model(input_features=features, decoder_input_ids=start).last_hidden_state
        expected = model.proj_out(states[:, -1]).softmax(-1)[:, id]
    assert probabilities == pytest.approx(expected.tolist(), rel=1e-4) and min(probabilities) > 0


def test_nobody_speaks_where_whisper_says_so(tiny):
    from stentor.tasks.transcribe import Transcribe

    task = Transcribe.model_validate({"type": "transcribe", "checks": {"no_speech": 0.5, "mean_log_prob": -0.001}})
    bias = torch.zeros(tiny.model.config.vocab_size)
    bias[tiny.model.no_speech_id] = 20.0
    original = tiny.model.proj_out.forward
    tiny.model.eval()
    tiny.model.suppressed = [tiny.model.no_speech_id]
    decoded = []
    generate, tiny.model.generate = tiny.model.generate, lambda *a, **o: decoded.append(1) or generate(*a, **o)
    try:
        tiny.model.proj_out.forward = lambda states: original(states) + bias
        (output,) = task.predict(tiny, [example(1)], checked=True)
    finally:
        tiny.model.proj_out.forward = original
        del tiny.model.generate
        tiny.model.suppressed = []
    assert output["no_speech_prob"] > 0.9 and "no_speech" in output["failed"]
    assert len(decoded) == 1  # it is not decoded again at higher temperatures


def test_suppressed_tokens_are_not_written(tiny):
    (before,), model = answers(tiny, example(1)), tiny.model
    try:
        model.suppressed_first = [before[0][0]]
        assert answers(tiny, example(1))[0][0][0] != before[0][0]
        model.suppressed_first, model.suppressed = [], sorted(set(before[0]))
        assert not set(answers(tiny, example(1))[0][0]) & set(before[0])
    finally:
        model.suppressed_first = model.suppressed = []


def test_mistakes_are_told(tmp_path, english):
    with pytest.raises(ConfigError, match="matches nothing"):
        build(lora={**LORA, "targets": ["*.query"]})
    with pytest.raises(ConfigError, match="max_source_positions must be 1500"):
        family(config={**WHISPER, "max_source_positions": 100}).build(TaskRequirements("transcribe"))
    with pytest.raises(ConfigError, match=r"no 'd_modle' \(did you mean 'd_model'\?\)"):
        family(config={"model_type": "whisper", "d_modle": 8}).build(TaskRequirements("transcribe"))
    with pytest.raises(ConfigError, match="describe the same Whisper"):
        build(config={**WHISPER, "d_model": 16}, init=str(english))
    with pytest.raises(ValueError, match="either `from`"):
        family(**{"from": "openai/whisper-tiny", "config": WHISPER})


@pytest.mark.long
def test_the_cards_example_runs_without_stentor(english, tmp_path):
    """Of a plain export the card names transformers, and its snippet is run; of adapters it names PEFT."""
    import re

    from huggingface_hub import ModelCard

    from stentor.publish.card import write_card
    from stentor.publish.model import complete

    config = {"name": "mine", "task": {"type": "transcribe"}, "data": {"train": [{"type": "jsonl", "path": "a"}]}}
    for keys, library in (({"config": WHISPER}, "transformers"), ({"from": str(english), "lora": LORA}, "peft")):
        folder = save(build(**keys), tmp_path / library)
        text = write_card(folder, {**config, "model": {"type": "seq2seq", **keys}}, {"eval": {}}).read_text()
        assert ModelCard(text).data.library_name == library
        assert ("from transformers import pipeline" in text) == (library == "transformers")
        text = complete(text, "mine", "me/mine", "mit", False, {}, {})
        if library == "transformers":
            code = re.search(r"```python\n(from transformers.*?)```", text, re.S)[1]
            assert 'model="me/mine"' in code and 'stentor.load("me/mine")' in text
            code = code.replace("me/mine", str(folder)).replace('"speech.wav"', "clip").replace("print(", "repr(")
            exec(code, {"clip": example(1).audio})
