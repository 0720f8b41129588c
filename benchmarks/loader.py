"""Benchmarks of data loading: batches, packs and their masks, collators, and audio features."""

import importlib.util
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from lhotse import CutSet, MonoCut
from lhotse.dataset import DynamicBucketingSampler
from lhotse.dataset.sampling.base import TimeConstraint

from benchmarks import harness
from benchmarks.harness import DATA, FOLDER, RATE, Result, Row, Rows, Table, benchmark
from stentor.data.batch import Example
from stentor.dataloading.batch_sampler import BatchLimits, BatchSampler, Item, PlannedBatch
from stentor.dataloading.mixing import Mix, Pool
from stentor.models.base import Family, TaskRequirements

REAL = DATA / "librispeech" / "train.jsonl"
TARGETS = {"padded": 0.94, "packed": 0.98}
Batches = list[list[int]]
"""Costs of items, one list a batch."""


# Batches of items without audio


def librispeech_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Chapters cut at pauses: most clips are just under the limit; 12 s in the mean."""
    return np.where(rng.random(count) < 0.65, rng.normal(14.4, 1.2, count), rng.uniform(1.5, 13, count))


def commonvoice_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Single sentences, read; 5 s in the mean."""
    return rng.lognormal(np.log(4.9), 0.32, count)


def emilia_like(rng: np.random.Generator, count: int) -> np.ndarray:
    """Podcasts cut into turns; 10 s in the mean, with a long tail."""
    return rng.gamma(2.2, 3.8, count) + 1.5


def librispeech(rng: np.random.Generator, count: int) -> np.ndarray:
    """Real lengths, drawn from the manifest with repetition."""
    return rng.choice([json.loads(line)["duration"] for line in REAL.read_text().splitlines()], count)


LIKE = (librispeech_like, commonvoice_like, emilia_like)


def asr_cost(seconds: float, subwords: float) -> int:
    """Positions of a speech language model: audio at 12.5 a second, the transcript and a prompt."""
    return int(12.5 * seconds + subwords) + 9


def speak_cost(seconds: float, subwords: float) -> int:
    """Positions of an OmniVoice sample: 25 frames a second, the text, and 14 of language, instruct and marks."""
    return int(25 * seconds) + int(subwords) + 14


class Corpus:
    """Cuts without audio, with the cost of each."""

    def __init__(self, draw: Callable, count: int, cost: Callable[[float, float], int] = asr_cost):
        rng = np.random.default_rng(1)
        self.name = draw.__name__.replace("_", "-")
        seconds = np.clip(draw(rng, count), 1.0, 30.0)
        spoken = np.maximum(seconds * rng.normal(3.4, 0.6, count), 1)  # subwords
        self.cuts = [MonoCut(str(i), 0.0, round(float(s), 2), 0, []) for i, s in enumerate(seconds)]
        self.costs = {c.id: cost(c.duration, float(subwords)) for c, subwords in zip(self.cuts, spoken)}

    def shuffled(self) -> list[int]:
        costs = list(self.costs.values())
        random.Random(0).shuffle(costs)
        return costs


def ours(corpus: Corpus, layout: str, budget: int) -> Batches:
    mix, limits = Mix([Pool(corpus.cuts, 1.0, None)]), BatchLimits(layout, budget)
    sampler = BatchSampler(lambda epoch: mix.epoch(0, epoch), lambda cut, _: corpus.costs[cut.id], limits, seed=0)
    return [[corpus.costs[i.cut.id] for i in items] for items in sampler.epoch(0)]


def random_batches(corpus: Corpus, budget: int, items: int = 16) -> Batches:
    costs = corpus.shuffled()
    return [costs[i : i + items] for i in range(0, len(costs), items)]


def linear_buckets(corpus: Corpus, budget: int, count: int = 20) -> Batches:
    """Buckets of equal width in length, each filled from a shuffled stream until the next item would not fit."""
    costs = corpus.shuffled()
    shortest, width = min(costs), (max(costs) + 1 - min(costs)) / count
    open_: dict[int, list[int]] = {}
    done = []
    for cost in costs:
        row = open_.setdefault(int((cost - shortest) / width), [])
        if row and max(*row, cost) * (len(row) + 1) > budget:
            done.append(row[:])
            row.clear()
        row.append(cost)
    return done + [row for row in open_.values() if row]


def lhotse_buckets(corpus: Corpus, budget: int) -> Batches:
    """DynamicBucketingSampler as its documentation has it: a limit in seconds, 30 buckets estimated from the data."""
    rate = sum(corpus.costs.values()) / sum(c.duration for c in corpus.cuts)  # so that batches are about as large
    limit = TimeConstraint(max_duration=budget / rate)
    cuts = CutSet.from_cuts(corpus.cuts)
    sampler = DynamicBucketingSampler(cuts, constraint=limit, num_buckets=30, shuffle=True, seed=0)
    return [[corpus.costs[c.id] for c in batch] for batch in sampler]


def next_fit(corpus: Corpus, budget: int) -> Batches:
    """Packing without looking ahead: a pack ends at the first item that does not fit."""
    done, row = [], []
    for cost in corpus.shuffled():
        if sum(row) + cost > budget:
            done.append(row)
            row = []
        row.append(cost)
    return [*done, row]


Ways = dict[str, tuple[str, Callable[[Corpus, int], Batches]]]
OURS: Ways = {
    f"stentor {layout}": (layout, lambda corpus, budget, layout=layout: ours(corpus, layout, budget))
    for layout in TARGETS
}


def fill(batches: Batches, layout: str, budget: int) -> float:
    slots = budget * len(batches) if layout == "packed" else sum(max(b) * len(b) for b in batches)
    return sum(map(sum, batches)) / slots


def fills(ways: Ways, corpora: Sequence[Corpus], budgets: Sequence[int], rounds: int) -> Rows:
    """Share of real positions, and items planned in a second, of each way and budget."""
    table = Table()
    for budget in budgets:
        for way, (layout, batches) in ways.items():
            found, speeds = {}, []
            for corpus in corpora:
                for _ in range(rounds):
                    began = time.perf_counter()
                    planned = batches(corpus, budget)
                    speeds.append(len(corpus.cuts) / (time.perf_counter() - began))
                assert sum(map(len, planned)) == len(corpus.cuts), "every item is in one batch"
                found[corpus.name] = round(fill(planned, layout, budget), 4)
            row = {"way": way, "layout": layout, "budget": budget, "fill": found}
            table.add(row | {"items_per_second": round(statistics.median(speeds))})
    print()
    for layout, target in TARGETS.items():
        worst = min(v for row in table if row["way"] == f"stentor {layout}" for v in row["fill"].values())
        harness.verdict(f"{layout} batches", worst, least=target)
    return table


@benchmark
def batching(items: int = 20_000, budget: tuple[int, ...] = (2000, 8000), rounds: int = 5) -> Result:
    """Batching: share of speech in a batch, our layouts beside random batches, linear buckets, lhotse and next-fit.

    No audio is read: lengths follow well-known corpora (and real LibriSpeech where `../shared/data` is there), an item
    costs its audio at 12.5 positions a second, its transcript and a prompt. Fill is real positions over all positions
    of the batches. A batch has at most `budget` positions, padding included; a random batch has 16 items, however many
    positions they take.
    """
    corpora = [Corpus(draw, items) for draw in (*LIKE, *[librispeech] * REAL.is_file())]
    ways: Ways = {
        "random, 16 items": ("padded", random_batches),
        "20 linear buckets": ("padded", linear_buckets),
        "lhotse, 30 buckets": ("padded", lhotse_buckets),
        "next-fit packing": ("packed", next_fit),
        **OURS,
    }
    return fills(ways, corpora, budget, rounds), {"items": items, "targets": TARGETS}


@benchmark(threads=1)
def packing_speak(items: int = 20_000, budget: tuple[int, ...] = (2048, 4096, 8192), rounds: int = 5) -> Result:
    """Batches of token shards: how full they are, what their masks cost, and training tokens per CPU second.

    Lengths follow well-known corpora (see the benchmark `batching`); an item costs its audio at 25 frames a second, its
    text and the style before it, as OmniVoice's samples do. Beside our two layouts: packing in the order of arrival, as
    OmniVoice's reader does it, and its 20 linear length buckets. Fill is real positions over all positions of the
    batches.

    The masks of packs are built from document boundaries, and by torch's `create_block_mask` from the rule "same
    document", eager on the CPU (OmniVoice compiles it). Training is a Qwen3 of 4 layers of 192 on random codes, in
    float32: the same items, all of them, in packs and in padded batches, in turns. Its seconds are the processor's own,
    of all threads, so that other work on the machine counts little.
    """
    ways: Ways = {"arrival-order packing": ("packed", next_fit), "20 linear buckets": ("padded", linear_buckets)}
    corpora = [Corpus(draw, items, speak_cost) for draw in LIKE]
    rows = fills({**ways, **OURS}, corpora, budget, 1)
    for row in rows:
        del row["items_per_second"]  # planned once each: no figure
    masks = Table()
    for size in budget:
        masks.add(_mask_time(corpora[-1], size, rounds))
    return rows, {"items": items, "targets": TARGETS, "masks": masks, "training": _packed_training(rounds)}


def _mask_time(corpus: Corpus, budget: int, rounds: int) -> Row:
    """Milliseconds for the mask of one pack, the median; the two are compared before."""
    from torch.nn.attention.flex_attention import create_block_mask

    from stentor.models.packing.flex import BLOCK, block_mask, tables

    budget -= budget % BLOCK
    pack = next(iter(ours(corpus, "packed", budget)))
    lengths = [*pack, budget - sum(pack)] if sum(pack) < budget else pack
    documents = tables(lengths, causal=False)["documents"]

    def same(batch: torch.Tensor, head: torch.Tensor, query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return documents[query] == documents[key]

    def boundaries() -> Any:
        return block_mask(**tables(lengths, causal=False), causal=False)

    def evaluated() -> Any:
        return create_block_mask(same, None, None, budget, budget, device="cpu", BLOCK_SIZE=BLOCK)

    assert torch.equal(boundaries().to_dense(), evaluated().to_dense()), "one mask"
    taken = harness.in_turns({"boundaries_ms": boundaries}, 10 * rounds, time.perf_counter)
    taken |= harness.in_turns({"create_block_mask_ms": evaluated}, rounds, time.perf_counter)
    return {"positions": budget, **harness.medians(taken, 1e3, 2)}


def _packed_training(rounds: int, budget: int = 2048, items: int = 60) -> dict[str, Row]:
    """Real positions per CPU second of forward and backward, beside the share of the positions that is real."""
    corpus = Corpus(emilia_like, items, speak_cost)
    layouts = {layout: _speak_batches(corpus, layout, budget) for layout in ("packed", "padded")}

    def epoch(model: torch.nn.Module, batches: list[dict[str, torch.Tensor]]) -> None:
        for inputs in batches:
            answers = model(**inputs).values()
            entropy = partial(torch.nn.functional.cross_entropy, reduction="sum")
            sum(entropy(a["hidden"] @ a["weight"].T, a["targets"]) for a in answers).backward()
            model.zero_grad()

    seconds = harness.medians(
        harness.in_turns({name: partial(epoch, *case) for name, case in layouts.items()}, rounds, warm=1)
    )
    figures, real = {}, sum(corpus.costs.values())
    for layout, (_, batches) in layouts.items():
        share = real / sum(inputs["audio_mask"].numel() for inputs in batches)
        figures[layout] = {"tokens_per_cpu_second": round(real / seconds[layout]), "fill": round(share, 4)}
        print(f"training, {layout}: {figures[layout]}")
    return figures


def _speak_batches(corpus: Corpus, layout: str, budget: int) -> tuple[torch.nn.Module, list[dict[str, torch.Tensor]]]:
    """A model, and all items of a corpus as its batches."""
    from benchmarks.speak import BACKBONE, CODEBOOKS, ENTRIES, build_omnivoice
    from stentor.data.conditions import Conditions
    from stentor.models.omnivoice.processor import training_sample

    bundle, rng = build_omnivoice(BACKBONE), np.random.default_rng(0)
    conditions = Conditions(False, 0.0, None, None, "", False, None, 0.5)
    batches = []
    for costs in ours(corpus, layout, budget):
        texts = [[1] * min(40, cost // 2) for cost in costs]
        samples = [
            training_sample(conditions, rng.integers(0, ENTRIES, (CODEBOOKS, cost - len(text))), text, ENTRIES, rng)
            for cost, text in zip(costs, texts)
        ]
        batches.append({"packed": bundle.processor.packed, "padded": bundle.processor.padded}[layout](samples))
    return bundle.model, batches


# Collators

Collator = Callable[[Sequence[Example]], Any]

HALF = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
HEADS = ("encoder_attention_heads", "decoder_attention_heads")
MORE_HEADS = ("encoder_num_attention_heads", "decoder_num_attention_heads")
SEQ2SEQ: dict[str, tuple[Row, Row]] = {
    "whisper": ({"d_model": 32, **dict.fromkeys(HEADS, 2), "encoder_layers": 1, "decoder_layers": 1}, {}),
    "moonshine": ({"hidden_size": 32, **dict.fromkeys(MORE_HEADS, 2)}, {"padding": True}),
    "moonshine_streaming": ({**HALF, "encoder_config": {**HALF, "sliding_windows": [[16, 4]]}}, {}),
    "cohere_asr": ({**HALF, "encoder_config": {**HALF, "subsampling_conv_channels": 8}}, {"language": "en"}),
}
"""Config keys of a small model with the real one's features, and options of its processor."""
AUDIO_LLMS = ("qwen3_asr", "glmasr")
"""Those whose processors transformers makes without torchaudio; Voxtral's is in `finetune_voxtral`."""


def seq2seq(kind: str) -> tuple[Collator, Collator]:
    """Collators of a model of the family seq2seq; both have the tokenizer of bytes. Theirs is what transformers'
    processor makes of audio and texts."""
    from transformers import AutoProcessor

    config, options = SEQ2SEQ[kind]
    section = Family.model_validate({"type": "seq2seq", "config": {"model_type": kind, **config}})
    bundle = section.build(TaskRequirements("transcribe", ("text",)))
    with tempfile.TemporaryDirectory() as folder:
        bundle.family.save_merged(bundle, Path(folder))
        processor = AutoProcessor.from_pretrained(folder, trust_remote_code=False)

    def theirs(examples: Sequence[Example]) -> Any:
        inputs = processor([e.audio for e in examples], sampling_rate=RATE, return_tensors="pt", **options)
        labels = processor.tokenizer([e.text for e in examples], padding=True, return_tensors="pt")
        return inputs, labels.input_ids.masked_fill(labels.attention_mask == 0, -100)

    return bundle.processor.collate, theirs


def audio_llm(kind: str) -> tuple[Collator, Collator]:
    """Collators of a model of the family audio_llm, of the tests' tiny model, which has the real one's features. Theirs
    is what transformers' processor makes of whole conversations, with labels: the recipe of its documentation."""
    sys.path.insert(0, str(FOLDER.parent / "tests" / "models"))
    from tiny_audio_llms import TINY

    with tempfile.TemporaryDirectory() as folder:
        bundle = TINY[kind].build(TINY[kind].write(Path(folder)))
    processor = bundle.processor.hf

    def theirs(examples: Sequence[Example]) -> Any:
        prompts = processor.apply_transcription_request(audio=[e.audio for e in examples], tokenize=False)
        texts = [f"{prompt}{e.text}<|im_end|>" for prompt, e in zip(prompts, examples)]
        return processor(text=texts, audio=[e.audio for e in examples], output_labels=True)

    return bundle.processor.collate, theirs


CASES = {kind: partial(seq2seq, kind) for kind in SEQ2SEQ} | {kind: partial(audio_llm, kind) for kind in AUDIO_LLMS}


@benchmark
def collators(models: tuple[Literal[tuple(CASES)], ...] = tuple(CASES), clips: int = 16, rounds: int = 11) -> Result:
    """Batches of our processors beside those that transformers' own make of the same clips and texts; in one run.

    Milliseconds of processor time for a training batch of clips of 1 to 12 s (median over rounds in which both take
    turns), and theirs divided by ours, on one thread. Theirs is the model's own processor on the list of clips with the
    model's usual padding, and its tokenizer on the list of texts: what a collator for transformers' Trainer does.
    """
    harness.set_threads(1)
    rng, words = np.random.default_rng(0), ["one", "two", "three", "four", "five", "six"]
    examples = [
        Example(str(i), harness.clip(rng, float(seconds)), " ".join(rng.choice(words, round(2 * seconds))), "en")
        for i, seconds in enumerate(np.linspace(1, 12, clips))
    ]
    table = Table()
    for name in models:
        both = zip(("ours_ms", "theirs_ms"), CASES[name]())
        ms = harness.medians(
            harness.in_turns({key: partial(collate, examples) for key, collate in both}, rounds, warm=1), 1e3
        )
        row = {"model": name, **{key: round(value, 2) for key, value in ms.items()}}
        table.add({**row, "ratio": round(ms["theirs_ms"] / ms["ours_ms"], 2)})
    return table, {"clips": clips, "rounds": rounds}


# Features


@benchmark(threads=0)
def features(clips: int = 16, rounds: int = 11) -> Result:
    """Log-mel features for Whisper encoders: ours beside transformers' extractor, in one run.

    Milliseconds per clip (median over rounds in which all three take turns), the ratio to transformers' torch path, and
    the greatest difference of our features from transformers' on the frames of each clip.
    """
    rng, table = np.random.default_rng(0), Table()
    mixed = rng.uniform(1, 29, clips)
    lengths = {"15 s clips": np.full(clips, 15.0), "mixed, 1 to 29 s": mixed, "30 s clips": np.full(clips, 30.0)}
    for title, seconds in lengths.items():
        made = [harness.clip(rng, s) for s in seconds]
        for n_mels in (80, 128):
            table.add({"data": title, "n_mels": n_mels, **_log_mel(made, n_mels, rounds)})
    return table, {}


def _log_mel(clips: list[np.ndarray], n_mels: int, rounds: int) -> Row:
    from transformers import WhisperFeatureExtractor

    from stentor.audio.features import WhisperMel

    ours, theirs = WhisperMel(n_mels), WhisperFeatureExtractor(feature_size=n_mels)
    # The extractor falls back to its numpy path without torch; this is what it then computes, one 30 s window per clip.
    window = np.pad(clips[0], (0, 30 * RATE - len(clips[0])))[None]
    ways = {
        "ours": lambda: ours(clips),
        "torch": lambda: theirs(clips, sampling_rate=RATE, return_tensors="pt"),
        "numpy": lambda: theirs._np_extract_fbank_features(window, "cpu"),
    }
    features, lengths = ours(clips)
    reference = ways["torch"]().input_features
    difference = max(float((f[:, :n] - r[:, :n]).abs().max()) for f, r, n in zip(features, reference, lengths.tolist()))
    taken = harness.in_turns(ways, rounds, time.perf_counter, settle=True)
    ms = {name: statistics.median(t) * 1000 / (1 if name == "numpy" else len(clips)) for name, t in taken.items()}
    return {"ms": ms, "ratio_to_torch": harness.ratio(taken["torch"], taken["ours"]), "difference": difference}


@benchmark(threads=1)
def kaldi(clips: int = 16, rounds: int = 11) -> Result:
    """Kaldi's features, ours beside lhotse's, and a training item computed beside one that was stored; in one run.

    The first rows have milliseconds of processor time per 20 s clip (median over rounds in which all take turns), how
    many times faster than real time ours is on one core, and the greatest and the mean difference from lhotse. `native`
    is kaldi-native-fbank, compiled C++, where it is installed (filter banks only), or null. The
    last one has milliseconds per simulated 20 s conversation of the built-in voice, from its metadata to a batch: its
    audio mixed, its features computed, joined and normalised, or the same from a store.
    """
    from lhotse import Fbank, FbankConfig, Mfcc, MfccConfig, Spectrogram, SpectrogramConfig

    from stentor.audio.kaldi import KaldiFeatures

    rng, table, seconds = np.random.default_rng(0), Table(), 20
    made = [harness.clip(rng, seconds) for _ in range(clips)]
    lhotse = {
        "fbank": Fbank(FbankConfig(dither=0.0)),
        "mfcc": Mfcc(MfccConfig(num_filters=80, dither=0.0)),
        "spectrogram": Spectrogram(SpectrogramConfig(use_energy=False, dither=0.0)),
    }
    for kind, theirs in lhotse.items():
        ours = KaldiFeatures(type=kind)
        pairs = [(ours.extract(c), theirs.extract(c, RATE)) for c in made]
        off = [np.abs(a - b) / (np.maximum(1, np.abs(b)) if kind == "spectrogram" else 1) for a, b in pairs]
        ways = {"ours": ours.extract, "lhotse": partial(theirs.extract, sampling_rate=RATE)}
        ways |= {"native": native_fbank} if kind == "fbank" and importlib.util.find_spec("kaldi_native_fbank") else {}
        ms = {"native": None} | _each(ways, made, rounds)
        row: Row = {"features": kind, "ms": ms, "ratio": ms["lhotse"] / ms["ours"]}
        row["times_real_time"] = seconds * 1000 / ms["ours"]
        table.add(row | {"greatest": float(max(d.max() for d in off)), "mean": float(np.mean([d.mean() for d in off]))})
    table.add(_stored_item(clips, rounds, float(seconds)))
    return table, {}


def native_fbank(samples: np.ndarray) -> np.ndarray:
    """The filter banks of kaldi-native-fbank with lhotse's settings."""
    import kaldi_native_fbank

    options = kaldi_native_fbank.FbankOptions()
    options.frame_opts.dither, options.frame_opts.snip_edges = 0.0, False
    options.mel_opts.num_bins, options.mel_opts.high_freq = 80, -400.0
    computer = kaldi_native_fbank.OnlineFbank(options)
    computer.accept_waveform(RATE, samples)
    computer.input_finished()
    return np.stack([computer.get_frame(i) for i in range(computer.num_frames_ready)])


def _stored_item(count: int, rounds: int, seconds: float) -> Row:
    from stentor.data.augment import Augment
    from stentor.dataloading.loader import BatchDataset
    from stentor.models.encoders.features import Features
    from stentor.models.transformer.processor import TransformerProcessor
    from stentor.sources.base import Source
    from stentor.tasks.diarize.task import Diarize

    speech = {"type": "synth", "texts": {"kind": "sentences"}, "voices": {"count": 12}, "limit": 60}
    section = {"type": "conversation", "count": count, "seconds": seconds, "source": speech}
    cuts = list(Source.model_validate(section).cuts())
    with tempfile.TemporaryDirectory() as folder:
        ways = {}
        for name, more in (("computed", {}), ("stored", {"store": folder})):
            processor = TransformerProcessor(Features(stack=10, subsample=10, **more))
            reader = BatchDataset(Diarize(), processor, Augment(), seed=0)
            ways[name] = lambda cut, reader=reader: reader[PlannedBatch([Item(cut, 0)], 0, 0, 0)]
            for cut in cuts:
                ways[name](cut)
        ms = _each(ways, cuts, rounds)
    return {"item": "conversation of 20 s", "ms": ms, "ratio": ms["computed"] / ms["stored"]}


def _each(ways: dict[str, Callable[[Any], Any]], things: list[Any], rounds: int) -> dict[str, float]:
    """Milliseconds of processor time per thing."""
    loops = {name: lambda way=way: [way(thing) for thing in things] for name, way in ways.items()}
    return harness.medians(harness.in_turns(loops, rounds), 1000 / len(things))
