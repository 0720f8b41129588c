"""Decoding: a batch is its items, greedy is transformers' greedy, log-probabilities are right."""

import pytest
import torch
from tiny_speech_llm import LLMS, build, examples

torch.set_num_threads(1)


def loud(bundle):
    """Larger weights, so that the untrained model has opinions."""
    torch.manual_seed(3)
    for parameter in bundle.model.parameters():
        parameter.data.add_(0.1 * torch.randn_like(parameter))
    return bundle


def run(bundle, items, **options):
    inputs = bundle.processor.collate(items, labels=False).inputs
    return bundle.model.generate(inputs, **{"max_new_tokens": 8, "eos_ids": {bundle.processor.eos_id}, **options})


@pytest.mark.parametrize("llm", ["qwen2", "llama", "mistral", "gemma2", "gpt2", "phi"])
@pytest.mark.parametrize("beams", [1, 3])
def test_a_batch_is_its_items_one_by_one(llm, beams):
    bundle = loud(build(llm=llm))
    items = examples()
    together = run(bundle, items, beams=beams)
    assert len({len(ids) for ids, *_ in together}) >= 1
    for item, (ids, scores, *_) in zip(items, together):
        [(alone, alone_scores, *_)] = run(bundle, [item], beams=beams)
        assert ids == alone
        assert scores == pytest.approx(alone_scores, abs=1e-4)


@pytest.mark.parametrize("llm", LLMS)
def test_greedy_is_transformers_greedy(llm):
    bundle = loud(build(llm=llm))
    model = bundle.model
    inputs = bundle.processor.collate(examples(), labels=False).inputs
    hidden, _ = model.frames(inputs["features"], inputs["feature_lengths"])
    embeds = model.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
    eos = bundle.processor.eos_id
    theirs = model.llm.generate(
        inputs_embeds=embeds,
        attention_mask=inputs["attention_mask"],
        max_new_tokens=8,
        do_sample=False,
        eos_token_id=eos,
        pad_token_id=bundle.processor.pad_id,
    )
    ours = run(bundle, examples())
    for (ids, *_), row in zip(ours, theirs.tolist()):
        assert ids == (row[: row.index(eos)] if eos in row else row)


@pytest.mark.parametrize("beams", [1, 4])
def test_log_probabilities_are_those_of_the_forward_pass(beams):
    bundle = loud(build())
    items = examples()
    for item, (ids, scores, *_) in zip(items, run(bundle, items, beams=beams)):
        item.text = bundle.processor.tokenizer.decode(ids)
        batch = bundle.processor.collate([item])
        head = bundle.model(**batch.inputs)["text"]
        logits = torch.nn.functional.linear(head["hidden"], head["weight"], head["bias"]).log_softmax(-1)
        if batch.inputs["targets"].tolist()[:-1] != ids:
            continue  # special tokens do not come back from text
        expected = logits[: len(ids)].gather(1, head["targets"][: len(ids), None]).squeeze(1)
        assert scores == pytest.approx(expected.tolist(), abs=1e-4)


def test_limits_hold_for_each_item():
    bundle = loud(build())
    for beams in (1, 2):
        results = run(bundle, examples(), eos_ids=set(), max_new_tokens=[2, 5, 3], beams=beams)
        assert [len(ids) for ids, *_ in results] == [2, 5, 3]


def test_the_end_token_stops_an_item_and_is_left_out():
    bundle = loud(build())
    free = run(bundle, examples(), eos_ids=set(), max_new_tokens=6)
    stop = free[0][0][2]  # the third token of the first item
    stopped = run(bundle, examples(), eos_ids={stop}, max_new_tokens=6)
    for (ids, *_), (cut, scores, *_) in zip(free, stopped):
        expected = ids[: ids.index(stop)] if stop in ids else ids
        assert cut == expected and len(scores) == len(cut)


def test_sampling_repeats_with_its_generator():
    bundle = loud(build())

    def generators(seed):
        return [torch.Generator().manual_seed(seed + i) for i in range(len(examples()))]

    def draw(seed):
        return run(bundle, examples(), temperature=1.0, generators=generators(seed))

    assert draw(0) == draw(0)
    assert draw(0) != draw(1)
    coldest = run(bundle, examples(), temperature=1e-308, generators=generators(0))
    assert coldest == run(bundle, examples())


def test_ctc_decoding_of_a_batch_is_that_of_its_items():
    bundle = loud(build(ctc={}))
    items = examples()
    together = bundle.model.ctc_classes(**bundle.processor.collate(items, labels=False).inputs)
    assert [len(path) for path in together] == [65, 30, 49]
    for item, path in zip(items, together):
        assert path == bundle.model.ctc_classes(**bundle.processor.collate([item], labels=False).inputs)[0]
    assert isinstance(bundle.processor.ctc.decode(together[0]), str)
