"""Transcription with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

python transcribe.py speech.wav talk.flac --words
"""

from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from stentor.export.templates.audio import opened
from stentor.export.templates.transcribing import Transcriber, main, timed_words


class Recognizer(Transcriber):
    @property
    def options(self):
        return {"--language": "code of the language"} if self.facts["prompts"] else {}

    def decode(self, clip, language=None):
        given, prompts = self.run("features", audio=clip[None]), self.facts["prompts"] or {}
        prompt = np.array([prompts[(language or "auto").lower()] if prompts else 0])
        heard = self.run("encoder", audio_signal=given["features"], length=given["lengths"], prompt_ids=prompt)
        path, count = Search(self), heard["lengths"][0]
        path.follow(heard["states"][0, :count], 4 * count)
        return path.answer(heard["distances"][0, :count] if "distances" in heard else None)


class Search:  # tokens that were written with their frames, and the predictor's output after the last
    def __init__(self, model):
        self.model, self.written, self.at, self.first, self.here = model, [], 0, 0, 0
        self.tokenizer = opened(str(model.folder / "tokenizer.json"), Tokenizer.from_file)
        self.states = [np.zeros((layers, 1, width), np.float32) for layers, width in model.facts["states"]]
        self.read(model.facts["blank"])

    def read(self, token):
        named = {f"state_{i}": state for i, state in enumerate(self.states)}
        self.output, *self.states = self.model.run("decoder", tokens=np.array([[token]]), **named).values()

    def follow(self, frames, limit=np.inf):  # the next frames [F, J]; no more than `limit` tokens in all
        facts, first, self.first = self.model.facts, self.first, self.first + len(frames)
        jumps, count = facts["durations"] or [0], -len(facts["durations"] or ()) or None
        base, logits = 0, []  # the joint looks at eight frames in one call
        while self.at < self.first and len(self.written) < limit:
            if not base <= self.at < base + len(logits):
                base, ahead = self.at, frames[self.at - first :][:8]
                output = self.output[0].repeat(len(ahead), 0)
                logits = self.model.run("joint", encoder=ahead, predictor=output)["logits"]
            scores = logits[self.at - base]
            token, step = int(scores[:count].argmax()), jumps[scores[count or -1 :].argmax()]
            if token == facts["blank"]:
                step = max(step, 1)
            else:
                self.written.append((token, self.at, self.at + max(step, 1)))
                step = step or int(self.here + 1 >= facts["max_symbols"])
                self.read(token)
                logits = []
            self.at, self.here = self.at + step, 0 if step else self.here + 1

    def answer(self, distances):  # text and words, timed by `distances` [F, 2] of the times head where there is one
        facts, ids = self.model.facts, [token for token, *_ in self.written]
        times = np.array([frames for _, *frames in self.written], float).reshape(-1, 2)
        if distances is not None and len(times):
            middles, at = np.arange(len(distances)) + 0.5, times[:, :1].astype(int)
            starts = (middles - distances[:, 0])[(at + np.arange(3)).clip(max=len(distances) - 1)]
            ends = (middles + distances[:, 1])[(at - np.arange(3)).clip(min=0)]
            times = np.stack([np.median(starts, 1), np.median(ends, 1)], 1)
        times = times * facts["frame_seconds"] + np.array(facts["delays"] or [0.0, 0.0])
        texts = [self.tokenizer.decode(ids[:n]) for n in range(len(ids) + 1)]
        return texts[-1].strip(), timed_words([b[len(a) :] for a, b in pairwise(texts)], times.tolist())


if __name__ == "__main__":
    main(Recognizer)
