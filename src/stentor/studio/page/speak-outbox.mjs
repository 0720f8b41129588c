// What of the recording page is on its way to the server.
import { say } from "./parts.mjs";

const TRIES = [2, 4, 8, 15, 30];  // seconds between attempts to reach the server

/** The server was not reached: it can be tried again. */
export class Lost extends Error {}

/** An answer of the data set's route `what`. Throws Lost, or an Error with the server's sentence. */
export async function ask(dataset, what, given = {}, body) {
  const path = `/studio/speak/${encodeURIComponent(dataset)}/${what}?${new URLSearchParams(given)}`;
  const post = what !== "rows";
  let answer, data;
  try {
    answer = await fetch(path, {
      method: post ? "POST" : "GET", body, headers: { "X-Stentor": "1" },
      signal: AbortSignal.timeout(60_000 + Math.round((body?.size ?? 0) / 30)),  // ms: 30 kB a second is enough
    });
    if (answer.status === 401) throw new Lost(say("speak_signed_out"));
    if ([499, 502, 503, 504].includes(answer.status)) throw new Lost(say("speak_lost"));
    data = await answer.json();
  } catch (error) {
    throw error instanceof Lost ? error : new Lost(say("speak_lost"));
  }
  if (!answer.ok) throw new Error(data.error);
  return data;
}

// What the server does not have yet, by data set and row: {dataset, key, wav?, seconds?, mark?, text?, take, error}. It
// belongs to the page and not to one element: choosing another data set in the middle loses nothing.
class Outbox extends EventTarget {
  entries = new Map();
  #tries = 0;
  #timer = 0;

  constructor() {
    super();
    window.addEventListener("online", () => this.again());
    window.addEventListener("beforeunload", (event) => {
      if (this.entries.size) event.preventDefault();
    });
  }

  of(dataset, key) {
    return this.entries.get(`${dataset}/${key}`);
  }

  /** Send a change of a row; what waits already is joined with it, and a newer take stands for an older one. */
  put(dataset, key, change) {
    const id = `${dataset}/${key}`;
    if (!this.entries.has(id)) this.entries.set(id, { busy: false, dataset, key });
    Object.assign(this.entries.get(id), change);
    this.#send(id);
  }

  again() {
    clearTimeout(this.#timer);
    for (const id of this.entries.keys()) this.#send(id);
  }

  drop(dataset, key) {
    this.entries.delete(`${dataset}/${key}`);
  }

  async #send(id) {
    const entry = this.entries.get(id);
    if (!entry || entry.busy) return;
    const { wav, text, mark, take } = entry;
    const same = () => entry.wav === wav && entry.text === text;
    let answer, lost;
    entry.busy = true;
    entry.error = null;
    this.#tell(entry);
    try {
      const given = { row: entry.key };
      answer = wav
        ? await ask(entry.dataset, "take", { ...given, text: entry.said, mark, replaces: take ?? "" }, wav)
        : await ask(entry.dataset, "text", given, text);
      this.#tries = 0;
    } catch (error) {
      entry.error = error.message;
      lost = entry.lost = error instanceof Lost;
      if (lost) this.#later();
    }
    entry.busy = false;
    if (answer && same()) this.entries.delete(id);
    this.#tell(entry, answer);
    if (same() || lost) return;
    if (answer) {  // it has changed while it was on its way
      if (entry.wav === wav) entry.wav = undefined;
      entry.take = answer.row.take;
    }
    this.#send(id);
  }

  #later() {
    clearTimeout(this.#timer);
    const wait = TRIES[Math.min(this.#tries++, TRIES.length - 1)];
    this.#timer = setTimeout(() => this.again(), 1000 * wait);
  }

  #tell(entry, answer) {
    this.dispatchEvent(new CustomEvent("change", { detail: { entry, answer } }));
  }
}

export const outbox = new Outbox();
