// Greedy search of encoder-decoder models (Whisper, Moonshine, Cohere), whose decoder keeps its caches between calls.

import {RATE, argmax} from "./recordings.mjs";

const FRAME = 0.02; // seconds of a frame of Whisper's encoder

export async function seq2seq(model, clip, {language} = {}) {
  const {facts} = model, {last_hidden_state, ...mask} = await model.encode(await model.features(clip));
  const states = {encoder_hidden_states: last_hidden_state, ...mask};
  let tokens = await prompt(model, states, language), past = empty(model);
  const most = Math.min(Math.floor(clip.length / RATE * facts.token_rate) + 16, facts.positions - tokens.length);
  const ids = [], looks = [];
  while (ids.length <= most) {
    const out = await step(model, tokens, states, past), token = best(out.logits);
    if (out.attention) looks.push(lastRows(out.attention, Math.max(1, Math.round(clip.length / RATE / FRAME))));
    if (token === facts.eos_id) break;
    ids.push(token);
    [tokens, past] = [[token], next(past, out)];
  }
  const all = ids.slice(0, most), textIds = all.filter((id) => facts.text_ids === null || id <= facts.text_ids);
  if (!looks.length || textIds.length < all.length) return {ids: textIds};
  const begins = starts(looks).map((frame) => frame * FRAME);
  return {ids: textIds, spans: textIds.map((_, i) => [begins[i], begins[i + 1]])};
}

// Of attention [1, heads, tokens, frames] the last token's rows, one for each head.
function lastRows({data, dims: [, heads, tokens, all]}, frames) {
  return Array.from({length: heads}, (_, head) => data.slice(((head + 1) * tokens - 1) * all).subarray(0, frames));
}

// First frame of each token, from the rows of its heads, by dynamic time warping.
function starts(looks) {
  const count = looks.length, frames = looks[0][0].length, heads = looks[0].length;
  const best = Array.from({length: count + 1}, () => new Float64Array(frames + 1).fill(-Infinity));
  const scores = looks.map(() => new Float64Array(frames)), last = frames - 1, edge = (t) => Math.max(0, last - Math.abs(last - Math.abs(t)));
  for (let head = 0; head < heads; head++) {
    const rows = looks.map((look) => {
      const sum = look[head].reduce((total, weight) => total + weight, 0);
      return Float64Array.from(look[head], (weight) => weight / Math.max(sum, 1e-9));
    });
    for (let t = 0; t < frames; t++) {
      const mean = rows.reduce((sum, row) => sum + row[t], 0) / count;
      const deviation = Math.sqrt(rows.reduce((sum, row) => sum + (row[t] - mean) ** 2, 0) / count);
      for (const row of rows) row[t] = (row[t] - mean) / Math.max(deviation, 1e-9);
    }
    rows.forEach((row, n) => row.forEach((_, t) => { // the median of seven frames
      scores[n][t] += Float64Array.from([-3, -2, -1, 0, 1, 2, 3], (by) => row[edge(t + by)]).sort()[3] / heads;
    }));
  }
  best[0][0] = 0;
  scores.forEach((row, n) => row.forEach((score, t) => {
    best[n + 1][t + 1] = score + Math.max(best[n][t], best[n][t + 1], best[n + 1][t]);
  }));
  const first = new Array(count).fill(0);
  for (let n = count, t = frames; n > 1;) {
    first[n - 1] = t - 1;
    const [stay, up, both] = [best[n][t - 1], best[n - 1][t], best[n - 1][t - 1]];
    if (stay >= up && stay >= both) t--;
    else if (up >= both) n--;
    else [n, t] = [n - 1, t - 1];
  }
  return first;
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
