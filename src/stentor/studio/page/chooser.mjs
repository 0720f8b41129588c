// Files that are chosen and sent: what the upload of recordings and the splitting of long ones have in common.
import { element, say } from "./parts.mjs";
import { all, drop, put } from "./store.mjs";


export const action = (id, text, kind = "") => {
  const made = element("button", kind, text);
  if (id) made.id = id;
  made.type = "button";
  return made;
};
const byPath = (a, b) => a.path.localeCompare(b.path, undefined, { numeric: true, sensitivity: "base" });
const megabytes = (bytes) => (bytes >= 950_000 ? `${(bytes / 1e6).toFixed(1)} MB` : `${Math.ceil(bytes / 1e3)} kB`);
export const changed = () => {
  document.querySelector("#changed")?.click();
  document.dispatchEvent(new CustomEvent("stentor-changed"));
};

export async function ask(path, options = {}) {
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
export class Batch {
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
      told(say("upload_sending", { name: file.path, done: done + 1, of: files.length }), done++, files.length);
      if (this.#numbers.has(file)) continue;
      const number = this.#numbers.size;
      const path = `/studio/upload/${this.#name}/${number}?${new URLSearchParams({ name: file.path })}`;
      await ask(path, { method: "PUT", body: file.file });
      this.#numbers.set(file, number);
    }
    return { batch: this.#name, files: files.map((file) => this.#numbers.get(file)) };
  }
}

/** The files of what was dropped, folders among it, with their paths. */
async function dropped(items) {
  const found = [];
  const walk = async (entry) => {
    if (entry?.isFile) {
      const file = await new Promise((done, failed) => entry.file(done, failed));
      found.push({ path: entry.fullPath.replace(/^\//, ""), file });
    } else if (entry) {
      const reader = entry.createReader();
      for (let more; (more = await new Promise((done, failed) => reader.readEntries(done, failed))).length; )
        for (const inside of more) await walk(inside);
    }
  };
  for (const entry of [...items].map((item) => item.webkitGetAsEntry?.())) await walk(entry);
  return found;
}

/** A place to choose files or drop them, with the list of what was chosen, which a reload keeps. `folders`: also whole
 * folders. */
export class Chooser {
  files = []; // {path, file}

  constructor({ id, dataset, title, help, accept, folders }, onChange) {
    Object.assign(this, { id, dataset, onChange });
    this.root = element("div", "chooser");
    this.root.id = id;
    this.root.append(element("span", "label", title), element("span", "help", help));
    this.list = element("ol", "chosen");
    const zone = this.zone(title, say("upload_choose"), { accept });
    zone.append(element("span", "help drop", say("upload_drop")));
    for (const kind of ["dragover", "dragleave", "drop"])
      zone.addEventListener(kind, (event) => {
        event.preventDefault();
        zone.classList.toggle("over", kind === "dragover");
        if (kind === "drop") dropped(event.dataTransfer.items).then((files) => this.add(files));
      });
    this.root.append(zone);
    if (folders) this.root.append(this.zone(say("upload_folder"), say("upload_folder"), { webkitdirectory: true }));
    this.root.append(this.list);
    all("file", dataset).then((found) => {
      const mine = found.map(({ value }) => value).filter((value) => value.id === id);
      if (mine.length) this.add(Object.assign(mine, { kept: true }));
    });
  }

  zone(title, text, options) {
    const zone = element("label", options.webkitdirectory ? "zone folder" : "zone");
    const input = Object.assign(element("input"), { type: "file", multiple: true, ...options });
    input.setAttribute("aria-label", title);
    input.onchange = () => {
      this.add([...input.files].map((file) => ({ path: file.webkitRelativePath || file.name, file })));
      input.value = "";
    };
    zone.append(input, element("strong", "", text));
    return zone;
  }

  /** More files; those that the browser had kept come with their `name` there, and are not written again. */
  add(files) {
    const there = new Map(this.files.map((file) => [file.name, file]));
    for (const { path, file, name = `${this.id} ${path} ${file.size} ${file.lastModified}` } of files) {
      if (there.has(name)) continue;
      there.set(name, { path, file, name });
      if (!files.kept) put("file", this.dataset, name, { path, file, name, id: this.id });
    }
    this.files = [...there.values()].sort(byPath);
    this.draw();
  }

  take(chosen) {
    for (const file of this.files.filter(chosen)) drop("file", this.dataset, file.name);
    this.files = this.files.filter((file) => !chosen(file));
    this.draw();
  }

  draw() {
    this.list.replaceChildren(
      ...this.files.map((file) => {
        const line = element("li");
        const away = action("", "×", "away");
        away.title = say("upload_clear");
        away.setAttribute("aria-label", `${say("upload_clear")}: ${file.path}`);
        away.onclick = () => this.take((f) => f === file);
        line.append(element("span", "name", file.path), element("span", "help", megabytes(file.file.size)), away);
        return line;
      }),
    );
    this.onChange?.();
  }
}

export class Part extends HTMLElement {
  batch = new Batch();

  get dataset() {
    return this.getAttribute("dataset");
  }

  progress(text, done, of) {
    const line = element("p", "progress", text);
    const bar = element("progress");
    bar.ariaLabel = text || say("upload_taking", { done, of });
    if (of) [bar.max, bar.value] = [of, done];
    line.append(bar);
    return line;
  }

  problem(error, kind = "refused") {
    const list = element("ul", kind);
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

