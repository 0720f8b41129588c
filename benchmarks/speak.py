"""Speech synthesis: long texts, generation beside OmniVoice's own, and streams."""

import importlib.util
import itertools
import json
import random
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any
from unittest.mock import MagicMock

import numpy as np
import torch

import stentor
from benchmarks import harness
from benchmarks.harness import Result, Row, Table, benchmark
from stentor.audio.synth import say
from stentor.audio.writer import open_writer
from stentor.inference.speak.postprocess import loudness
from stentor.inference.speak.utterance import Utterance
from stentor.metrics.wer import count_errors
from stentor.models.base import Bundle, Family, TaskRequirements
from stentor.models.codecs.base import Codec
from stentor.models.omnivoice.generate import Prompt, generate
from stentor.sources.phrases import command, digit_string

CODEBOOKS, ENTRIES = 8, 1024
BACKBONE = {"model_type": "qwen3", "hidden_size": 192, "intermediate_size": 576, "num_hidden_layers": 4}
BACKBONE |= {"num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 64}
SMALL_TEXT = {**BACKBONE, "vocab_size": 512}


def build_omnivoice(backbone: Row) -> Bundle:
    """An OmniVoice with random weights."""
    torch.manual_seed(0)
    section = {"type": "omnivoice", "llm": {"config": backbone}, "text": {"type": "characters"}}
    needs = TaskRequirements("speak", ("codes",), texts=lambda: ["abcdefghij"])
    return Family.model_validate(section).build(needs)


# A long text


@benchmark(threads=1)
def speak_chapters(
    *,
    model: str,
    recognizer: str,
    characters: int = 20_000,
    instruct: str | None = None,
    chunk_duration: float = 15.0,
    stream: Annotated[bool, "Short pieces first."] = False,
) -> Result:
    """A text of three chapters, spoken piece by piece: memory, lengths of pieces, levels at joins, and its WER.

    The text is of digit strings and short commands in sentences and paragraphs, which models of
    `recipes/speak_tiny.yaml` and of `stentor quickstart` know. It is written to a file piece by piece, as `stentor
    speak` does, and the recogniser reads that file, joins and all; and the same sentences, spoken one by one.
    """
    text, table = _chapters(characters), Table()
    settings = {"chunk_duration": chunk_duration, "chunk_threshold": 1.2 * chunk_duration}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "chapters.wav"
        speaker = stentor.load(model, "cpu").speaker(settings)
        row = _spoken(speaker, text, instruct, path, stream)
        row["longest_piece_by_wish"] = round(row["longest_piece_seconds"] / chunk_duration, 3)
        row["wer"] = _error_rate(recognizer, text, [path])
        row["wer_one_by_one"] = _error_rate(recognizer, text, _one_by_one(model, text, instruct))
    table.add(row)
    return table, {"characters": len(text), "chunk_duration": chunk_duration}


def _chapters(characters: int) -> str:
    rng = random.Random(0)
    text = ""
    for number, name in enumerate(("one", "two", "three"), 1):
        text += f"{name}\n\n"
        while len(text) < characters * number / 3:
            text += " ".join(f"{_sentence(rng)}." for _ in range(5)) + "\n\n"
    return text


def _sentence(rng: random.Random) -> str:
    """Return a sentence of about two seconds (24 to 38 characters), as in the training data of the model."""
    while True:
        text = command(rng) if rng.random() < 0.7 else digit_string(rng, 5, 5)
        if 24 <= len(text) <= 38:
            return text


def _spoken(speaker: Any, text: str, instruct: str | None, path: Path, stream: bool) -> Row:
    # What is loaded and allocated once is not counted.
    next(speaker.speak([speaker.prepare(Utterance(text[:400], instruct=instruct))]))
    utterance, codec = speaker.prepare(Utterance(text, instruct=instruct)), speaker.codec
    began, memory, lengths, levels, raw = time.process_time(), [(0, _resident())], [], [], []
    samples, spoken = 0, 0
    with open_writer(path, codec.sample_rate, "wav") as put:
        for piece in speaker.stream(utterance, True, stream):
            put(piece.audio)
            samples += len(piece.audio)
            spoken += len(piece.texts[0])
            memory.append((spoken, _resident()))
            lengths.append(piece.codes.shape[1] / codec.frame_rate)
            levels.append(_decibels(piece.audio))
            raw.append(_decibels(codec.decode([piece.codes])[0]))
    thirds = [next(size for at, size in memory if at >= spoken * third / 3) for third in range(4)]
    return {
        "seconds_of_speech": round(samples / codec.sample_rate, 1),
        "cpu_seconds": round(time.process_time() - began, 1),
        "pieces": len(lengths),
        "longest_piece_seconds": round(max(lengths), 2),
        "median_piece_seconds": round(float(np.median(lengths)), 2),
        "memory_mb": dict(zip(("start", "third", "two_thirds", "end"), thirds)),
        "largest_level_step_db": _largest_step(levels),
        "largest_level_step_as_decoded_db": _largest_step(raw),
    }


def _resident() -> float:
    return round(harness.memory() / 1e6, 1)


def _decibels(audio: np.ndarray) -> float:
    return 20 * float(np.log10(max(loudness(audio), 1e-6)))


def _largest_step(levels: list[float]) -> float:
    return round(max(abs(after - before) for before, after in itertools.pairwise(levels)), 2)


def _one_by_one(model: str, text: str, instruct: str | None) -> Iterator[np.ndarray]:
    speaker = stentor.load(model, "cpu").speaker()
    for part in filter(None, re.split(r"[.\s]*\n\n|\. ", text)):
        yield next(speaker.speak([speaker.prepare(Utterance(part, instruct=instruct))])).audio


def _error_rate(recognizer: str, text: str, recordings: Iterable[Path | np.ndarray]) -> str:
    """Errors over words, of all of the recordings; arrays are at 16 kHz."""
    model = stentor.load(recognizer, "cpu")
    answer = " ".join(transcript.text for transcript in model.transcribe_many(recordings, 16_000))
    words = text.replace(".", " ").split()
    errors = int(count_errors([(words, answer.lower().split())])[:, :3].sum())
    return f"{100 * errors / len(words):.2f} % ({errors}/{len(words)})"


# Generation beside OmniVoice's

TEXT, REFERENCE, LEAST, MOST = 40, 75, 40, 160
UNUSED = ("torchaudio", "pydub", "pydub.silence")
"""Packages that upstream imports for audio, which is not measured here."""


@benchmark(threads=1)
def speak_generation(
    *,
    upstream: Annotated[Path, "A checkout of github.com/k2-fsa/OmniVoice."],
    batch: tuple[int, ...] = (1, 8, 32),
    steps: int = 8,
    rounds: int = 3,
) -> Result:
    """Iterative unmasking beside OmniVoice's own, on the same tiny weights: CPU time of 1, 8 and 32 utterances.

    The model is a Qwen3 of 4 layers of 192 with 8 codebooks of 1025. An utterance has 40 positions of text, 75 frames
    of a reference and 40 to 160 frames (1.6 to 6.4 s) to speak; guidance is on. Both get the same positions (its
    tokenizer and its codec take no part), and first the codes are compared, greedily. The two take turns; seconds are
    the processor's own, of all threads, so that other work on the machine counts little.
    """
    bundle, table = build_omnivoice(SMALL_TEXT), Table()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # weights as large as trained ones, so that codes are certain
        for parameter in bundle.model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.1, generator=generator)
    theirs, model = Upstream(upstream, bundle), bundle.model.eval()
    for size in batch:
        prompts = _prompts(size)
        greedy = theirs.generate(prompts, steps, 0.0), generate(model, prompts, steps=steps, position_temperature=0.0)
        ways: dict[str, Callable[[], object]] = {
            "upstream": lambda prompts=prompts: theirs.generate(prompts, steps, 5.0),
            "stentor": lambda prompts=prompts: generate(model, prompts, steps=steps),
        }
        taken = harness.in_turns(ways, rounds)
        row: Row = {"batch": size, "same_codes": float(np.mean([bool(torch.equal(a, b)) for a, b in zip(*greedy)]))}
        row["frames"] = sum(p.frames for p in prompts)
        row |= {f"{name}_cpu_seconds": median for name, median in harness.medians(taken, digits=2).items()}
        table.add(row | {"ratio": round(harness.ratio(taken["upstream"], taken["stentor"]), 2)})
    return table, {"steps": steps, "rounds": rounds}


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


def _prompts(count: int) -> list[Prompt]:
    rng = np.random.default_rng(count)
    prompts = []
    for _ in range(count):
        text = np.tile(rng.integers(0, 12, TEXT), (CODEBOOKS, 1))
        ids = np.concatenate([text, rng.integers(0, ENTRIES, (CODEBOOKS, REFERENCE))], 1)
        mask = torch.arange(TEXT + REFERENCE) >= TEXT
        prompts.append(Prompt(torch.from_numpy(ids), mask, int(rng.integers(LEAST, MOST + 1))))
    return prompts


# Streams

SENTENCE = "The old man talked about the last train, and no one at the station knew a better answer. "
VOICES = ("en-us", "en-us+f3", "en-gb-x-rp+m3")


@benchmark(threads=1)
def speak_stream(characters: tuple[int, ...] = (100, 500, 2000), steps: int = 16, rounds: int = 3) -> Result:
    """The first audio of a stream beside waiting for all of a text: seconds by the clock and of the processor.

    The model is a Qwen3 of 4 layers of 192 with random weights and the codec `mel_rvq` (8 codebooks of 512, 50 Hz):
    what it says is noise, but as long as speech of that text would be, which is what decides the time. Guidance is on.
    The two take turns; the seconds of the processor are those of all threads, so that other work on the machine counts
    little.
    """
    table = Table()
    with tempfile.TemporaryDirectory() as folder:
        model = _streaming_model(Path(folder))
        for size in characters:
            table.add(_streamed(model, size, steps, rounds))
    return table, {"steps": steps, "rounds": rounds}


def _streaming_model(folder: Path) -> Any:
    torch.manual_seed(0)
    section: Row = {"type": "mel_rvq", "codebooks": 8, "entries": 512, "rounds": 2}
    codec = Codec.model_validate(section).fit([say(8 * SENTENCE, voice).audio for voice in VOICES], seed=0)
    (folder / "codec").mkdir()
    codec.save(folder / "codec")
    model = {"type": "omnivoice", "llm": {"config": SMALL_TEXT}, "text": {"type": "characters"}}
    model["codec"] = {"type": "mel_rvq", "from": str(folder / "codec")}
    family = Family.model_validate(model)
    bundle = family.build(TaskRequirements("speak", ("codes",), texts=lambda: [SENTENCE, SENTENCE.lower()]))
    state = bundle.model.state_dict()
    family.save(bundle, {name: state[name] for name in family.exported_tensor_names(bundle)}, folder / "model")
    config = {"task": {"type": "speak"}, "model": model}
    (folder / "model" / "training_config.json").write_text(json.dumps(config))
    return stentor.load(folder / "model", "cpu")


def _streamed(model: Any, characters: int, steps: int, rounds: int) -> Row:
    text = (SENTENCE * (characters // len(SENTENCE) + 1))[:characters]
    ways: dict[str, Callable[[], Iterator[Any]]] = {
        "stream": lambda: model.speak_stream(text, steps=steps),
        "all": lambda: iter([model.speak(text, steps=steps)]),
    }
    times: dict[str, list[float]] = {}
    pieces: list[float] = []
    for _ in range(rounds):
        for name, way in ways.items():
            clock, processor = time.perf_counter(), time.process_time()
            answer = way()
            spoken = [next(answer)]
            times.setdefault(f"{name}_first_seconds", []).append(time.perf_counter() - clock)
            times.setdefault(f"{name}_first_cpu_seconds", []).append(time.process_time() - processor)
            spoken += answer
            times.setdefault(f"{name}_cpu_seconds", []).append(time.process_time() - processor)
            if name == "stream":
                pieces = [len(audio) / rate for audio, rate in spoken]
    row: Row = {"characters": characters, "seconds_of_speech": round(sum(pieces), 1), "pieces": len(pieces)}
    return row | {"first_piece_seconds": round(pieces[0], 2), **harness.medians(times, digits=2)}
