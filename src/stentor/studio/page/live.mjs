// <stentor-live run="NAME" language="en">: what a model hears while one speaks, over routes (runs/routes.py). Pieces
// go one after the other: where the model is slower than one speaks, they grow up to a limit, and wait.
import { Microphone, blocked } from "./microphone.mjs";
import { element, say } from "./parts.mjs";

const LONGEST = 3600;  // seconds, after which it ends by itself
const PAUSE = 100;  // ms between two looks at what has come
const MOST_PIECES = 240;  // of the microphone in a request: 10 s at 48 kHz, 1 MB
const BEHIND = 3;  // seconds from which on the page says how late the model is
const MOST_LINES = 50;
const MOST_WORDS = 500;
// As in stentor.text.written_words: letters of scripts without spaces, and their punctuation.
const UNSPACED = /[\u0e00-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u312f\u3190-\u31ff\u3400-\u9fff\uf900-\ufaff\uff66-\uff9f\u{20000}-\u{3ffff}\u00b7\u2010-\u2027\u3001-\u303f\uff01-\uff65]/u;
const COLUMNS = ["word", "start", "end", "confidence", "known"];

async function post(path, body, keepalive = false) {
  const answer = await fetch(`/studio/live${path}`, {
    method: "POST", body, keepalive, headers: { "X-Stentor": "1" }, signal: AbortSignal.timeout(120_000),
  }).catch(() => { throw new Error(say("speak_lost")); });
  if (answer.status === 401) throw new Error(say("speak_signed_out"));
  const data = await answer.json();
  if (!answer.ok) throw new Error(data.error);
  return data;
}

/** A word behind a text, as `stentor.text.written_words` has it: scripts without spaces have none between words. */
export function spaced(before, word) {
  const letters = [[...before].at(-1) ?? "", [...word][0] ?? ""];
  return letters.includes("") || letters.every((letter) => UNSPACED.test(letter)) ? word : ` ${word}`;
}

function problem(error) {
  const { hostname: host, port } = location;
  const values = { host, port: port || (location.protocol === "https:" ? 443 : 80) };
  return error.message in window.stentorTexts ? say(error.message, values) : error.message;
}

class StentorLive extends HTMLElement {
  #microphone = new Microphone();
  #on = false;  // whether somebody speaks
  #stream = "";  // its name at the server

  connectedCallback() {
    this.toggle = element("button", "toggle", say("live_listen"));
    this.toggle.type = "button";
    this.toggle.onclick = () => (this.#on ? this.#stop() : this.#listen());
    this.note = element("span", "note", blocked() ? problem({ message: blocked() }) : say("live_about"));
    this.note.setAttribute("role", "status");
    this.lines = element("div", "lines");
    this.lines.setAttribute("role", "log");
    this.table = element("details", "words");
    const head = element("tr");
    head.append(...COLUMNS.map((name) => element("th", "", say(`live_${name}`))));
    const table = element("table");
    table.append(element("thead"), (this.rows = element("tbody")));
    table.tHead.append(head);
    this.table.append(element("summary", "", say("live_words")), table);
    this.table.hidden = true;
    const top = element("div", "top");
    top.append(this.toggle, this.note);
    this.replaceChildren(top, this.lines, this.table);
    this.gone = () => this.#stream && post(`/${this.#stream}?last`, "", true).catch(() => {});
    window.addEventListener("pagehide", this.gone);
  }

  disconnectedCallback() {
    window.removeEventListener("pagehide", this.gone);
    this.#on = false;
    this.#microphone.close();
  }

  async #listen() {
    const pieces = [];
    let rate = 0;
    this.toggle.disabled = this.#on = true;
    this.lines.replaceChildren();
    this.rows.replaceChildren();
    try {
      // First of all: browsers give the microphone right after a click. What is said while the model is read waits.
      await this.#microphone.start({
        onPiece: (samples) => pieces.push(samples), onLevel: () => {}, onEnd: () => this.#stop(),
        most: (value) => { rate = value; return LONGEST; },
      });
      if (!this.#on) return this.#microphone.close();  // it was removed while the browser asked
      this.#say("live_opens");
      const facts = { run: this.getAttribute("run"), language: this.getAttribute("language"), rate };
      this.#stream = (await post("", JSON.stringify(facts))).name;
      this.toggle.disabled = false;
      this.toggle.textContent = say("speak_stop");
      while (this.#on || pieces.length) await this.#send(pieces, rate);
      this.#show((await post(`/${this.#stream}?last`, "")).events);
      this.#say("live_about");
    } catch (error) {
      this.note.textContent = problem(error);
      this.note.classList.add("wrong");
      this.#microphone.cancel();
    } finally {
      this.#on = this.toggle.disabled = false;
      this.#stream = "";
      this.toggle.textContent = say("live_listen");
    }
  }

  async #stop() {
    this.toggle.disabled = true;
    await this.#microphone.stop();
    this.#on = false;
  }

  async #send(pieces, rate) {
    if (!pieces.length) return new Promise((resolve) => setTimeout(resolve, PAUSE));
    const piece = pieces.splice(0, MOST_PIECES);
    this.#show((await post(`/${this.#stream}`, new Blob(piece))).events);
    const seconds = pieces.reduce((sum, samples) => sum + samples.length, 0) / rate;
    this.#say(seconds > BEHIND ? "live_behind" : "live_hears", { seconds: seconds.toFixed(0) });
  }

  #say(key, values) {
    this.note.classList.remove("wrong");
    this.note.textContent = say(key, values);
  }

  #show(events) {
    for (const event of events) {
      if (!this.lines.lastChild || this.ended) this.#line();
      const [final, partial] = this.lines.lastChild.children;
      this.ended = event.type === "end_of_speech" && Boolean(final.textContent);
      if (event.type === "partial") partial.textContent = spaced(final.textContent, event.text);
      if (event.type !== "word") continue;
      final.textContent += spaced(final.textContent, event.word);
      const cells = [event.word, event.start, event.end, event.confidence, event.time];
      const row = element("tr");
      row.append(...cells.map((value) => element("td", "", typeof value === "number" ? value.toFixed(2) : value ?? "–")));
      this.rows.append(row);
      if (this.rows.children.length > MOST_WORDS) this.rows.firstChild.remove();
      this.table.hidden = false;
      this.rows.parentNode.scrollTop = this.rows.parentNode.scrollHeight;
    }
  }

  #line() {
    const line = element("p", "line");
    line.append(element("span", "final"), element("span", "partial"));
    this.lines.append(line);
    if (this.lines.children.length > MOST_LINES) this.lines.firstChild.remove();
  }
}

customElements.define("stentor-live", StentorLive);
