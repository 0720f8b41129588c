// <stentor-speak dataset="NAME">: phrases to read aloud, each with a recorder. What it shows is on the server's disk;
// what is not there yet waits in the outbox. Nothing that came from elsewhere is ever put in as HTML.
import { Head } from "./speak-head.mjs";
import { Microphone, blocked } from "./microphone.mjs";
import { Draft, Lost, ask, outbox } from "./speak-outbox.mjs";
import { clock, element, fit, say } from "./parts.mjs";
import { Player } from "./speak-player.mjs";
import { Row } from "./speak-row.mjs";

const LONGEST = 120;  // seconds of a take, after which it ends by itself
const MOST_BYTES = 29_500_000;  // of a take, below what the server takes
const SETTLED = 1500;  // ms without another recording until the rest of the page is updated

const microphone = new Microphone();
const player = new Player();

class StentorSpeak extends HTMLElement {
  rows = [];
  byKey = new Map();
  at = null;  // the current row
  active = null;  // the row that is starting or recording
  #abandon = false;
  #chain = Promise.resolve();
  #changed = 0;
  #gone = null;
  #seen = 0;
  #ending = null;
  #loading = false;
  #missed = false;  // a look at the server that had to wait for the end of a take

  connectedCallback() {
    this.name = this.getAttribute("dataset");
    this.#gone = new AbortController();
    const signal = this.#gone.signal;
    this.#build();
    this.addEventListener("click", (event) => this.#clicked(event), { signal });
    this.addEventListener("focusin", (event) => this.#focused(event), { signal });
    this.addEventListener("change", (event) => this.#edited(event), { signal });
    this.addEventListener("input", (event) => fit([event.target]), { signal });
    this.addEventListener("keydown", (event) => this.#typed(event), { signal });
    document.addEventListener("keydown", (event) => this.#pressed(event), { signal });
    document.addEventListener("stentor-phrases", () => this.load(), { signal });
    document.addEventListener("stentor-changed", (event) => event.detail !== this && this.load(), { signal });
    document.addEventListener("visibilitychange", () => document.hidden || this.load(), { signal });
    outbox.addEventListener("change", (event) => this.#sent(event.detail), { signal });
    const seen = new IntersectionObserver(([first]) => first.isIntersecting && this.#seen++ && this.load());
    seen.observe(this);
    const resized = new ResizeObserver(() => fit(this.rows.map((row) => row.text)));
    resized.observe(this.list);
    signal.addEventListener("abort", () => { seen.disconnect(); resized.disconnect(); });
    document.addEventListener("stentor-reload", (event) => this.active && event.preventDefault(), { signal });
    this.load();
    if (blocked()) this.head.note(this.#problem(blocked()));
  }

  disconnectedCallback() {
    player.quiet();
    if (this.active) this.press(this.active);  // what is being recorded ends and is saved
    this.#gone.abort();
  }

  static observedAttributes = ["dataset"];

  attributeChangedCallback(_, before, now) {
    if (!this.isConnected || before === null || before === now) return;
    this.disconnectedCallback();
    this.connectedCallback();
  }

  #build() {
    this.rows = [];
    this.byKey.clear();
    this.at = null;
    this.#seen = 0;
    this.head = new Head((device) => {
      microphone.device = device;
      if (!this.active) microphone.close();
    });
    this.heard = element("div", "heard");  // for screen readers
    this.heard.setAttribute("aria-live", "polite");
    this.list = element("div", "rows");
    this.more = element("button", "", say("ten_more"));
    this.more.id = "more";
    this.more.type = "button";
    this.more.hidden = true;
    this.more.onclick = () => this.#ten();
    this.replaceChildren(...this.head.nodes, this.list, this.more, this.heard);
  }

  /** Show what is on the server; what is on its way, and what is being recorded or typed, stays as it is. */
  async load() {
    const asked = (this.asked = {});
    let found;
    this.#loading = true;
    try {
      found = await ask(this.name, "rows");
    } catch (error) {
      if (asked !== this.asked || !this.isConnected) return;
      this.head.note(error.message);
      if (error instanceof Lost) setTimeout(() => asked === this.asked && this.isConnected && this.load(), 3000);
      return;
    }
    if (asked !== this.asked || !this.isConnected) return;
    this.#loading = false;
    if (this.active) {
      this.#missed = true;
      return;
    }
    if (!blocked()) this.head.note("");
    if (this.rows.some((row, i) => row.data.key !== found.rows[i]?.key)) {
      this.rows = [];
      this.byKey.clear();
      this.list.replaceChildren();
    }
    this.language = found.language;
    this.rows.forEach((row, i) => row.update(found.rows[i]));
    this.#add(found.rows.slice(this.rows.length));
    this.#progress(found);
    this.more.hidden = false;
    if (!this.at || !this.at.node.isConnected) this.#go(this.rows.find((row) => !row.data.id) ?? this.rows[0], false);
  }

  #add(found) {
    const made = found.map((data) => {
      const row = new Row(this.name, data, this.language);
      this.byKey.set(data.key, row);
      return row;
    });
    this.rows.push(...made);
    this.list.append(...made.map((row) => row.node));
    fit(made.map((row) => row.text));
    return made;
  }

  async #ten() {
    if (this.more.disabled) return null;
    this.more.disabled = true;
    try {
      const found = await ask(this.name, "more", { shown: this.rows.length });
      const made = this.#add(found.rows.filter((row) => !this.byKey.has(row.key)));
      this.#progress(found);
      return made[0];
    } catch (error) {
      this.head.note(error.message);
      return null;
    } finally {
      this.more.disabled = false;
    }
  }

  #progress(found) {
    this.head.progress(found.recorded, this.rows.length, found.seconds);
  }

  #problem(key) {
    const { hostname: host, port } = location;
    return say(key, { host, port: port || (location.protocol === "https:" ? 443 : 80) });
  }

  // ---- one row after the other

  #go(row, into = true) {
    if (!row) return;
    this.at?.node.classList.remove("current");
    this.at = row;
    row.node.classList.add("current");
    if (!into) return;
    row.node.focus({ preventScroll: true });
    row.node.scrollIntoView({ block: "nearest" });
  }

  async #next(step) {
    let row = this.rows[this.rows.indexOf(this.at) + step];
    if (!row && step > 0) row = await this.#ten();
    if (this.active && row !== this.active) this.press(this.active);
    this.#go(row);
  }

  #rowOf(target) {
    const node = target.closest?.(".row");
    return node ? this.byKey.get(node.dataset.key) : null;
  }

  #focused(event) {
    const row = this.#rowOf(event.target);
    if (row && row !== this.at) this.#go(row, false);
  }

  #clicked(event) {
    const pressed = event.target.closest("button");
    const row = this.#rowOf(event.target);
    if (!row || !pressed) return;
    this.#go(row, false);
    // The row and not the button gets a mouse's focus: space is to record, not to press it again.
    if (event.detail) row.node.focus({ preventScroll: true });
    if (pressed === row.record || pressed === row.redo) this.press(row);
    if (pressed === row.play) this.#sound(row);
    if (pressed === row.remove) this.#remove(row);
  }

  #typed(event) {
    if (event.target.tagName !== "TEXTAREA") return;
    if (event.key === "Escape" || (event.key === "Enter" && !event.isComposing)) {
      event.preventDefault();
      event.stopPropagation();
      this.#rowOf(event.target)?.node.focus({ preventScroll: true });
    }
  }

  #pressed(event) {
    if (event.defaultPrevented || event.ctrlKey || event.metaKey || event.altKey || !this.checkVisibility()) return;
    const { target, key } = event;
    if (target.closest?.("input, textarea, select, [contenteditable], [role=dialog], [role=listbox]")) return;
    const others = !this.contains(target) && target.closest?.("button, a, summary, [role=tab]");
    if (others && !/^[rnp]$/i.test(key)) return;
    if (key === " " && target.closest?.("button")) return;  // a button that was reached by Tab
    const does = {
      r: () => this.at && this.press(this.at), " ": () => this.at && this.press(this.at), n: () => this.#next(1),
      arrowdown: () => this.#next(1), arrowup: () => this.#next(-1), p: () => this.at && this.#sound(this.at),
      escape: () => this.active && this.#cancel(),
    }[key.toLowerCase()];
    if (!does) return;
    event.preventDefault();
    if (!event.repeat || key.startsWith("Arrow")) does();
  }

  // ---- texts

  #edited(event) {
    if (event.target.tagName !== "TEXTAREA") return;
    const row = this.#rowOf(event.target);
    const text = event.target.value.replace(/\s+/g, " ").trim();
    outbox.put(row.dataset, row.data.key, { text, said: text || row.data.phrase });
  }

  #sent({ entry, answer }) {
    this.head.unsent([...outbox.entries.values()].filter((waiting) => waiting.error).length);
    if (entry.dataset !== this.name) return;
    const row = this.byKey.get(entry.key);
    if (answer) {
      this.#progress(answer);
      this.#announce();
      if (this.#loading) this.load();  // what is on its way is older than this answer
    }
    if (!row) return;
    if (!answer) return row.draw();
    row.problem = entry.cut ? say("speak_cut") : null;
    row.update({ ...answer.row, replaced: answer.replaced, edited: answer.replaced === undefined });
    const { remarks = [], id } = row.data;
    if (id && !row.data.edited) {
      this.heard.textContent = [say("speak_saved"), ...remarks.map((remark) => remark.sentence)].join(" ");
    }
  }

  /** Tell the rest of the page, which shows and hides steps by what is there. */
  #announce() {
    clearTimeout(this.#changed);
    this.#changed = setTimeout(() => {
      const hidden = document.getElementById("changed");
      (hidden?.querySelector("button") ?? hidden)?.click();
      document.dispatchEvent(new CustomEvent("stentor-changed", { detail: this }));
    }, SETTLED);
  }

  async #remove(row) {
    if (!row.remove.dataset.sure) {
      row.remove.dataset.sure = "1";
      row.remove.textContent = say("speak_sure");
      setTimeout(() => { delete row.remove.dataset.sure; row.remove.textContent = ""; }, 4000);
      return;
    }
    if (row.entry?.busy) return;
    player.quiet();
    outbox.drop(this.name, row.data.key);
    try {
      const answer = await ask(this.name, "remove", { row: row.data.key });
      row.update(answer.row);
      this.#progress(answer);
      this.#announce();
    } catch (error) {
      row.problem = error.message;
      row.draw();
    }
  }

  // ---- listening

  #sound(row) {
    const { id, take } = row.data;
    const wav = row.entry?.wav;
    if (this.active || (!wav && !id)) return;
    const name = encodeURIComponent(row.dataset);
    player.toggle(row.play, wav ?? `/studio/audio/${name}/${encodeURIComponent(id)}?v=${encodeURIComponent(take)}`);
  }

  // ---- recording

  /** Begin a take of a row, or end the one that is being made (and begin this row's, if it was another's). */
  press(row) {
    if (this.active?.live === "starting") {
      this.#abandon = true;
      return;
    }
    if (this.#ending === row) return;  // pressed twice
    if (this.active === row) this.#ending = row;
    this.#chain = this.#chain.then(() => this.#turn(row)).catch((error) => {
      console.error(error);
      this.#ending = null;
      row.problem = say("speak_mic_dead");
      this.#live(row, null);
    });
  }

  async #turn(row) {
    const before = this.active;
    if (before) await this.#finish();
    if (before !== row) await this.#begin(row);
  }

  async #begin(row) {
    player.quiet();
    this.#abandon = false;
    row.problem = null;
    this.#live(row, "starting");
    row.tell([["", say("speak_allow")]]);
    let loudest = 0;
    let frame = 0;
    const onLevel = (peak, seconds) => {
      loudest = Math.max(loudest, peak);
      if (frame || this.active !== row || row.live !== "recording") return;
      frame = requestAnimationFrame(() => {
        frame = 0;
        if (row.live !== "recording") return;
        row.level(peak);
        row.seconds.textContent = clock(seconds);
        if (loudest >= 0.999) row.tell([["warning", say("speak_too_loud")]]);
        else row.tell(seconds > 2 && loudest < 0.003 ? [["warning", say("speak_nothing")]] : [["", say("speak_now")]]);
      });
    };
    this.draft = new Draft(row.dataset, row.data.key, { take: row.data.take, said: row.read });
    try {
      await microphone.start({
        onLevel, onMade: (...made) => this.draft.add(...made), onEnd: () => this.active === row && this.press(row),
        most: (rate) => Math.min(LONGEST, MOST_BYTES / (2 * rate)),
      });
      this.head.note("");
      microphone.inputs().then((found) => this.head.choices(found, microphone.device));
      if (this.#abandon || !this.isConnected) {
        this.#thrown(row);
        return;
      }
      this.#live(row, "recording");
      row.tell([["", say("speak_now")]]);
      this.heard.textContent = say("speak_now");
    } catch (problem) {
      this.#live(row, null);
      row.problem = this.#problem(problem.message in window.stentorTexts ? problem.message : "speak_mic_dead");
      row.draw();
    }
  }

  async #finish() {
    const { active: row, draft } = this;
    const { wav, seconds } = await microphone.stop();
    this.#ending = null;
    row.data.replaced = false;
    outbox.put(row.dataset, row.data.key, {
      wav, seconds, mark: draft.mark, take: row.data.take, said: row.read, text: undefined, cut: undefined,
    }).then(() => draft.end());
    this.#live(row, null);
  }

  #cancel() {
    if (this.active.live === "starting") return this.press(this.active);
    if (this.#ending) return;
    const row = this.active;
    this.#thrown(row);
    row.tell([["", say("speak_cancelled")]]);
  }

  #thrown(row) {
    microphone.cancel();
    this.draft.end();
    this.#live(row, null);
  }

  #live(row, state) {
    row.live = state;
    this.active = state ? row : null;
    row.draw();
    if (state || !this.#missed) return;
    this.#missed = false;
    this.load();
  }
}

customElements.define("stentor-speak", StentorSpeak);
