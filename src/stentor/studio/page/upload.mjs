// <stentor-upload dataset="NAME"> and <stentor-long dataset="NAME">: recordings that exist already. Files go to the server
// one after the other, then the data set takes them. Nothing that came from elsewhere is ever put in as HTML.
import { element, field, say } from "./parts.mjs";

const LOOK = 1500; // ms between two looks at what is being split
const TEXTS = ["txt", "lab", "csv", "tsv", "jsonl", "json", "srt", "vtt", "textgrid"];
const SOUND = ".wav,.flac,.mp3,.ogg,.opus,.m4a,.mp4,.webm,audio/*";

const action = (id, text, kind = "") => {
  const made = element("button", kind, text);
  if (id) made.id = id;
  made.type = "button";
  return made;
};
const isText = (file) => TEXTS.includes(file.name.split(".").pop().toLowerCase()) && file.name.includes(".");
const byName = (a, b) => a.name.localeCompare(b.name, undefined, { numeric: true, sensitivity: "base" });
const megabytes = (bytes) => (bytes >= 950_000 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`);
const changed = () => {
  document.querySelector("#changed")?.click();
  document.dispatchEvent(new CustomEvent("stentor-changed"));
};

async function ask(path, options = {}) {
  let answer;
  try {
    answer = await fetch(path, { ...options, headers: { "X-Stentor": "1", ...options.headers } });
  } catch {
    throw new Error(say("upload_lost"));
  }
  if (answer.ok) return answer;
  let error;
  try {
    error = (await answer.json()).error;
  } catch {
    error = say("upload_lost");
  }
  throw new Error(error);
}

/** Files that were chosen, sent once each, in the order of their names. */
class Batch {
  #name = "";
  #numbers = new Map();

  constructor() {
    this.clear();
  }

  clear() {
    this.#name = [...crypto.getRandomValues(new Uint8Array(8))].map((b) => b.toString(16).padStart(2, "0")).join("");
    this.#numbers.clear();
  }

  /** Send what the server does not have yet; answers what a request says about the files. */
  async send(files, told) {
    let done = 0;
    for (const file of files) {
      told(file, done++, files.length);
      if (this.#numbers.has(file)) continue;
      const number = this.#numbers.size;
      const path = `/studio/upload/${this.#name}/${number}?${new URLSearchParams({ name: file.name })}`;
      await ask(path, { method: "PUT", body: file });
      this.#numbers.set(file, number);
    }
    return { batch: this.#name, files: files.map((file) => this.#numbers.get(file)) };
  }
}

/** A place to choose files or drop them, with the list of what was chosen. */
class Chooser {
  files = [];

  constructor(id, title, help, accept, onChange) {
    this.onChange = onChange;
    this.root = element("div", "chooser");
    if (id) this.root.id = id;
    this.root.append(element("span", "label", title), element("span", "help", help));
    const zone = element("label", "zone");
    this.input = element("input");
    this.input.type = "file";
    this.input.multiple = true;
    this.input.accept = accept;
    this.input.setAttribute("aria-label", title);
    zone.append(this.input, element("strong", "", say("upload_choose")), element("span", "help drop", say("upload_drop")));
    this.list = element("ol", "chosen");
    this.root.append(zone, this.list);
    this.input.onchange = () => {
      this.add([...this.input.files]);
      this.input.value = "";
    };
    for (const kind of ["dragover", "dragleave", "drop"])
      zone.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.toggle("over", kind === "dragover");
        if (kind === "drop") this.add([...event.dataTransfer.files]);
      });
  }

  add(files) {
    const same = (a, b) => a.name === b.name && a.size === b.size && a.lastModified === b.lastModified;
    this.files = [...this.files, ...files.filter((f) => !this.files.some((g) => same(f, g)))].sort(byName);
    this.draw();
  }

  clear() {
    this.files = [];
    this.draw();
  }

  draw() {
    this.list.replaceChildren(
      ...this.files.map((file) => {
        const line = element("li");
        const away = action("", "×", "away");
        away.title = say("upload_clear");
        away.setAttribute("aria-label", `${say("upload_clear")}: ${file.name}`);
        away.onclick = () => {
          this.files = this.files.filter((f) => f !== file);
          this.draw();
        };
        line.append(element("span", "name", file.name), element("span", "help", megabytes(file.size)), away);
        return line;
      }),
    );
    this.onChange?.();
  }
}

class Part extends HTMLElement {
  batch = new Batch();

  get dataset() {
    return this.getAttribute("dataset");
  }

  progress(text, done, of) {
    const line = element("p", "progress", text);
    const bar = element("progress");
    if (of) [bar.max, bar.value] = [of, done];
    line.append(bar);
    return line;
  }

  problem(error) {
    const list = element("ul", "refused");
    for (const line of error.message.split("\n")) list.append(element("li", "", line));
    return list;
  }

  /** A field for the speaker's name. */
  speaker() {
    const input = element("input");
    input.maxLength = 100;
    input.autocomplete = "off";
    return input;
  }
}

class Upload extends Part {
  connectedCallback() {
    if (this.childElementCount) return;
    const part = element("details", "part");
    part.id = "upload_part";
    part.append(element("summary", "", say("upload_title")), element("p", "help", say("upload_intro")));
    const fits = () => {
      this.take.disabled = this.busy || !this.audio.files.length;
      this.pasted.rows = Math.min(12, Math.max(3, this.audio.files.length));
    };
    this.audio = new Chooser("upload", say("upload_audio"), say("upload_audio_help"), SOUND, () => {
      // Transcripts that were dropped among the recordings.
      const texts = this.audio.files.filter(isText);
      if (texts.length) {
        this.audio.files = this.audio.files.filter((f) => !isText(f));
        this.audio.draw();
        this.texts.add(texts);
      }
      fits();
    });
    this.texts = new Chooser("transcripts", say("upload_texts"), say("upload_texts_help"), TEXTS.map((t) => `.${t}`).join());
    this.pasted = element("textarea");
    this.pasted.rows = 3;
    this.pasted.spellcheck = false;
    const pasted = field(say("upload_pasted"), this.pasted);
    pasted.id = "pasted";
    this.said = this.speaker();
    this.take = action("take", say("upload_take"), "primary");
    this.take.onclick = () => this.run();
    this.taken = element("div");
    this.taken.id = "taken";
    this.taken.setAttribute("aria-live", "polite");
    const sides = element("div", "sides");
    sides.append(this.audio.root, this.texts.root);
    part.append(sides, pasted, field(say("upload_speaker"), this.said), this.take, this.taken);
    this.append(part);
    fits();
  }

  async run() {
    this.busy = true;
    this.take.disabled = true;
    let added = false;
    try {
      const given = await this.batch.send([...this.audio.files, ...this.texts.files], (file, done, of) =>
        this.taken.replaceChildren(this.progress(say("upload_sending", { name: file.name, done: done + 1, of }), done, of)),
      );
      const answer = await ask(`/studio/take/${encodeURIComponent(this.dataset)}`, {
        method: "POST", body: JSON.stringify({ ...given, pasted: this.pasted.value, speaker: this.said.value }),
      });
      const last = await this.follow(answer);
      this.taken.replaceChildren(...this.told(last));
      added = last.records > 0;
      this.batch.clear();
      this.audio.clear();
      this.texts.clear();
      this.pasted.value = "";
    } catch (error) {
      if (error.message === say("upload_unknown")) this.batch.clear();
      this.taken.replaceChildren(this.problem(error));
    } finally {
      this.busy = false;
      this.take.disabled = !this.audio.files.length;
    }
    if (added) changed();
  }

  /** Show how far it is, line by line; answers the last line. */
  async follow(answer) {
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let last;
    for (;;) {
      let got;
      try {
        got = await reader.read();
      } catch {
        throw new Error(say("upload_lost"));
      }
      if (got.done) break;
      const lines = (rest + got.value).split("\n");
      rest = lines.pop();
      for (const line of lines) last = JSON.parse(line);
      if (last?.of) this.taken.replaceChildren(this.progress(say("upload_taking", last), last.done, last.of));
    }
    if (last?.error) throw new Error(last.error);
    if (!last?.taken) throw new Error(say("upload_lost"));
    return last;
  }

  told(last) {
    const count = last.records;
    const sentence = ["upload_taken_none", "upload_taken_one"][count] ?? "upload_taken";
    const shown = [element("p", count ? "ok" : "none", say(sentence, { count }))];
    const list = element("ul", "ok");
    for (const file of last.taken.slice(0, 50)) {
      const values = { ...file, seconds: file.seconds.toFixed(1) };
      const line = element("li", "", say(file.records > 1 ? "upload_row_many" : "upload_row", values));
      const text = file.texts.filter(Boolean).join(" / ");
      line.append(" ", text ? element("q", "", text) : element("em", "help", say("upload_no_text")));
      list.append(line);
    }
    if (last.taken.length > 50) list.append(element("li", "help", say("upload_more", { count: last.taken.length - 50 })));
    if (last.taken.length) shown.push(list);
    if (last.refused.length) {
      const refused = element("ul", "refused");
      for (const line of last.refused) refused.append(element("li", "", line));
      if (last.more) refused.append(element("li", "", say("upload_more", { count: last.more })));
      shown.push(element("p", "none", say("upload_refused")), refused);
    }
    return shown;
  }
}

class Long extends Part {
  #timer = 0;
  #added = -1;
  #seen = false;

  connectedCallback() {
    this.#timer = setTimeout(() => this.look(), 0);
    if (this.childElementCount) return;
    this.fold = element("details", "part");
    this.fold.id = "long_part";
    this.fold.append(element("summary", "", say("long_title")), element("p", "help", say("long_intro")));
    this.files = new Chooser("", say("long_files"), say("long_files_help"), SOUND, () => this.fits());
    this.model = element("select");
    this.model.append(new Option(say("long_no_model"), ""));
    this.fold.addEventListener("toggle", () => this.fold.open && this.models());
    this.said = this.speaker();
    this.take = action("long_take", say("long_take"), "primary");
    this.take.onclick = () => this.run();
    this.told = element("div", "told");
    this.told.setAttribute("aria-live", "polite");
    this.works = element("div", "works");
    const sides = element("div", "sides");
    sides.append(field(say("long_model"), this.model), field(say("upload_speaker"), this.said));
    const box = element("div");
    box.id = "long";
    box.append(this.files.root, sides, this.take, this.told, this.works);
    this.fold.append(box);
    this.append(this.fold);
    this.fits();
  }

  disconnectedCallback() {
    clearTimeout(this.#timer);
  }

  fits() {
    this.take.disabled = this.busy || !this.files.files.length;
  }

  get path() {
    return `/studio/long/${encodeURIComponent(this.dataset)}`;
  }

  async models() {
    try {
      const { models } = await (await ask(`${this.path}?models`)).json();
      const before = this.model.value;
      this.model.replaceChildren(...models.map((m) => new Option(m.label, m.choice)));
      this.model.value = models.some((m) => m.choice === before) ? before : "";
    } catch {
      // Without the list the texts can still be written by hand.
    }
  }

  async run() {
    this.busy = true;
    this.fits();
    try {
      const given = await this.batch.send(this.files.files, (file, done, of) =>
        this.told.replaceChildren(this.progress(say("upload_sending", { name: file.name, done: done + 1, of }), done, of)),
      );
      const answer = await ask(this.path, {
        method: "POST", body: JSON.stringify({ ...given, model: this.model.value, speaker: this.said.value }),
      });
      const { refused } = await answer.json();
      this.told.replaceChildren(...(refused.length ? [this.problem(new Error(refused.join("\n")))] : []));
      this.batch.clear();
      this.files.clear();
    } catch (error) {
      this.told.replaceChildren(this.problem(error));
    } finally {
      this.busy = false;
      this.fits();
    }
    this.look();
  }

  async steer(id, what) {
    try {
      this.draw((await (await ask(`${this.path}/${id}/${what}`, { method: "POST" })).json()).works);
    } catch (error) {
      this.told.replaceChildren(this.problem(error));
    }
    this.look();
  }

  async look() {
    clearTimeout(this.#timer);
    let works = [];
    try {
      works = (await (await ask(this.path)).json()).works;
      this.draw(works);
    } catch {
      // Looked at again below.
    }
    const added = works.reduce((sum, work) => sum + work.added, 0);
    if (this.#added >= 0 && added > this.#added) changed();
    this.#added = added;
    if (!this.#seen && works.some((work) => work.state !== "finished")) this.fold.open = true;
    this.#seen = true;
    if (this.isConnected && works.some((work) => work.state === "running"))
      this.#timer = setTimeout(() => this.look(), LOOK);
  }

  draw(works) {
    this.works.replaceChildren(
      ...works.map((work) => {
        const job = element("div", "job");
        job.dataset.state = work.state;
        job.append(element("strong", "name", work.names.join(", ")), element("p", "sentence", work.sentence));
        if (work.state === "running") job.append(this.progress("", work.done, work.of));
        if (work.refused.length) job.append(this.problem(new Error(work.refused.slice(0, 20).join("\n"))));
        const buttons = element("div", "buttons");
        const step = (what, key) => {
          const made = action("", say(key));
          made.onclick = () => this.steer(work.id, what);
          buttons.append(made);
        };
        if (work.state === "running") step("stop", "long_stop");
        if (work.state === "stopped" || work.state === "failed") step("resume", "long_resume");
        if (work.state !== "running") step("forget", "long_forget");
        job.append(buttons);
        return job;
      }),
    );
  }
}

customElements.define("stentor-upload", Upload);
customElements.define("stentor-long", Long);
