// <stentor-phrases dataset="NAME">: which phrases are read aloud. The list itself is kept by the server (script.py).
import { element, field, say } from "./parts.mjs";

class Phrases extends HTMLElement {
  connectedCallback() {
    if (this.childElementCount) return;
    const part = element("details", "part");
    part.id = "phrases_part";
    part.append(element("summary", "", say("phrases_title")), element("p", "help", say("phrases_help")));
    this.from = element("select");
    this.from.id = "phrases_from";
    this.from.onchange = () => this.fits();
    this.own = element("textarea");
    this.own.id = "phrases_own";
    this.own.rows = 6;
    this.file = element("input");
    this.file.id = "phrases_file";
    this.file.type = "file";
    this.file.accept = ".txt,.csv,.tsv,.jsonl,text/plain";
    this.count = element("input");
    this.count.id = "phrases_count";
    this.count.type = "number";
    [this.count.min, this.count.max, this.count.step] = [10, 5000, 10];
    this.list = element("div");
    this.list.append(field(say("phrases_own"), this.own, say("phrases_own_help")), field(say("phrases_file"), this.file));
    this.many = field(say("phrases_count"), this.count);
    this.take = element("button", "primary", say("phrases_take"));
    this.take.id = "phrases_take";
    this.take.type = "button";
    this.take.onclick = () => this.choose();
    this.state = element("p", "state");
    this.state.id = "phrases_state";
    this.state.setAttribute("aria-live", "polite");
    part.append(field(say("phrases_from"), this.from), this.list, this.many, this.take, this.state);
    this.append(part);
    this.ask().catch((error) => this.tell(error.message, true));
  }

  async ask(options = {}) {
    let answer;
    let data;
    try {
      answer = await fetch(`/studio/phrases/${encodeURIComponent(this.getAttribute("dataset"))}`, {
        ...options, headers: { "X-Stentor": "1" },
      });
      data = await answer.json();
    } catch {
      throw new Error(say("upload_lost"));
    }
    if (!answer.ok) throw new Error(data.error);
    this.sources = data.sources;
    this.from.replaceChildren(...data.sources.map((s) => new Option(s.label, s.key, false, s.key === data.source)));
    if (!this.own.value) this.own.value = data.own.join("\n");
    this.count.value ||= data.wanted;
    if (!data.count) this.firstElementChild.open = true;
    this.tell(data.said ?? say(data.count ? "phrases_now" : "phrases_empty", data));
    this.fits();
  }

  fits() {
    const source = this.sources?.find((s) => s.key === this.from.value);
    this.list.hidden = this.from.value !== "own";
    this.many.hidden = !source?.online;
  }

  async choose() {
    this.take.disabled = true;
    const online = this.sources?.find((s) => s.key === this.from.value)?.online;
    if (online) this.tell(say("phrases_waiting"));
    const asked = { source: this.from.value, count: Math.round(Number(this.count.value)) || 0 };
    try {
      if (asked.source === "own") {
        asked.own = this.own.value;
        const file = this.file.files[0];
        if (file && file.size > 2 ** 21) throw new Error(say("phrases_too_large", { name: file.name, most: 2 }));
        if (file) asked.file = { name: file.name, data: await this.base64(file) };
      }
      await this.ask({ method: "POST", body: JSON.stringify(asked) });
      this.file.value = "";
      document.dispatchEvent(new CustomEvent("stentor-phrases"));
    } catch (error) {
      this.tell(error.message, true);
    } finally {
      this.take.disabled = false;
    }
  }

  base64(file) {
    return new Promise((resolve, reject) => {
      const reader = new FileReader();
      reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
      reader.onerror = () => reject(new Error(say("upload_lost")));
      reader.readAsDataURL(file);
    });
  }

  tell(text, wrong = false) {
    this.state.textContent = text;
    this.state.classList.toggle("wrong", wrong);
  }
}

customElements.define("stentor-phrases", Phrases);
