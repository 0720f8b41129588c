"""Policy gradients of a model that speaks: what is drawn, what it earns, and how likely it is said to be."""

import dataclasses

import numpy as np
import pytest
import torch
from tiny_omnivoice import LLMS

from stentor.data.load_audio import load_audio
from stentor.errors import ConfigError
from stentor.inference.evaluators import recognizer
from stentor.losses.codebook import Codebook
from stentor.losses.sequence import PolicyGradient
from stentor.models.base import Family
from stentor.sources.base import Source
from stentor.tasks.base import Task
from stentor.tasks.speak.evaluator import LoadedEvaluator

LLM = {**LLMS["qwen3"], "initializer_range": 0.1}


@pytest.fixture
def hears_every_other(monkeypatch):
    """A recogniser that hears `one two three` in every other clip that it is given, and nothing in between."""

    def listen(audios, languages):
        return ["one two three" if i % 2 else "" for i in range(len(audios))]

    monkeypatch.setattr(recognizer.Recognizer, "load", lambda self, device="cpu": LoadedEvaluator(16000, listen))


def speaking(corpus, judges):
    """A task with a sequence loss, a tiny bundle and examples of the corpus."""
    task = Task.model_validate({"type": "speak", "generation": {"steps": 3}, "drop_cond_ratio": 0.5, "judges": judges})
    losses = {"codes": Codebook(), "reward": PolicyGradient(hypotheses=4)}
    requirements = task.requirements(losses)
    assert requirements.terms == ("codes",)
    source = Source.model_validate({"type": "jsonl", "path": str(corpus / "train.jsonl"), "limit": 3})
    cuts = list(source.cuts())
    requirements.texts, requirements.cuts = lambda: iter(["one two three four five six"]), lambda: iter(cuts)
    section = {"type": "omnivoice", "llm": {"config": LLM}, "text": {"type": "characters"}}
    section["codec"] = {"type": "mel_rvq", "codebooks": 2, "entries": 16, "rounds": 2}
    torch.manual_seed(0)
    bundle = Family.model_validate(section).build(requirements)
    rngs = (np.random.default_rng(number) for number in range(3))
    examples = [task.example(c, load_audio(c, bundle.processor.sample_rate), rng) for c, rng in zip(cuts, rngs)]
    return task, bundle, examples, losses


def test_utterances_are_scored_by_the_cells_that_are_masked(hears_every_other, corpus):
    task, bundle, examples, losses = speaking(corpus, [{"type": "recognizer", "from": "x"}])
    bundle.model.train()
    batch = task.collate(examples, bundle.processor, False)
    assert batch.counts["reward"] == 3 and all(e.audio is None for e in batch.search.examples)
    task.add_hypotheses(bundle, batch, losses)
    assert bundle.model.training
    bundle.model.eval()
    hypotheses, facts = batch.inputs["hypotheses"], batch.search.facts
    assert facts["clips"].tolist() == [i for i in range(3) for _ in range(4)]
    assert facts["errors"].min() < facts["errors"].max()
    outputs = bundle.model(**batch.inputs)
    # The same cells are masked in all utterances of a clip, and one by one they are as likely.
    masks = (hypotheses["input_ids"] == bundle.model.mask_id) & hypotheses["audio_mask"][:, None]
    for row, clip in enumerate(facts["clips"].tolist()):
        assert torch.equal(masks[row], masks[4 * clip]) and masks[row].any()
        length = int(hypotheses["lengths"][row]) if "lengths" in hypotheses else masks.shape[-1]
        own = {k: hypotheses[k][row : row + 1, ..., :length] for k in ("input_ids", "audio_mask")}
        log_probs = bundle.model.logits(**own).log_softmax(-1)[0]
        score, cells, first = 0.0, 0, 0
        size = masks.shape[-1]
        for c in range(2):
            targets = hypotheses[f"targets_{c}"]
            rows = hypotheses["rows"][first : first + len(targets)]
            first += len(targets)
            for at, code in zip(rows.tolist(), targets.tolist()):
                if at // size == row:
                    score, cells = score + float(log_probs[c, at % size, code].detach()), cells + 1
        assert float(outputs["hypotheses"]["log_probs"][row].detach()) == pytest.approx(score / cells, abs=1e-4)
    sums = task.loss_sums(bundle.model, batch, {"reward": losses["reward"]})
    sums["reward"].backward()
    assert any(p.grad is not None and p.grad.any() for p in bundle.model.parameters())


def test_the_same_items_are_spoken_alike_in_any_batch(hears_every_other, corpus):
    task, bundle, examples, losses = speaking(corpus, [{"type": "recognizer", "from": "x"}])
    written = {}
    for name, part in (("all", examples), ("last", examples[2:])):
        batch = task.collate(part, bundle.processor, False)
        task.add_hypotheses(bundle, batch, losses)
        hypotheses = batch.inputs["hypotheses"]
        length = int(hypotheses["lengths"][-1]) if "lengths" in hypotheses else hypotheses["input_ids"].shape[-1]
        written[name] = hypotheses["input_ids"][-4:, :, :length]
    assert torch.equal(written["all"], written["last"])
    assert len({tuple(row.flatten().tolist()) for row in written["all"]}) > 1


def test_copies_of_a_record_are_items_of_their_own(hears_every_other, corpus):
    """Of two, as `repeat` makes them, one has codes that are not the model's."""
    task, bundle, (good, *_), losses = speaking(corpus, [{"type": "recognizer", "from": "x"}])
    bad = dataclasses.replace(good, extra={**good.extra, "codes": np.full((2, 9), 99)})
    batch = task.collate([bad, good], bundle.processor, False)
    assert batch.ids == [good.id] and len(batch.search.examples) == 1
    task.add_hypotheses(bundle, batch, losses)
    assert set(batch.search.facts["clips"].tolist()) == {0}


def test_without_a_recogniser_there_is_no_reward(corpus):
    with pytest.raises(ConfigError, match=r"losses\.reward: the reward needs a recogniser"):
        speaking(corpus, [])
