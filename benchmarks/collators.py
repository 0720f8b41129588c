"""Batches of our processors beside those that transformers' own make of the same clips and texts; in one run.

    python benchmarks/collators.py [--models NAME ...] [--clips 16] [--rounds 11]

Milliseconds of processor time for a training batch of clips of 1 to 12 s (median over rounds in which both take turns),
and theirs divided by ours. Theirs is the model's own processor on the list of clips with the model's usual padding, and
its tokenizer on the list of texts: what a collator for transformers' Trainer does. A model is one entry of `CASES`:
its name, and a function that gives both collators, which take a list of `Example`.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import results
import torch
from features import RATE, clip

from stentor.data.batch import Example
from stentor.models.base import Family, TaskRequirements

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "models"))  # for tiny models

Collator = Callable[[Sequence[Example]], Any]

HALF = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
HEADS = ("encoder_attention_heads", "decoder_attention_heads", "encoder_num_attention_heads")
HEADS += ("decoder_num_attention_heads",)
SEQ2SEQ: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "whisper": ({"d_model": 32, **dict.fromkeys(HEADS[:2], 2), "encoder_layers": 1, "decoder_layers": 1}, {}),
    "moonshine": ({"hidden_size": 32, **dict.fromkeys(HEADS[2:], 2)}, {"padding": True}),
    "moonshine_streaming": ({**HALF, "encoder_config": {**HALF, "sliding_windows": [[16, 4]]}}, {}),
    "cohere_asr": ({**HALF, "encoder_config": {**HALF, "subsampling_conv_channels": 8}}, {"language": "en"}),
}
"""Config keys of a small model with the real one's features, and options of its processor."""


def seq2seq(kind: str) -> tuple[Collator, Collator]:
    """Collators of a model of the family seq2seq; both have the tokenizer of bytes."""
    from transformers import AutoProcessor

    config, options = SEQ2SEQ[kind]
    section = Family.model_validate({"type": "seq2seq", "config": {"model_type": kind, **config}})
    bundle = section.build(TaskRequirements("transcribe", ("text",)))
    with tempfile.TemporaryDirectory() as folder:
        bundle.family.save_merged(bundle, Path(folder))
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)
    return bundle.processor.collate, partial(plainly, processor, options)


def plainly(processor: Any, options: dict[str, Any], examples: Sequence[Example]) -> Any:
    """What transformers' processor makes of audio and texts."""
    inputs = processor([e.audio for e in examples], sampling_rate=RATE, return_tensors="pt", **options)
    labels = processor.tokenizer([e.text for e in examples], padding=True, return_tensors="pt")
    return inputs, labels.input_ids.masked_fill(labels.attention_mask == 0, -100)


AUDIO_LLMS = ("qwen3_asr", "glmasr")
"""Those whose processors transformers makes without torchaudio; Voxtral's is in finetune_voxtral.py."""


def audio_llm(kind: str) -> tuple[Collator, Collator]:
    """Collators of a model of the family audio_llm, of the tests' tiny model, which has the real one's features."""
    from tiny_audio_llms import TINY

    with tempfile.TemporaryDirectory() as folder:
        bundle = TINY[kind].build(TINY[kind].write(Path(folder)))
    return bundle.processor.collate, partial(conversations, bundle.processor.hf)


def conversations(processor: Any, examples: Sequence[Example]) -> Any:
    """What transformers' processor makes of whole conversations, with labels: the recipe of its documentation."""
    prompts = processor.apply_transcription_request(audio=[e.audio for e in examples], tokenize=False)
    texts = [f"{prompt}{e.text}<|im_end|>" for prompt, e in zip(prompts, examples)]
    return processor(text=texts, audio=[e.audio for e in examples], output_labels=True)


CASES: dict[str, Callable[[], tuple[Collator, Collator]]] = {kind: partial(seq2seq, kind) for kind in SEQ2SEQ}
CASES |= {kind: partial(audio_llm, kind) for kind in AUDIO_LLMS}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=11)
    args = parser.parse_args()
    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    words = ["one", "two", "three", "four", "five", "six"]
    examples = [
        Example(str(i), clip(rng, float(seconds)), " ".join(rng.choice(words, round(2 * seconds))), "en")
        for i, seconds in enumerate(np.linspace(1, 12, args.clips))
    ]
    print(f"torch {torch.__version__}, 1 thread, {args.clips} clips, {args.rounds} rounds\n")
    print(f"{'model':22} {'ours':>9} {'theirs':>9} {'ratio':>6}")
    rows = [compare(name, examples, args.rounds) for name in args.models]
    results.write("collators", rows, clips=args.clips, rounds=args.rounds)


def compare(name: str, examples: Sequence[Example], rounds: int) -> dict[str, Any]:
    """Median milliseconds of processor time of both collators, which take turns."""
    times: tuple[list[float], list[float]] = ([], [])
    collators = CASES[name]()
    for turn in range(rounds + 1):
        for collate, measured in zip(collators, times):
            start = time.process_time()
            collate(examples)
            if turn:  # the first warms up
                measured.append(1000 * (time.process_time() - start))
    ours, theirs = map(statistics.median, times)
    print(f"{name:22} {ours:9.1f} {theirs:9.1f} {theirs / ours:6.2f}")
    return {"model": name, "ours_ms": round(ours, 2), "theirs_ms": round(theirs, 2), "ratio": round(theirs / ours, 2)}


if __name__ == "__main__":
    main()
