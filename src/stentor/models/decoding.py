"""Decoding: greedy, sampling and beam search over one batched loop, for any model with a cache.

A loop of our own because `generate` of transformers spends most of its time outside the model when models are small,
and because every token's log-probability is wanted for confidences.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch
    from torch import Tensor

Result = tuple[list[int], list[float]]
"""Token ids without the end token, and their log-probabilities."""


def search(
    decoder: Any,
    limits: list[int],
    eos_ids: set[int],
    beams: int = 1,
    temperature: float = 0.0,
    generator: torch.Generator | None = None,
    length_penalty: float = 1.0,
    states: list[list[Tensor]] | None = None,
) -> list[Result]:
    """Token ids (end token left out) and their log-probabilities under the model, for each row of a decoder.

    `decoder` has read its prompts: `log_probs` [B, V] are about the next token, `step(tokens)` [B] reads one in each
    row, `select(rows)` keeps rows, in this order, some perhaps several times. `limits` are the most tokens of each row.
    `beams` > 1 searches for the answer with the best sum of log-probabilities / length ** `length_penalty`;
    `temperature` > 0 samples instead (with `generator`, on the device of the model). An empty list as `states`, for
    greedy decoding with one end id, is filled with each row's `decoder.state` [width] after each of its tokens and
    after the end token.
    """
    if beams > 1:
        return _beam(decoder, limits, eos_ids, beams, length_penalty)
    return _single(decoder, limits, eos_ids, temperature, generator, states)


def _single(
    decoder: Any,
    limits: list[int],
    eos_ids: set[int],
    temperature: float,
    generator: torch.Generator | None,
    states: list[list[Tensor]] | None = None,
) -> list[Result]:
    import torch

    results: list[Result] = [([], []) for _ in limits]
    if states is not None:
        states += [[] for _ in limits]
    live = list(range(len(limits)))  # the item of each row
    while live:
        if temperature > 0:
            tokens = torch.multinomial((decoder.log_probs / temperature).softmax(-1), 1, generator=generator)
        else:
            tokens = decoder.log_probs.argmax(-1, keepdim=True)
        chosen = decoder.log_probs.gather(1, tokens).squeeze(1).tolist()
        tokens = tokens.squeeze(1)
        going = []
        for row, (item, token) in enumerate(zip(live, tokens.tolist())):
            ids, scores = results[item]
            if token in eos_ids or len(ids) >= limits[item]:
                tokens[row] = next(iter(eos_ids))
                continue
            ids.append(token)
            scores.append(chosen[row])
            if states is not None or len(ids) < limits[item]:
                going.append(row)
        if states is not None:  # rows leave a step later, so that their last token and the end token are read too
            decoder.step(tokens)
            for item, state in zip(live, decoder.state):
                states[item].append(state)
        if going and len(going) < len(live):  # rows that ended leave the batch
            rows = torch.tensor(going, device=tokens.device)
            decoder.select(rows)
            tokens = tokens[rows]
        live = [live[row] for row in going]
        if live and states is None:
            decoder.step(tokens)
    return results


def _beam(decoder: Any, limits: list[int], eos_ids: set[int], beams: int, length_penalty: float) -> list[Result]:
    import torch

    device = decoder.log_probs.device
    live = list(range(len(limits)))  # items still searched, `beams` rows each
    paths: dict[int, list[Result]] = {item: [([], [])] * beams for item in live}
    done: dict[int, list[tuple[float, Result]]] = {item: [] for item in live}
    totals = torch.full((len(live), beams), -torch.inf, device=device)
    totals[:, 0] = 0.0  # all beams start equal: only the first may go on
    decoder.select(torch.arange(len(live), device=device).repeat_interleave(beams))
    while live:
        size = decoder.log_probs.shape[-1]
        scores = totals[..., None] + decoder.log_probs.view(len(live), beams, size)
        # At most `beams` of the candidates end with an end token per end id, so this many always leave enough to go on.
        best, index = scores.flatten(1).topk(min(beams * (1 + len(eos_ids)), beams * size), dim=1)
        own = (best - totals.gather(1, index // size)).tolist()
        rows, tokens, sums, still = [], [], [], []
        for place, item in enumerate(live):
            new: list[Result] = []
            picked: list[tuple[int, int, float]] = []
            for rank, (total, flat) in enumerate(zip(best[place].tolist(), index[place].tolist())):
                source, token = divmod(flat, size)
                if total == -float("inf"):
                    continue
                ids, probs = paths[item][source]
                if token in eos_ids:
                    if rank < beams:  # an end that is not among the best would never have won a beam
                        done[item].append((total / max(1, len(ids) + 1) ** length_penalty, (ids, probs)))
                elif len(picked) < beams:
                    picked.append((place * beams + source, token, total))
                    new.append(([*ids, token], [*probs, own[place][rank]]))
            full = len(new[0][0]) >= limits[item] if new else True
            done[item].sort(key=lambda d: -d[0])
            del done[item][beams:]
            # Log-probabilities only add up to less, so no path that goes on can come out above this.
            best_open = picked[0][2] / limits[item] ** length_penalty if picked else -torch.inf
            if full or (len(done[item]) >= beams and done[item][-1][0] >= best_open):
                if full:
                    done[item] += [(p[2] / max(1, len(r[0])) ** length_penalty, r) for p, r in zip(picked, new)]
                continue
            while len(picked) < beams:  # fewer than `beams` continuations exist (first step of a tiny vocabulary)
                picked.append((picked[0][0], picked[0][1], -float("inf")))
                new.append(new[0])
            paths[item] = new
            still.append(item)
            rows += [p[0] for p in picked]
            tokens += [p[1] for p in picked]
            sums.append([p[2] for p in picked])
        live = still
        if not live:
            break
        decoder.select(torch.tensor(rows, device=device))
        decoder.step(torch.tensor(tokens, device=device))
        totals = torch.tensor(sums, device=device)
    return [max(done[item], key=lambda d: d[0])[1] for item in range(len(limits))]
