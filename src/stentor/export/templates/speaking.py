"""Speech piece by piece: text, lengths, the voice of a recording, audio of codes."""

import argparse
import json
import math
import re
import subprocess
import time
from bisect import bisect_left
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
import soundfile
from tokenizers import Tokenizer

from stentor.export.templates.audio import opened, read, runs

LEVEL, PLAIN = 0.1, "Nice to meet you."  # the text takes a second where nothing is known
PLACES = r"[.!?]\s+|[。！？]|\s*\n\s*", r"[,;:]\s+", r"\s+"  # where a text is divided best, second best, at worst
CLOSED = ";:,.!?…)]}\"'“”‘’；：，。！？、）】"


class Voice(NamedTuple):
    codes: np.ndarray
    text: str
    level: float = LEVEL


class Speaking:
    """Subclasses have `generate(text, voice, frames, language, instruct, random, given)`, the codes of a piece."""

    def __init__(self, folder):
        self.facts = opened(Path(folder) / "onnx_config.json", lambda path: json.loads(path.read_text("utf-8")))
        self.tokenizer = opened(str(Path(folder) / "tokenizer.json"), Tokenizer.from_file)
        files = {name: str(Path(folder) / graph["file"]) for name, graph in self.facts["graphs"].items()}
        self.graphs = {name: opened(file, onnxruntime.InferenceSession) for name, file in files.items()}
        self.rate, self.hop, self.books = (self.facts["codec"][k] for k in ("sample_rate", "hop", "codebooks"))
        self.options, self.random = self.facts["generation"], np.random.default_rng

    def run(self, name, **inputs):
        return self.graphs[name].run(None, inputs)

    def ids(self, string):
        parts = re.split(self.facts["tags"], string) if self.facts["tags"] else [string]
        ids = (i for part in parts if part for i in self.tokenizer.encode(part, add_special_tokens=False).ids)
        return [i for i in ids if i != self.facts["unknown"]]

    def spelled(self, text):  # on one line or more, in characters that the model knows
        for name in self.facts["control"]:
            text = text.replace(name, "")
        if self.facts["unknown"] is None or self.facts["phonemes"]:
            return text
        other = {c: c.swapcase() * bool(self.ids(c.swapcase())) for c in set(text) if not self.ids(c)}
        return "".join(c if c.isspace() else other.get(c, c) for c in text)

    def phonemes(self, text):
        command = ["espeak-ng", "-q", "--ipa", "-v", self.facts["phonemes"], text]
        clauses = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
        return ", ".join(filter(None, map(str.strip, clauses)))

    def speak(self, text, voice=None, seed=None, language=None, instruct=None, speed=1.0):
        """Audio, float32 [samples] at `rate`, and the codes [codebooks, frames] of each piece of the text."""
        seed, audio, codes, spoken = self.options["seed"] if seed is None else seed, [], [], voice
        language, instruct = language if self.facts["language"] else None, instruct if self.facts["instruct"] else None
        level, pieces = min(LEVEL, voice.level) if voice else LEVEL, self.pieces(text, voice, speed)
        for number, (part, end, frames) in enumerate(pieces):
            random, given = self.random(seed + number), voice is not None
            codes.append(self.generate(part, spoken, frames, language, instruct, random, given))
            audio.append(self.finished(self.decode(codes[-1]), level, "" if number == len(pieces) - 1 else end))
            if spoken is None and self.facts["clones"] and not (instruct and self.facts["instruct_alone"]):
                spoken = Voice(codes[0], part)
        return np.concatenate(audio), codes

    def pieces(self, text, voice, speed):  # (text, its end, frames) of each
        text, most, parts = self.spelled(text).strip(), self.options["chunk_duration"], []
        if self.seconds(text, voice, speed) <= self.options["chunk_threshold"]:
            parts, text, most = [text], "", math.inf
        while text:
            fits = bisect_left(range(len(text)), most, key=lambda n: self.seconds(text[: n + 1], voice, speed))
            ends = ([m.end() for m in re.finditer(place, text) if m.end() <= fits] for place in PLACES)
            cut = len(text) if fits == len(text) else next((e[-1] for e in ends if e), max(1, fits))
            parts, text = [*parts, text[:cut]], text[cut:]
        pieces = [(" ".join(part.split()), part[-8:]) for part in parts if part.strip()]
        frames = (min(self.seconds(part, voice, speed), 1.2 * most) * self.rate / self.hop for part, _ in pieces)
        return [(part, end, max(1, int(count + 1e-9))) for (part, end), count in zip(pieces, frames)]

    def seconds(self, text, voice, speed):
        """Length that a text takes: a start and a unit for each character by its weight, at the rate of the voice."""
        lasts, weights = self.facts["weights"]  # last characters of stretches of Unicode, and what theirs weigh
        texts = text, PLAIN, voice.text if voice else ""
        size, plain, known = (sum(weights[bisect_left(lasts, ord(c))] for c in t) for t in texts)
        start, unit = self.facts["pace"] or (0.0, 1 / plain)
        seconds = start + unit * size
        if known:
            seconds *= voice.codes.shape[1] * self.hop / self.rate / (start + unit * known)
        short = self.facts["pace"] is None and seconds < 2
        return (2 * (seconds / 2) ** (1 / 3) if short else seconds) / speed

    def finished(self, audio, level, end):
        """The audio with 0.1 s around its speech and at a level, and the pause behind a text with this end."""
        spans = loud_spans(audio, self.rate) or [(0, len(audio) / self.rate)]
        audio = audio[round(max(0, spans[0][0] - 0.1) * self.rate) : round((spans[-1][1] + 0.1) * self.rate)]
        audio = audio * np.float32(min(level / max(loudness(audio), 1e-5), 0.95 / max(np.abs(audio).max(), 1e-5)))
        pause = 0.4 if end.endswith("\n") else 0.15 if re.search(r"[.!?…。！？]\W*$", end) else 0.0
        return np.pad(audio, (0, round(pause * self.rate)))

    def voice(self, path, text):  # the voice of a recording with its transcript
        audio, text = read(path, self.rate), text.strip()
        text = text if text[-1] in CLOSED else text + ("。" if re.search(r"[\u4e00-\u9fff]", text) else ".")
        spans = loud_spans(audio, self.rate)
        pauses = [i for i in range(1, len(spans)) if spans[i][0] - spans[i - 1][1] >= 0.5]
        groups = [spans[a:b] for a, b in zip([0, *pauses], [*pauses, len(spans)])]
        cuts = (slice(round(max(0, g[0][0] - 0.1) * self.rate), round((g[-1][1] + 0.1) * self.rate)) for g in groups)
        audio = np.concatenate([audio[cut] for cut in cuts])
        level, text = loudness(audio), " ".join(self.spelled(text).split())
        audio = audio * np.float32(max(1.0, min(LEVEL / level, 0.99 / np.abs(audio).max())))
        return Voice(self.encode(audio), text, level)

    def encode(self, audio):  # codes [codebooks, frames] of audio, float32 [samples] at `rate`
        return self.run("codec_encoder", audio=np.pad(audio, (0, -len(audio) % self.hop)).reshape(-1, self.hop))[0]

    def decode(self, codes):
        size = codes.shape[1] * self.hop
        audio = self.run("codec_decoder", codes=codes[None])[0][:size]
        return np.pad(audio, (0, size - len(audio)))


def loudness(audio):
    return float(np.sqrt(np.square(audio, dtype=np.float64).mean()))


def loud_spans(audio, rate):  # (start, end) in seconds where audio is loud enough to be speech
    frames = audio[: len(audio) // round(0.01 * rate) * round(0.01 * rate)].reshape(-1, round(0.01 * rate))
    decibels = 10 * np.log10(np.square(frames, dtype=np.float64).mean(1) + 1e-12)
    quiet, loud = np.percentile(decibels, [5, 95])
    spoken = runs(decibels > max(loud - 35, quiet + min(6, (loud - quiet) / 3))) * 0.01
    spans = []
    for start, end in spoken[spoken[:, 1] - spoken[:, 0] >= 0.08]:
        start, end = round(max(0, start - 0.03), 6), round(min(len(audio) / rate, end + 0.03), 6)
        spans = [*spans[:-1], (spans[-1][0], end)] if spans and start <= spans[-1][1] + 1e-6 else [*spans, (start, end)]
    return spans


def main(kind):
    parser = argparse.ArgumentParser(description="Speak a text.")
    parser.add_argument("text")
    parser.add_argument("--to", default="speech.wav")
    parser.add_argument("--reference", type=lambda f: f if Path(f).is_file() else parser.error(f"there is no file {f}"))
    parser.add_argument("--reference-text", help="what is said in it")
    parser.add_argument("--language")
    parser.add_argument("--instruct", help="the voice in words, or its name")
    parser.add_argument("--speed", type=float, default=1.0)
    parser.add_argument("--seed", type=int)
    options, speaker = parser.parse_args(), kind(Path(__file__).parent)
    if options.reference and not (speaker.facts["clones"] and options.reference_text):
        parser.error("--reference needs --reference-text" if speaker.facts["clones"] else "this model clones no voices")
    start, style = time.perf_counter(), (options.seed, options.language, options.instruct, options.speed)
    voice = speaker.voice(options.reference, options.reference_text) if options.reference else None
    audio, _ = speaker.speak(options.text, voice, *style)
    soundfile.write(options.to, audio, speaker.rate)
    seconds = len(audio) / speaker.rate
    print(f"{options.to}: {seconds:.2f} s, real-time factor {(time.perf_counter() - start) / seconds:.2f}")
