"""Transcription with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

    python transcribe.py speech.wav talk.flac --language en --context "names and terms that may occur"

As `stentor transcribe` does first: greedy search on windows between pauses. No second attempts, beams, word times.
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime
import soundfile
from tokenizers import Tokenizer

RATE, HOP = 16000, 160
LONGEST, SILENCE, PAUSE, PADDING = 30.0, 2.0, 0.3, 0.15  # seconds, where training does not say; see `windows`


class Recognizer:
    def __init__(self, folder):
        texts = ((Path(folder) / f"{name}_config.json").read_text("utf-8") for name in ("onnx", "preprocessor"))
        self.facts, self.settings = map(json.loads, texts)
        self.tokenizer = Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
        files = [Path(folder) / self.facts["graphs"][name]["file"] for name in ("encoder", "llm")]
        self.encoder, self.llm = map(onnxruntime.InferenceSession, files)
        trained = self.settings.get("trained_speech") or {}  # what the training clips were like, where it is known
        self.limit, self.room, pause = self.facts["max_seconds"], trained.get("room"), trained.get("pause")
        room, longest = self.room or 0.0, min(LONGEST, self.limit or LONGEST, trained.get("longest") or LONGEST)
        self.longest = longest - 2 * room if longest > 4 * room else longest
        self.silence = max(room, pause) if pause and (self.room is not None or pause > SILENCE) else None

    def transcribe(self, audio, language=None, context=None):
        """Segments {"start", "end", "text"} (seconds) of audio, float32 [samples] at 16 kHz."""
        spans = windows(audio, self.longest, self.room, self.silence)
        texts = [self.decode(self.with_room(audio[a:b]), language, context) for a, b in spans]
        return [{"start": a / RATE, "end": b / RATE, "text": t} for (a, b), t in zip(spans, texts) if t]

    def with_room(self, clip):
        """The clip with as much quiet around its speech as the training clips had."""
        speech = find_speech(levels := frame_levels(clip))
        if self.room is None or not speech.any():
            return clip
        room = round(self.room * RATE)
        start = first_speech(levels, speech) * HOP - room
        end = min((len(levels) - first_speech(levels[::-1], speech[::-1])) * HOP, len(clip)) + room
        roomy = np.pad(clip[max(start, 0) : end], (max(-start, 0), max(end - len(clip), 0)))
        return clip if self.limit and len(roomy) > max(self.limit * RATE, len(clip)) else roomy

    def decode(self, clip, language=None, context=None):
        """The text of a clip."""
        most = int(len(clip) / RATE * self.settings["token_rate"]) + 16
        features, frames = self.features(np.pad(clip, (0, max(0, 1600 - len(clip)))).astype(np.float32))
        inputs = {"features": features[None], "lengths": np.array([frames])}
        inputs = {node.name: inputs[node.name] for node in self.encoder.get_inputs()}
        for kernel, stride, padding in self.settings["encoder"]["convs"]:
            frames = (frames + 2 * padding - kernel) // stride + 1
        audio = self.encoder.run(["audio"], inputs)[0][0, : -(-frames // self.facts["frames_per_position"])]
        # What the language model reads: the words before the audio, its positions (of any token), then the answer.
        end, prompt = self.facts["eos_id"], self.facts["prompt"]
        before = prompt["start"] + self.words_before(language, context)
        ids, index = before + [end] * len(audio) + prompt["after"], len(before) + np.arange(len(audio))
        names = {node.name: node.shape for node in self.llm.get_inputs()}
        past = {n: np.zeros((1, s[1], 0, s[3]), np.float32) for n, s in names.items() if n.startswith("past")}
        outputs = ["logits", *(name.replace("past", "present") for name in past)]
        answer, length = [], 0
        while True:
            positions, length = np.arange(length, length + len(ids))[None], length + len(ids)
            inputs = {"input_ids": np.array([ids]), "audio": audio, "audio_index": index, "position_ids": positions}
            inputs |= {"attention_mask": np.ones((1, length), int), "rows": np.array([len(ids) - 1]), **past}
            logits, *present = self.llm.run(outputs, {name: inputs[name] for name in names})
            token = int(logits[0].argmax())
            if token == end or len(answer) == most:
                return self.tokenizer.decode(answer, skip_special_tokens=True).strip()
            answer.append(token)
            ids, audio, index, past = [token], audio[:0], index[:0], dict(zip(past, present))

    def words_before(self, language, context):
        prompt = self.settings["prompt"]
        said = language and prompt["language"] and f"Language: {language}."
        terms = context and prompt["context"] and f"Context: {context}"
        text = " ".join(filter(None, [prompt["instruction"], said, terms])) + prompt["audio_start"]
        return self.tokenizer.encode(text, add_special_tokens=False).ids if text.strip() else []

    def features(self, clip):
        """Input of the encoder, audio [T] or log-mel [mels, T], and how many of its T steps are the clip."""
        shape = self.settings["encoder"]
        if shape["kind"] == "wave":
            return (clip - clip.mean()) / np.sqrt(clip.var() + 1e-7) if shape["normalize"] else clip, len(clip)
        steps = (shape["window"] if shape["whole_window"] else len(clip)) // HOP
        if shape["log_mel"] == "parakeet":  # mean 0 and variance 1 in each band
            signal = np.pad(np.append(clip[:1], clip[1:] - np.float32(0.97) * clip[:-1]), 256)
            mel = np.log(mel_power(signal, steps, 512, np.hanning(400), shape["mels"]) + 2**-24)
            return ((mel - mel.mean(0)) / (mel.std(0, ddof=1) + 1e-5)).T.astype(np.float32), steps
        clip = np.pad(clip, (0, max(0, (shape["window"] or 0) - len(clip))))
        rows = min(-(-(len(clip) + 200) // HOP), max(len(clip), 30 * RATE) // HOP)
        signal = np.pad(np.pad(clip, (200, 0), "reflect"), (0, max(0, rows * HOP + 200 - len(clip))))
        if rows * HOP == 30 * RATE:  # Whisper's window ends like it begins
            signal = np.pad(signal[:-200], (0, 200), "reflect")
        mel = np.log10(np.maximum(mel_power(signal, rows, 400, np.hanning(401)[:400], shape["mels"]), 1e-10))
        return (np.maximum(mel, mel.max() - 8)[: len(clip) // HOP].T.astype(np.float32) + 4) / 4, steps


def mel_power(signal, frames, size, window, count):
    """Power in triangles of unit area on Slaney's mel scale, [frames, count], one frame for each 10 ms."""
    rows = np.lib.stride_tricks.sliding_window_view(signal, size)[::HOP][:frames]
    power = np.abs(np.fft.rfft(rows * np.pad(window, (size - len(window)) // 2))) ** 2
    mels = np.linspace(0, 15 + np.log(RATE / 2000) * 27 / np.log(6.4), count + 2)
    edges = np.where(mels < 15, mels * 200 / 3, 1000 * np.exp(np.log(6.4) / 27 * (mels - 15)))
    (low, middle, high), bins = (edges[:-2], edges[1:-1], edges[2:]), np.linspace(0, RATE / 2, size // 2 + 1)[:, None]
    triangles = np.maximum(0, np.minimum((bins - low) / (middle - low), (high - bins) / (high - middle)))
    return power @ (triangles * 2 / (high - low))


def windows(audio, longest, padding, silence):
    """(start, end) of windows of at most `longest` seconds, cut in the longest pause of their second half. They hold no
    silence over `silence` seconds (None: 2), of which they take `padding` (None: 0.15) at their ends."""
    spoken = runs(find_speech(levels := frame_levels(audio))) * HOP
    regions = np.minimum(spoken, len(audio)).tolist()
    gap, most = round((SILENCE if silence is None else silence) * RATE), int(longest * RATE)
    pauses = [(b - a, (a + b) // 2) for (_, a), (b, _) in pairwise(regions)]
    pad, pieces = round((PADDING if padding is None else padding) * RATE), []
    starts = [r[0] for i, r in enumerate(regions) if i == 0 or pauses[i - 1][0] > gap]
    ends = [r[1] for i, r in enumerate(regions) if i == len(pauses) or pauses[i][0] > gap]
    if len(starts) == 1 and len(audio) <= longest * RATE and padding is None and silence is None:
        return [(0, len(audio))]
    middles = [0, *((a + b) // 2 for a, b in zip(ends, starts[1:])), len(audio)]
    for start, end, first, last in zip(starts, ends, middles, middles[1:]):
        start, end = max(first, start - pad), min(last, end + pad)
        while end - start > most:
            first, last = start + most // 2, start + most
            places = [(p, middle) for p, middle in pauses if p >= PAUSE * RATE and first <= middle <= last]
            quiet = levels[first // HOP + 1 : last // HOP]  # speech without a pause: the latest of its quietest points
            point = (first // HOP + 1 + np.flatnonzero(quiet <= quiet.min() + 1)[-1]) * HOP
            pieces.append((start, max(places)[1] if places else int(point)))
            start = pieces[-1][1]
        pieces.append((start, end))
    return [(a, b) for a, b in pieces if any(s < b and e > a for s, e in regions)]


def frame_levels(audio):
    """dB of each 10 ms above 80 Hz (a second-order Butterworth filter), smoothed over 50 ms."""
    k, size, memory, powers = np.tan(np.pi * 80 / RATE), 2**18, 25 * HOP, []
    z = np.exp(-2j * np.pi * np.arange(size // 2 + 1) / size)
    response = (1 - z) ** 2 / (1 + 2**0.5 * k + k * k + 2 * (k * k - 1) * z + (1 - 2**0.5 * k + k * k) * z * z)
    for start in range(0, len(audio), 1000 * HOP):  # the filter rings for less than `memory`
        part = audio[max(0, start - memory) : start + 1000 * HOP]
        part = np.fft.irfft(np.fft.rfft(part, size) * response, size)[min(start, memory) : len(part)]
        powers += [np.square(part[i : i + HOP]).mean() for i in range(0, len(part), HOP)]
    smooth = np.convolve(np.pad(powers or [0.0], 2, "edge"), np.full(5, 0.2), "valid")
    return np.maximum(10 * np.log10(np.maximum(smooth, 1e-12)), -100).astype(np.float32)


def find_speech(levels):
    """Frames that stand out of the noise floor, without clicks; bool [frames]."""
    centres = np.arange(50, max(len(levels), 51), 100)
    quantiles = np.array([np.quantile(levels[max(0, c - 1500) : c + 1500], [0.1, 0.95]) for c in centres])
    floor, peak = (np.interp(np.arange(len(levels)), centres, q) for q in quantiles.T)
    speech = levels > np.maximum(floor + np.maximum(6.0, 0.2 * (peak - floor)), -65.0)
    steady = (peak - floor < 6.0) & (floor > -65.0)
    steady &= (steady.all() | (floor > np.quantile(levels, 0.1) + 6.0)) & (peak - floor >= 3.5)
    edges = runs(speech)
    apart = np.concatenate([[len(speech)], edges[1:, 0] - edges[:-1, 1], [len(speech)]])
    for (start, end), before, after in zip(edges, apart, apart[1:]):
        speech[start:end] &= end - start >= 8 or min(before, after) < 25
    return speech | steady


def first_speech(levels, speech):
    """The first frame of speech; steady noise at the edge of a recording that is clean elsewhere is none."""
    peak, begin, first = float(np.quantile(levels, 0.95)), float(np.median(levels[:15])), int(speech.argmax())
    for frame in np.flatnonzero(levels[:first] > max(peak - 45, -65))[::-1]:  # soft consonants are speech
        first = int(frame) if first - frame <= 15 else first
    edge = 0 if begin > peak - 15 else int((np.abs(levels - begin) > 3).argmax())
    return max(first, edge) if edge >= 25 else first


def runs(mask):  # first frame, and the frame after the last, of each stretch of True: [N, 2]
    return np.flatnonzero(np.diff(np.concatenate([[False], mask, [False]]))).reshape(-1, 2)


def read(path):
    """A file as float32 [samples] at 16 kHz; at another rate its spectrum is cut off or continued with zeros."""
    audio, rate = soundfile.read(path, dtype="float32", always_2d=True)
    audio, size = audio.mean(1), round(len(audio) * RATE / rate)
    return audio if rate == RATE else (np.fft.irfft(np.fft.rfft(audio), size) * RATE / rate).astype(np.float32)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Transcribe audio files.")
    parser.add_argument("files", nargs="+")
    parser.add_argument("--language")
    parser.add_argument("--context")
    options, recognizer = parser.parse_args(), Recognizer(Path(__file__).parent)
    for file in options.files:
        for segment in recognizer.transcribe(read(file), options.language, options.context):
            print(f"{file} {segment['start']:8.2f} {segment['end']:8.2f}  {segment['text']}")
