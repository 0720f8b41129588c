"""Batches of token shards: how full they are, what their masks cost, and training tokens per second on the CPU.

    python benchmarks/packing_speak.py [--items 20000] [--budget 2048 4096 8192] [--rounds 5] [--threads 1]

Lengths follow well-known corpora (see batching.py); an item costs its audio at 25 frames a second, its text and the
style before it, as OmniVoice's samples do. Beside our two layouts: packing in the order of arrival, as OmniVoice's
reader does it, and its 20 linear length buckets. Fill is real positions over all positions of the batches.

The masks of packs are built from document boundaries, and by torch's `create_block_mask` from the rule "same document",
eager on the CPU (OmniVoice compiles it). Training is a Qwen3 of 4 layers of 192 on random codes, in float32: the same
items, all of them, in packs and in padded batches, in turns.
"""

import argparse
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch
from batching import Corpus as Lengths
from batching import commonvoice_like, emilia_like, fill, librispeech_like, linear_buckets, next_fit, ours
from results import write
from torch.nn.attention.flex_attention import create_block_mask

from stentor.models.packing.flex import BLOCK, block_mask, tables

CORPORA = (librispeech_like, commonvoice_like, emilia_like)
RATE = 25.0
STYLE = 14
"""Positions of language, instruct and the marks around them and the text."""
TARGETS = {"packed": 0.98, "padded": 0.94}
WAYS = {
    "arrival-order packing": ("packed", next_fit),
    "stentor packed": ("packed", lambda corpus, budget: ours(corpus, "packed", budget)),
    "20 linear buckets": ("padded", linear_buckets),
    "stentor padded": ("padded", lambda corpus, budget: ours(corpus, "padded", budget)),
}
CODEBOOKS, ENTRIES = 8, 1024


class Corpus(Lengths):
    """Cuts without audio, with the positions of each sample."""

    def cost(self, seconds: float, subwords: float) -> int:
        return int(RATE * seconds) + int(subwords) + STYLE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=20_000)
    parser.add_argument("--budget", type=int, nargs="+", default=[2048, 4096, 8192])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    corpora = {draw.__name__.replace("_", "-"): Corpus(draw, args.items) for draw in CORPORA}
    rows = fills(corpora, args.budget)
    for layout, target in TARGETS.items():
        worst = min(min(row["fill"].values()) for row in rows if row["way"] == f"stentor {layout}")
        print(f"Target for {layout}: {target:.0%} at least; {'met' if worst >= target else 'missed'} ({worst:.1%}).")
    masks = mask_times(corpora["emilia-like"], args.budget, args.rounds)
    speeds = training(args.rounds)
    write("packing_speak", rows, items=args.items, threads=args.threads, targets=TARGETS, masks=masks, training=speeds)


def fills(corpora: dict[str, Corpus], budgets: list[int]) -> list[dict]:
    rows = []
    for budget in budgets:
        print(f"\nat most {budget} positions in a batch\n{'':22}" + "".join(f"{name:>20}" for name in corpora))
        for way, (layout, batches) in WAYS.items():
            fill_of = {}
            for name, corpus in corpora.items():
                planned = batches(corpus, budget)
                assert sum(map(len, planned)) == len(corpus.cuts), "every item is in one batch"
                fill_of[name] = round(fill(planned, layout, budget), 4)
            print(f"{way:22}" + "".join(f"{value:20.1%}" for value in fill_of.values()))
            rows.append({"way": way, "layout": layout, "budget": budget, "fill": fill_of})
    print()
    return rows


def mask_times(corpus: Corpus, budgets: list[int], rounds: int) -> list[dict]:
    """Milliseconds for the mask of one pack, the median; the two are compared before."""
    times = [mask_time(corpus, budget - budget % BLOCK, rounds) for budget in budgets]
    print()
    return times


def mask_time(corpus: Corpus, budget: int, rounds: int) -> dict:
    pack = next(iter(ours(corpus, "packed", budget)))
    lengths = [*pack, budget - sum(pack)] if sum(pack) < budget else pack
    documents = tables(lengths, causal=False)["documents"]

    def same(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return documents[query] == documents[key]

    def boundaries() -> object:
        return block_mask(**tables(lengths, causal=False), causal=False)

    def evaluated() -> object:
        return create_block_mask(same, None, None, budget, budget, device="cpu", BLOCK_SIZE=BLOCK)

    assert torch.equal(boundaries().to_dense(), evaluated().to_dense()), "one mask"
    fast, slow = ms(boundaries, 10 * rounds), ms(evaluated, rounds)
    print(f"mask of {budget} positions: {fast} ms, create_block_mask {slow} ms")
    return {"positions": budget, "boundaries_ms": fast, "create_block_mask_ms": slow}


def ms(what: Callable[[], object], rounds: int) -> float:
    taken = []
    for _ in range(rounds):
        began = time.perf_counter()
        what()
        taken.append(time.perf_counter() - began)
    return round(statistics.median(taken) * 1e3, 2)


def training(rounds: int, budget: int = 2048, items: int = 60) -> dict[str, dict[str, float]]:
    """Real positions per second of forward and backward, beside the share of the positions that is real. Seconds are
    the processor's own, of all threads, so that other work on the machine counts little; the median of the rounds."""
    corpus = Corpus(emilia_like, items)
    layouts = {layout: batches_of(corpus, layout, budget) for layout in ("packed", "padded")}
    seconds: dict[str, list[float]] = {layout: [] for layout in layouts}
    for _ in range(rounds + 1):  # the first one warms up
        for layout, (model, batches) in layouts.items():
            began = time.process_time()
            for inputs in batches:
                step(model, inputs)
            seconds[layout].append(time.process_time() - began)
    figures = {}
    real = sum(corpus.costs.values())
    for layout, (_, batches) in layouts.items():
        speed = real / statistics.median(seconds[layout][1:])
        share = real / sum(inputs["audio_mask"].numel() for inputs in batches)
        figures[layout] = {"tokens_per_cpu_second": round(speed), "fill": round(share, 4)}
        print(f"training, {layout}: {speed:,.0f} positions a second, {share:.1%} of the batches full")
    return figures


def batches_of(corpus: Corpus, layout: str, budget: int) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """A model, and all items of a corpus as its batches."""
    from stentor.models.base import Family, TaskRequirements
    from stentor.models.omnivoice.sample import build
    from stentor.tasks.speak.task import Conditions

    backbone = {"model_type": "qwen3", "hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4}
    backbone |= {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    section = {"type": "omnivoice", "llm": {"config": backbone}, "text": {"type": "characters"}}
    bundle = Family.model_validate(section).build(TaskRequirements("speak", ("codes",), texts=lambda: ["abcdefghij"]))
    conditions = Conditions(False, 0.0, None, None, "", False, None, 0.5)
    batches = []
    for costs in ours(corpus, layout, budget):
        texts = [[1] * min(40, cost // 2) for cost in costs]
        samples = [
            build(conditions, rng.integers(0, ENTRIES, (CODEBOOKS, cost - len(text))), text, ENTRIES, rng)
            for cost, text in zip(costs, texts)
        ]
        batches.append(getattr(bundle.processor, layout)(samples))
    return bundle.model, batches


def step(model: torch.nn.Module, inputs: dict[str, torch.Tensor]) -> None:
    answers = model(**inputs)
    loss = sum(
        torch.nn.functional.cross_entropy(a["hidden"] @ a["weight"].T, a["targets"], reduction="sum")
        for a in answers.values()
    )
    loss.backward()
    model.zero_grad()


if __name__ == "__main__":
    main()
