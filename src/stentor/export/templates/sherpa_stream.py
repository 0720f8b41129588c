"""Transcription of a stream with sherpa-onnx and the files beside this program: each second the last audio is read
again, and words on which two answers agree are final. Needs numpy and sherpa_onnx alone:

    python stream.py speech.wav
    arecord -q -t raw -f S16_LE -r 16000 | python stream.py -
"""

import argparse
import sys
import wave
from itertools import takewhile
from pathlib import Path

import numpy as np
import sherpa_onnx

from stentor.export.templates.audio import HOP, RATE, opened
from stentor.export.templates.recordings import find_speech, frame_levels

LOOK, STEP, KEEP, LONGEST, LEAD, PAUSE = 0.2, 1.0, 10.0, 25.0, 1.0, 0.8  # seconds; see `Stream.feed`


class Stream:
    """A recording that comes in pieces, float32 [samples] at 16 kHz."""

    def __init__(self, folder):
        files = {name: str(folder / f"{name}.onnx") for name in ("encoder", "decoder", "joiner")}
        make = sherpa_onnx.OfflineRecognizer.from_transducer
        settings = {"tokens": str(folder / "tokens.txt"), "model_type": "nemo_transducer"}
        self.recognizer = opened(folder, lambda _: make(**files, **settings))
        self.audio, self.before = np.zeros(0, np.float32), 0  # samples: kept, and how many before them
        self.new = self.unseen = 0  # samples since the last answer, and since speech was last looked for
        self.answer, self.stable = [], 0  # words of the last answer, and the number of those that are final

    def feed(self, samples, last=False):
        """Words {"word", "start", "end"} (seconds) that are final now. An answer is given each STEP seconds; after
        PAUSE seconds of silence, after LONGEST seconds or when nothing comes any more all of it is final."""
        self.audio, self.new = np.concatenate([self.audio, samples]), self.new + len(samples)
        self.unseen += len(samples)
        if self.unseen < LOOK * RATE and not last:
            return []
        self.unseen = 0
        speech = np.flatnonzero(find_speech(frame_levels(self.audio)))
        if not len(speech):
            self.forget(max(0, len(self.audio) - round(LEAD * RATE)))
            return []
        quiet = len(self.audio) - (speech[-1] + 1) * HOP
        ends = last or quiet >= PAUSE * RATE or len(self.audio) >= LONGEST * RATE
        if self.new < STEP * RATE and not ends:
            return []
        answer, self.new, stable = self.read(), 0, self.stable
        pairs = zip(self.answer, answer)
        same = len(list(takewhile(lambda pair: pair[0]["word"] == pair[1]["word"], pairs)))
        self.answer, self.stable = answer, len(answer) if ends else max(stable, same)
        final = answer[stable : self.stable]
        if ends:
            self.forget(len(self.audio))
        elif len(self.audio) >= KEEP * RATE and self.stable:
            end = answer[self.stable - 1]["end"]
            after = answer[self.stable]["start"] if self.stable < len(answer) else end
            self.forget(round((end + after) / 2 * RATE) - self.before)
        return final

    def read(self):
        stream, words, begun = self.recognizer.create_stream(), [], self.before / RATE
        stream.accept_waveform(RATE, self.audio)
        self.recognizer.decode_stream(stream)
        for token, start in zip(stream.result.tokens, stream.result.timestamps):
            if token.startswith(("\u2581", " ")) or not words:
                words.append({"word": "", "start": start + begun})
            words[-1] |= {"word": words[-1]["word"] + token.strip("\u2581 "), "end": start + begun}
        return [word for word in words if word["word"]]

    def forget(self, samples):
        self.audio, self.before = self.audio[samples:], self.before + samples
        self.answer, self.stable = [], 0


def blocks(path):
    """Pieces of 100 ms of a wav file of 16 bits at 16 kHz, or of the same samples on standard input."""
    advice = f"give a WAV file of one channel of 16 bits at {RATE} Hz"
    source = sys.stdin.buffer if path == "-" else opened(path, wave.open, advice)
    if path != "-" and source.getparams()[:3] != (1, 2, RATE):
        raise SystemExit(f"{path} is something else: {advice}")
    read = (lambda: source.read(RATE // 5)) if path == "-" else (lambda: source.readframes(RATE // 10))
    while data := read():
        yield np.frombuffer(data[: len(data) // 2 * 2], "<i2").astype(np.float32) / 32768, False
    yield np.zeros(0, np.float32), True


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Transcribe a stream.")
    parser.add_argument("file", help="a wav file, or - for samples on standard input")
    live = Stream(Path(__file__).parent)
    for piece, end in blocks(parser.parse_args().file):
        for word in live.feed(piece, end):
            print(f"{word['start']:8.2f} {word['end']:8.2f}  {word['word']}", flush=True)
