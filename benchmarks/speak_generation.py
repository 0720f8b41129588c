"""Iterative unmasking beside OmniVoice's own, on the same tiny weights: CPU time of a batch of 1, 8 and 32 utterances.

    python benchmarks/speak_generation.py --upstream PATH [--batch 1 8 32] [--steps 8] [--rounds 3] [--threads 1]

PATH is a checkout of github.com/k2-fsa/OmniVoice. The model is a Qwen3 of 4 layers of 192 with 8 codebooks of 1025. An
utterance has 40 positions of text, 75 frames of a reference and 40 to 160 frames (1.6 to 6.4 s) to speak; guidance is
on. Both get the same positions (its tokenizer and its codec take no part), and first the codes are compared, greedily.
The two take turns; seconds are the processor's own, of all threads, so that other work on the machine counts little.
"""

import argparse
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import torch
from results import write

from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.omnivoice.generate import generate
from stentor.models.omnivoice.prompt import Prompt

CODEBOOKS, ENTRIES = 8, 1024
BACKBONE = {
    "model_type": "qwen3",
    "hidden_size": 192,
    "intermediate_size": 576,
    "num_hidden_layers": 4,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 64,
    "vocab_size": 512,
}
TEXT, REFERENCE, LEAST, MOST = 40, 75, 40, 160
UNUSED = ("torchaudio", "pydub", "pydub.silence")
"""Packages that upstream imports for audio, which is not measured here."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--upstream", type=Path, required=True, help="a checkout of OmniVoice")
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8, 32])
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    bundle = build()
    theirs = Upstream(args.upstream, bundle)
    rows = [compare(bundle.model.eval(), theirs, size, args.steps, args.rounds) for size in args.batch]
    write("speak_generation", rows, steps=args.steps, rounds=args.rounds, threads=args.threads)


def build() -> Bundle:
    """With weights as large as trained ones, so that codes are certain."""
    torch.manual_seed(0)
    section = {"type": "omnivoice", "llm": {"config": BACKBONE}, "text": {"type": "characters"}}
    bundle = Family.model_validate(section).build(TaskRequirements("speak", ("codes",), texts=lambda: ["abcdefghij"]))
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in bundle.model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1, generator=generator)
    return bundle


class Upstream:
    """OmniVoice's own class with the weights of a bundle."""

    def __init__(self, path: Path, bundle: Bundle):
        for name in [name for name in UNUSED if importlib.util.find_spec(name.partition(".")[0]) is None]:
            stand_in: Any = ModuleType(name)
            stand_in.__spec__, stand_in.__path__ = ModuleSpec(name, None), []
            stand_in.__getattr__ = lambda attribute: MagicMock()
            sys.modules[name] = stand_in
        sys.path.insert(0, str(path))
        from omnivoice.models import omnivoice

        self.module = omnivoice
        state = bundle.model.state_dict()
        # Upstream looks codes up among the texts' embeddings too, before it takes the others.
        texts = state["llm.embed_tokens.weight"]
        more = max(0, ENTRIES + 1 - len(texts))
        state["llm.embed_tokens.weight"] = torch.nn.functional.pad(texts, (0, 0, 0, more))
        llm = bundle.model.llm.config.to_dict() | {"vocab_size": len(texts) + more}
        config = omnivoice.OmniVoiceConfig(audio_vocab_size=ENTRIES + 1, audio_mask_id=ENTRIES, llm_config=llm)
        self.model = omnivoice.OmniVoice(config).eval()
        self.model.load_state_dict(state)

    @torch.inference_mode()
    def generate(self, prompts: Sequence[Prompt], steps: int, temperature: float) -> list[torch.Tensor]:
        """The codes int64 [C, frames] of each prompt."""
        inputs = iter([_inputs(prompt) for prompt in prompts])
        self.model._prepare_inference_inputs = lambda *arguments: next(inputs)
        count, none = len(prompts), [None] * len(prompts)
        texts, frames = [""] * count, [p.frames for p in prompts]
        task = self.module.GenerationTask(count, texts, frames, none, none, none, none, none)
        settings = self.module.OmniVoiceGenerationConfig(num_step=steps, position_temperature=temperature)
        return list(self.model._generate_iterative(task, settings))


def _inputs(prompt: Prompt) -> dict[str, torch.Tensor]:
    masked = torch.full((CODEBOOKS, prompt.frames), ENTRIES)
    audio = torch.cat([prompt.audio_mask, torch.ones(prompt.frames, dtype=torch.bool)])
    return {"input_ids": torch.cat([prompt.ids, masked], 1)[None], "audio_mask": audio[None]}


def prompts_of(count: int) -> list[Prompt]:
    rng = np.random.default_rng(count)
    prompts = []
    for _ in range(count):
        text = np.tile(rng.integers(0, 12, TEXT), (CODEBOOKS, 1))
        ids = np.concatenate([text, rng.integers(0, ENTRIES, (CODEBOOKS, REFERENCE))], 1)
        mask = torch.arange(TEXT + REFERENCE) >= TEXT
        prompts.append(Prompt(torch.from_numpy(ids), mask, int(rng.integers(LEAST, MOST + 1))))
    return prompts


def compare(model: torch.nn.Module, theirs: Upstream, size: int, steps: int, rounds: int) -> dict[str, Any]:
    prompts = prompts_of(size)
    greedy = theirs.generate(prompts, steps, 0.0), generate(model, prompts, steps=steps, position_temperature=0.0)
    equal = float(np.mean([bool(torch.equal(a, b)) for a, b in zip(*greedy)]))
    ways: dict[str, Callable[[], object]] = {
        "upstream": lambda: theirs.generate(prompts, steps, 5.0),
        "stentor": lambda: generate(model, prompts, steps=steps),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            times[name].append(time.process_time() - began)
    ratio = statistics.median(a / b for a, b in zip(times["upstream"], times["stentor"]))
    row = {"batch": size, "same_codes": equal, "frames": sum(p.frames for p in prompts)}
    row |= {f"{name}_cpu_seconds": round(statistics.median(seconds), 2) for name, seconds in times.items()}
    row["ratio"] = round(ratio, 2)
    print(
        f"batch of {size}: upstream {row['upstream_cpu_seconds']:.2f} s, stentor {row['stentor_cpu_seconds']:.2f} s, "
        f"{ratio:.2f} times as fast; {equal:.0%} of the utterances the same, greedily"
    )
    return row


if __name__ == "__main__":
    main()
