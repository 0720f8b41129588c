"""Transcription as `stentor transcribe` does it first; needs numpy, onnxruntime, tokenizers and soundfile alone."""

import re

import numpy as np
from tokenizers import Tokenizer

from stentor.export.templates.audio import RATE, opened
from stentor.export.templates.transcribing import Transcriber, main


class Recognizer(Transcriber):
    options = {"--language": "code of the language", "--context": "names and terms that may occur"}

    def decode(self, clip, language=None, context=None):  # greedy search; then the aligner times the words
        facts, words = self.facts, self.facts["words"]
        tokenizer = opened(str(self.folder / "tokenizer.json"), Tokenizer.from_file)
        given = self.run("features", audio=clip[None])
        heard = self.run("encoder", **given)
        end, audio = facts["eos_id"], heard["audio"][0, : -(-heard["counts"][0] // facts["frames_per_position"])]
        said = language and words["language"] and f"Language: {language}."
        terms = context and words["context"] and f"Context: {context}"
        text = " ".join(filter(None, [words["instruction"], said, terms])) + words["audio_start"]
        before = facts["prompt"]["start"] + tokenizer.encode(text if text.strip() else "", add_special_tokens=False).ids
        prompt, index = before + [end] * len(audio) + facts["prompt"]["after"], len(before) + np.arange(len(audio))
        outputs, past = self.read(prompt, audio, index)
        answer, most = [], int(len(clip) / RATE * facts["token_rate"]) + 16
        while (token := int(outputs["logits"][0].argmax())) != end and len(answer) < most:
            answer.append(token)
            outputs, past = self.read([token], audio[:0], index[:0], past)
        text = tokenizer.decode(answer, skip_special_tokens=True).strip()
        encoding, size = tokenizer.encode(text, add_special_tokens=False), int(given["lengths"][0])
        words, places = self.words(text, np.array(encoding.offsets or [(0, 1)])) if facts["timed"] else ([], {})
        if not 0 < len(words) <= -(-size // facts["aligner"]["stride"]):
            return text, []
        outputs, _ = self.read([*prompt, *encoding.ids, end], audio, index)
        states, embeds = (outputs[name][-len(encoding.ids) - 1 :] for name in ("states", "embeds"))
        frames, features = heard["frames"][:, : heard["counts"][0]], given["features"][..., :size]
        scores = self.run("aligner", features=features, frames=frames, states=states, tokens=embeds, **places)
        times = self.times(*(scores[name][0].astype(float) for name in ("start", "end", "inside")))
        return text, [{"word": word, "start": a, "end": b} for word, (a, b) in zip(words, times.tolist())]

    def read(self, ids, audio, index, past=None):  # outputs behind the last of ids; keys and values with theirs
        past = past or {name: np.zeros((1, h, 0, w), np.float32) for name, (h, w) in self.facts["past"].items()}
        place = past["past.0.key"].shape[2] + np.arange(len(ids))
        inputs = {"input_ids": np.array([ids]), "audio": audio, "audio_index": index, "position_ids": place[None]}
        inputs |= {"attention_mask": np.ones((1, place[-1] + 1), int), "rows": np.array([len(ids) - 1])}
        outputs = self.run("llm", **inputs, **past)
        return outputs, {name: outputs[name.replace("past", "present")] for name in past}

    def words(self, text, tokens):  # or characters of scripts without spaces; their tokens, and their parts of these
        single = len(re.findall(self.facts["unspaced"], text)) > len(text.split())
        found = [w for w in re.finditer(r"\S" if single else r"\S+", text) if re.search(r"[^\W_]|[&%‰+=@§]", w[0])]
        (start, end), parts = np.array([w.span() for w in found]).reshape(-1, 2).T, []
        first = np.minimum((tokens[:, 1] <= start[:, None]).sum(1), len(tokens) - 1)
        last = np.maximum((tokens[:, 0] < end[:, None]).sum(1) - 1, first)
        for s, e, (a, b), (c, d) in zip(start, end, tokens[first], tokens[last]):
            before = (s - a) / (b - a) if b > a and text[a:s].strip() else 0
            parts.append((max(before, 0), min(max((e - c) / (d - c), 0), 1) if d > c and text[e:d].strip() else 1))
        places = {"word_tokens": np.stack([first, last], 1)[None], "word_parts": np.array([parts], np.float32)}
        return [w[0] for w in found], places

    def times(self, start, end, inside):  # the likeliest seconds of words, in order, from scores [words, points]
        points, step, path = np.arange(start.shape[1]), self.facts["aligner"]["seconds_per_point"], []
        ratio = np.clip(inside[:-1] - inside[-1:], -20, 20) * 0.1  # how much more like the word than like silence
        gained, best = np.pad(np.cumsum(ratio, 1), ((0, 0), (1, 0)))[:, :-1], np.zeros(len(points))
        shift = min(max(points[-1] // len(start), 1), max(1, round(0.05 / step)))  # of the shortest word
        for opens, closes, gain in zip(start, end, gained):
            score = best + opens - gain
            source = np.maximum.accumulate(np.where(score >= np.maximum.accumulate(score), points, 0))
            begun = np.pad(source, (shift, 0))[: len(points)]
            score = np.where(points < shift, -1e9, score[begun]) + gain + closes
            source = np.maximum.accumulate(np.where(score >= np.maximum.accumulate(score), points, 0))
            best, path = score[source], [*path, (begun, source)]
        at, places = points[-1], []
        for begun, source in reversed(path):
            at, places = begun[source[at]], [(begun[source[at]], source[at]), *places]
        near = np.array(places)[..., None] + np.arange(5)  # two points on either side; scores are padded with two
        shares = np.stack([np.pad(np.exp(s), ((0, 0), (2, 2))) for s in (start, end)], 1)
        shares = np.take_along_axis(shares, near, 2)
        fine = near[..., 0] + np.clip((shares * np.arange(-2, 3)).sum(2) / np.maximum(shares.sum(2), 1e-9), -1, 1)
        return step * np.minimum(np.maximum.accumulate(fine.ravel()).reshape(-1, 2), points[-1])


if __name__ == "__main__":
    main(Recognizer)
