"""Words: their times beside references, what the pass for times costs, hotwords, and words and ends in streams."""

import json
import random
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import torch

from benchmarks import harness
from benchmarks.harness import RATE, Result, Row, Rows, Table, benchmark
from stentor.audio.io import read
from stentor.audio.synth import say
from stentor.config.load import parse_source
from stentor.data.batch import Example
from stentor.data.cut import audio_path, language_of, text_of, words_of
from stentor.data.load_audio import load_audio
from stentor.dataloading.section import Data
from stentor.inference.align.base import Clip
from stentor.inference.align.engines import clip_of, open_aligner
from stentor.inference.load import load
from stentor.inference.recording import ArrayRecording
from stentor.inference.vad import Endpointer, open_detector
from stentor.metrics.wer import count_errors, matches, rate
from stentor.models.base import Bundle
from stentor.sources.phrases import command
from stentor.tasks.words import Words

# Word times

SETS = {"words": ["words/librivox.jsonl", "words/mfa.jsonl"], "librispeech dev (silver)": ["librispeech/dev.jsonl"]}
MILLISECONDS = ("word_time_mean_ms", "word_time_median_ms")
SHOWN = (*MILLISECONDS, "within_20ms", "within_50ms", "within_100ms", "word_f1_50ms", "word_f1_100ms", "words_matched")
LAG, MERGES = 0.04, 1200
"""Figure of the Whisper model of the development data: median error of starts in 40 utterances of its training
speakers, and how many merges of its tokenizer it knows."""
Way = Callable[[Clip], Rows]
"""From a clip to its words."""
Utterance = tuple[np.ndarray, Rows]
"""Audio float32 and its words."""


@benchmark(threads=0)
def word_times(
    data: Path = harness.DATA,
    ctc: Annotated[str | None, "CTC model: a run or export of ours, or a transformers folder."] = None,
    aligner: Annotated[str | None, "Run or export of the task words."] = None,
    whisper: Annotated[Path | None, "Whisper model; by default the one of the development data."] = None,
    whisper_merges: Annotated[int | None, "Merges of its tokenizer that the Whisper model knows."] = None,
    whisper_lag: Annotated[float | None, "Seconds that its attention is late, from training data."] = None,
    limit: Annotated[int | None, "Records of each set, for a quick look."] = None,
    only: Annotated[Literal[tuple(SETS)] | None, "One of the sets."] = None,
) -> Result:
    """Word times: agreement of each method with references, all on the same files in one run.

    Data: `words/` (word times checked by people) and the dev part of `librispeech/` (silver times by PocketSphinx;
    speakers that are not in the train part). Engines: `aligner`, `ctc` and `whisper` as `stentor prepare words` runs
    them, and peers:

    * `plain Viterbi`: the textbook's best CTC path on the emissions of the `ctc` model, words from their first to their
      last frame; `ctc` must not be worse.
    * `plain DTW`: dynamic time warping over the same Whisper's attention, a word ends where the next begins.
    * PocketSphinx on `words/`, where `pocketsphinx` is installed. It made the silver times, so it is not scored on
      them.

    The Whisper model of the development data knows only the tokens of the first 1,200 merges of its tokenizer
    (`--whisper-merges`); others have all of them. Its attention is 40 ms late on its training speakers
    (`--whisper-lag`).
    """
    if whisper is None:
        whisper, whisper_merges = data / "weights" / "whisper-tiny.en-rebuilt", MERGES
        whisper_lag = LAG if whisper_lag is None else whisper_lag
    ways: dict[str, Way] = {}
    if aligner:
        ways["aligner"] = _with_engine(open_aligner(aligner, "aligner"))
    if ctc:
        engine = open_aligner(ctc, "ctc")
        ways |= {"ctc": _with_engine(engine), "plain Viterbi (peer of ctc)": _plain_viterbi(engine)}
    table = Table()
    with tempfile.TemporaryDirectory() as scratch:
        if whisper.is_dir():
            merged = with_merges(whisper, whisper_merges, Path(scratch) / "whisper") if whisper_merges else whisper
            engine, peer = open_aligner(str(merged), "whisper", lag=whisper_lag), open_aligner(str(merged), "whisper")
            ways |= {"whisper": _with_engine(engine), "plain DTW (peer of whisper)": _plain_dtw(peer)}
        else:
            print(f"whisper is left out: there is no folder {whisper}.")
        ways |= _pocket_sphinx()
        for title, files in SETS.items():
            if only in (None, title):
                _agreement(table, title, [data / file for file in files], ways, limit)
    return table, {"models": {"ctc": ctc, "aligner": aligner, "whisper": str(whisper)}}


def _agreement(table: Table, title: str, files: list[Path], ways: dict[str, Way], limit: int | None) -> None:
    from stentor.metrics.word_time import score

    cuts = [cut for file in files for cut in parse_source(str(file)).cuts() if words_of(cut)][:limit]
    if not cuts:
        print(f"{title} is left out: no records in {files[0].parent}.")
    for name, way in ways.items() if cuts else ():
        if name == "PocketSphinx" and "silver" in title:
            continue
        outputs = []
        for cut in cuts:
            recording = ArrayRecording(load_audio(cut), RATE, RATE, audio_path(cut))
            outputs.append(way(clip_of(recording, text_of(cut), language_of(cut))))
        scores = score([words_of(cut) for cut in cuts], outputs, languages=[language_of(cut) for cut in cuts])
        median, mean = scores["word_time_median_ms"], scores["word_time_mean_ms"]
        histogram = next(s.details["histogram"] for s in scores.values() if "histogram" in s.details)
        row: Row = {"data": title, "engine": name, "records": len(cuts)}
        row |= {key: round(scores[key].value, 4) for key in SHOWN}
        row |= {"median_low_high": [median.low, median.high], "mean_low_high": [mean.low, mean.high]}
        table.add(row | {f"{side}_bias_ms": histogram[side]["median_ms"] for side in ("start", "end")})


def _with_engine(aligner: Any) -> Way:
    return lambda clip: [word.as_dict() for word in aligner.align([clip])[0].words]


def _plain_viterbi(ctc: Any) -> Way:
    """The best path by the textbook, one item at a time, and its frames as they are."""
    from benchmarks.models import plain_viterbi
    from stentor.inference.align.ctc import spelling
    from stentor.models.decoding.viterbi import WILDCARD
    from stentor.tasks.words import units

    def way(clip: Clip) -> Rows:
        if clip.seconds > (ctc.acoustic.longest or 30.0):
            return []
        words = units(clip.text, clip.language)
        with torch.no_grad():
            (emission,) = ctc.acoustic.log_probs([clip.recording.read(0, clip.samples)])
        labels, owner = spelling(ctc.acoustic, clip.text, words)
        known = [k for k, label in enumerate(labels) if label != WILDCARD]  # the textbook knows no wildcards
        blank = ctc.acoustic.blank
        order = [blank, *(c for c in range(emission.shape[1]) if c != blank)]
        ((states, _),) = plain_viterbi([emission[:, order]], [[order.index(labels[k]) for k in known]])
        frame = ctc.acoustic.hop / ctc.rate
        timed = []
        for i, word in enumerate(words):
            indices = [2 * j + 1 for j, k in enumerate(known) if owner[k] == i]
            if indices:
                at = np.flatnonzero((states >= indices[0]) & (states <= indices[-1]))
                timed.append({"word": word["word"], "start": at[0] * frame, "end": (at[-1] + 1) * frame})
        return timed

    return way


def _plain_dtw(whisper: Any) -> Way:
    """As OpenAI's word timestamps: no silence between words."""
    from stentor.inference.vad import Window

    def way(clip: Clip) -> Rows:
        if clip.seconds > whisper.longest:
            return []
        with torch.no_grad():
            piece = whisper._piece(clip, Window(0, clip.samples, 0, clip.samples), clip.text)
        return [word.as_dict() for word in piece.words]

    return way


def _pocket_sphinx() -> dict[str, Way]:
    try:
        from pocketsphinx import Decoder
    except ImportError:
        print("PocketSphinx is left out: it is not installed (pip install pocketsphinx).")
        return {}

    def way(clip: Clip) -> Rows:
        decoder = Decoder(samprate=RATE, loglevel="FATAL", beam=1e-60, pbeam=1e-60, wbeam=1e-40)
        decoder.set_align_text(" ".join(word for word in clip.text.split() if decoder.lookup_word(word)))
        decoder.start_utt()
        pcm = np.clip(clip.recording.read(0, clip.samples), -1, 1) * 32767
        decoder.process_raw(pcm.astype(np.int16).tobytes(), full_utt=True)
        decoder.end_utt()
        return [
            {"word": s.word.partition("(")[0], "start": s.start_frame / 100, "end": (s.end_frame + 1) / 100}
            for s in decoder.seg() or []
            if s.word[0] not in "<["
        ]

    return {"PocketSphinx": way}


def with_merges(folder: Path, merges: int, to: Path) -> Path:
    """A copy of a model's folder whose tokenizer has only the first so many merges."""
    to.mkdir()
    for file in folder.iterdir():
        if file.name not in ("tokenizer.json", "vocab.json", "merges.txt"):
            (to / file.name).symlink_to(file) if file.suffix == ".safetensors" else shutil.copy(file, to)
    tokenizer = json.loads((folder / "tokenizer.json").read_text("utf-8"))
    tokenizer["model"]["merges"] = tokenizer["model"]["merges"][:merges]
    (to / "tokenizer.json").write_text(json.dumps(tokenizer), "utf-8")
    return to


def data_whisper(data: Path, scratch: Path) -> str:
    """The Whisper of the development data, whose tokenizer has more merges than it knows."""
    return str(with_merges(data / "weights" / "whisper-tiny.en-rebuilt", MERGES, scratch / "whisper-tiny.en-rebuilt"))


# The pass for word times

ENCODER = {"model_type": "whisper", "num_mel_bins": 80, "d_model": 768, "encoder_layers": 12, "encoder_ffn_dim": 3072}
LLM = {"model_type": "qwen2", "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24}
SMALL: Row = {
    "encoder": {"config": {**ENCODER, "encoder_attention_heads": 12}},
    "projector": {"type": "mlp", "rate": 12.5},
    "llm": {"config": {**LLM, "num_attention_heads": 14, "num_key_value_heads": 2, "tie_word_embeddings": True}},
    "tokenizer": {"type": "characters"},
    "aligner": {},
}


@benchmark(threads=1)
def words_pass(
    model: Annotated[str | None, "Run or export of the task words."] = None, clips: int = 16, rounds: int = 3
) -> Result:
    """Cost of word times on top of transcription: the second pass over the recognised text, in one run with the first.

    Without `--model`, a model of VoxLM-0.5b's size with random weights: Whisper-small's encoder, an MLP projector to
    12.5 positions a second, Qwen2-0.5B's language model. Its text means nothing and never ends by itself, so that as
    many tokens are written as the longest allowed answer has, 3.5 a second, about what English needs. The clips are
    sentences of the built-in voice. The figures are process time of both, the best of several rounds, and the share
    that the words pass adds.
    """
    rng = random.Random(0)
    examples = []
    for i in range(clips):  # commands in a row, 2 to 20 s
        text = " ".join(command(rng) for _ in range(1 + i % 8))
        examples.append(Example(str(i), say(text, voice="en-us").audio, text, "en"))
    examples.sort(key=lambda e: len(e.audio))
    bundle, task = _trained(model) if model else _random_one([e.text or "" for e in examples])
    bundle.model.eval()

    def predict(**options: bool) -> None:
        for k in range(0, len(examples), 8):
            task.predict(bundle, examples[k : k + 8], **options)

    ways = {"transcribe_s": lambda: predict(words=False), "with_words_s": predict}
    best = {name: min(taken) for name, taken in harness.in_turns(ways, rounds, time.process_time).items()}
    table = Table()
    row: Row = {"model": model or "VoxLM-0.5b's size, random weights"}
    row |= {"audio_s": sum(len(e.audio) for e in examples) / RATE, **best}
    table.add(row | {"added": best["with_words_s"] / best["transcribe_s"] - 1})
    return table, {}


def _random_one(texts: list[str]) -> tuple[Bundle, Words]:
    from stentor.models.speech_llm.config import SpeechLLM

    task = Words()
    needs = task.requirements(task.losses())
    needs.texts = lambda: texts
    torch.manual_seed(0)
    return SpeechLLM.model_validate(SMALL).build(needs), task


def _trained(model: str) -> tuple[Bundle, Words]:
    loaded = load(model)
    if not isinstance(loaded.task, Words):
        raise SystemExit(f"{model} was not trained for the task words.")
    return loaded.bundle, loaded.task


# Hotwords

RARE = ["geneva", "nairobi", "bergen", "seville", "havana", "denver", "zagreb", "antwerp", "bristol", "medina"]
RARE += ["sofia", "leipzig"]
KNOWN = ["athens", "berlin", "london", "paris"]
SENTENCES = ("what is the weather in {}", "what is the weather in {} tomorrow")


@benchmark
def hotwords(
    model: str, /, clips: int = 60, strengths: tuple[float, ...] = (1.0, 2.0, 4.0), beams: tuple[int, ...] = (1, 4)
) -> Result:
    """Hotwords: WER on words that a model was never trained on, and listed words that it writes where no one says them.

    MODEL is the export of the quickstart, which knows some places. `rare`: commands about places that training had not,
    all of them listed. `others`: commands of the training's own words, with the same list; a listed word in an answer
    is a leak. Voices of both are held out.
    """
    loaded, table = load(model), Table()
    sets = {"rare": _commands(RARE, clips, loaded), "others": _commands(KNOWN, clips, loaded)}
    for count in beams:
        for strength in (0.0, *strengths):
            table.add({"beams": count, "strength": strength, **_hotword_figures(loaded, sets, count, strength)})
    return table, {"clips": clips, "listed": RARE}


def _commands(places: list[str], count: int, model: Any) -> list[Example]:
    from stentor.sources.synth import Voices

    voices, drawn, rate = Voices(count=70, part="test").names(), random.Random(0), model.bundle.processor.sample_rate
    silence = np.zeros(rate // 4, np.float32)
    examples = []
    for i in range(count):
        text = drawn.choice(SENTENCES).format(places[i % len(places)])
        audio = say(text, drawn.choice(voices)).audio_at(rate)
        examples.append(Example(str(i), np.concatenate([silence, audio, silence]), text=text))
    return examples


def _hotword_figures(model: Any, sets: dict[str, list[Example]], beams: int, strength: float) -> Row:
    from stentor.metrics.wer import score

    update = {"beams": beams, "hotwords": RARE if strength else [], "hotword_strength": strength or 1.0}
    task = model.task.model_copy(update=update)
    texts = {name: [o["text"] for o in task.predict(model.bundle, examples, False)] for name, examples in sets.items()}
    wer = {name: round(score([e.text or "" for e in sets[name]], texts[name]).value, 4) for name in sets}
    pairs = [(e.text or "", text.split()) for e, text in zip(sets["rare"], texts["rare"])]
    right = [word in text for reference, text in pairs for word in reference.split() if word in RARE]
    leaks = sum(word in RARE for text in texts["others"] for word in text.split())
    row = {"rare_wer": wer["rare"], "listed_right": round(sum(right) / len(right), 4)}
    return row | {"others_wer": wer["others"], "leaks": leaks}


# Ends of speech

GAP, BLOCK = 2.0, 320


@benchmark
def stream_ends(data: Path = Path("data"), silero: str = "silero", silence: float = 0.8) -> Result:
    """The end of speech while it comes: by energy and by Silero VAD, in noise.

    Every seventh utterance of LibriSpeech dev with 2 s between them, in one recording, and noise over all of it: white,
    pink, and each recording of `noise_rir/noise*.wav` from its beginning again and again. An end is found when it is
    reported between the last word of an utterance and 0.3 s after the next one begins; all others are `besides`.
    """
    speech, ends = _utterances(data / "librispeech")
    shapes: dict[str, Callable] = {"white": np.ones_like, "pink": lambda f: 1 / np.sqrt(np.maximum(f, 1))}
    audio = {name: _shaped(shape, len(speech)) for name, shape in shapes.items()}
    for path in sorted((data / "noise_rir").glob("noise*.wav")):
        audio[path.stem] = np.resize(read(path, RATE), len(speech))
    table = Table()
    for noise, snr in ((noise, snr) for noise in audio for snr in (20, 10, 5, 0)):
        level = np.sqrt(np.mean(speech[speech != 0] ** 2) / np.mean(audio[noise] ** 2) / 10 ** (snr / 10))
        noisy = (speech + level * audio[noise]).astype(np.float32)
        for name, vad in (("energy", "energy"), ("silero", silero)):
            found = _found_ends(noisy, open_detector(vad), silence)
            table.add({"noise": noise, "snr_db": snr, "vad": name, **_scored_ends(found, ends)})
    return table, {"silence": silence}


def _utterances(folder: Path) -> tuple[np.ndarray, list[float]]:
    """One recording, and the second at which each utterance's last word ends."""
    parts, ends = [np.zeros(3 * RATE)], []
    for record in harness.read_lines(folder / "dev.jsonl")[::7][:24]:
        ends.append(sum(map(len, parts)) / RATE + record["words"][-1]["end"])
        parts += [read(record["file"], RATE), np.zeros(round(GAP * RATE))]
    return np.concatenate(parts).astype(np.float32), ends


def _shaped(shape: Callable, samples: int) -> np.ndarray:
    spectrum = np.fft.rfft(np.random.default_rng(0).standard_normal(samples))
    return np.fft.irfft(spectrum * shape(np.arange(len(spectrum), dtype=float)), samples)


def _found_ends(audio: np.ndarray, detector: Any, silence: float) -> list[float]:
    endpointer = Endpointer(detector.live(RATE), silence)
    blocks = audio[: len(audio) // BLOCK * BLOCK].reshape(-1, BLOCK)
    return [i * BLOCK / RATE for i, block in enumerate(blocks) if endpointer.add(block)]


def _scored_ends(found: list[float], ends: list[float]) -> Row:
    late = [next((f - end for f in found if end < f <= end + GAP + 0.3), None) for end in ends]
    hits = [seconds for seconds in late if seconds is not None]
    median = round(statistics.median(hits), 2) if hits else None
    return {"ends": len(ends), "found": len(hits), "besides": len(found) - len(hits), "median_seconds": median}


# An hour in one stream


@benchmark(threads=1)
def stream_hour(model: str, /, minutes: float = 60, delay: float | None = None, part: float = 10) -> Result:
    """One hour in one stream: whether memory and the times of words stay where they are.

    Utterances of the built-in voices (commands and digits of its test part, other voices than a training with `part:
    train` hears) with pauses of 0.3 to 2 s between them are fed in blocks of 20 ms, as fast as the model takes them;
    the true times of their words are exact. For each part of `--part` minutes: word errors, the median distance of the
    first second of a word from the true one (a drift would show there), the median time from the end of a word until it
    is final, and at the end of the part the memory of the process. Nothing of the audio is held here.
    """
    stream, table = load(model, "cpu").stream(RATE, delay=delay), Table()
    truth: Rows = []
    words: Rows = []
    fed, began = 0, time.perf_counter()
    for audio, spoken in speech(minutes * 60):
        truth += [{**word, "start": word["start"] + fed / RATE, "end": word["end"] + fed / RATE} for word in spoken]
        for block in np.split(audio, range(BLOCK, len(audio), BLOCK)):
            words += [event for event in stream.feed(block) if event["type"] == "word"]
        fed += len(audio)
        if fed / RATE >= part * 60 * (len(table) + 1):
            table.add(_stream_part(truth, words, fed / RATE, time.perf_counter() - began))
            truth, words = [], []
    words += [event for event in stream.finish() if event["type"] == "word"]
    if truth:
        table.add(_stream_part(truth, words, fed / RATE, time.perf_counter() - began))
    return table, {"delay": delay}


def _stream_part(truth: Rows, words: Rows, seconds: float, took: float) -> Row:
    """The figures of a part that ends with an utterance whose words may come a little later: those count as missing."""
    reference, hypothesis = ([word["word"].lower() for word in side] for side in (truth, words))
    pairs = matches(reference, hypothesis)
    return {
        "minutes": round(seconds / 60, 1),
        "wer": round(rate(count_errors([(reference, hypothesis)])), 4),
        "start_median": round(statistics.median(words[k]["start"] - truth[i]["start"] for i, k in pairs), 4),
        "final_median": round(statistics.median(words[k]["time"] - truth[i]["end"] for i, k in pairs), 4),
        "memory_mb": round(harness.memory() / 2**20, 1),
        "rtf": round(took / seconds, 4),
    }


def speech(seconds: float) -> Iterator[Utterance]:
    """Utterances with a pause behind each, until there are so many seconds."""
    rng, voices = random.Random(0), {"count": 70, "part": "test"}
    kinds = [
        {"type": "synth", "texts": {"kind": kind, "part": "test"}, "count": 200, "voices": voices}
        for kind in ("commands", "digits")
    ]
    cuts = [cut for source in Data.model_validate({"train": kinds}).train for cut in source.cuts()]
    length = 0.0
    while length < seconds:
        rng.shuffle(cuts)
        for cut in cuts:
            pause = np.zeros(round(rng.uniform(0.3, 2.0) * RATE), np.float32)
            audio = np.concatenate([load_audio(cut, RATE), pause])
            yield audio, words_of(cut)
            length += len(audio) / RATE
            if length >= seconds:
                return
