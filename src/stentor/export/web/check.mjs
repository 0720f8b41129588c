// Runs the scripts and graphs of an exported page in Node: node check.mjs FOLDER CLIPS.json
// CLIPS.json: [{file: float32 samples at 16 kHz, language}]; prints [{text, words}].

import {readdir, readFile} from "node:fs/promises";
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const [folder, clips] = process.argv.slice(2), place = (name) => pathToFileURL(join(folder, name)).href;
const bytes = async (file) => new Uint8Array(await readFile(file));
const ort = await import(place("ort/ort.wasm.min.mjs")), {Recognizer} = await import(place("recognizer.mjs"));
ort.env.wasm.numThreads = 1;
ort.env.wasm.wasmPaths = place("ort/");
ort.env.wasm.wasmBinary = await bytes(join(folder, "ort", "ort-wasm-simd-threaded.wasm"));
const model = await Recognizer.open(ort, (name) => bytes(join(folder, "model", name)), await readdir(join(folder, "model")));
const outputs = [];
for (const {file, language} of JSON.parse(await readFile(clips, "utf8"))) {
  const audio = new Float32Array((await bytes(file)).buffer);
  outputs.push(await model.window(audio, 0, {language}));
}
console.log(JSON.stringify(outputs));
