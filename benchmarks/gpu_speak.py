"""OmniVoice at real size on a GPU: tokens/s, MFU and memory of training, real-time factor of speaking.

    python benchmarks/gpu_speak.py [--batch-tokens 8192] [--steps 40] [--cases flex sdpa ...] [--seconds 10]
    python benchmarks/gpu_speak.py --tiny --device cpu             # the same code in seconds, to see that it runs

The weights are random (nothing is downloaded); the sizes are those of the published model: a Qwen3-0.6B backbone with
151,676 text tokens, 8 codebooks of 1025 entries at 25 frames per second. The data are token shards of random codes with
lengths as in read and spontaneous speech. Each case is a run of our engine as `stentor train` starts it, in a process
of its own: AdamW on float32 weights, bf16 autocast, loader workers, the dry run that counts FLOPs. The first half of
the steps (compiling) does not count. Cases:

    flex          packed by best fit, flex_attention with block tables from the loader, logits of masked cells alone
    sdpa          padded to quantile buckets, SDPA with a mask
    arrival       as flex, packed in order of arrival (a sample that does not fit any more begins the next batch) and
                  padded to --batch-tokens
    fp32-flex     as flex, query, key and value left in float32 under autocast
    logits        as flex, float32 logits of all positions and codebooks in memory

Tokens are positions that hold text or audio, not padding; MFU is the dry run's FLOPs at the measured speed over the
GPU's dense bf16 peak. Speaking: --seconds of audio after a reference of 3 s, guided (two rows for each utterance), one
utterance and eight, 16 and 32 steps, as it is and with torch.compile; the factor is seconds of computing for each
second of audio, codec not included.
"""

import argparse
import contextlib
import io
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from gpu_cases import check, device_name, heading, in_own_process, line, measure, parser
from results import write
from shards import make

CASES = ("flex", "sdpa", "arrival", "fp32-flex", "logits")
RATE = 25
"""Frames per second."""
REAL = {
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 40960,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6},
}
TINY = {
    "model_type": "qwen3",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "max_position_embeddings": 4096,
}
TEXT_TOKENS = 151_676
"""Of the published model, special tokens included."""
WIDTHS = {"parameters": 13, "tokens_per_second": 12, "padding": 9, "data_wait": 10, "memory_gb": 11, "mfu": 9}
METRICS = ("tokens_per_second", "padding", "data_wait", "memory_gb", "mfu")


def section(attention: str, tiny: bool) -> dict[str, Any]:
    """The section `model:`."""
    backbone = {"config": TINY if tiny else REAL}
    return {"type": "omnivoice", "llm": backbone, "text": {"type": "bpe"}, "attention": attention}


def real_vocabulary() -> None:
    """Give the tokenizer that is made from the texts as many tokens as the published one has."""
    from stentor.models.omnivoice import build

    ours = build.made_tokenizer

    def filled(*arguments: Any) -> Any:
        tokenizer = ours(*arguments)
        free = TEXT_TOKENS - len(tokenizer) - 7
        tokenizer.add_tokens([f"<unused{i}>" for i in range(free)])
        return tokenizer

    build.made_tokenizer = filled


# The naive variants


def in_order_of_arrival(width: int) -> None:
    """Packs as they come, padded to `width`: a sample that does not fit any more begins the next."""
    from stentor.dataloading import batch_sampler
    from stentor.models.omnivoice import processor

    def pack(costs: Any, budget: int, max_items: int | None, window: int, generator: Any) -> list[list[int]]:
        packs: list[list[int]] = [[]]
        room = budget
        for index in generator.permutation(len(costs)).tolist():
            if costs[index] > room:
                packs.append([])
                room = budget
            packs[-1].append(index)
            room -= costs[index]
        return packs

    batch_sampler.pack = pack
    processor.rounded = lambda total: width


def without_cast(width: int) -> None:
    """flex_attention in the type of what it is given."""
    from torch.nn.attention.flex_attention import BlockMask
    from transformers import AttentionInterface
    from transformers.integrations.flex_attention import flex_attention_forward

    from stentor.models.packing import flex

    def attention(module: Any, query: Any, key: Any, value: Any, mask: Any, **kwargs: Any) -> Any:
        forward = flex_attention_forward if isinstance(mask, BlockMask) else flex.attention
        return forward(module, query, key, value, mask, **kwargs)

    AttentionInterface.register(flex.NAME, attention)


def all_logits(width: int) -> None:
    """A forward pass that computes the logits of every position and codebook."""
    from stentor.models.omnivoice.modeling import OmniVoiceModel

    def forward(self: Any, input_ids: Any, audio_mask: Any, rows: Any, **more: Any) -> dict[str, dict[str, Any]]:
        targets = [more.pop(f"targets_{c}") for c in range(self.codebooks)]
        logits = self.logits(input_ids, audio_mask, **more).float().transpose(0, 1).flatten(1, 2)
        places = rows.split([len(t) for t in targets])
        labels = torch.full(logits.shape[:2], -100, device=rows.device)
        for c, (place, target) in enumerate(zip(places, targets, strict=True)):
            labels[c, place] = target
        return {f"codes_{c}": {"logits": logits[c], "targets": labels[c]} for c in range(self.codebooks)}

    OmniVoiceModel.forward = forward


NAIVE = {"arrival": in_order_of_arrival, "fp32-flex": without_cast, "logits": all_logits}


def train(name: str, folder: str, args: argparse.Namespace) -> dict[str, Any]:
    """Train one case, in this process."""
    if not args.tiny:
        real_vocabulary()
    if name in NAIVE:
        NAIVE[name](-(-args.batch_tokens // 128) * 128)  # whole blocks
    sections = {
        "task": {"type": "speak"},
        "model": section("sdpa" if name == "sdpa" else "flex", args.tiny),
        "data": {"train": [{"type": "shards", "path": folder}], "batch_tokens": args.batch_tokens},
    }
    return measure(sections, METRICS, args)


def speak(args: argparse.Namespace) -> list[dict[str, Any]]:
    """Seconds of computing for each second of audio, best of three."""
    from stentor.models.base import Family, TaskRequirements

    if not args.tiny:
        real_vocabulary()
    family = Family.model_validate(section("sdpa", args.tiny))
    bundle = family.build(TaskRequirements("speak", ("codes",), lambda: iter(["what is said by a voice"])))
    model: Any = bundle.model.to(args.device).eval()
    reference = torch.randint(1024, (8, 3 * RATE))
    text = "what is said by a voice " * (1 if args.tiny else 6)
    prompt = bundle.processor.utterance(text, reference=(reference, text[:40]), frames=args.seconds * RATE)
    rows = []
    for compiled in (False, True) if args.device == "cuda" else (False,):
        for count in (1, 8):
            for steps in (16, 32):
                took = []
                for attempt in range(2 if args.tiny else 4):
                    began = time.perf_counter()
                    model.speak([prompt] * count, seeds=list(range(count)), steps=steps, compile=compiled)
                    if attempt:  # the first one compiles
                        took.append(time.perf_counter() - began)
                factor = min(took) / (count * args.seconds)
                rows.append({"utterances": count, "steps": steps, "compiled": compiled, "real_time_factor": factor})
    return rows


def main() -> None:
    options = parser(__doc__.splitlines()[0], steps=40, case_parts=2)
    options.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options.add_argument("--batch-tokens", type=int, default=8192, help="Positions in a batch.")
    options.add_argument("--samples", type=int, default=4000, help="Samples in the shards.")
    options.add_argument("--seconds", type=int, default=10, help="Audio of an utterance that is spoken.")
    args = options.parse_args()
    check(args)
    if args.case:
        with contextlib.redirect_stdout(io.StringIO()):
            name, folder = args.case
            result = speak(args) if name == "speak" else train(name, folder, args)
        print(json.dumps(result))
        return
    gpu = device_name(args)
    print(f"{gpu}, torch {torch.__version__}, {args.batch_tokens} positions in a batch, {args.steps} steps\n")
    print(" " * 12 + heading(WIDTHS))
    rows = []
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch), 4, args.samples // 4)
        for name in args.cases:
            row = in_own_process(name, scratch)
            rows.append({"case": name, **row})
            print(f"{name:12}{line(row, WIDTHS)}", flush=True)
        spoken = in_own_process("speak", scratch)
    if isinstance(spoken, dict):
        print(f"\nspeaking  failed: {spoken['failed']}")
        spoken = []
    for row in spoken:
        how = "compiled" if row["compiled"] else "as it is"
        print(
            f"speaking {args.seconds} s, {row['utterances']} at a time, {row['steps']} steps, {how}: real-time factor "
            f"{row['real_time_factor']:.4f}"
        )
    if not args.tiny:
        facts = {"batch_tokens": args.batch_tokens, "steps": args.steps, "workers": args.workers}
        write("gpu_speak", rows, speaking=spoken, gpu=gpu, **facts)
    if all("failed" in row for row in rows):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
