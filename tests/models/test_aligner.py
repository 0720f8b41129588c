"""The alignment module: the grid, the heads, decoding; the same times in any batch and layout."""

import itertools

import numpy as np
import pytest
import torch
from tiny_speech_llm import TEXTS, build, examples, family, spoken_for

from stentor.data.batch import Example
from stentor.data.word_units import units
from stentor.errors import ConfigError
from stentor.losses.base import Loss
from stentor.models.base import TaskRequirements
from stentor.models.speech_llm.aligner import inverse, pick, uneven
from stentor.models.speech_llm.boundaries import LOW, Scores, decode, increasing, refine, repair
from stentor.models.speech_llm.config import AlignerSection

torch.set_num_threads(1)

KINDS = ("attention", "slots")


def aligned(encoder="whisper", kind="attention", **sections):
    """A bundle with an aligner that is shaken, so that it says something."""
    return spoken_for(encoder, kind=kind, shaken=("aligner",), **sections)


def timed(items):
    """The examples with words whose times lie evenly in the clip."""
    for e in items:
        words = units(e.text, None)
        part = len(e.audio) / 16000 / max(len(words), 1)
        e.extra["words"] = [w | {"start": i * part, "end": (i + 0.8) * part} for i, w in enumerate(words)]
    return items


def times(bundle, items):
    with torch.no_grad():
        return bundle.model.align(**bundle.processor.collate(timed(items)).inputs)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("encoder", ["whisper", "parakeet", "wav2vec2-base"])
def test_times_do_not_depend_on_the_batch(encoder, kind):
    bundle = aligned(encoder, kind)
    items = examples(seconds=(1.3, 0.6, 0.97))
    with torch.no_grad():
        together = bundle.model(**bundle.processor.collate(timed(items)).inputs)["alignment"]
        for i, item in enumerate(items):
            alone = bundle.model(**bundle.processor.collate(timed([item])).inputs)["alignment"]
            words, points = alone["start"].shape[1:]
            assert points == alone["points"] == together["points"][i]
            for slot in ("start", "end"):
                torch.testing.assert_close(together[slot][i, :words, :points], alone[slot][0], atol=2e-4, rtol=1e-4)
                assert together[slot][i, :words, points:].exp().sum() == 0
    (batch_times, batch_sure, batch_probs) = times(bundle, items)
    for i, item in enumerate(items):
        item_times, sure, probs = times(bundle, [item])
        words = item_times.shape[1]
        torch.testing.assert_close(batch_times[i, :words], item_times[0], atol=1e-3, rtol=0)
        torch.testing.assert_close(batch_sure[i, :words], sure[0], atol=1e-3, rtol=0)
        torch.testing.assert_close(batch_probs[i, :words], probs[0], atol=1e-3, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_inference_see_the_same_states(kind):
    bundle = aligned(kind=kind)
    batch = bundle.processor.collate(timed(examples()))
    with torch.no_grad():
        trained = bundle.model(**batch.inputs)["alignment"]
        scores = Scores(trained["start"], trained["end"], trained.get("inside"), trained["words"], trained["points"])
        packed = bundle.model(**bundle.processor.collate(timed(examples()), packed=True).inputs)["alignment"]
    torch.testing.assert_close(bundle.model.aligner.times(scores)[0], times(bundle, examples())[0])
    torch.testing.assert_close(packed["start"], trained["start"], atol=2e-4, rtol=1e-4)


def test_the_whole_sum_is_that_of_the_items():
    bundle, loss = aligned(), Loss.model_validate("alignment")
    items = timed(examples())

    def total(some):
        batch = bundle.processor.collate(some)
        return loss.sum(**bundle.model(**batch.inputs)["alignment"]).item(), batch.counts["alignment"]

    batch_sum, count = total(items)
    parts = [total([item]) for item in items]
    assert count == sum(n for _, n in parts) == 8
    assert batch_sum == pytest.approx(sum(value for value, _ in parts), rel=1e-4)


def test_frames_and_points_mean_the_same_time():
    """A click is where the keys on the grid change most, wherever it is: no offset between points and seconds."""
    aligner, processor = (bundle := aligned()).model.aligner, bundle.processor
    quiet = np.zeros(16000, np.float32)
    quiet[15000:15020] = 0.9  # the loudest part sets the floor of Whisper's log-mel: the same for both
    for at in (0.25, 0.5, 0.73):
        clip = quiet.copy()
        clip[round(at * 16000) - 8 : round(at * 16000) + 8] = 0.9
        features, lengths = processor.features([Example("a", quiet), Example("b", clip)])
        with torch.no_grad():
            frames = aligner.from_mel(features, lengths, int(aligner.points(lengths).max()))
        change = (frames[0] - frames[1]).norm(dim=-1)
        centre = float((change * torch.arange(len(change))).sum() / change.sum()) * aligner.step
        assert centre == pytest.approx(at, abs=0.006)


@pytest.mark.parametrize(
    "encoder, rate, step",
    [("whisper", 100, 0.01), ("whisper", 50, 0.02), ("parakeet", 100, 0.01), ("wav2vec2-base", 100, 0.02)],
)
def test_the_grid(encoder, rate, step):
    bundle = aligned(encoder, rate=rate)
    aligner = bundle.model.aligner
    assert aligner.step == pytest.approx(step)
    steps = 100 if aligner.shape.kind == "mel" else 16000
    assert int(aligner.points(torch.tensor(steps))) == round(1 / step) + 1  # the last point is the end of the second
    assert times(bundle, examples())[0].max() <= 1.3 + 0.01


def random_scores(words, points, batch=1, seed=0, inside=True):
    generator = torch.Generator().manual_seed(seed)
    start, end = (torch.randn(batch, words, points, generator=generator).log_softmax(-1) for _ in range(2))
    within = torch.randn(batch, words + 1, points, generator=generator) if inside else None
    return Scores(start, end, within, torch.ones(batch, words, dtype=torch.bool), torch.full((batch,), points))


@pytest.mark.parametrize("shortest", [1, 2, 3])
@pytest.mark.parametrize("inside", [True, False])
@pytest.mark.parametrize("seed", range(5))
def test_decoding_finds_the_best_of_all_paths(seed, inside, shortest):
    scores = random_scores(2, 7, seed=seed, inside=inside)
    evidence = 0.3
    share = scores.inside[0].log_softmax(0) if inside else None

    def value(path):
        total = 0.0
        for w, (a, b) in enumerate(zip(path[::2], path[1::2])):
            total += float(scores.start[0, w, a] + scores.end[0, w, b])
            if inside:
                total += evidence * float((share[w] - share[-1])[a:b].clamp(-20, 20).sum())
        return total

    apart = [p for p in itertools.product(range(7), repeat=4) if p[0] + shortest <= p[1] <= p[2] <= p[3] - shortest]
    best = max(apart, key=value)
    starts, ends = decode(scores, evidence, shortest)
    assert torch.stack([starts, ends], -1).flatten().tolist() == list(best)


def test_words_are_as_long_as_their_clip_allows():
    """A clip with room keeps the shortest length, beside one that is too short for it."""
    scores = random_scores(4, 30, batch=2)
    scores.points[1] = 9
    for part in (scores.start, scores.end):
        part[1, :, 9:] = LOW
    starts, ends = decode(scores, shortest=5)
    lengths = ends - starts
    assert lengths[0].min() >= 5 and lengths[1].min() == 2 and ends[1].max() <= 8
    assert (ends[:, :-1] <= starts[:, 1:]).all()
    alone = decode(
        Scores(scores.start[:1], scores.end[:1], scores.inside[:1], scores.words[:1], scores.points[:1]), shortest=5
    )
    assert torch.equal(alone[0], starts[:1]) and torch.equal(alone[1], ends[:1])


@pytest.mark.parametrize("find", [decode, repair])
@pytest.mark.parametrize("said", [[(5, 12), (40, 50)], [(20, 25), (3, 9), (28, 33)]])
def test_words_come_out_in_the_order_of_the_text_with_silence_between(find, said):
    start, end = (torch.full((1, len(said), 60), -9.0) for _ in "ab")
    for w, (a, b) in enumerate(said):
        start[0, w, a] = end[0, w, b] = 0.0
    found = find(Scores(start, end, None, torch.ones(1, len(said), dtype=torch.bool), torch.tensor([60])))
    flat = torch.stack(found, -1).flatten().tolist()
    assert flat == sorted(flat) and flat[-2:] == list(said[-1])
    assert said != sorted(said) or flat == [point for word in said for point in word]


@pytest.mark.parametrize("seed", range(20))
def test_the_repair_changes_as_few_as_can_be(seed):
    values = np.random.default_rng(seed).integers(0, 12, 8).tolist()
    fixed = increasing(values, 12)
    assert fixed == sorted(fixed) and fixed[0] >= 0 and fixed[-1] <= 12
    longest = max(
        len(subset) for n in range(9) for subset in itertools.combinations(values, n) if list(subset) == sorted(subset)
    )
    assert sum(a == b for a, b in zip(values, fixed)) >= longest
    assert increasing([1, 9, 3, 4], 12) == [1, 2, 3, 4] and increasing([], 5) == []


def test_boundaries_lie_between_the_points():
    grid = torch.arange(20)
    for at in (3.0, 7.25, 7.5, 11.9):
        near = (1 - (grid - at).abs() / 2).clamp(min=0)
        boundary, sure = refine((near / near.sum())[None, None], torch.tensor([[round(at)]]))
        assert boundary.item() == pytest.approx(at, abs=0.02) and sure.item() == pytest.approx(1.0, abs=1e-5)
    flat, sure = refine(torch.full((1, 1, 20), 0.05), torch.tensor([[0]]))
    assert flat.item() >= 0 and sure.item() == pytest.approx(0.15)


def test_more_words_than_points_do_no_harm():
    starts, ends = decode(random_scores(9, 4))
    assert starts.shape == ends.shape == (1, 9) and ends.max() <= 3


def test_uneven_speech_keeps_order_and_ends():
    torch.manual_seed(0)
    points = torch.tensor([3001, 1200, 2, 1])
    changed = 0
    for _ in range(10):
        moved = uneven(points, 0.01, 0.7)
        assert (moved.diff() >= -1e-3).all()
        for row, count in zip(moved, points.tolist()):
            assert row[0] == 0 and row[count - 1].item() == pytest.approx(count - 1, abs=1e-2)
            assert row[count:].tolist() == list(range(count, 3001)), "padding stays where it is"
        back = pick(inverse(moved)[..., None], moved.clamp(max=3000))[..., 0]
        # Where speech is squeezed, several points go to one: not all come back.
        assert (back - torch.arange(3001)).abs().max() < 5
        changed += int((moved[:2] - torch.arange(3001)).abs().amax(1).gt(20).sum())
    assert 4 <= changed <= 16, "about half of the clips"


def test_words_go_where_their_sound_goes():
    """What is heard at a word's start is, on the uneven grid, at the start that training is told."""
    bundle = aligned()
    aligner = bundle.model.aligner
    torch.manual_seed(3)
    lengths, times = torch.tensor([1000, 900]), torch.tensor([[[1.0, 2.5], [4.0, 8.0]], [[0.3, 0.7], [torch.nan] * 2]])
    for _ in range(5):
        moved, targets = aligner.moved(lengths, times)
        sound = torch.arange(1001.0).expand(2, -1)[..., None]  # each point's own time
        starts = pick(pick(sound, inverse(moved)), (targets / aligner.step).nan_to_num().flatten(1)).view(2, 2, 2)
        known = times.isfinite()
        torch.testing.assert_close(starts[known] * aligner.step, times[known], atol=0.012, rtol=0)
        assert torch.equal(targets.isnan(), ~known)
    bundle.model.aligner.warp = 0.0
    assert aligner.moved(lengths, times)[0] is None


@pytest.mark.parametrize("kind", [KINDS[0], *(pytest.param(k, marks=pytest.mark.slow) for k in KINDS[1:])])
@pytest.mark.long
def test_tones_are_found(kind):
    """It learns: each word is a tone of its own, with silence around it."""
    torch.manual_seed(0)
    pitch = {"low": 300, "mid": 900, "high": 2500}
    rng = np.random.default_rng(0)

    def clip(number):
        words, at, audio = [], 0.05, 0.001 * rng.standard_normal(20000)
        for word in rng.permutation(list(pitch)):
            start = at + rng.uniform(0.02, 0.15)
            end = start + rng.uniform(0.08, 0.2)
            span = np.arange(round(start * 16000), round(end * 16000))
            audio[span] += 0.3 * np.sin(2 * np.pi * pitch[word] * span / 16000)
            words.append({"word": word, "start": start, "end": end})
            at = end
        text = " ".join(w["word"] for w in words)
        word_times = [u | {k: w[k] for k in ("start", "end")} for u, w in zip(units(text, None), words)]
        return Example(str(number), audio.astype(np.float32), text, extra={"words": word_times})

    bundle = aligned(kind=kind, llm="qwen2", freeze=["encoder.*", "llm.*", "projector.*"])
    model, loss = bundle.model, Loss.model_validate("alignment")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=4e-3)
    model.train()
    batches = [bundle.processor.collate([clip(i) for i in range(6)]) for _ in range(8)]
    for step in range(120):
        batch = batches[step % len(batches)]
        value = loss.sum(**model(**batch.inputs)["alignment"]) / batch.counts["alignment"]
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    model.eval()
    unseen = bundle.processor.collate([clip(i) for i in range(8)])
    predicted, _, _ = model.align(**unseen.inputs)
    error = (predicted - unseen.inputs["word_times"]).abs()
    assert error.median() < 0.02, error


def test_refusals():
    with pytest.raises(ConfigError, match=r"model\.aligner would never be trained"):
        build(aligner={"width": 16, "heads": 2})
    with pytest.raises(ConfigError, match="needs an alignment module"):
        family().build(TaskRequirements("words", ("text", "alignment"), lambda: iter(TEXTS)))
    with pytest.raises(ValueError, match="must be a multiple"):
        AlignerSection(width=10, heads=4)


@pytest.mark.parametrize("limits", [[7, 3, 5], [0, 4, 9]])
def test_states_of_written_text_are_those_of_a_pass_over_it(limits, monkeypatch):
    """Word times after `generate` need no second pass, where the tokenizer reads the text as it was written."""
    bundle = aligned(tokenizer={"type": "characters"})
    items = examples(seconds=(1.3, 0.6, 0.97))
    model, processor = bundle.model, bundle.processor
    torch.manual_seed(2)
    for parameter in model.llm.parameters():  # so that it writes letters, and one special token that no text shows
        parameter.data.add_(0.3 * torch.randn_like(parameter))
    how = {"max_new_tokens": limits, "eos_ids": {processor.eos_id}}
    plain = model.generate(processor.collate(items, labels=False).inputs, **how)
    passes = []
    real = type(model)._states_of
    monkeypatch.setattr(type(model), "_states_of", lambda *a: passes.append(len(a[1])) or real(*a))
    with torch.no_grad(), bundle.cache_encoder():
        written = model.generate(processor.collate(items, labels=False).inputs, **how)
        assert [ids for ids, *_ in written] == [ids for ids, *_ in plain]
        for (_, ours, *_), (_, theirs, *_) in zip(written, plain):
            assert ours == pytest.approx(theirs, abs=1e-4)
        for item, (ids, *_) in zip(items, written):
            item.text = processor.decode(ids)
        batch = processor.collate(timed(items))
        reusable = [i for i, (ids, *_) in enumerate(written) if ids == processor.tokenizer(items[i].text)["input_ids"]]
        first = model.align(**batch.inputs)
        assert passes == ([len(items) - len(reusable)] if len(reusable) < len(items) else []) and reusable
    passes.clear()
    with torch.no_grad():
        second = model.align(**batch.inputs)
    assert passes == [len(items)]
    for one, other in zip(first, second):
        torch.testing.assert_close(one, other, atol=1e-3, rtol=0)
