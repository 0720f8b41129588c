"""The best path of a transducer against all paths, one by one."""

import pytest
import torch
from lattices import TOKENS, item_logits, random_case, scored_paths

from stentor.losses.transducer import best_path as module
from stentor.losses.transducer.best_path import best_path


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
