// A row of step 2: one recording with its player, its text and what can be done with it.
import { element, say } from "./parts.mjs";

export function button(kind, text, act) {
  const made = element("button", kind, text);
  made.type = "button";
  made.onclick = act;
  return made;
}

export const number = (value) => value.toLocaleString("en");

// One recording.
export class Entry {
  constructor(list, row) {
    this.list = list;
    this.id = row.id;
    this.element = element("div", "row");
    this.element.setAttribute("role", "listitem");
    this.element.dataset.id = row.id;
    this.element.dataset.number = row.number;
    this.text = element("textarea", "");
    this.text.dir = "auto";
    const label = say("check_number", { number: row.number });
    this.player = new Player(`/studio/audio/${encodeURIComponent(list.name)}/${encodeURIComponent(row.id)}`, row.seconds, label);
    this.text.rows = 1;
    this.text.maxLength = 5000;
    this.text.spellcheck = true;
    this.text.placeholder = say("check_write");
    this.text.setAttribute("aria-label", `${label}: ${say("text")}`);
    this.text.oninput = () => {
      fit(this.text);
      list.touched = true;
      this.state("");
    };
    this.text.onchange = () => this.save();
    this.text.onkeydown = (event) => {
      if (event.key === "Enter" && !event.isComposing) {
        event.preventDefault();
        this.next(event.shiftKey ? -1 : 1);
      } else if (event.key === "Escape") {
        this.text.value = this.row.text;
        fit(this.text);
      }
    };
    this.said = element("span", "said");
    this.said.setAttribute("role", "status");
    this.notes = element("ul", "remarks");
    this.confirm = button("confirm", say("check_right"), () => this.confirmed());
    this.side = button("side", "", () => this.moved());
    this.voice = element("span", "voice");
    this.language = element("span", "language");
    this.trim = button("trim", "", () => this.list.trim(this.row.trimmed ? "trimmed" : "trim", [this.id]));
    const away = button("remove", "✕", () => this.removed());
    away.title = say("check_remove");
    away.setAttribute("aria-label", `${label}: ${say("check_remove")}`);
    const facts = element("div", "facts");
    facts.append(this.voice, this.language, this.confirm, this.trim, this.side, away);
    const words = element("div", "words");
    words.append(this.text, this.said, this.notes);
    this.element.append(element("span", "number", row.number), this.player.element, words, facts);
    this.update(row);
  }

  update(row) {
    const written = this.row && this.text.value !== this.row.text;
    this.row = row;
    if (!written) this.text.value = row.text;
    this.voice.textContent = row.speaker;
    this.language.textContent = this.text.lang = row.language;
    this.player.fits(row.seconds);
    this.confirm.hidden = !row.draft;
    this.trim.hidden = !row.cut && !row.trimmed;
    this.trim.textContent = say(row.trimmed ? "check_whole" : "check_trim", { seconds: row.cut.toFixed(1) });
    this.trim.title = say(row.trimmed ? "check_whole_help" : "check_trim_help", { seconds: row.cut.toFixed(1) });
    this.trim.setAttribute("aria-label", `${say("check_number", { number: row.number })}: ${this.trim.title}`);
    this.element.classList.toggle("draft", row.draft);
    this.element.classList.toggle("wrong", row.remarks.length > 0);
    this.side.hidden = !row.side;
    this.side.textContent = say(row.side === "held_out" ? "check_side_held_out" : "check_side_train");
    this.side.title = say(row.side === "held_out" ? "check_to_train" : "check_to_held_out");
    this.side.dataset.side = row.side ?? "";
    const notes = row.remarks.map(({ kind, detail }) => {
      const note = element("li", `remark ${kind}`);
      note.append(element("b", "", say(`finding_${kind}`)), ` (${detail.replace(/\.$/, "")}). ${say(`mend_${kind}`)}`);
      return note;
    });
    if (row.draft) notes.push(element("li", "remark is-draft", say("check_draft")));
    if (row.confidence !== null) notes.push(element("li", "remark", say("check_sure", { percent: Math.round(100 * row.confidence) })));
    this.notes.replaceChildren(...notes);
  }

  state(sentence, failed = false) {
    this.said.textContent = sentence;
    this.said.classList.toggle("failed", failed);
  }

  async send(path, given, leaving) {
    this.list.touched = true;
    try {
      const found = await this.list.ask(path, { id: this.id, ...given }, leaving);
      this.list.tell(found);
      return found;
    } catch (error) {
      this.state(error.message, true);
      return undefined;
    }
  }

  async save(leaving = false) {
    const text = this.text.value;
    if (text === this.row.text || text === this.sending) return;
    this.sending = text;
    this.state(say("check_saving"));
    const found = await this.send("/edit", { text }, leaving);
    this.sending = undefined;
    if (!found) return;
    const same = this.text.value === text;
    this.row = { ...this.row, text: found.rows[0].text };
    if (same) this.text.value = found.rows[0].text;
    this.update(found.rows[0]);
    fit(this.text);
    this.state(same ? say("saved") : "");
  }

  async confirmed() {
    if (this.text.value !== this.row.text) return this.save();
    const found = await this.send("/edit", {});
    if (!found) return;
    this.update(found.rows[0]);
    this.state(say("saved"));
  }

  async moved() {
    const found = await this.send("/move", { side: this.row.side === "held_out" ? "train" : "held_out" });
    if (!found) return;
    for (const id of found.moved) {
      const other = this.list.rows.get(id);
      if (other) other.update({ ...other.row, side: found.rows[0].side });
    }
    this.state(found.moved.length > 1 ? say("check_moved_with", { count: found.moved.length - 1 }) : say("check_moved"));
  }

  async removed() {
    this.player.stop();
    const found = await this.send("/remove", {});
    if (!found) return;
    const note = element("span", "words", `${say("removed")} `);
    note.append(element("q", "", this.row.text.slice(0, 80)));
    const undo = button("undo", say("check_put_back"), async () => {
      const back = await this.send("/back", {});
      if (!back) return;
      this.element.classList.remove("gone");
      this.element.replaceChildren(...parts);
      this.update(back.rows[0]);
      this.text.focus();
      changed();
    });
    const parts = [...this.element.childNodes];
    this.element.classList.add("gone");
    this.element.replaceChildren(note, undo);
    undo.focus();
    changed();
  }

  next(step) {
    const all = [...this.list.querySelectorAll(".row textarea")];
    const next = all[all.indexOf(this.text) + step];
    if (next) next.focus();
    else this.text.blur();
  }
}

// A player of one recording; only one plays at a time, and nothing is loaded before it is wanted.
let playing = null;
class Player {
  constructor(source, length, label) {
    this.length = length;
    this.element = element("div", "player");
    this.audio = element("audio");
    this.audio.preload = "none";
    this.audio.src = source;
    this.play = button("play", "", () => (this.audio.paused ? this.start() : this.stop()));
    this.play.setAttribute("aria-label", `${label}: ${say("check_play")}`);
    this.seek = element("input", "seek");
    this.seek.type = "range";
    this.seek.min = 0;
    this.seek.max = 1000;
    this.seek.value = 0;
    this.seek.setAttribute("aria-label", `${label}: ${say("check_place")}`);
    this.seek.oninput = () => {
      const end = this.audio.duration || this.length;
      if (this.audio.readyState) this.audio.currentTime = (this.seek.value / 1000) * end;
    };
    this.time = element("span", "time", seconds(length));
    this.audio.onplay = () => this.shown(true);
    this.audio.onpause = () => this.shown(false);
    this.audio.onended = () => {
      this.seek.value = 0;
      this.time.textContent = seconds(this.length);
    };
    this.audio.onerror = () => this.playable(false);
    this.audio.ontimeupdate = () => {
      const end = this.audio.duration || this.length;
      if (!end) return;
      this.seek.value = (this.audio.currentTime / end) * 1000;
      if (!this.audio.paused) this.time.textContent = seconds(this.audio.currentTime);
    };
    this.element.append(this.play, this.seek, this.time, this.audio);
    this.shown(false);
  }

  // Another take, or a trimmed one, lasts another time.
  fits(length) {
    if (Math.abs(length - this.length) < 0.005) return;
    this.stop();
    this.length = length;
    this.audio.src = `${this.audio.src.split("?")[0]}?seconds=${length}`;
    this.seek.value = 0;
    this.time.textContent = seconds(length);
    this.playable(true);
  }

  start() {
    if (playing && playing !== this) playing.stop();
    playing = this;
    for (const other of document.querySelectorAll("audio")) if (other !== this.audio) other.pause();
    const from = (this.seek.value / 1000) * this.length;
    if (this.audio.readyState === 0 && from > 0) {
      this.audio.addEventListener("loadedmetadata", () => (this.audio.currentTime = from), { once: true });
    }
    this.audio.play().catch(() => {});
  }

  stop() {
    this.audio.pause();
  }

  shown(on) {
    this.play.textContent = on ? "❚❚" : "▶";
    this.play.classList.toggle("on", on);
  }

  playable(can) {
    this.play.disabled = this.seek.disabled = !can;
  }
}

export function seconds(value) {
  const whole = Math.floor(value / 60);
  return whole ? `${whole}:${(value % 60).toFixed(0).padStart(2, "0")}` : `${value.toFixed(1)} s`;
}

// As high as its text.
export function fit(field) {
  field.style.height = "auto";
  field.style.height = `${field.scrollHeight + 2}px`;
}

// Other parts of the page want to know how many recordings there are.
export function changed() {
  document.querySelector("#changed")?.click();
}
