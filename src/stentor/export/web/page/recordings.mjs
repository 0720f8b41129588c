// Recordings: which parts are speech, and the windows between pauses that a model reads. As Stentor does it in Python
// (stentor.export.templates); audio is a Float32Array at 16 kHz, frames are 10 ms.

export const RATE = 16000;
const HOP = 160;
const [LONGEST, SILENCE, PAUSE, PADDING] = [30, 2, 0.3, 0.15]; // seconds, where training does not say

export const argmax = (row) => row.reduce((best, value, i) => (value > row[best] ? i : best), 0);
const filled = (count, value) => Float64Array.from({length: count}, (_, i) => value(i));

// Windows [start, end) in samples, and what is known of the training clips. `speech`: {room, longest, pause} in seconds
// or null; `limit`: longest clip of the model in seconds or null.
export function windowSettings(speech, limit) {
  const {room = null, longest: trained = null, pause = null} = speech ?? {};
  let longest = Math.min(LONGEST, limit ?? LONGEST, trained ?? LONGEST);
  if (longest > 4 * (room ?? 0)) longest -= 2 * (room ?? 0);
  const silence = pause !== null && (room !== null || pause > SILENCE) ? Math.max(room ?? 0, pause) : null;
  return {room, longest, silence, limit};
}

export function windows(audio, {longest, room, silence}) {
  const levels = frameLevels(audio);
  const regions = runs(findSpeech(levels)).map((run) => run.map((frame) => Math.min(frame * HOP, audio.length)));
  const gap = Math.round((silence ?? SILENCE) * RATE), most = Math.floor(longest * RATE);
  const pad = Math.round((room ?? PADDING) * RATE);
  const pauses = regions.slice(1).map(([start], i) => [start - regions[i][1], (start + regions[i][1]) >> 1]);
  const starts = regions.filter((_, i) => i === 0 || pauses[i - 1][0] > gap).map((region) => region[0]);
  const ends = regions.filter((_, i) => i === pauses.length || pauses[i][0] > gap).map((region) => region[1]);
  if (starts.length === 1 && audio.length <= most && room === null && silence === null) return [[0, audio.length]];
  const middles = [0, ...starts.slice(1).map((start, i) => (start + ends[i]) >> 1), audio.length];
  const pieces = [];
  starts.forEach((speechStart, i) => {
    let start = Math.max(middles[i], speechStart - pad);
    const end = Math.min(middles[i + 1], ends[i] + pad);
    while (end - start > most) {
      const first = start + (most >> 1), last = start + most;
      const places = pauses.filter(([length, middle]) => length >= PAUSE * RATE && first <= middle && middle <= last);
      const longestPause = places.reduce((a, b) => (!a || b[0] > a[0] || (b[0] === a[0] && b[1] > a[1]) ? b : a), null);
      const cut = longestPause ? longestPause[1] : quietest(levels, Math.floor(first / HOP) + 1, Math.floor(last / HOP));
      pieces.push([start, cut]);
      start = cut;
    }
    pieces.push([start, end]);
  });
  return pieces.filter(([start, end]) => regions.some(([from, to]) => from < end && to > start));
}

// Sample of the latest of the quietest frames of speech without a pause.
function quietest(levels, first, last) {
  const part = levels.subarray(first, last), least = Math.min(...part);
  return (first + part.findLastIndex((level) => level <= least + 1)) * HOP;
}

// The clip with as much quiet around its speech as the training clips had, and the seconds by which it begins earlier.
export function withRoom(clip, {room, limit}) {
  const levels = frameLevels(clip), speech = findSpeech(levels);
  if (room === null || !speech.includes(1)) return [clip, 0];
  const margin = Math.round(room * RATE);
  const start = firstSpeech(levels, speech) * HOP - margin;
  const behind = firstSpeech(levels.slice().reverse(), speech.slice().reverse());
  const end = Math.min((levels.length - behind) * HOP, clip.length) + margin;
  if (limit && end - start > Math.max(limit * RATE, clip.length)) return [clip, 0];
  const roomy = new Float32Array(end - start);
  roomy.set(clip.subarray(Math.max(start, 0), end), Math.max(-start, 0));
  return [roomy, -start / RATE];
}

// Level of each frame in dB above 80 Hz (a second-order Butterworth filter), smoothed over 50 ms.
export function frameLevels(audio) {
  const k = Math.tan(Math.PI * 80 / RATE), norm = 1 + Math.SQRT2 * k + k * k;
  const [a1, a2] = [2 * (k * k - 1) / norm, (1 - Math.SQRT2 * k + k * k) / norm];
  const powers = new Float64Array(Math.ceil(audio.length / HOP));
  let [one, two] = [0, 0];
  for (let i = 0; i < audio.length; i++) {
    const filtered = audio[i] / norm + one;
    one = -2 * audio[i] / norm - a1 * filtered + two;
    two = audio[i] / norm - a2 * filtered;
    powers[Math.floor(i / HOP)] += filtered * filtered / Math.min(HOP, audio.length - Math.floor(i / HOP) * HOP);
  }
  const at = (i) => powers[Math.min(Math.max(i, 0), powers.length - 1)];
  const decibels = (power) => Math.max(10 * Math.log10(Math.max(power, 1e-12)), -100);
  return filled(powers.length, (i) => decibels((at(i - 2) + at(i - 1) + at(i) + at(i + 1) + at(i + 2)) / 5));
}

// Frames that stand out of the noise floor, without clicks: Uint8Array of 0 and 1.
export function findSpeech(levels) {
  const centres = [], floors = [], peaks = [];
  for (let centre = 50; centre < Math.max(levels.length, 51); centre += 100) {
    const near = levels.slice(Math.max(0, centre - 1500), centre + 1500).sort();
    [centres, floors, peaks].forEach((list, i) => list.push([centre, quantile(near, 0.1), quantile(near, 0.95)][i]));
  }
  const quiet = quantile(levels.slice().sort(), 0.1);
  const floor = filled(levels.length, (i) => between(i, centres, floors));
  const range = filled(levels.length, (i) => between(i, centres, peaks) - floor[i]);
  const flat = (i) => range[i] < 6 && floor[i] > -65;
  const whole = levels.every((_, i) => flat(i));
  const steady = (i) => flat(i) && (whole || floor[i] > quiet + 6) && range[i] >= 3.5;
  const speech = Uint8Array.from(levels, (level, i) => level > Math.max(floor[i] + Math.max(6, 0.2 * range[i]), -65));
  const edges = runs(speech);
  edges.forEach(([start, end], i) => {
    const before = i ? start - edges[i - 1][1] : speech.length;
    const after = i + 1 < edges.length ? edges[i + 1][0] - end : speech.length;
    if (end - start < 8 && Math.min(before, after) >= 25) speech.fill(0, start, end);
  });
  return speech.map((spoken, i) => spoken || steady(i));
}

const quantile = (sorted, share) => {
  const place = share * (sorted.length - 1), below = Math.floor(place);
  return sorted[below] + (place - below) * ((sorted[below + 1] ?? sorted[below]) - sorted[below]);
};

// Linear interpolation on an even grid of 100 frames.
function between(frame, centres, values) {
  const place = Math.min(Math.max((frame - centres[0]) / 100, 0), centres.length - 1), below = Math.floor(place);
  return values[below] + (place - below) * ((values[below + 1] ?? values[below]) - values[below]);
}

// The first frame of speech; steady noise at the edge of a recording that is clean elsewhere is none.
function firstSpeech(levels, speech) {
  const peak = quantile(levels.slice().sort(), 0.95), begin = quantile(levels.slice(0, 15).sort(), 0.5);
  let first = speech.indexOf(1);
  for (let frame = first - 1; frame >= 0; frame--) // soft consonants are speech
    if (levels[frame] > Math.max(peak - 45, -65) && first - frame <= 15) first = frame;
  const changed = levels.findIndex((level) => Math.abs(level - begin) > 3);
  return begin <= peak - 15 && changed >= 25 ? Math.max(first, changed) : first;
}

// First frame, and the frame after the last, of each stretch of 1.
function runs(mask) {
  const edges = [];
  for (let i = 0; i < mask.length; i++) {
    if (!mask[i]) continue;
    const start = i;
    while (mask[i]) i++;
    edges.push([start, i]);
  }
  return edges;
}
