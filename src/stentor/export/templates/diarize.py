"""Speaker diarization as `stentor diarize` does it, with numpy, onnxruntime, soundfile and the graphs beside this file:

python diarize.py meeting.wav --speakers 3 > meeting.rttm
"""

import argparse
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import onnxruntime

from stentor.export.templates.audio import opened, read, runs


class Diarizer:
    def __init__(self, folder):
        self.facts = opened(Path(folder) / "onnx_config.json", lambda path: json.loads(path.read_text("utf-8")))
        files = {name: Path(folder) / graph["file"] for name, graph in self.facts["graphs"].items()}
        self.graphs = {name: opened(file, onnxruntime.InferenceSession) for name, file in files.items()}
        self.rate, self.seconds, self.labels = (self.facts[k] for k in ("sample_rate", "frame_seconds", "labels"))
        self.sets = np.array(self.labels["sets"], bool) if self.labels["sets"] else None

    def diarize(self, audio, least=None, most=None):
        """Segments {"speaker", "start", "end"} (seconds) of audio, float32 [samples], with so many speakers."""
        s = argparse.Namespace(**self.facts["windows"])  # settings and outputs of the windows
        s.least, s.most = (least or 1, most) if least or most else (s.least, s.most)
        size, frame, count = round(s.window * self.rate), self.seconds * self.rate, len(audio)
        step, s.seconds = max(1, round(s.step * size / frame)), self.seconds / s.upsample
        starts = [n for n in range(0, count, step) if not n or round(n * frame) + size <= count]
        if count - round(starts[-1] * frame) >= s.longer:  # samples that make more frames than a window
            starts.append(int(np.ceil((count - size) / frame)))
        scores, active, voices = zip(*(self.label(audio[round(n * frame) :][:size], s) for n in starts))
        s.starts, s.lengths, s.voices = np.array(starts) * s.upsample, np.array([*map(len, scores)]), np.stack(voices)
        pads = [((0, s.lengths.max() - length), (0, 0)) for length in s.lengths]
        s.scores, active = (np.stack([np.pad(*row) for row in zip(rows, pads)]) for rows in (scores, active))
        s.alone, s.frames = (active & (active.sum(2, keepdims=True) == 1)).sum(1), s.starts[-1] + s.lengths[-1]
        hard, slots = self.sets is not None and s.threshold is None, active.shape[2]
        total = np.maximum(self.overlapped(s, np.ones_like(s.scores[..., :1])), 1e-6)
        if self.labels["permutes"]:
            active = active if hard else self.hysteresis(s.scores, s)
            tracks, whole = self.linked(s, active), len(active) == 1 and (s.most or slots) >= slots
            speakers = tracks if whole or tracks.max() < 0 else self.clustered(s, tracks)
            values = active + s.scores.astype(np.float32)
            each = [np.where((speakers == k)[:, None], values, 0).max(2) for k in range(speakers.max() + 1)]
            scores = self.overlapped(s, np.stack(each or [values[..., 0] * 0], 2))
            number = np.floor(self.overlapped(s, active.sum(2, keepdims=True)) / total + 0.5)
            tracks = (np.argsort(np.argsort(-scores, axis=1, kind="stable"), axis=1) < number) & (scores > 0)
        else:
            tracks = self.hysteresis(self.overlapped(s, s.scores) / total, s)
        self.smooth(tracks, s)
        found = sorted((*map(int, run), k) for k, speaker in enumerate(tracks.T) for run in runs(speaker))
        duration, names = count / self.rate, dict(enumerate(self.labels["names"]))
        times = [(k, a * s.seconds, min(b * s.seconds, duration)) for a, b, k in found if a * s.seconds < duration]
        names = {k: names.get(k, f"speaker_{i}") for i, k in enumerate(dict.fromkeys(k for k, *_ in times), 1)}
        return [{"speaker": names[k], "start": round(a, 3), "end": round(b, 3)} for k, a, b in times]

    def label(self, clip, s):  # probabilities and activity of a window's speakers [T, S], and their voices [S, E]
        outputs = self.run("diarizer", **self.run("features", audio=clip[None]))
        count = int(outputs["frames"][0]) * s.upsample
        scores, silent = outputs["scores"][0, :count], np.zeros((count, 1), bool)
        starts = np.minimum(np.round(np.arange(count) * s.seconds * self.rate).astype(int), len(clip) - 1)
        for a, b in runs(np.maximum.reduceat(np.abs(clip), starts) < 10 ** (-90 / 20)):  # digital silence
            silent[a:b] = (b - a) * s.seconds >= 0.5
        scores, active = np.where(silent, 0, scores), (scores >= 0.5) & ~silent
        if self.sets is not None:
            active = self.likeliest(outputs["log_probs"][0, :count] / s.upsample, s.change_cost) & ~silent
        voices = self.run("voices", **outputs, audio=clip[None], active=active) if self.labels["permutes"] else {}
        return scores.astype(np.float16), active, voices.get("voices", 0)

    def run(self, name, **inputs):
        graph = self.graphs[name]
        outputs = graph.run(None, {node.name: inputs[node.name] for node in graph.get_inputs()})
        return {node.name: output for node, output in zip(graph.get_outputs(), outputs)}

    def likeliest(self, log_probs, change):  # activity [T, S] by the likeliest sets; starts and ends cost
        cost = change * (self.sets[:, None] != self.sets).sum(2)
        best, before = log_probs[0].astype(np.float64), []
        for row in log_probs[1:]:
            through = best[:, None] - cost
            before.append(through.argmax(0))
            best = through.max(0) + row
        path = [int(best.argmax())]
        for back in reversed(before):
            path.append(int(back[path[-1]]))
        return self.sets[path[::-1]]

    def hysteresis(self, scores, s):  # activity begins at the threshold and lasts until a score is below the offset
        started, off = scores >= (s.threshold or 0.5), s.offset or s.threshold or 0.5
        decisive = np.where(started | (scores < off), np.arange(scores.shape[-2])[:, None], 0)
        return np.take_along_axis(started, np.maximum.accumulate(decisive, axis=-2), axis=-2)

    def overlapped(self, s, values):  # sums [F, K] over the windows' values [W, T, K], which count less at the edges
        sums = np.zeros((s.frames, values.shape[2]), np.float32)
        for window, start, length in zip(values, s.starts, s.lengths):
            weights = np.maximum(1 - np.abs(2 * (np.arange(length) + 0.5) / length - 1), 0.1).astype(np.float32)
            sums[start : start + length] += weights[:, None] * window[:length]
        return sums

    def smooth(self, tracks, s):  # median filter; then short pauses are filled, and short stretches removed
        for speaker in tracks.T:
            padded = np.pad(speaker, s.median // 2, "edge")
            speaker[:] = np.lib.stride_tricks.sliding_window_view(padded, s.median).sum(1) > s.median // 2
            for (_, end), (start, _) in pairwise(runs(speaker)):
                speaker[end:start] |= (start - end) * s.seconds < s.min_off - 1e-6
            for start, end in runs(speaker):
                speaker[start:end] &= (end - start) * s.seconds >= s.min_on - 1e-6

    def linked(self, s, active):  # tracks of speakers from window to window by their activity in shared frames, [W, S]
        tracks, known, covered = np.full(active.shape[::2], -1), {}, np.zeros(s.frames, np.float32)
        for w, (start, length) in enumerate(zip(s.starts, s.lengths)):
            span = slice(start, start + length)
            known = {k: sums for k, sums in known.items() if sums[start : start + active.shape[1]].any()}
            scores, shared = (s.scores[w, :length].astype(np.float32) * active[w, :length]).T, covered[span] > 0
            talking = np.flatnonzero(active[w].any(0))
            if known and shared.any():
                before = np.stack([sums[span][shared] / covered[span][shared] for sums in known.values()])[:, None]
                now = scores[talking][None, :, shared]
                agreement = np.minimum(before, now).sum(2) / np.maximum(np.maximum(before, now).sum(2), 1e-6)
                for k, t in self.assignment(agreement):
                    tracks[w, talking[t]] = list(known)[k] if agreement[k, t] >= 0.3 else -1
            for slot in talking:
                tracks[w, slot] = tracks.max() + 1 if tracks[w, slot] < 0 else tracks[w, slot]
                known.setdefault(int(tracks[w, slot]), np.zeros(s.frames, np.float32))[span] += scores[slot]
            covered[span] += 1
        return tracks

    def assignment(self, gains):  # pairs (row, column) of the largest sum, by the best for each set of columns
        best = {0: (0.0, ())}
        for row, values in enumerate(gains.tolist()):
            for taken, (total, pairs) in list(best.items()):
                for column, gain in enumerate(values):
                    if not taken >> column & 1 and total + gain > best.get(taken | 1 << column, (-1.0,))[0]:
                        best[taken | 1 << column] = total + gain, (*pairs, (row, column))
        return max(best.values())[1]

    def most_apart(self, tracks, most):  # without voices: a track joins who shares the fewest windows with it
        speakers = np.full_like(tracks, -1)
        for number in range(tracks.max() + 1):  # in the order of their first windows
            rows, count = np.flatnonzero((tracks == number).any(1)), speakers.max() + 1
            windows = [np.flatnonzero((speakers == k).any(1)) for k in range(count)]
            ranks = [(len(np.intersect1d(w, rows)), -w[w <= rows[-1]].max(initial=-1)) for w in windows]
            speakers[tracks == number] = min(range(most), key=ranks.__getitem__) if count == most else count
        return speakers

    def clustered(self, s, tracks):  # speakers [W, S] by the voices of tracks in stretches of windows
        rows, slots = np.nonzero(tracks >= 0)
        keys = np.stack([s.starts[rows] // s.lengths.max(), tracks[rows, slots]], 1)
        keys, of = np.unique(keys, axis=0, return_inverse=True)
        frames, of, size = s.alone[rows, slots].astype(float), of.reshape(-1), len(keys)
        weights, sums, apart = np.zeros(size), np.zeros((size, s.voices.shape[2])), np.zeros((size, size), bool)
        np.maximum.at(weights, of, frames)
        np.add.at(sums, of, s.voices[rows, slots] * np.maximum(frames, 1e-3)[:, None])
        norms, gap = np.linalg.norm(sums, axis=1), np.abs(keys[:, None, 0] - keys[:, 0])
        one = (keys[:, None, 1] == keys[:, 1]) & (gap >= 2) & (gap <= 4)  # pairs of one track
        for row in range(len(tracks)):  # pairs that share a window: two speakers
            apart[np.ix_(of[rows == row], of[rows == row])] = True
        np.fill_diagonal(apart, False)
        reliable = (norms > 0) & (weights * s.seconds >= 3)
        reliable = reliable if reliable.sum() >= s.least else norms > 0
        both = np.triu(reliable[:, None] & reliable)
        enough = min((one & both).sum(), (apart & both).sum()) >= 4
        if not reliable.any() or not (s.embeddings or enough):
            return self.most_apart(tracks, s.most or tracks.shape[1])
        scale = norms if s.embeddings else np.bincount(of, np.maximum(frames, 1e-3))
        distances = self.distances((sums / np.maximum(scale, 1e-9)[:, None]).astype(np.float32), one & both, s)
        near, far, threshold = distances[one & both], distances[apart & both], s.cluster_threshold
        if threshold is None and enough:
            low, high = float(np.median(near)), float(np.median(far))
            threshold = (low + high) / 2 if s.embeddings else np.sqrt(max(low * high, 0))
            if far.mean() - near.mean() < 1.5 * (np.sqrt((near.var() + far.var()) / 2) + 1e-6):
                return self.most_apart(tracks, s.most or tracks.shape[1])
        chosen, least = np.flatnonzero(reliable), min(5, round(0.1 * size))
        square, counts = np.ix_(chosen, chosen), weights[chosen]
        labels = self.merged(distances[square], counts, apart[square], threshold or 0.5, s.least, s.most)
        sizes, order = np.bincount(labels), np.argsort(-np.bincount(labels, counts), kind="stable")
        kept = sorted(order, key=lambda k: sizes[k] < least)[: max((sizes >= least).sum(), s.least, 1)][: s.most]
        speakers, found = np.full(size, -1), np.full(tracks.shape, -1)
        speakers[chosen] = [kept.index(k) if k in kept else -1 for k in labels]
        shares = [np.where(speakers == k, weights + 1e-6, 0) for k in range(len(kept))]
        for i in [i for i in np.argsort(-weights, kind="stable") if speakers[i] < 0]:  # the others join the nearest
            means = np.array([distances[i] @ share / share.sum() for share in shares])
            taken = np.unique(speakers[apart[i] & (speakers >= 0)])
            if len(taken) < len(means):
                means[taken] = np.inf
            elif least <= 1 and len(means) < (s.most or size + 1):  # who talks while all others do is a new speaker
                means = np.append(means + np.inf, 0)
                shares.append((np.arange(size) == i).astype(float))
            speakers[i] = means.argmin()
        found[rows, slots] = speakers[of]
        return found

    def distances(self, voices, same, s):  # of embeddings by the cosine; of spectra in units of what varies in a voice
        if s.embeddings:
            return (1 - voices @ voices.T).astype(np.float32)
        pairs, voices = (same | same.T).astype(float), voices - voices.mean(0, dtype=float)
        within = voices.T @ (np.diag(pairs.sum(1)) - pairs) @ voices / pairs.sum()  # the covariance within a voice
        within = 0.5 * within + np.diag(0.501 * np.diag(within) + 1e-8)
        products = voices @ np.linalg.inv(within) @ voices.T
        distances = np.maximum(np.diag(products)[:, None] + np.diag(products) - 2 * products, 0)
        return (distances / max(float(distances[same].mean()), 1e-9)).astype(np.float32)

    def merged(self, distances, weights, apart, threshold, least, most):  # clusters [N] by average linkage
        sizes, labels, left = np.maximum(weights, 1e-6), np.arange(len(weights)), len(weights)
        distances[apart | np.eye(left, dtype=bool)] = np.inf
        while left > least:
            i, j = np.unravel_index(distances.argmin(), distances.shape)
            if not distances[i, j] < np.inf or (distances[i, j] > threshold and left <= (most or left)):
                break
            mean = (sizes[i] * distances[i] + sizes[j] * distances[j]) / (sizes[i] + sizes[j])
            mean[[i, j]] = distances[j] = distances[:, j] = np.inf
            distances[i] = distances[:, i] = mean
            sizes[i], labels[labels == j], left = sizes[i] + sizes[j], i, left - 1
        return np.unique(labels, return_inverse=True)[1]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Find who speaks when; prints RTTM.")
    parser.add_argument("files", nargs="+", type=lambda f: f if Path(f).is_file() else parser.error(f"no file {f}"))
    for name in ("--speakers", "--min-speakers", "--max-speakers"):
        parser.add_argument(name, type=int)
    options, diarizer = parser.parse_args(), Diarizer(Path(__file__).parent)
    bounds = options.speakers or options.min_speakers, options.speakers or options.max_speakers
    for file in options.files:
        for s in diarizer.diarize(audio, *bounds) if len(audio := read(file, diarizer.rate)) else []:
            times = f"{s['start']:.3f} {s['end'] - s['start']:.3f}"
            print(f"SPEAKER {Path(file).stem} 1 {times} <NA> <NA> {s['speaker']} <NA> <NA>")
