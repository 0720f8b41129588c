// Recognition with the graphs of `stentor export --format onnx` in onnxruntime-web: features, search, words. Runs in the
// page's worker, and in Node where the export is checked.

import {RATE, argmax, windows, windowSettings, withRoom} from "./recordings.mjs";
import {seq2seq} from "./seq2seq.mjs";

const AHEAD = 8; // frames that the joint looks at in one call
const [LEFT, RIGHT, HOP] = [2, 280, 160]; // a streamed frame depends on so many frames before it and samples behind it

export class Recognizer {
  // `read(name)`: promise of the bytes of a file of the model; `files`: their names.
  static async open(ort, read, files) {
    const self = new Recognizer(), parse = async (name) => JSON.parse(new TextDecoder().decode(await read(name)));
    Object.assign(self, {ort, read, files, sessions: {}, facts: await parse("onnx_config.json")});
    self.pieces = await parse("pieces.json");
    self.settings = windowSettings(self.facts.speech, self.facts.max_seconds);
    self.search = {ctc, transducer, seq2seq}[self.facts.kind];
    if (!self.search) throw new Error(`This page cannot run models of the kind ${self.facts.kind}. Export it again.`);
    return self;
  }

  get streams() {
    return "encoder_chunk" in this.facts.graphs;
  }

  // Outputs by name. A graph is loaded when it is first run.
  async run(name, feeds) {
    this.sessions[name] ??= this.load(this.facts.graphs[name].file);
    const session = await this.sessions[name];
    const known = session.inputNames.filter((input) => input in feeds).map((input) => [input, feeds[input]]);
    return session.run(Object.fromEntries(known));
  }

  async load(file) {
    const outside = this.files.filter((name) => name === `${file}.data`);
    const externalData = await Promise.all(outside.map(async (path) => ({path, data: await this.read(path)})));
    try {
      return await this.ort.InferenceSession.create(await this.read(file), {executionProviders: ["wasm"], externalData});
    } catch (error) {
      if (/no available backend/.test(error.message)) throw new Error(`onnxruntime-web cannot run (${error.message}). Use a current browser with WebAssembly, and copy the folder whole.`);
      throw new Error(`The graph ${file} cannot be loaded (${error.message}). Export the model again.`);
    }
  }

  tensor(values, dims) {
    const whole = values instanceof Float32Array ? values : BigInt64Array.from(values, BigInt);
    return new this.ort.Tensor(whole instanceof Float32Array ? "float32" : "int64", whole, dims);
  }

  features(clip) {
    return this.run("features", {audio: this.tensor(clip, [1, clip.length])});
  }

  // Encoder outputs for the result of `features`, whose names differ between the families.
  encode({features, lengths}, graph = "encoder", more = {}) {
    return this.run(graph, {features, lengths, audio_signal: features, length: lengths, input_features: features, ...more});
  }

  // Segments {start, end, text, words} in seconds of a recording, one window at a time. `told(share)`: progress.
  async transcribe(audio, told = () => {}, options = {}) {
    const segments = [];
    for (const [start, end] of windows(audio, this.settings)) {
      const {text, words} = await this.window(audio.subarray(start, end), start / RATE, options);
      if (text) segments.push({start: start / RATE, end: end / RATE, text, words});
      told(end / audio.length, segments);
    }
    return segments;
  }

  // Text and words of one window that begins at `begin` seconds.
  async window(audio, begin = 0, options = {}) {
    const [clip, earlier] = withRoom(audio, this.settings);
    const {ids, spans} = await this.search(this, clip, options);
    const most = audio.length / RATE, inside = (seconds) => begin + Math.min(Math.max(seconds - earlier, 0), most);
    return this.written(ids, spans?.map((span) => span.map(inside)));
  }

  // Text of token ids, and words {word, start, end}: from the first to the last token with a letter of the word.
  written(ids, spans) {
    const decoder = new TextDecoder(), places = [];
    let text = "";
    for (const id of ids) {
      const before = text.length;
      text += decoder.decode(Uint8Array.from(this.pieces[id], (c) => c.charCodeAt(0)), {stream: true});
      places.push([before, text.length]);
    }
    text += decoder.decode();
    const words = [...text.matchAll(/[\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}]|[^\s\p{sc=Han}\p{sc=Hiragana}\p{sc=Katakana}\p{sc=Thai}]+/gu)];
    const timed = words.map(({0: word, index}) => {
      const own = spans?.filter((_, i) => places[i][0] < index + word.length && places[i][1] > index);
      return {word, start: own?.[0]?.[0], end: own?.at(-1)?.[1]};
    });
    timed.slice(1).forEach((after, i) => { // words that overlap meet in the middle
      if (timed[i].end > after.start) timed[i].end = after.start = (timed[i].end + after.start) / 2;
    });
    return {text: text.trim(), words: spans ? timed : []};
  }
}

// Searches: ids and their [start, end] in seconds, from the start of the clip

async function ctc(model, clip) {
  const {logprobs, lengths} = await model.encode(await model.features(clip));
  const {blank, frame_seconds: step} = model.facts, classes = logprobs.dims[2], ids = [], spans = [];
  let last = blank;
  for (let t = 0; t < Number(lengths.data[0]); t++) {
    const best = argmax(logprobs.data.subarray(t * classes, (t + 1) * classes));
    if (best !== blank && best === last) spans.at(-1)[1] = (t + 1) * step;
    else if (best !== blank) ids.push(best) && spans.push([t * step, (t + 1) * step]);
    last = best;
  }
  return {ids, spans};
}

async function transducer(model, clip, {language} = {}) {
  const prompts = model.facts.prompts ?? {}, prompt = prompts[(language ?? "auto").toLowerCase()] ?? prompts.auto ?? 0;
  const more = {prompt_ids: model.tensor([prompt], [1])};
  const {states, lengths, distances} = await model.encode(await model.features(clip), "encoder", more);
  const path = await new TransducerPath(model).start();
  await path.follow(states.data, Number(lengths.data[0]), distances?.data);
  return {ids: path.ids, spans: path.seconds()};
}

// Greedy search of RNN-T and TDT, from chunk to chunk.
export class TransducerPath {
  constructor(model) {
    Object.assign(this, {model, ids: [], spans: [], distances: [], heard: 0, at: 0, atFrame: 0});
    this.state = model.facts.states.map(([layers, width]) =>
      model.tensor(new Float32Array(layers * width), [layers, 1, width]));
  }

  async start() {
    await this.predict(this.model.facts.blank);
    return this;
  }

  async predict(token) {
    const states = Object.fromEntries(this.state.map((state, i) => [`state_${i}`, state]));
    const after = await this.model.run("decoder", {tokens: this.model.tensor([token], [1, 1]), ...states});
    this.output = after.outputs.data;
    this.state = this.state.map((_, i) => after[`next_state_${i}`]);
  }

  // Continue along the next `count` frames, [frames * J]; `distances`: the output of the times head, [frames * 2].
  async follow(states, count, distances) {
    const {blank, durations, max_symbols: most} = this.model.facts, width = this.output.length;
    this.distances.push(...(distances?.subarray(0, 2 * count) ?? []));
    const limit = this.ids.length + 4 * count, end = this.heard + count;
    while (this.at < end && this.ids.length < limit) {
      const first = this.at, rows = Math.min(AHEAD, end - first);
      const encoder = states.slice((first - this.heard) * width, (first - this.heard + rows) * width);
      const predictor = new Float32Array(rows * width);
      for (let row = 0; row < rows; row++) predictor.set(this.output, row * width);
      const feeds = {encoder: this.model.tensor(encoder, [rows, width]), predictor: this.model.tensor(predictor, [rows, width])};
      const {data, dims} = (await this.model.run("joint", feeds)).logits;
      const tokens = dims[1] - (durations?.length ?? 0);
      while (this.at < first + rows) {
        const row = data.subarray((this.at - first) * dims[1], (this.at - first + 1) * dims[1]);
        const token = argmax(row.subarray(0, tokens));
        const jump = durations ? durations[argmax(row.subarray(tokens))] : Number(token === blank);
        if (token === blank) {
          this.jump(Math.max(jump, 1));
          continue;
        }
        this.ids.push(token);
        this.spans.push([this.at, this.at + Math.max(jump, 1)]);
        this.atFrame++;
        this.jump(jump || Number(this.atFrame >= most));
        await this.predict(token);
        break;
      }
    }
    this.heard = end;
  }

  jump(frames) {
    this.at += frames;
    if (frames) this.atFrame = 0;
  }

  // Seconds of each token; with a times head those of its word: the median of what it says at three frames.
  seconds() {
    const {frame_seconds: step, delays} = this.model.facts, [before, after] = delays ?? [0, 0];
    const frames = this.distances.length / 2, median = (values) => values.sort((a, b) => a - b)[1];
    const said = (frame, edge) => frame + 0.5 + (edge ? 1 : -1) * this.distances[2 * frame + edge];
    const around = ([frame]) => [
      median([0, 1, 2].map((i) => said(Math.min(frame + i, frames - 1), 0))),
      median([0, 1, 2].map((i) => said(Math.max(frame - i, 0), 1))),
    ];
    const spans = frames ? this.spans.map(around) : this.spans;
    return spans.map(([start, end]) => [start * step + before, end * step + after]);
  }
}

// A recording that comes in pieces, for models whose encoder reads chunk by chunk.
export class Stream {
  constructor(model) {
    const {chunk} = model.facts;
    Object.assign(this, {model, chunk, audio: new Float32Array(0), samples: 0, first: 0, frame: 0, rows: []});
    this.cache = model.tensor(new Float32Array(chunk.cache), [1, chunk.cache]);
    this.path = new TransducerPath(model);
  }

  async add(samples, last = false) {
    const audio = new Float32Array(this.audio.length + samples.length);
    audio.set(this.audio);
    audio.set(samples, this.audio.length);
    Object.assign(this, {audio, samples: this.samples + samples.length});
    if (!this.path.output) await this.path.start();
    await this.extract(last);
    while (this.rows.length >= this.chunk.features || (last && this.rows.length)) await this.advance();
    const most = this.samples / RATE;
    const spans = this.path.seconds().map((span) => span.map((s) => Math.min(Math.max(s, 0), most)));
    return this.model.written(this.path.ids, spans);
  }

  // Features of the frames that are complete; of all at the end. `this.audio` begins `LEFT` frames before the next one.
  async extract(last) {
    const ready = Math.floor((this.samples - RIGHT) / HOP) + 1 - this.frame;
    if (!last && ready < this.chunk.step) return;
    const {features, lengths} = await this.model.features(this.audio), [, mels, width] = features.dims;
    if (!this.frame) this.rows = Array.from({length: this.chunk.lead}, () => new Float32Array(mels));
    const skipped = this.frame - this.first, until = last ? Number(lengths.data[0]) : skipped + ready;
    for (let t = skipped; t < until; t++) this.rows.push(Float32Array.from({length: mels}, (_, m) => features.data[m * width + t]));
    this.frame = this.first + until;
    const first = Math.max(0, this.frame - LEFT);
    this.audio = this.audio.slice((first - this.first) * HOP);
    this.first = first;
  }

  async advance() {
    const {features: size, step} = this.chunk, rows = this.rows.slice(0, size), mels = rows[0].length;
    const signal = new Float32Array(mels * size);
    rows.forEach((row, t) => row.forEach((value, m) => (signal[m * size + t] = value)));
    const features = this.model.tensor(signal, [1, mels, size]), lengths = this.model.tensor([rows.length], [1]);
    const out = await this.model.encode({features, lengths}, "encoder_chunk", {cache: this.cache});
    this.cache = out.next_cache;
    await this.path.follow(out.states.data, Number(out.lengths.data[0]), out.distances?.data);
    this.rows = this.rows.slice(step);
  }
}
