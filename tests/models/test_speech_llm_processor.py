"""Labels, lengths, prompts and tokenizers."""

import numpy as np
import pytest
import torch
from tiny_speech_llm import ENCODERS, build, examples

from stentor.data.batch import Example
from stentor.data.cut import cut_from_record
from stentor.errors import ConfigError, DataError
from stentor.models.text.tokenizers import CTCAlphabet, bpe, characters, ctc_frames, padding_id

torch.set_num_threads(1)


@pytest.mark.parametrize("packed", [False, True])
def test_first_token_and_end_are_supervised_and_nothing_else(packed):
    bundle = build()
    processor = bundle.processor
    items = examples()
    batch = processor.collate(items, packed=packed)
    expected = [[*processor.tokenizer(e.text)["input_ids"], processor.eos_id] for e in items]
    assert batch.inputs["targets"].tolist() == [i for ids in expected for i in ids]
    assert batch.counts == {"text": sum(map(len, expected))}
    # the position that predicts a token is the one before it
    flat = batch.inputs["input_ids"].view(-1)
    assert torch.equal(flat[batch.inputs["label_index"] + 1], batch.inputs["targets"])
    # the first token is predicted at the end of the prompt, which is <s> here
    firsts = np.cumsum([0, *map(len, expected[:-1])])
    assert flat[batch.inputs["label_index"][firsts]].tolist() == [processor.tokenizer.bos_token_id] * 3


def test_training_pads_right_and_generation_left():
    processor = build().processor
    items = examples()
    train = processor.collate(items).inputs["input_ids"]
    assert (train[1:, -1] == processor.pad_id).all() and (train[1:, -1] != processor.eos_id).all()
    batch = processor.collate(items, labels=False)
    ids, mask = batch.inputs["input_ids"], batch.inputs["attention_mask"]
    assert (ids[:, -1] == processor.tokenizer.bos_token_id).all()
    assert mask.sum(1).tolist() == [processor.positions(len(e.audio)) + 1 for e in items]
    assert batch.counts == {} and "targets" not in batch.inputs
    assert (batch.inputs["position_ids"][:, -1] + 1).tolist() == mask.sum(1).tolist()


@pytest.mark.parametrize("encoder", ["whisper", "parakeet", "wav2vec2-base"])
@pytest.mark.parametrize("rate", [12.5, 25.0])
def test_tokens_of_a_cut_are_the_positions_it_takes(encoder, rate, tmp_path):
    processor = build(encoder, projector={"rate": rate}, prompt={"instruction": "write", "dropout": 0.0}).processor
    for seconds in (0.02, 0.1, 0.513, 1.2794, 3.0):
        record = {"audio_path": "a.wav", "duration": seconds, "text": "two one", "language": "en", "context": "zero"}
        cut = cut_from_record(record, tmp_path, "x")
        item = Example("a", np.zeros(round(seconds * 16000), np.float32), "two one", "en", "zero")
        batch = processor.collate([item])
        assert (
            processor.tokens(cut, seconds) == batch.tokens == batch.num_positions == batch.inputs["input_ids"].numel()
        )
        assert len(batch.inputs["audio_rows"]) == processor.positions(len(item.audio))


def test_batch_statistics():
    processor = build(ctc={}).processor
    batch = processor.collate(examples())
    assert batch.ids == ["0", "1", "2"]
    assert batch.seconds == pytest.approx(2.87)
    assert batch.num_positions == batch.inputs["input_ids"].numel() > batch.tokens
    assert batch.counts["ctc"] == sum(len(e.text) for e in examples())
    packed = processor.collate(examples(), packed=True)
    assert packed.num_positions == packed.tokens == batch.tokens


def test_ctc_leaves_out_what_cannot_be_aligned():
    processor = build(ctc={}).processor
    items = examples(seconds=(1.0, 0.2), texts=("one two three", "nine eight zero seven"))
    batch = processor.collate(items)
    assert batch.inputs["ctc_rows"].tolist() == [0]
    assert batch.counts["ctc"] == len("one two three") == len(batch.inputs["ctc_targets"])
    assert ctc_frames([1, 1, 2]) == 4


def test_prompt_has_instruction_language_and_context():
    processor = build(
        prompt={"instruction": "write it", "dropout": 0.0}, texts=("language: context: zoë.\n",)
    ).processor
    assert processor.prefix("en", "Zoë") == "write it Language: en. Context: Zoë\n"
    assert processor.prefix(None, None) == "write it\n"
    plain = build(prompt={"instruction": None, "language": False, "context": False}).processor
    assert plain.prefix("en", "Zoë") == ""
    with_language = processor.sequence(Example("a", language="en"), 16000, labels=True)
    without = processor.sequence(Example("a"), 16000, labels=True)
    assert len(with_language.before) - len(without.before) == len(" Language: en.")


def test_prompt_dropout_is_drawn_from_the_items_own_generator():
    processor = build(prompt={"instruction": None, "dropout": 0.5}).processor

    def lengths(seed):
        rng = np.random.default_rng(seed)
        return [len(processor.sequence(Example("a", language="en", rng=rng), 16000, True).before) for _ in range(40)]

    assert lengths(0) == lengths(0) != lengths(1)
    assert set(lengths(0)) == {0, len("Language: en.\n")}
    # never in generation
    rng = np.random.default_rng(0)
    prompts = [processor.sequence(Example("a", language="en", rng=rng), 16000, False).before for _ in range(9)]
    assert all(prompt == prompts[0] != [] for prompt in prompts)


def test_a_clip_beyond_the_encoders_positions_is_listed_or_refused():
    config = {**ENCODERS["whisper"], "max_source_positions": 50}
    processor = build(encoder={"config": config}).processor
    assert processor.max_seconds == 1.0
    batch = processor.collate(examples())
    assert batch.ids == ["1", "2"]
    assert [(d[0], d[1]) for d in batch.dropped] == [("0", "too_long")]
    with pytest.raises(DataError, match=r"0: 1\.3 s of audio; the encoder reads at most 1 s"):
        processor.collate(examples(), labels=False)


def test_most_new_tokens_follow_the_seconds():
    assert build().processor.max_new_tokens(2.0) == 66
    assert build(tokenizer={"type": "bpe"}).processor.max_new_tokens(2.0) == 28
    assert build(token_rate=10).processor.max_new_tokens(2.0) == 36


def test_characters_and_bpe_give_texts_back():
    texts = ["Zoë asked:  “why?”", "two\nlines", "naïve 漢字"]
    for tokenizer in (characters(texts), bpe(texts, 300)):
        for text in texts:
            ids = tokenizer(text, add_special_tokens=False)["input_ids"]
            assert tokenizer.decode(ids, skip_special_tokens=True) == text
        assert len({tokenizer.pad_token_id, tokenizer.bos_token_id, tokenizer.eos_token_id}) == 3
    assert characters(["ab"])("aXb")["input_ids"] == [4, 3, 5]
    assert bpe(["ab"], 300).decode(bpe(["ab"], 300)("漢")["input_ids"]) == "漢"


def test_padding_is_never_the_end_token():
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    def tokenizer(**special):
        words = {w: i for i, w in enumerate(["a", "b", "<|end|>", "<|fim_pad|>", "<|extra|>"])}
        return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel(words, unk_token="a")), **special)

    def chosen(**special):
        vocabulary = tokenizer(eos_token="<|end|>", **special)
        rows = len(vocabulary)
        assert padding_id(vocabulary) != vocabulary.eos_token_id and len(vocabulary) == rows
        return vocabulary.convert_ids_to_tokens(padding_id(vocabulary))

    assert chosen(pad_token="<|extra|>") == "<|extra|>"
    # Qwen2's base models: one token for both, and an unused one that says pad
    assert chosen(pad_token="<|end|>", extra_special_tokens=["<|extra|>", "<|fim_pad|>"]) == "<|fim_pad|>"
    assert chosen(pad_token="<|end|>", extra_special_tokens=["<|extra|>"]) == "<|extra|>"
    assert chosen() == "a"


def test_ctc_alphabet_spells():
    alphabet = CTCAlphabet("ab ")
    assert len(alphabet) == 4
    assert alphabet.encode("a bX") == [1, 3, 2]
    assert alphabet.decode([0, 1, 1, 0, 1, 3, 3, 2, 0]) == "aa b"


def test_spec_augment_of_an_example_reaches_its_features_only():
    settings = {"time_masks": 2, "time_width": 30, "freq_masks": 2, "freq_width": 20}
    for encoder in ("whisper", "wav2vec2-base"):
        processor = build(encoder).processor
        inputs = processor.collate(examples()).inputs
        plain, length = inputs["features"], inputs["feature_lengths"][1]
        items = examples()
        items[1].rng, items[1].extra = np.random.default_rng(0), {"spec_augment": settings}
        masked = processor.collate(items).inputs["features"]
        assert not torch.equal(masked[1, ..., :length], plain[1, ..., :length])
        assert torch.equal(masked[1, ..., length:], plain[1, ..., length:]) and length < plain.shape[-1]
        assert torch.equal(masked[[0, 2]], plain[[0, 2]])


@pytest.mark.parametrize(
    "sections, message",
    [
        ({"projector": {"rate": 13}}, r"50 frames a second are not a multiple of 13"),
        ({"encoder": {"config": {"model_type": "whisper", "d_modle": 32}}}, r"no 'd_modle' \(did you mean 'd_model'"),
        ({"encoder": {"config": {"model_type": "whispr"}}}, r"transformers knows no 'whispr' \(did you mean 'whisper'"),
        ({"encoder": {"config": {"model_type": "bert"}}}, r"bert encoders are not supported"),
        ({"encoder": {"config": {"model_type": "whisper", "d_model": "wide"}}}, r"model\.encoder\.config.*d_model"),
        (
            {"encoder": {"from": "./nowhere/at/all"}},
            r"model\.encoder\.from: the folder \./nowhere/at/all does not exist",
        ),
        ({"encoder": {"config": ENCODERS["wavlm"], "window": "30s"}}, r"30s is for Whisper encoders"),
        ({"llm": {"config": {"model_type": "whisper"}}, "texts": ()}, r"transcripts are empty"),
        ({"init": "nowhere"}, r"model\.init: nowhere is not an export folder"),
    ],
)
def test_mistakes_are_named(sections, message):
    with pytest.raises(ConfigError, match=message):
        build(**sections)
