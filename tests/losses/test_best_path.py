"""The best path of a transducer against all paths, one by one."""

import pytest
import torch
from lattices import TOKENS, item_logits, paths, random_case, scored_paths

from stentor.losses.base import WILDCARD
from stentor.losses.transducer import best_path as module
from stentor.losses.transducer.best_path import PENALTY, best_path


@pytest.mark.parametrize("durations", [None, (0, 1, 2, 3, 4), (1, 2), (0, 2, 1, 3), (1,), (4, 0, 2)])
def test_it_is_the_best_of_all_paths(durations, monkeypatch):
    impossible = 0
    for seed in range(20):
        monkeypatch.setattr(module, "ROWS", 1 + seed)
        case = random_case(seed, len(durations or ()))
        for item, size in enumerate(case["target_lengths"].tolist()):
            one = {
                name: value[item : item + 1] if isinstance(value, torch.Tensor) else value
                for name, value in case.items()
            }
            one["targets"] = one["targets"][:, :size]
            answer = best_path(**one, durations=durations or ())
            scored = scored_paths(case, item, durations)
            if not scored:
                assert answer is None
                impossible += 1
                continue
            score, path = max(scored, key=lambda pair: pair[0].item())
            written = [(t, u, durations[i] if durations else 0) for t, u, is_blank, i in path if not is_blank]
            logits, target = item_logits(case, item)
            tokens = logits[..., :TOKENS].log_softmax(-1)
            assert answer.score == pytest.approx(score.item(), rel=1e-9)
            assert answer.spans == [(t, t + max(jump, 1)) for t, _, jump in written]
            assert answer.log_probs == pytest.approx([tokens[t, u, target[u]].item() for t, u, _ in written])
    assert bool(impossible) == ((durations is not None and 0 not in durations) or durations == (4, 0, 2))


@pytest.mark.parametrize("durations", [None, (0, 1, 2)])
@torch.no_grad()
def test_a_wildcard_takes_any_sound_at_the_price_of_the_best(durations):
    for seed in range(20):
        case = random_case(seed, len(durations or ()))
        frames, size, blank = int(case["lengths"][0]), int(case["target_lengths"][0]), case["blank"]
        target = case["targets"][0, :size].tolist()
        target.insert(seed % (size + 1), WILDCARD)
        one = {"encoder": case["encoder"][:1], "predictor": case["predictor"][:1, : size + 1], "joint": case["joint"]}
        sizes = {"lengths": case["lengths"][:1], "target_lengths": torch.tensor([size + 1])}
        answer = best_path(**one, **sizes, targets=torch.tensor([target]), blank=blank, durations=durations or ())
        known = [sum(token != WILDCARD for token in target[:u]) for u in range(size + 2)]
        logits = case["joint"](one["encoder"][0, :frames, None], one["predictor"][0, None])[:, known]
        tokens, steps = logits[..., :TOKENS].log_softmax(-1), logits[..., TOKENS:].log_softmax(-1)
        others = tokens.index_fill(2, torch.tensor([blank]), -torch.inf).amax(-1) - PENALTY
        prices = [tokens[..., blank].clone(), torch.zeros(frames, size + 2)]  # of blanks and of labels
        for u, token in enumerate(target):
            if token == WILDCARD:
                prices[0][:, u + 1] = prices[0][:, u + 1].maximum(others[:, u + 1])
            else:
                prices[1][:, u] = tokens[:, u, token]
        ways = [
            sum(float(prices[not is_blank][t, u] + (steps[t, u, i] if durations else 0)) for t, u, is_blank, i in path)
            for path in paths(frames, size + 1, durations)
        ]
        assert (answer is None) == (not ways)
        assert not ways or answer.score == pytest.approx(max(ways), rel=1e-6)
