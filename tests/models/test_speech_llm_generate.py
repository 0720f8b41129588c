"""Decoding: a batch is its items, greedy is transformers' greedy, beams find the best, log-probabilities are right."""

import itertools

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


def test_beams_that_cover_everything_find_the_best_answer():
    bundle = loud(build(texts=("ab",)))
    [item] = examples(seconds=(0.6,), texts=("",))
    eos, size, limit = bundle.processor.eos_id, len(bundle.processor.tokenizer), 3
    inputs = bundle.processor.collate([item], labels=False).inputs

    def score(ids):
        """Sum of log-probabilities by one forward pass over the whole."""
        model = bundle.model
        hidden, _ = model.frames(inputs["features"], inputs["feature_lengths"])
        prompt = model.embed(hidden, inputs["input_ids"], inputs["audio_index"], inputs["audio_rows"])
        tokens = torch.tensor([ids])
        embeds = torch.cat([prompt, model.llm.get_input_embeddings()(tokens)], 1)
        logits = model.llm(inputs_embeds=embeds).logits[0, prompt.shape[1] - 1 : -1].log_softmax(-1)
        return float(logits.gather(1, tokens.T).sum())

    others = [t for t in range(size) if t != eos]
    with torch.no_grad():
        candidates = {}
        for length in range(limit + 1):
            for ids in itertools.product(others, repeat=length):
                complete = list(ids) if length == limit else [*ids, eos]
                candidates[ids] = score(complete) / len(complete)
    best = max(candidates, key=candidates.get)
    [(answer, *_)] = run(bundle, [item], beams=size**2, max_new_tokens=limit)
    assert tuple(answer) == best
    [(greedy, *_)] = run(bundle, [item], max_new_tokens=limit)
    assert candidates[best] >= candidates[tuple(greedy)]


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
