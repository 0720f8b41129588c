// Everything that takes time, beside the page: downloads, graphs, files and the microphone.

import * as ort from "./ort/ort.wasm.min.mjs";
import {Recognizer, Stream} from "./recognizer.mjs";
import {RATE, findSpeech, frameLevels, windows} from "./recordings.mjs";

const BASE = new URL("./", self.location.href).href;
const [OFTEN, SILENCE] = [1, 0.8]; // seconds between two readings of the microphone; seconds of silence that end a text
let listing, model, recording = null, queue = Promise.resolve();

const tell = (kind, facts = {}) => postMessage({kind, ...facts});

onmessage = ({data}) => {
  if (data.kind === "samples") return recording?.pending.push(data.samples);
  if (data.kind === "stop") return recording && (recording.ended = true);
  const work = {load, file, record}[data.kind];
  queue = queue.then(() => work(data)).catch((error) => tell("failed", {during: data.kind, message: error.message}));
};

// Bytes of a file of the folder, from the browser's cache where it is stored.
async function bytes(name, told = () => {}) {
  const cache = await self.caches?.open(`stentor ${BASE} ${listing.version}`), url = BASE + name;
  const stored = await cache?.match(url);
  const response = stored ?? (await fetch(url).catch(() => null));
  if (!response) throw new Error(`${name} cannot be downloaded: check the connection, and load the page again.`);
  if (!response.ok) throw new Error(`${name} cannot be downloaded (${response.status}): copy the folder whole.`);
  const parts = [];
  for (const reader = response.body.getReader(); ;) {
    const {done, value} = await reader.read();
    if (done) break;
    parts.push(value);
    told(value.length);
  }
  const content = new Uint8Array(await new Blob(parts).arrayBuffer());
  const digest = self.crypto.subtle && new Uint8Array(await crypto.subtle.digest("SHA-256", content));
  const hex = digest && Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
  const {size, sha256} = listing.files[name];
  if (content.length !== size || (hex && hex !== sha256)) {
    await cache?.delete(url);
    throw new Error(`${name} is damaged or of another export: load the page again, or export the model again.`);
  }
  if (!stored) await cache?.put(url, new Response(content)).catch(() => {}); // without room it is downloaded each time
  return content;
}

async function load() {
  listing = await (await fetch(`${BASE}files.json`)).json();
  const names = Object.keys(listing.files), total = names.reduce((sum, name) => sum + listing.files[name].size, 0);
  let loaded = 0;
  const held = {}, told = (count) => tell("loading", {loaded: (loaded += count), total});
  for (const name of names) held[name] = await bytes(name, told);
  ort.env.wasm.numThreads = 1; // more need headers that few servers send
  ort.env.wasm.wasmPaths = `${BASE}ort/`;
  ort.env.wasm.wasmBinary = held["ort/ort-wasm-simd-threaded.wasm"];
  const read = (name) => {
    const content = held[`model/${name}`];
    delete held[`model/${name}`];
    return content ?? bytes(`model/${name}`);
  };
  const files = names.filter((name) => name.startsWith("model/")).map((name) => name.slice(6));
  model = await Recognizer.open(ort, read, files);
  await model.window(new Float32Array(RATE)); // graphs are loaded here, and what is wrong with them is found
  tell("ready", {languages: Object.keys(model.facts.languages ?? model.facts.prompts ?? {}).filter((code) => code !== "auto")});
}

async function file({audio, language}) {
  const started = performance.now();
  const told = (share, segments) => tell("progress", {share, segments});
  const segments = await model.transcribe(audio, told, {language});
  tell("done", {segments, seconds: audio.length / RATE, took: (performance.now() - started) / 1000});
}

// The microphone, until it is stopped: as a stream, or in windows that are read again as they grow.
async function record({language}) {
  recording = {pending: [], ended: false};
  const live = model.streams ? new Streamed() : new Windowed(language);
  let samples = 0, took = 0;
  for (let last = false; !last;) {
    last = recording.ended;
    const waiting = recording.pending.reduce((sum, block) => sum + block.length, 0);
    if (last || waiting >= (model.streams ? model.facts.chunk.seconds : OFTEN) * RATE) {
      const started = performance.now(), audio = new Float32Array(waiting);
      recording.pending.splice(0).reduce((at, block) => (audio.set(block, at), at + block.length), 0);
      const segments = await live.add(audio, last);
      [samples, took] = [samples + waiting, took + (performance.now() - started) / 1000];
      tell(last ? "done" : "heard", {segments, seconds: samples / RATE, took});
    } else await new Promise((resume) => setTimeout(resume, 50));
  }
  recording = null;
}

class Streamed {
  stream = new Stream(model);

  async add(audio, last) {
    const written = await this.stream.add(audio, last);
    return [{start: 0, end: this.stream.samples / RATE, ...written}];
  }
}

class Windowed {
  constructor(language) {
    Object.assign(this, {language, segments: [], audio: new Float32Array(0), begin: 0});
  }

  async add(more, last) {
    const audio = new Float32Array(this.audio.length + more.length);
    audio.set(this.audio);
    audio.set(more, this.audio.length);
    const speech = findSpeech(frameLevels(audio)), spans = windows(audio, model.settings);
    const silent = audio.length - 160 * (speech.lastIndexOf(1) + 1) > SILENCE * RATE;
    let open = null, done = 0;
    for (const [i, [start, end]] of spans.entries()) {
      const at = (this.begin + start) / RATE, written = await model.window(audio.subarray(start, end), at, {language: this.language});
      const segment = {start: at, end: (this.begin + end) / RATE, ...written};
      const final = last || silent || i < spans.length - 1;
      if (final) done = end;
      if (!final) open = segment;
      else if (segment.text) this.segments.push(segment);
    }
    if (!spans.length) done = Math.max(0, audio.length - RATE); // silence: what was said may be about to begin
    this.audio = audio.slice(done);
    this.begin += done;
    return open?.text ? [...this.segments, open] : this.segments;
  }
}
