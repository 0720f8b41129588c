"""Hypotheses and their log-probabilities in each kind of decoder: against the training forward, text by text, and
against all texts (or all alignments) there are."""

import dataclasses
import itertools

import numpy as np
import pytest
import torch
from tiny_families import KINDS

from stentor.data.batch import Example
from stentor.losses.all_paths import CTCLoss, RNNTLoss, TDTLoss
from stentor.losses.sequence import MWER, PolicyGradient
from stentor.losses.token import CrossEntropy
from stentor.metrics.wer import align
from stentor.tasks.hypotheses.texts import item_seed
from stentor.tasks.transcribe import Transcribe

OWN = {
    "shared": {"layers": 1, "d_model": 32, "heads": 2, "d_ff": 64, "dropout": 0.0},
    "features": {"num_mel_bins": 20, "stack": 4, "subsample": 4, "normalize": "fixed"},
}
KEYS = {
    "whisper": {"full_window": 0.0},
    "transformer": OWN,
    "transformer_encoder": OWN,
    "transducer": {"ctc": None, "times": False},
}
HEARD = ("whisper", "transformer", "transformer_encoder", "speech_llm", "qwen3_asr", "ctc_wav2vec2", "transducer")
TERMS = {"transformer": ("text",), "transducer": ("rnnt",)}


def written(folder, kind, **keys):
    """A bundle of a kind."""
    entry = KINDS[kind]
    entry = dataclasses.replace(entry, terms=TERMS.get(kind, entry.terms))
    bundle = entry.build(folder, texts=("ab", "b a"), **{**KEYS.get(kind, {}), **keys})
    torch.manual_seed(1)
    for parameter in bundle.model.parameters():  # so that not all texts are nearly equally likely
        if parameter.requires_grad:
            parameter.data.add_(0.05 * torch.randn_like(parameter))
    return bundle


def clips(seconds=(0.55, 0.8)):
    rng = np.random.default_rng(0)
    return [
        Example(
            str(i), (0.1 * rng.standard_normal(round(16000 * s))).astype(np.float32), "ab", rng=np.random.default_rng(i)
        )
        for i, s in enumerate(seconds)
    ]


def searched(bundle, loss, examples, most=None):
    """The batch of examples with its hypotheses, of at most so many tokens."""
    task = Transcribe(normalizer="none")
    task.requirements({"text": CrossEntropy(), "seq": loss})
    batch = task.collate(examples, bundle.processor, False)
    if most is not None:
        batch.search.limits = [most] * len(examples)
    task.add_hypotheses(bundle, batch, {"seq": loss})
    return batch


def texts(bundle, batch):
    """(clip, tokens without the end token) of the hypotheses, and whether they came to their end."""
    hypotheses = batch.inputs["hypotheses"]
    end = bundle.processor.eos_id if bundle.capabilities.ends_text else None
    for clip, row in zip(hypotheses["clips"].tolist(), hypotheses["targets"].tolist()):
        ids = [i for i in row if i >= 0]
        ended = end is not None and ids[-1:] == [end]
        yield clip, ids[:-1] if ended else ids, ended


def training_log_prob(bundle, example, ids, ended, monkeypatch):
    """What the loss of ordinary training says of a text of these tokens, one clip at a time."""
    processor = bundle.processor
    with monkeypatch.context() as patch:
        for name in ("ids", "_ids", "text_ids"):
            if (original := getattr(processor, name, None)) is not None:

                def tokens(text, *more, original=original):
                    return list(ids) if getattr(text, "text", text) == example.text else original(text, *more)

                patch.setattr(processor, name, tokens)
        if hasattr(processor, "answer"):
            patch.setattr(processor, "answer", lambda *_: [*ids, processor.eos_id])
        if alphabet := getattr(processor, "ctc", None):
            patch.setattr(alphabet, "encode", lambda _: list(ids))
        if hasattr(processor, "spelling"):
            patch.setattr(processor.spelling, "encode", lambda _: (list(ids), []))
            patch.setattr(processor, "untrainable", lambda *_: None, raising=False)
        inputs = processor.collate([example]).inputs
    outputs = bundle.model(**inputs)
    loss = {"text": CrossEntropy(), "ctc": CTCLoss(), "rnnt": RNNTLoss(), "tdt": TDTLoss()}
    term = next(term for term in ("text", "tdt", "rnnt", "ctc") if term in outputs)
    if term == "text" and not ended:
        outputs["text"]["targets"] = torch.cat([outputs["text"]["targets"][:-1], torch.tensor([-100])])
    return -loss[term].sum(**outputs[term])


def gradients(bundle, value):
    parameters = {n: p for n, p in bundle.model.named_parameters() if p.requires_grad}
    return dict(zip(parameters, torch.autograd.grad(value, list(parameters.values()), allow_unused=True)))


def same_gradients(bundle, value, expected):
    ours, theirs = gradients(bundle, value), gradients(bundle, expected)
    assert sum(g is not None and bool(g.any()) for g in theirs.values()) > 5
    for name, gradient in theirs.items():
        if gradient is not None and ours[name] is not None:
            torch.testing.assert_close(ours[name], gradient, rtol=1e-3, atol=2e-5, msg=name)
        else:
            assert not any(g is not None and g.any() for g in (gradient, ours[name])), name


@pytest.mark.parametrize("kind", [*HEARD, "parakeet_tdt"])
def test_loss_and_gradient_are_those_of_the_texts_scored_one_by_one(kind, tmp_path, monkeypatch):
    bundle = written(tmp_path, kind)
    examples = clips()
    batch = searched(bundle, MWER(hypotheses=4), examples, most=5)
    found = list(texts(bundle, batch))
    assert [clip for clip, *_ in found].count(0) > 1 and [clip for clip, *_ in found].count(1) > 1
    assert len({(clip, tuple(ids)) for clip, ids, _ in found}) == len(found)
    # Untrained models make as many errors in all texts: numbers of our own.
    errors = torch.tensor([float(3 * i % 7) for i in range(len(found))])
    log_probs = bundle.model(**batch.inputs)["hypotheses"]["log_probs"]
    one_by_one = torch.stack([training_log_prob(bundle, examples[c], ids, end, monkeypatch) for c, ids, end in found])
    torch.testing.assert_close(log_probs, one_by_one, rtol=1e-4, atol=1e-4)
    expected = 0.0
    for clip in (0, 1):
        rows = [i for i, (c, *_) in enumerate(found) if c == clip]
        expected = expected + (one_by_one[rows].softmax(0) * (errors[rows] - errors[rows].mean())).sum()
    loss = MWER().sum(log_probs=log_probs, errors=errors, clips=batch.search.facts["clips"])
    torch.testing.assert_close(loss, expected, rtol=1e-3, atol=1e-4)
    same_gradients(bundle, loss, expected)


def test_copies_of_a_record_are_items_of_their_own(tmp_path):
    """Of two, as `repeat` makes them, one is too short for its text when it is played faster."""
    bundle = written(tmp_path, "ctc_wav2vec2")
    short, long = (dataclasses.replace(clip, id="same", text="abababab") for clip in clips([0.06, 1.0]))
    seed = item_seed(long)
    batch = searched(bundle, MWER(hypotheses=3), [short, long])
    assert batch.ids == ["same"] and len(batch.dropped) == 1
    assert batch.search.seeds == [seed] and batch.search.limits == [bundle.processor.max_new_tokens(1.0)]
    seeds = [item_seed(clip) for clip in clips([1.0, 1.0])]
    both = [dataclasses.replace(clip, id="same") for clip in clips([1.0, 1.0])]
    assert searched(bundle, MWER(hypotheses=3), both).search.seeds == seeds and len(set(seeds)) == 2


def test_texts_that_fill_all_positions_have_no_end(tmp_path):
    bundle = written(tmp_path, "transformer", decoder={"positions": "learned", "max_positions": 6})
    batch = searched(bundle, MWER(hypotheses=4), clips())
    assert batch.search.limits == [5, 5]
    found = list(texts(bundle, batch))
    assert any(len(ids) == 5 for _, ids, _ in found)
    assert all(ended == (len(ids) < 5) for _, ids, ended in found)


@pytest.mark.parametrize("kind", ["transformer", "speech_llm"])
def test_gradient_is_that_of_the_expected_errors_over_all_texts(kind, tmp_path, monkeypatch):
    bundle = written(tmp_path, kind)
    example = clips()[0]
    tokens = [i for i in range(len(bundle.processor.tokenizer)) if i != bundle.processor.eos_id]
    everything = [ids for n in range(3) for ids in itertools.product(tokens, repeat=n)]
    loss = MWER(hypotheses=len(everything), units="characters")
    batch = searched(bundle, loss, [example], most=2)
    assert sorted(tuple(ids) for _, ids, _ in texts(bundle, batch)) == sorted(everything)
    outputs = bundle.model(**batch.inputs)
    value = loss.sum(**outputs["hypotheses"], **batch.search.facts)
    expected = 0.0
    for ids in everything:
        probability = training_log_prob(bundle, example, ids, len(ids) < 2, monkeypatch).exp()
        said = " ".join(bundle.processor.decode(list(ids)).split())
        expected = expected + probability * sum(step != "equal" for step, *_ in align(list("ab"), list(said)))
    same_gradients(bundle, value, expected)
    assert float(expected.detach()) == pytest.approx(
        float(value.detach()) + float(batch.search.facts["errors"].mean()), rel=1e-4
    )


def test_gradient_of_ctc_is_that_of_the_expected_errors_over_all_paths(tmp_path):
    bundle = written(tmp_path, "transformer_encoder")
    example = clips([0.2])[0]
    loss = MWER(hypotheses=200, units="characters")
    batch = searched(bundle, loss, [example])
    value = loss.sum(**bundle.model(**batch.inputs)["hypotheses"], **batch.search.facts)
    hidden, frames = bundle.model.encode(batch.inputs["features"], batch.inputs["lengths"])
    log_probs = bundle.model.ctc_log_probs(hidden)[0, : int(frames)]
    count, classes = log_probs.shape
    assert 3 <= count <= 5 and classes == 4
    expected = 0.0
    for path in itertools.product(range(classes), repeat=count):
        said = " ".join(bundle.processor.decode([c for c, _ in itertools.groupby(path) if c]).split())
        errors = sum(step != "equal" for step, *_ in align(list("ab"), list(said)))
        expected = expected + errors * log_probs[torch.arange(count), list(path)].sum().exp()
    same_gradients(bundle, value, expected)


def test_texts_are_drawn_as_often_as_they_are_likely(tmp_path):
    bundle = written(tmp_path, "transformer")
    count, temperature = 600, 1.4
    loss = PolicyGradient(hypotheses=count, temperature=temperature)
    bundle.model.train()
    before = torch.get_rng_state()
    both = searched(bundle, loss, clips(), most=2)
    assert bundle.model.training and torch.equal(torch.get_rng_state(), before)
    bundle.model.eval()
    probs = bundle.model(**both.inputs)["hypotheses"]["log_probs"].exp()
    shares = both.search.facts["copies"] / count
    assert (shares - probs).abs().max() < 4 * (0.25 / count) ** 0.5
    spread = (probs * (1 - probs) / count).sqrt()
    assert ((shares - probs).abs() / spread).square().mean() < 2
    first = both.inputs["hypotheses"]["clips"] == 0
    alone = searched(bundle, loss, clips()[:1], most=2)
    drawn = {tuple(ids): int(n) for (_, ids, _), n in zip(texts(bundle, alone), alone.search.facts["copies"])}
    again = {tuple(ids): int(n) for (c, ids, _), n in zip(texts(bundle, both), both.search.facts["copies"]) if c == 0}
    assert drawn == again and int(first.sum()) == len(drawn)


def test_kl_compares_with_the_model_without_its_adapters(tmp_path):
    bundle = written(tmp_path, "speech_llm", lora={"rank": 2, "alpha": 4, "dropout": 0.0})
    batch = searched(bundle, PolicyGradient(hypotheses=4, kl=0.1), clips(), most=4)
    now = bundle.model(**batch.inputs)["hypotheses"]["log_probs"]
    start = batch.search.facts["start_log_probs"]
    assert (now - start).abs().max() > 1e-3
    for name, parameter in bundle.model.named_parameters():
        if ".lora_B" in name:
            parameter.data.zero_()
    torch.testing.assert_close(bundle.model(**batch.inputs)["hypotheses"]["log_probs"], start)
