"""Windows of recordings between pauses, with as much quiet around speech as in training."""

from itertools import pairwise

import numpy as np

from stentor.export.templates.audio import HOP, RATE, runs

LONGEST, SILENCE, PAUSE, PADDING = 30.0, 2.0, 0.3, 0.15  # seconds, where training does not say; see `windows`


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


def with_room(clip, room, limit=None):
    """(clip with `room` seconds of quiet around its speech, seconds that it begins earlier). None: unchanged. With
    `limit` seconds it does not grow beyond these."""
    speech = find_speech(levels := frame_levels(clip))
    if room is None or not speech.any():
        return clip, 0.0
    size = round(room * RATE)
    start = first_speech(levels, speech) * HOP - size
    end = min((len(levels) - first_speech(levels[::-1], speech[::-1])) * HOP, len(clip)) + size
    roomy = np.pad(clip[max(start, 0) : end], (max(-start, 0), max(end - len(clip), 0)))
    return (clip, 0.0) if limit and len(roomy) > max(limit * RATE, len(clip)) else (roomy, -start / RATE)
