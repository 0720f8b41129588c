"""Decoding: greedy, sampling and beam search over one batched loop, for any model with a cache.

A loop of our own because `generate` of transformers spends most of its time outside the model when models are small,
and because confidences need every token's log-probability.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from stentor.models.contracts import GenerationOutput
from stentor.models.decoding.bias import START, Bias, advance, favour

if TYPE_CHECKING:
    import torch
    from torch import Tensor

COLDEST = 1e-4
"""A lower temperature samples no other tokens, and float32 would have no numbers for it."""

_Path = tuple[list[int], list[float]]
"""Token ids without the end token, and their log-probabilities."""


def token_limits(max_new_tokens: int | list[int], rows: int) -> list[int]:
    """The most tokens of each row, from one limit for all or one for each."""
    return [max_new_tokens] * rows if isinstance(max_new_tokens, int) else list(max_new_tokens)


def head_log_probs(head: dict[str, Any]) -> Tensor:
    """Log-probabilities over the vocabulary [N, V], float32, from what a model's `head` returns: `logits` [N, V], or
    `hidden` [N, width] with `weight` [V, width] and perhaps `bias` [V]."""
    from torch.nn import functional

    if "logits" in head:
        logits = head["logits"]
    else:
        logits = functional.linear(head["hidden"], head["weight"], head.get("bias"))
    return logits.float().log_softmax(-1)


class LanguageModelDecoder:
    """A causal language model with its cache, after left-padded prompts were read; as `search` takes it."""

    def __init__(
        self,
        language_model: Any,
        head: Callable[[Tensor], dict[str, Any]],
        embeds: Tensor,
        attention_mask: Tensor,
        position_ids: Tensor,
    ):
        """`language_model`: transformers' model without its output layer; `head` computes what `head_log_probs` takes
        from its last hidden states [B, width]; `embeds` [B, L, width] are the prompts, `attention_mask` and
        `position_ids` [B, L] theirs."""
        from transformers import DynamicCache

        self.language_model, self.head = language_model, head
        self.mask, self.position = attention_mask, position_ids[:, -1:]
        self.cache = DynamicCache(config=language_model.config)
        self._read(embeds, position_ids)

    def _read(self, embeds: Tensor, positions: Tensor) -> None:
        self.state = self.language_model(
            inputs_embeds=embeds,
            attention_mask=self.mask,
            position_ids=positions,
            past_key_values=self.cache,
            use_cache=True,
        ).last_hidden_state[:, -1]
        self.log_probs = head_log_probs(self.head(self.state))

    def _read_tokens(self, tokens: Tensor) -> None:
        self._read(self.language_model.get_input_embeddings()(tokens), self.position)

    def step(self, tokens: Tensor) -> None:
        """Read tokens [B]; afterwards `state` [B, width] is theirs, and `log_probs` [B, V] is about the next one."""
        import torch

        self.position = self.position + 1
        self.mask = torch.cat([self.mask, self.mask.new_ones(len(tokens), 1)], 1)
        self._read_tokens(tokens[:, None])

    def select(self, rows: Tensor) -> None:
        """Keep these rows, in this order; a row may come several times."""
        self.mask, self.position, self.log_probs = self.mask[rows], self.position[rows], self.log_probs[rows]
        self._select_cache(rows)

    def _select_cache(self, rows: Tensor) -> None:
        self.cache.reorder_cache(rows)  # type: ignore[arg-type]  # layers of all kinds know it, recurrent ones too


def _sampled(probs: Tensor, generators: list[torch.Generator] | None) -> Tensor:
    """A token [B, 1] for each row of probabilities [B, V], drawn by the row's generator."""
    import torch

    if generators is None:
        return torch.multinomial(probs, 1)
    return torch.stack([torch.multinomial(row, 1, generator=g) for row, g in zip(probs, generators, strict=True)])


def search(
    decoder: Any,
    limits: list[int],
    eos_ids: set[int],
    beams: int = 1,
    temperature: float = 0.0,
    generators: list[torch.Generator] | None = None,
    keep_states: bool = False,
    bias: Bias | None = None,
) -> list[GenerationOutput]:
    """Output for each row of a decoder.

    `decoder` has read its prompts: `log_probs` [B, V] are about the next token, `step(tokens)` [B] reads one in each
    row, `select(rows)` keeps rows, in this order, some perhaps several times. `limits` are the most tokens of each row.
    `beams` > 1 searches for the answer with the best mean log-probability; `temperature` > 0 samples instead (each item
    with its own one of `generators`, on the device of the model). `keep_states`, for greedy decoding with one end id:
    outputs hold `decoder.state` [width] after each token and after the end token. `bias` favours phrases; the
    log-probabilities stay the model's.
    """
    import torch

    if beams > 1:
        return [answers[0] for answers in _beam(decoder, limits, eos_ids, beams, bias)]
    results: list[_Path] = [([], []) for _ in limits]
    states: list[list[Tensor]] = [[] for _ in limits]
    phrases = [START] * len(limits)  # the state of each item in them
    live = list(range(len(limits)))  # the item of each row
    while live:
        scores = favour(decoder.log_probs, bias, [phrases[item] for item in live], greedy=True)
        if temperature > 0:
            probs = (scores / max(temperature, COLDEST)).softmax(-1)
            tokens = _sampled(probs, generators and [generators[item] for item in live])
        else:
            tokens = scores.argmax(-1, keepdim=True)
        chosen = decoder.log_probs.gather(1, tokens).squeeze(1).tolist()
        tokens = tokens.squeeze(1)
        going = []
        for row, (item, token) in enumerate(zip(live, tokens.tolist())):
            ids, log_probs = results[item]
            if token in eos_ids or len(ids) >= limits[item]:
                tokens[row] = next(iter(eos_ids))
                continue
            ids.append(token)
            log_probs.append(chosen[row])
            phrases[item] = advance(bias, phrases[item], token)
            if keep_states or len(ids) < limits[item]:
                going.append(row)
        if keep_states:  # rows leave a step later, so that their last token and the end token are read too
            decoder.step(tokens)
            for item, state in zip(live, decoder.state):
                states[item].append(state)
        if going and len(going) < len(live):  # rows that ended leave the batch
            rows = torch.tensor(going, device=tokens.device)
            decoder.select(rows)
            tokens = tokens[rows]
        live = [live[row] for row in going]
        if live and not keep_states:
            decoder.step(tokens)
    if keep_states:
        return [GenerationOutput(*result, states=row) for result, row in zip(results, states)]
    return [GenerationOutput(*result) for result in results]


def answer(
    decoder: Any, limits: list[int], eos_ids: set[int], beams: int = 1, num_answers: int = 1, **options: Any
) -> list[GenerationOutput]:
    """As `search`; with `num_answers` > 1 outputs hold several answers to each row as `alternatives`: the best `beams`,
    or without a beam search that many samples, for which there are as many `generators` for each row."""
    import torch

    if num_answers == 1:
        return search(decoder, limits, eos_ids, beams, **options)
    if beams > 1:
        return [ranked(answers) for answers in _beam(decoder, limits, eos_ids, beams, options.get("bias"))]
    rows = torch.arange(len(limits)).repeat_interleave(num_answers)
    decoder.select(rows.to(decoder.log_probs.device))
    drawn = search(decoder, [limits[row] for row in rows.tolist()], eos_ids, **options)
    return [ranked(drawn[i : i + num_answers]) for i in range(0, len(drawn), num_answers)]


def ranked(answers: Sequence[GenerationOutput]) -> GenerationOutput:
    """The first of several answers to one item, with all of them as its alternatives."""
    return answers[0]._replace(alternatives=answers)


def _beam(
    decoder: Any, limits: list[int], eos_ids: set[int], beams: int, bias: Bias | None
) -> list[list[GenerationOutput]]:
    """The best answers to each row, `beams` at most."""
    import torch

    device = decoder.log_probs.device
    live = list(range(len(limits)))  # items still searched, `beams` rows each
    paths: dict[int, list[_Path]] = {item: [([], [])] * beams for item in live}
    phrases = [START] * (len(live) * beams)  # the state of each row in them
    done: dict[int, list[tuple[float, _Path]]] = {item: [] for item in live}
    totals = torch.full((len(live), beams), -torch.inf, device=device)
    totals[:, 0] = 0.0  # all beams start equal: only the first may continue
    decoder.select(torch.arange(len(live), device=device).repeat_interleave(beams))
    while live:
        size = decoder.log_probs.shape[-1]
        log_probs = decoder.log_probs
        scores = totals[..., None] + favour(log_probs, bias, phrases).view(len(live), beams, size)
        # At most `beams` of the candidates end with an end token per end id, so this many leave enough to continue.
        best, index = scores.flatten(1).topk(min(beams * (1 + len(eos_ids)), beams * size), dim=1)
        gains = log_probs.view(len(live), -1).gather(1, index).tolist()
        rows, tokens, sums, still = [], [], [], []
        for position, item in enumerate(live):
            new: list[_Path] = []
            picked: list[tuple[int, int, float]] = []
            for rank, (total, flat) in enumerate(zip(best[position].tolist(), index[position].tolist())):
                source, token = divmod(flat, size)
                if total == -float("inf"):
                    continue
                ids, probs = paths[item][source]
                if token in eos_ids:
                    if rank < beams:  # an end that is not among the best would never have won a beam
                        done[item].append((total / (len(ids) + 1), (ids, probs)))
                elif len(picked) < beams:
                    picked.append((position * beams + source, token, total))
                    new.append(([*ids, token], [*probs, gains[position][rank]]))
            full = len(new[0][0]) >= limits[item] if new else True
            done[item].sort(key=lambda d: -d[0])
            del done[item][beams:]
            # Log-probabilities only add up to less, so no path that continues can end above this; a bonus is not
            # waited for.
            best_open = picked[0][2] / limits[item] if picked else -torch.inf
            if full or (len(done[item]) >= beams and done[item][-1][0] >= best_open):
                if full:
                    done[item] += [(p[2] / max(1, len(r[0])), r) for p, r in zip(picked, new)]
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
        phrases = [advance(bias, phrases[row], token) for row, token in zip(rows, tokens)]
        decoder.select(torch.tensor(rows, device=device))
        decoder.step(torch.tensor(tokens, device=device))
        totals = torch.tensor(sums, device=device)
    best_first = [sorted(done[item], key=lambda d: -d[0])[:beams] for item in range(len(limits))]
    return [[GenerationOutput(*path) for _, path in answers] for answers in best_first]
