"""Greedy decoding of transducers beside `generate` of transformers: CPU time of the same model and features, in turns.

    python benchmarks/transducer_decoding.py [--rounds 3] [--seconds 6]

A Parakeet with a small encoder (4 layers of 256) and the predictor and joint of the released ones (two LSTM layers of
640, 1025 classes), so that decoding is what counts. Weights are random, with the blank as likely as makes the model
write about four tokens a second. Clips are noise from a third of `--seconds` up to all of them. Both sides encode the
batch and decode it; the encoder alone is given beside them. That both write the same tokens is checked up to the end of
each clip: transformers goes on to write behind the shorter ones of a batch.
"""

import argparse
import statistics
import time
from typing import Any

import results
import torch

from stentor.models.transducer.pretrained.kinds import KINDS
from stentor.models.transducer.pretrained.modeling import PretrainedTransducer

CLASSES, BLANK = 1025, 1024
ENCODER = {
    "hidden_size": 256,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 1024,
    "subsampling_conv_channels": 64,
}
FRAMES = 100  # of log-mel a second
RATE = 4.0  # tokens a second


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 32])
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    print(f"{'model':14} {'batch':>5} {'ours':>8} {'generate':>9} {'encoder':>8} {'ratio':>6} {'tokens':>7}")
    for kind in ("parakeet_tdt", "parakeet_rnnt"):
        model = make(kind, args.seconds)
        for size in args.batches:
            rows.append(compare(kind, model, size, args))
    results.write("transducer_decoding", rows, rounds=args.rounds, seconds=args.seconds)


def make(kind: str, seconds: float) -> PretrainedTransducer:
    """A model that writes about RATE tokens a second of noise."""
    from transformers import AutoConfig, AutoModelForRNNT, AutoModelForTDT

    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, encoder_config=ENCODER, vocab_size=CLASSES, blank_token_id=BLANK)
    recogniser: Any = (AutoModelForTDT if kind == "parakeet_tdt" else AutoModelForRNNT).from_config(config)
    for name, parameter in recogniser.named_parameters():
        if not name.startswith("encoder."):
            parameter.data.normal_(std=0.1)
    recogniser.generation_config.decoder_start_token_id = BLANK
    bias = recogniser.joint.head.bias.data
    if kind == "parakeet_tdt":  # all durations but none, below the tokens, of whose logits `generate` takes the best
        bias[CLASSES:] = torch.tensor([-50.0, -20.0, -20.0, -20.0, -20.0])
    model = PretrainedTransducer(recogniser.eval(), KINDS[kind], 0.08)
    inputs = batch(2, seconds)
    low, high = -20.0, 60.0
    for _ in range(8):
        bias[BLANK] = (low + high) / 2
        written = sum(len(ids) for ids, _ in model.generate(inputs, [10**6] * 2))
        low, high = (
            (bias[BLANK].item(), high)
            if written > RATE * inputs["lengths"].sum() / FRAMES
            else (low, bias[BLANK].item())
        )
    return model


def batch(size: int, seconds: float) -> dict[str, torch.Tensor]:
    """Log-mel [B, 80, T] of noise, zero at padding, with lengths [B]."""
    generator = torch.Generator().manual_seed(size)
    lengths = torch.linspace(seconds, seconds / 3, size).mul(FRAMES).long()
    features = torch.randn(size, 80, int(lengths[0]), generator=generator)
    return {"features": features * (torch.arange(int(lengths[0])) < lengths[:, None])[:, None], "lengths": lengths}


@torch.no_grad()
def compare(kind: str, model: PretrainedTransducer, size: int, args: Any) -> dict[str, Any]:
    inputs = batch(size, args.seconds)
    mask = torch.arange(int(inputs["lengths"].max())) < inputs["lengths"][:, None]
    theirs = {"input_features": inputs["features"].transpose(1, 2), "attention_mask": mask}
    ways = {
        "ours": lambda: model.generate(inputs, [10**6] * size),
        "generate": lambda: model.recogniser.generate(**theirs, max_length=10**5),
        "encoder": lambda: model.encode(**inputs),
    }
    taken: dict[str, list[float]] = {name: [] for name in ways}
    ours, generated = ways["ours"](), ways["generate"]()
    for _ in range(args.rounds):
        for name, way in ways.items():
            began = time.process_time()
            way()
            taken[name].append(time.process_time() - began)
    _, frames = model.encode(**inputs)
    expected = [
        emitted(*row) for row in zip(generated.sequences.tolist(), generated.durations.tolist(), frames.tolist())
    ]
    same = [ids for ids, _ in ours] == expected
    seconds = {name: statistics.median(values) for name, values in taken.items()}
    ratio = statistics.median(b / a for a, b in zip(taken["ours"], taken["generate"]))
    tokens = sum(map(len, expected))
    times = " ".join(f"{seconds[name]:8.3f}" for name in ways)
    print(f"{kind:14} {size:5} {times} {ratio:6.1f} {tokens:7}{'' if same else '  NOT THE SAME TOKENS'}", flush=True)
    facts = {"model": kind, "batch": size, "audio_seconds": round(float(inputs["lengths"].sum()) / FRAMES, 1)}
    cpu = {f"{name}_cpu_seconds": round(value, 3) for name, value in seconds.items()}
    return {**facts, **cpu, "ratio": round(ratio, 2), "tokens": tokens, "same_tokens": same}


def emitted(sequence: list[int], steps: list[int], frames: int) -> list[int]:
    """What a row of `generate` holds up to the end of its clip."""
    at, ids = 0, []
    for token, step in zip(sequence[1:], steps[1:]):
        if at < frames and token != BLANK:
            ids.append(token)
        at += step
    return ids


if __name__ == "__main__":
    main()
