"""Cost of word times on top of transcription: the second pass over the recognised text, in one run with the first.

    python benchmarks/words_pass.py [--model RUN_OR_EXPORT] [--threads 1] [--clips 16] [--rounds 3]

Without `--model`, a model of VoxLM-0.5b's size with random weights: Whisper-small's encoder, an MLP projector to 12.5
positions a second, Qwen2-0.5B's language model. Its text means nothing and never ends by itself, so that as many tokens
are written as the longest allowed answer has, 3.5 a second, about what English needs. The clips are sentences of the
built-in voice. Prints process time for both, and the share that the words pass adds.
"""

import argparse
import random
import time
from collections.abc import Callable
from typing import Any

import results
import torch

from stentor.audio.synth import say
from stentor.data.batch import Example
from stentor.models.base import Bundle
from stentor.sources.phrases import command
from stentor.tasks.words import Words

BATCH = 8
SMALL: dict[str, Any] = {
    "encoder": {
        "config": {
            "model_type": "whisper",
            "num_mel_bins": 80,
            "d_model": 768,
            "encoder_layers": 12,
            "encoder_attention_heads": 12,
            "encoder_ffn_dim": 3072,
        }
    },
    "projector": {"type": "mlp", "rate": 12.5},
    "llm": {
        "config": {
            "model_type": "qwen2",
            "hidden_size": 896,
            "intermediate_size": 4864,
            "num_hidden_layers": 24,
            "num_attention_heads": 14,
            "num_key_value_heads": 2,
            "tie_word_embeddings": True,
        }
    },
    "tokenizer": {"type": "characters"},
    "aligner": {},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--clips", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    examples = clips(args.clips)
    seconds = sum(len(e.audio) for e in examples) / 16000
    bundle, task = trained(args.model) if args.model else random_one([e.text or "" for e in examples])
    bundle.model.eval()

    def plain(batch: list[Example]) -> object:
        return task.predict(bundle, batch, words=False)

    def with_words(batch: list[Example]) -> object:
        return task.predict(bundle, batch)

    first, both = fastest([plain, with_words], examples, args.rounds)
    share = both / first - 1
    name = args.model or "VoxLM-0.5b's size, random weights"
    print(f"{name}: {seconds:.0f} s of audio, {args.threads} thread(s)")
    print(f"transcribe {first:.2f} s, with word times {both:.2f} s: + {share:.1%}")
    rows = [{"model": name, "audio_s": seconds, "transcribe_s": first, "with_words_s": both, "added": share}]
    results.write("words_pass", rows, threads=args.threads)


def clips(count: int) -> list[Example]:
    """Commands in a row, 2 to 20 s, shortest first."""
    rng = random.Random(0)
    examples = []
    for i in range(count):
        text = " ".join(command(rng) for _ in range(1 + i % 8))
        examples.append(Example(str(i), say(text, voice="en-us").audio, text, "en"))
    return sorted(examples, key=lambda e: len(e.audio))


def random_one(texts: list[str]) -> tuple[Bundle, Words]:
    from stentor.models.speech_llm.config import SpeechLLM

    task = Words()
    needs = task.requirements(task.losses())
    needs.texts = lambda: texts
    torch.manual_seed(0)
    return SpeechLLM.model_validate(SMALL).build(needs), task


def trained(model: str) -> tuple[Bundle, Words]:
    from stentor.inference.load import load

    loaded = load(model)
    if not isinstance(loaded.task, Words):
        raise SystemExit(f"{model} was not trained for the task words.")
    return loaded.bundle, loaded.task


def fastest(calls: list[Callable[[list[Example]], object]], examples: list[Example], rounds: int) -> list[float]:
    """Process time of each call over all batches: the best of several rounds, taken in turns."""
    best = [float("inf")] * len(calls)
    for _ in range(rounds):
        for i, call in enumerate(calls):
            start = time.process_time()
            for k in range(0, len(examples), BATCH):
                call(examples[k : k + BATCH])
            best[i] = min(best[i], time.process_time() - start)
    return best


if __name__ == "__main__":
    main()
