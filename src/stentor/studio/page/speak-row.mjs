// One row of the recording page: a phrase, its recorder, and what is to be said of it.
import { outbox } from "./speak-outbox.mjs";
import { button, clock, element, fit, say } from "./parts.mjs";

const FLOOR = 60;  // dB that the level meter shows

export class Row {
  constructor(dataset, data, language) {
    this.dataset = dataset;
    this.node = element("div", "row");
    this.node.tabIndex = -1;
    this.node.setAttribute("role", "group");
    this.number = element("div", "number");
    this.text = element("textarea");
    this.text.dir = "auto";
    this.text.rows = 1;
    this.text.maxLength = 1000;
    this.text.spellcheck = false;
    this.text.enterKeyHint = "done";
    if (language) this.text.lang = language;
    this.seconds = element("span", "seconds");
    this.meter = element("div", "meter");
    this.meter.append(element("div", "bar"));
    this.said = element("div", "said");
    this.record = button("record", say("speak_record"));
    this.label = element("span", "", say("speak_record"));
    this.record.append(element("i"), this.label);
    this.play = button("play", say("speak_play"));
    this.redo = button("redo", say("speak_redo"));
    this.remove = button("remove", say("speak_remove"));
    const sound = element("div", "sound");
    sound.append(this.meter, this.seconds);
    const words = element("div", "words");
    words.append(this.text, sound, this.said);
    const buttons = element("div", "buttons");
    buttons.append(this.record, this.play, this.redo, this.remove);
    this.node.append(this.number, words, buttons);
    this.live = null;
    this.update(data);
  }

  update(data) {
    this.data = { ...data, number: data.number ?? this.data.number };
    const { number, text } = this.data;
    this.node.dataset.number = number;
    this.node.dataset.key = data.key;
    this.node.setAttribute("aria-label", say("speak_row", { number }));
    this.number.textContent = number;
    this.text.setAttribute("aria-label", say("speak_text", { number }));
    this.text.placeholder = data.phrase || say("speak_own");
    if (document.activeElement !== this.text) this.write(this.entry?.said ?? text);
    this.draw();
  }

  /** What of this row is not on the server yet. */
  get entry() {
    return outbox.of(this.dataset, this.data.key);
  }

  /** The text that a take of it is of. */
  get read() {
    return this.text.value.replace(/\s+/g, " ").trim() || this.data.phrase;
  }

  write(text) {
    if (this.text.value === text) return;
    this.text.value = text;
    fit([this.text]);
  }

  /** Show the state: starting or recording (`live`), waiting in the outbox, saved, or open. */
  draw() {
    const entry = this.entry;
    const wav = entry?.wav;
    const state = this.live ?? (wav ? (entry.error ? "unsent" : "sending") : this.data.id ? "saved" : "open");
    this.node.dataset.state = state;
    const label = say({ starting: "speak_starting", recording: "speak_stop" }[state] ?? "speak_record");
    this.label.textContent = label;
    this.record.title = label;
    this.record.setAttribute("aria-label", label);
    if (this.live) return;
    const seconds = wav ? entry.seconds : this.data.id ? this.data.seconds : null;
    this.seconds.textContent = seconds === null ? "" : clock(seconds);
    this.level(this.data.id && !wav ? 10 ** ((this.data.peak ?? -120) / 20) : 0);
    const lines = [];
    if (entry?.error) {
      const why = entry.lost ? (wav ? "speak_unsent" : "speak_text_unsent") : "speak_refused";
      lines.push(["wrong", `${say(why)} ${entry.error}`]);
    } else if (wav) lines.push(["", say("speak_sending")]);
    else if (this.data.id) {
      lines.push(["fine", say(this.data.edited ? "speak_text_saved" : "speak_saved")]);
      if (!this.data.text) lines.push(["warning", say("speak_no_text")]);
      if (this.data.replaced) lines.push(["warning", say("speak_replaced")]);
      for (const { sentence } of this.data.remarks ?? []) lines.push(["warning", sentence]);
    } else if (this.data.edited) lines.push(["fine", say("speak_text_saved")]);
    if (this.problem) lines.push(["wrong", this.problem]);
    this.tell(lines);
  }

  tell(lines) {
    const wanted = JSON.stringify(lines);
    if (wanted === this.told) return;
    this.told = wanted;
    this.said.replaceChildren(...lines.map(([kind, text]) => element("span", kind, text)));
  }

  /** The meter at a peak of 0 to 1. */
  level(peak) {
    const share = Math.max(0, 1 + (20 * Math.log10(peak + 1e-6)) / FLOOR);
    this.meter.style.setProperty("--level", Math.min(1, share).toFixed(3));
    this.meter.classList.toggle("over", peak >= 0.999);
  }
}
