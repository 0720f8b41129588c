"""Speech with the ONNX graphs beside this file; needs numpy, onnxruntime, tokenizers and soundfile alone:

    python speak.py "Hello there." --to hello.wav
    python speak.py "Hello there." --to hello.wav --reference voice.wav --reference-text "What is said there."

Codes and audio are those of `stentor speak`. Simpler than there: long texts are divided at the last sentence end that
fits, and pieces are brought to one level without a limiter. A seed gives the same speech each time, but not Stentor's.
"""

import itertools
import math
import re

import numpy as np

from stentor.export.templates.speaking import Speaking, main


class Speaker(Speaking):
    """Codes that are all masked at first and revealed in a few steps, the most certain ones first."""

    def prompt(self, text, voice, language, instruct, given):
        text = f"{voice.text} {text}" if voice else text
        text = re.sub(r"\s+", " ", text.strip().replace("（", "(").replace("）", ")"))
        text = re.sub(r"(?<=[\u4e00-\u9fff])\s+|\s+(?=[\u4e00-\u9fff])", "", text)
        text = self.phonemes(text) if self.facts["phonemes"] else text
        language = self.facts["languages"].get(language, language) or "None"
        style = f"<|lang_start|>{language}<|lang_end|><|instruct_start|>{instruct or 'None'}<|instruct_end|>"
        style = "<|denoise|>" + style if given and self.facts["denoise"] else style
        ids = np.tile(self.ids(style) + self.ids(f"<|text_start|>{text}<|text_end|>"), (self.books, 1))
        return ids, voice.codes.astype(int) if voice else ids[:, :0]

    def log_probs(self, text, codes, frames):
        """[frames, codebooks, entries and MASK] of the last frames behind a text [codebooks, L]."""
        ids = np.concatenate([text, codes], 1)[None].astype(np.int64)
        audio, rows = np.arange(ids.shape[2])[None] >= text.shape[1], np.arange(ids.shape[2] - frames, ids.shape[2])
        return self.run("model", input_ids=ids, audio_mask=audio, rows=rows)[0]

    def generate(self, text, voice, frames, language, instruct, random, given):
        """Codes [codebooks, frames]."""
        ids, before = self.prompt(text, voice, language, instruct, given)
        o, mask, cells = self.options, self.facts["mask"], np.full((self.books, frames), self.facts["mask"])
        penalty = o["layer_penalty"] * np.arange(self.books)[:, None]
        gumbel = lambda *shape: -np.log(random.standard_exponential(shape, np.float32))  # noqa: E731
        for count in filter(None, schedule(cells.size, o["steps"], o["t_shift"])):
            scores = self.log_probs(ids, np.concatenate([before, cells], 1), frames)
            if o["guidance"] > 0:
                scores = scores + o["guidance"] * (scores - self.log_probs(ids[:, :0], cells, frames))
                scores = scores - scores.max(-1, keepdims=True)
                scores = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
            scores[..., mask] = -np.inf
            code, score = scores.argmax(-1).T, scores.max(-1).T - penalty
            if o["class_temperature"] > 0:
                likeliest = np.argsort(-scores, -1, "stable")[..., : math.ceil(0.1 * (scores.shape[-1] - 1))]
                noise = gumbel(self.books, frames, likeliest.shape[-1]).swapaxes(0, 1)
                drawn = (np.take_along_axis(scores, likeliest, -1) / o["class_temperature"] + noise).argmax(-1)
                code = np.take_along_axis(likeliest, drawn[..., None], -1)[..., 0].T
            if o["position_temperature"] > 0:
                score = score / o["position_temperature"] + gumbel(*cells.shape)
            order = np.argsort(-np.where(cells == mask, score, -np.inf).ravel(), kind="stable")[:count]
            cells.ravel()[order] = code.ravel()[order]
        return cells


def schedule(cells, steps, t_shift):  # number of cells that each step reveals
    shifted = [t_shift * (n / steps) / (1 + (t_shift - 1) * (n / steps)) for n in range(steps + 1)]
    counts = []
    for start, end in itertools.pairwise(shifted[:-1]):
        counts.append(min(max(1, math.ceil(cells * (end - start) - 1e-9)), cells - sum(counts)))
    return [*counts, cells - sum(counts)]


if __name__ == "__main__":
    main(Speaker)
