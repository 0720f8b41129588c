// What of the recording page is on its way to the server.
import { wav as wavOf } from "./microphone.mjs";
import { say } from "./parts.mjs";
import { all, drop, put } from "./store.mjs";

const TRIES = [2, 4, 8, 15, 30];  // seconds between attempts to reach the server
const LIVING = 4000;  // ms after which a take that another tab is making has grown

/** A take that is being made, kept piece by piece: what a page that is loaded again continues with. */
export class Draft {
  mark = Array.from(crypto.getRandomValues(new Uint8Array(12)), (byte) => byte.toString(16).padStart(2, "0")).join("");
  #made = 0;

  /** Of a row of a data set; `about`: what the outbox needs to know of the take. */
  constructor(dataset, key, about) {
    this.place = ["draft", dataset];
    this.about = { ...about, key, mark: this.mark };
  }

  add(pieces, rate) {
    put(...this.place, `${this.mark}/${String(this.#made++).padStart(6, "0")}`, { ...this.about, pieces, rate });
  }

  end() {
    while (this.#made) drop(...this.place, `${this.mark}/${String(--this.#made).padStart(6, "0")}`);
  }
}

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

// What the server does not have yet, by data set and row: {dataset, key, wav?, seconds?, mark?, text?, take, error, cut?}
// belongs to the page and not to one element: choosing another data set in the middle loses nothing. The browser keeps
// it, too: a page that is loaded again sends it, also from a tab that was closed (`mark` keeps the server from saving a
// take twice), and a take that was being made, as far as it was made.
class Outbox extends EventTarget {
  entries = new Map();
  #tries = 0;
  #timer = 0;

  constructor() {
    super();
    window.addEventListener("online", () => this.again());
    window.addEventListener("beforeunload", (event) => {
      if ([...this.entries.values()].some((entry) => !entry.kept)) event.preventDefault();
    });
    this.#restore();
  }

  async #restore() {
    for (const { dataset, name, value } of await all("take")) {
      if (!this.of(dataset, name)) this.put(dataset, name, value);
    }
    const drafts = await all("draft");
    if (!drafts.length) return;
    await new Promise((done) => setTimeout(done, LIVING));
    const later = await all("draft");
    for (const mark of new Set(drafts.map(({ value }) => value.mark))) {
      const [mine, now] = [drafts, later].map((found) => found.filter(({ value }) => value.mark === mark));
      if (mine.length !== now.length) continue;  // another tab is at it, or has ended it
      const { dataset, value: { key, rate, said, take } } = now[0];
      const pieces = now.flatMap(({ value }) => value.pieces);
      const seconds = pieces.reduce((sum, piece) => sum + piece.length, 0) / rate;
      await this.put(dataset, key, { wav: wavOf(pieces, rate), seconds, mark, said, take, cut: true });
      for (const { name } of now) drop("draft", dataset, name);
    }
  }

  of(dataset, key) {
    return this.entries.get(`${dataset}/${key}`);
  }

  /** Keep and send a change of a row; what waits already is joined with it, and a newer take replaces an older one. */
  async put(dataset, key, change) {
    const id = `${dataset}/${key}`;
    if (!this.entries.has(id)) this.entries.set(id, { busy: false, dataset, key });
    const entry = this.entries.get(id);
    Object.assign(entry, change);
    this.#send(id);
    const { wav, seconds, mark, text, said, take, cut } = entry;
    entry.kept = await put("take", dataset, key, { wav, seconds, mark, text, said, take, cut });
    if (this.entries.get(id) !== entry) drop("take", dataset, key);  // sent meanwhile
  }

  again() {
    clearTimeout(this.#timer);
    for (const id of this.entries.keys()) this.#send(id);
  }

  drop(dataset, key) {
    this.entries.delete(`${dataset}/${key}`);
    drop("take", dataset, key);
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
    if (answer && same()) this.drop(entry.dataset, entry.key);
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
