"""Transcription with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

python transcribe.py speech.wav talk.flac --language en
"""

from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from stentor.export.templates.audio import RATE, opened
from stentor.export.templates.transcribing import Transcriber, main, timed_words


class Recognizer(Transcriber):
    options = {"--language": "its code or English name", "--task": "translate: into English (Whisper)"}

    def decode(self, clip, language=None, task=None):
        facts, given = self.facts, self.run("features", audio=clip[None])
        states = self.run("encoder", input_features=given["features"], lengths=given["lengths"])
        states |= {"encoder_hidden_states": states["last_hidden_state"], "use_cache_branch": np.array([True])}
        ids = prompt = self.prompt(states, language, task)
        most = min(int(len(clip) / RATE * facts["token_rate"]) + 16, facts["positions"] - len(ids))
        answer, rows, past = [], [], None
        while True:
            past = self.step(ids, states, past)
            rows.append(past.get("attention"))
            ids = [int(past["logits"][0, -1].argmax())]
            if ids[0] == facts["eos_id"] or len(answer) == most:
                break
            answer += ids
        pieces, words = self.pieces([i for i in answer if i <= facts["text_ids"]]), []
        if rows[0] is not None and len(pieces) == len(answer):
            weights = np.concatenate(rows, 2)[0, :, len(prompt) - 1 :, : max(1, round(len(clip) / RATE / 0.02))]
            words = timed_words(pieces, list(pairwise(0.02 * starts(weights))))
        return "".join(pieces).strip(), words

    def step(self, ids, states, past):
        names, (_, heads, width) = self.facts["graphs"]["decoder"]["outputs"], self.facts["cache"]
        past = past or dict.fromkeys(names, np.zeros((1, heads, 0, width), np.float32))
        fed = {n.replace("present", "past_key_values"): past[n] for n in names if n.startswith("present")}
        return self.run("decoder", input_ids=np.array([ids]), **states, **fed)

    def prompt(self, states, language, task):
        facts, known, name = self.facts, self.facts["languages"], (language or "").lower().replace("_", "-")
        other = facts["translate"] if task == "translate" else {}
        token = known.get(facts["language_names"].get(name, name.split("-")[0]))
        if known and token is None:
            if language or not facts["detects_language"]:
                raise SystemExit(f"--language: give one of {', '.join(known)}")
            token = max(known.values(), key=self.step(facts["prompt"][:1], states, None)["logits"][0, -1].__getitem__)
        return [token if i in facts["language_places"] else other.get(str(i), t) for i, t in enumerate(facts["prompt"])]

    def pieces(self, ids):
        tokenizer = opened(str(self.folder / "tokenizer.json"), Tokenizer.from_file)
        texts = [tokenizer.decode(ids[:n]).rstrip("�" * (n < len(ids))) for n in range(len(ids) + 1)]
        return [text[len(before) :] for before, text in pairwise(texts)]


def starts(weights):
    """First frame of each token, from attention [heads, tokens, frames] by dynamic time warping."""
    weights = weights / np.maximum(weights.sum(2, keepdims=True), 1e-9)
    weights = (weights - weights.mean(1, keepdims=True)) / np.maximum(weights.std(1, keepdims=True), 1e-9)
    padded = np.pad(weights, [(0, 0), (0, 0), (3, 3)], "reflect")
    scores = np.median(np.lib.stride_tricks.sliding_window_view(padded, 7, 2), -1).mean(0)
    best = np.pad(scores.astype(float), [(1, 0), (1, 0)], constant_values=-np.inf)
    best[0, 0] = 0
    for n, t in np.ndindex(scores.shape):
        best[n + 1, t + 1] += max(best[n, t], best[n, t + 1], best[n + 1, t])
    (n, t), first = scores.shape, np.zeros(len(scores))
    while n > 1:
        first[n - 1] = t - 1
        _, n, t = max((best[i, k], i, k) for i, k in ((n - 1, t - 1), (n - 1, t), (n, t - 1)))
    return first


if __name__ == "__main__":
    main(Recognizer)
