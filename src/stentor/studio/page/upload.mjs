// <stentor-upload dataset="NAME">: recordings that exist already, and their texts. Files go to the server one after the
// other; it answers which text it would give to which recording, and on a second button the data set takes them. Nothing
// that came from elsewhere is ever put in as HTML.
import { action, ask, changed, Chooser, Part } from "./chooser.mjs";
import { clock, element, field, say } from "./parts.mjs";

const isText = ({ path }) => say("text_files").split(",").includes(path.toLowerCase().match(/[.][^.]*$/)?.[0]);
const OTHERS = ".xlsx,.xls,.ods,.docx,.odt,.pdf,.rtf"; // of which the server says how to save them

class Upload extends Part {
  connectedCallback() {
    if (this.childElementCount) return;
    this.fold = element("details", "part");
    this.fold.id = "upload_part";
    this.fold.append(element("summary", "", say("upload_title")), element("p", "help", say("upload_intro")));
    const chooser = (id, title, help, more) =>
      new Chooser({ id, dataset: this.dataset, title: say(title), help: say(help), ...more }, () => this.fits());
    this.pasted = this.kept("pasted", element("textarea"));
    this.pasted.spellcheck = false;
    const pasted = field(say("upload_pasted"), this.pasted);
    pasted.id = "pasted";
    this.said = this.kept("speaker", this.speaker());
    this.take = action("take", say("upload_look"), "primary");
    this.take.onclick = () => this.run("preview");
    this.taken = element("div");
    this.taken.id = "taken";
    this.taken.setAttribute("aria-live", "polite");
    this.audio = chooser("upload", "upload_audio", "upload_audio_help", { accept: `${say("audio_files")},.zip`, folders: true });
    this.texts = chooser("transcripts", "upload_texts", "upload_texts_help", {
      accept: `${say("text_files")},${OTHERS}`,
    });
    const sides = element("div", "sides");
    sides.append(this.audio.root, this.texts.root);
    this.fold.append(sides, pasted, field(say("upload_speaker"), this.said), this.take, this.taken);
    this.append(this.fold);
    this.fits();
  }

  /** A field whose value a reload keeps. */
  kept(name, input) {
    const key = `stentor-kept/${this.dataset}/${name}`;
    input.value = sessionStorage.getItem(key) ?? "";
    input.oninput = () => {
      sessionStorage.setItem(key, input.value);
      this.fits();
    };
    return input;
  }

  /** After a change: what was looked at is not what would be added. */
  fits() {
    if (!this.texts) return;
    // Transcripts that were chosen among the recordings.
    const texts = this.audio.files.filter((file) => isText(file) && !file.path.includes("/"));
    if (texts.length) {
      this.audio.take((file) => texts.includes(file));
      return this.texts.add(texts);
    }
    const files = [...this.audio.files, ...this.texts.files];
    const given = files.length || this.pasted.value.trim();
    this.take.disabled = this.busy || !given;
    this.pasted.rows = Math.min(12, Math.max(3, this.audio.files.length));
    if (given && !this.busy) this.taken.replaceChildren();
    if (given) this.fold.open = true;
  }

  async run(what, confirmed = false) {
    this.busy = this.take.disabled = true;
    let added = false;
    try {
      const files = [...this.audio.files, ...this.texts.files];
      const given = await this.batch.send(files, (...far) => this.taken.replaceChildren(this.progress(...far)));
      const body = JSON.stringify({ ...given, pasted: this.pasted.value, speaker: this.said.value, confirmed });
      const answer = await ask(`/studio/${what}/${encodeURIComponent(this.dataset)}`, { method: "POST", body });
      if (what === "preview") return this.taken.replaceChildren(...this.pairs(await answer.json()));
      const last = await this.follow(answer);
      added = last.records + last.filled > 0;
      this.batch.clear();
      this.pasted.value = "";
      this.pasted.oninput();
      for (const chooser of [this.audio, this.texts]) chooser.take(() => true);
      this.taken.replaceChildren(...this.told(last));
    } catch (error) {
      if (error.message === say("upload_unknown")) this.batch.clear();
      this.taken.replaceChildren(this.problem(error));
    } finally {
      this.busy = false;
      this.take.disabled = !this.audio.files.length && !this.texts.files.length && !this.pasted.value.trim();
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
    if (last?.records === undefined) throw new Error(say("upload_lost"));
    return last;
  }

  /** What would be added: a table of recordings and texts, and buttons to do so or to change it. */
  pairs({ rows, more, counts, remarks, unfitting }) {
    const box = element("div", "pairs");
    const table = element("table");
    const head = element("tr");
    for (const name of ["name", "text", "length", "speaker", "fate"]) head.append(element("th", "", say(`pairs_${name}`)));
    table.createTHead().append(head);
    const body = table.createTBody();
    for (const row of rows) {
      const line = body.insertRow();
      line.dataset.fate = row.guess ? `${row.fate} guess` : row.fate;
      const silent = row.text ? "" : say("upload_no_text");
      const fate = row.fate === "text" ? "text_of" : row.guess && row.fate === "new" ? "guess" : row.fate;
      const said = [say(`pairs_${fate}`), row.note];
      for (const text of [row.name, row.text || silent, row.seconds === null ? "" : clock(row.seconds), row.speaker ?? ""])
        line.insertCell().textContent = text;
      line.insertCell().textContent = said.filter(Boolean).join(": ");
    }
    box.append(table);
    const shown = [element("p", "counts", this.counted(counts)), box];
    if (more) shown.push(element("p", "help", say("upload_more", { count: more })));
    if (remarks.length) shown.push(this.problem(new Error(remarks.join("\n")), "ok"));
    const add = action("add", say("upload_take"), "primary");
    const change = action("change", say("upload_change"));
    add.onclick = () => this.run("take", Boolean(unfitting));
    change.onclick = () => {
      this.taken.replaceChildren();
      this.fold.scrollIntoView({ block: "start" });
    };
    if (unfitting) {
      const sure = element("input");
      sure.type = "checkbox";
      add.disabled = true;
      sure.onchange = () => (add.disabled = !sure.checked);
      const label = element("label", "sure");
      label.append(sure, ` ${say("upload_unfitting")}`);
      shown.push(this.problem(new Error(unfitting)), ...(counts.new ? [label] : []));
    }
    const buttons = element("div", "buttons");
    buttons.append(...(counts.new + counts.text ? [add] : []), change);
    return [...shown, buttons];
  }

  counted(counts) {
    const kinds = Object.keys(counts).filter((kind) => counts[kind]);
    return kinds.map((kind) => say(`counts_${kind}`, { count: counts[kind] })).join(" · ");
  }

  told({ records, filled, refused, more }) {
    const counts = this.counted({ added: records, filled });
    const shown = [element("p", records + filled ? "ok" : "none", counts || say("upload_taken_none"))];
    if (more) refused.push(say("upload_more", { count: more }));
    if (refused.length) shown.push(element("p", "none", say("upload_refused")), this.problem(new Error(refused.join("\n"))));
    return shown;
  }
}

customElements.define("stentor-upload", Upload);
