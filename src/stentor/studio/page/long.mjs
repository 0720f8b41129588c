// <stentor-long dataset="NAME">: long recordings, which the server splits at their pauses. It continues without the page.
import { action, ask, changed, Chooser, Part } from "./chooser.mjs";
import { element, field, say } from "./parts.mjs";

const LOOK = 1500; // ms between two looks at what is being split

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
    const chosen = { id: "long_files", dataset: this.dataset, title: say("long_files"), help: say("long_files_help") };
    this.files = new Chooser({ ...chosen, accept: say("audio_files") }, () => this.fits());
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
    if (this.files) this.take.disabled = this.busy || !this.files.files.length;
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
      const given = await this.batch.send(this.files.files, (...far) => this.told.replaceChildren(this.progress(...far)));
      const answer = await ask(this.path, {
        method: "POST", body: JSON.stringify({ ...given, model: this.model.value, speaker: this.said.value }),
      });
      const { refused } = await answer.json();
      this.told.replaceChildren(...(refused.length ? [this.problem(new Error(refused.join("\n")))] : []));
      this.batch.clear();
      this.files.take(() => true);
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

customElements.define("stentor-long", Long);
