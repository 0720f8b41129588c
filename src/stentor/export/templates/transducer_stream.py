"""Transcription of a stream, chunk by chunk, with the graphs and transcribe.py beside this file:

    python stream.py speech.wav --piece 0.1

The file stands for a microphone: `Stream.feed` takes its audio in pieces of any length.
"""

import argparse
from pathlib import Path

import numpy as np

from stentor.export.templates.audio import HOP, RATE, read
from stentor.export.templates.transducer import Recognizer, Search

EDGE = 10  # features (10 ms) around a piece of a stream, as those at its ends need its neighbours


class Stream:
    """A recording that comes in pieces, float32 [samples]; `path` has what is written so far."""

    def __init__(self, model):
        self.model, self.path, self.chunk = model, Search(model), model.facts["chunk"]
        self.audio, self.rows, self.begun = np.zeros(0, np.float32), None, 0
        self.cache, self.distances = np.zeros((1, self.chunk["cache"]), np.float32), []

    def feed(self, samples, last=False):
        """More audio; `last`: there is no more."""
        self.audio, chunk = np.concatenate([self.audio, samples]), self.chunk
        if last or len(self.audio) > 4 * EDGE * HOP:
            features = self.model.run("features", audio=self.audio[None])["features"][0]
            rows = features[:, self.begun : None if last else len(self.audio) // HOP - EDGE]
            lead = np.zeros((len(rows), chunk["lead"]), np.float32)
            self.rows = np.concatenate([lead if self.rows is None else self.rows, rows], 1)
            self.audio = self.audio[(len(self.audio) // HOP - 2 * EDGE) * HOP :]
            self.begun = EDGE
        while self.rows is not None and self.rows.shape[1] >= (1 if last else chunk["features"]):
            taken = self.rows[:, : chunk["features"]]
            padded = np.pad(taken, ((0, 0), (0, chunk["features"] - taken.shape[1])))[None]
            inputs = {"audio_signal": padded, "length": np.array([taken.shape[1]]), "cache": self.cache}
            heard = self.model.run("encoder_chunk", **inputs)
            self.cache, self.rows = heard["next_cache"], self.rows[:, chunk["step"] :]
            self.path.follow(heard["states"][0, : heard["lengths"][0]])
            self.distances += [heard["distances"][0, : heard["lengths"][0]]] if "distances" in heard else []

    def words(self):
        return self.path.answer(np.concatenate(self.distances) if self.distances else None)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Transcribe an audio file as a stream.")
    parser.add_argument("file")
    parser.add_argument("--piece", type=float, default=0.1, help="seconds of audio that come at a time")
    options = parser.parse_args()
    audio, live, shown = read(options.file), Stream(Recognizer(Path(__file__).parent)), 0
    step = max(1, round(options.piece * RATE))
    for start in range(0, len(audio), step):
        last = start + step >= len(audio)
        live.feed(audio[start : start + step], last)
        words = live.words()
        for word in words[shown : len(words) if last else len(words) - 1]:  # the last one may become longer
            print(f"{word['start']:8.2f} {word['end']:8.2f}  {word['word']}", flush=True)
            shown += 1
