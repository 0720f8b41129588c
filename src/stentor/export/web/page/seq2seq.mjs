// Greedy search of encoder-decoder models (Whisper, Moonshine, Cohere), whose decoder keeps its caches between calls.

import {RATE, argmax} from "./recordings.mjs";

export async function seq2seq(model, clip, {language} = {}) {
  const {facts} = model, {last_hidden_state, ...mask} = await model.encode(await model.features(clip));
  const states = {encoder_hidden_states: last_hidden_state, ...mask};
  let tokens = await prompt(model, states, language), past = empty(model);
  const most = Math.min(Math.floor(clip.length / RATE * facts.token_rate) + 16, facts.positions - tokens.length);
  const ids = [];
  while (ids.length <= most) {
    const out = await step(model, tokens, states, past), token = best(out.logits);
    if (token === facts.eos_id) break;
    ids.push(token);
    [tokens, past] = [[token], next(past, out)];
  }
  return {ids: ids.slice(0, most).filter((id) => facts.text_ids === null || id <= facts.text_ids)};
}

const step = (model, tokens, states, past) => {
  const ids = model.tensor(tokens, [1, tokens.length]);
  const branch = new model.ort.Tensor("bool", Uint8Array.of(1), [1]);
  return model.run("decoder", {input_ids: ids, use_cache_branch: branch, ...states, ...past});
};

const next = (past, out) => Object.fromEntries(Object.keys(past).map((name) => [name, out[name.replace("past_key_values", "present")]]));

function empty(model) {
  const [layers, heads, width] = model.facts.cache, kinds = ["decoder.key", "decoder.value", "encoder.key", "encoder.value"];
  const names = Array.from({length: layers}, (_, i) => kinds.map((kind) => `past_key_values.${i}.${kind}`)).flat();
  return Object.fromEntries(names.map((name) => [name, model.tensor(new Float32Array(0), [1, heads, 0, width])]));
}

// The best token behind the last one; of `among`, where they are given.
function best({data, dims}, among = null) {
  const row = data.subarray(data.length - dims[2]);
  return among ? among.reduce((a, b) => (row[b] > row[a] ? b : a)) : argmax(row);
}

// The tokens before the text; a language that is not named is the one that the model hears.
async function prompt(model, states, language) {
  const {prompt, languages, language_names: names, language_places: places, detects_language} = model.facts;
  const known = Object.values(languages ?? {}), name = (language ?? "").toLowerCase().replace("_", "-");
  if (!known.length) return prompt;
  let token = languages[names[name] ?? name.split("-")[0]];
  if (token === undefined && (language || !detects_language)) throw new Error(`The model does not know the language ${language ?? "of the audio: choose one"}.`);
  token ??= best((await step(model, prompt.slice(0, 1), states, empty(model))).logits, known);
  return prompt.map((id, place) => (places.includes(place) ? token : id));
}
