// Step 2: the recordings with what is wrong with them; <stentor-check dataset="NAME">.
//
// The server answers the ids of all rows in their order once, then the rows of one page. So the list stands still while a
// person works on it, however many recordings there are; it is sorted again when the tab or another choice is opened.
import { button, changed, Entry, fit, number, seconds } from "./check_row.mjs";
import { element, say } from "./parts.mjs";

const PAGE = 50;
const CHOICES = ["all", "remarks", "unsure", "drafts", "no_text", "trim", "trimmed", "train", "held_out", "removed"];
const LISTENING = 1500; // ms between two looks while recordings are still being heard
const SURE = 6000; // ms in which "delete for good" is to be confirmed
const TOGETHER = 50; // recordings that are trimmed by one request

class StentorCheck extends HTMLElement {
  connectedCallback() {
    this.name = this.getAttribute("dataset");
    this.show = "all";
    this.find = "";
    this.order = [];
    this.first = 0;
    this.rows = new Map();
    this.heard = () => this.again();
    this.leaving = () => this.keep(true);
    document.addEventListener("stentor-changed", this.heard);
    window.addEventListener("pagehide", this.leaving);
    this.draw();
    let width = 0;
    this.sized = new ResizeObserver(([{ contentRect }]) => {
      if (contentRect.width === width) return;
      width = contentRect.width;
      for (const entry of this.rows.values()) fit(entry.text);
    });
    this.sized.observe(this.list);
    if (this.name) this.refresh();
  }

  disconnectedCallback() {
    document.removeEventListener("stentor-changed", this.heard);
    window.removeEventListener("pagehide", this.leaving);
    clearTimeout(this.waiting);
    this.sized.disconnect();
    this.keep(true);
  }

  // What does not change: figures, choices, search, list, pager.
  draw() {
    this.replaceChildren();
    this.figures = element("div", "figures");
    this.bar = element("div", "choices");
    this.bar.setAttribute("role", "group");
    this.bar.setAttribute("aria-label", say("check_show"));
    this.search = element("input", "find");
    this.search.type = "search";
    this.search.placeholder = say("check_find");
    this.search.setAttribute("aria-label", say("check_find"));
    this.search.oninput = () => {
      clearTimeout(this.typing);
      this.typing = setTimeout(() => this.choose(this.show, this.search.value), 300);
    };
    this.tools = element("div", "tools");
    this.trimAll = button("trim-all", "", () => this.trim("trim"));
    this.wholeAll = button("whole-all", "", () => this.trim("trimmed"));
    this.trimmed = element("p", "trimmed-note");
    this.trimmed.setAttribute("role", "status");
    this.download = element("a", "download");
    this.download.href = `/studio/download/dataset/${encodeURIComponent(this.name)}`;
    this.download.download = "";
    this.tools.append(this.download, this.trimAll, this.wholeAll, this.trimmed);
    this.problem = element("p", "problem");
    this.problem.setAttribute("role", "alert");
    this.list = element("div", "rows");
    this.list.setAttribute("role", "list");
    this.pager = element("div", "pager");
    this.append(this.figures, this.tools, this.bar, this.search, this.problem, this.list, this.pager);
  }

  async ask(path, given, keepalive = false) {
    const options = given
      ? {
          method: "POST",
          headers: { "X-Stentor": "1", "Content-Type": "application/json" },
          body: JSON.stringify(given),
          keepalive,
        }
      : {};
    let answer;
    try {
      answer = await fetch(`/studio/check/${encodeURIComponent(this.name)}${path}`, options);
    } catch {
      throw new Error(say("check_lost"));
    }
    if (answer.status === 401) throw new Error(say("check_signed_out"));
    const found = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(found.error || say("check_lost"));
    return found;
  }

  async trying(work) {
    try {
      const done = await work();
      this.problem.textContent = "";
      return done;
    } catch (error) {
      this.problem.textContent = error.message;
      return undefined;
    }
  }

  choose(show, find = this.find) {
    this.keep();
    this.show = show;
    this.find = find.trim();
    this.first = 0;
    return this.refresh();
  }

  // Something may have changed elsewhere: look, but take nothing away from somebody who works on the list.
  again() {
    if (performance.now() - (this.looked ?? -1e9) < 1000 || this.list?.contains(document.activeElement)) return;
    this.refresh();
  }

  // The list in its order, sorted again.
  async refresh() {
    if (!this.isConnected || !this.name) return;
    this.looked = performance.now();
    const asked = (this.asked = (this.asked || 0) + 1);
    await this.trying(async () => {
      const removed = this.show === "removed";
      const query = new URLSearchParams({ show: removed ? "all" : this.show, find: this.find });
      const found = await this.ask(`?${query}`);
      if (asked !== this.asked) return;
      const bin = removed && found.removed ? await this.ask("/removed") : null;
      if (removed && !bin) this.show = "all";
      this.bin = bin?.rows ?? null;
      this.order = found.order;
      if (this.first >= this.order.length) this.first = 0;
      this.tell(found);
      await this.page();
    });
  }

  // The rows of one page.
  async page() {
    const asked = (this.paged = (this.paged || 0) + 1);
    if (this.bin) return this.fillBin();
    const ids = this.order.slice(this.first, this.first + PAGE);
    let rows = [];
    if (ids.length) {
      const query = new URLSearchParams(ids.map((id) => ["id", id]));
      rows = (await this.ask(`/rows?${query}`)).rows;
    }
    if (asked !== this.paged) return;
    this.rows.clear();
    this.list.replaceChildren(...rows.map((row) => this.row(row)));
    if (!rows.length) this.list.append(element("p", "nothing", say(this.find ? "check_not_found" : "check_nothing")));
    this.drawPager();
    for (const entry of this.rows.values()) fit(entry.text);
  }

  turn(by) {
    this.keep();
    this.first = Math.max(0, Math.min(this.first + by, this.order.length - 1));
    this.trying(() => this.page());
    this.scrollIntoView({ block: "start" });
  }

  drawPager() {
    this.pager.replaceChildren();
    const last = Math.min(this.first + PAGE, this.order.length);
    if (this.order.length <= PAGE) return;
    const back = button("back", say("check_before"), () => this.turn(-PAGE));
    const on = button("on", say("check_after"), () => this.turn(PAGE));
    back.disabled = this.first === 0;
    on.disabled = last >= this.order.length;
    const values = { first: number(this.first + 1), last: number(last), total: number(this.order.length) };
    this.pager.append(back, element("span", "", say("check_page", values)), on);
  }

  // Figures on top and the choices, after every answer.
  tell(found) {
    this.found = found;
    const facts = [
      [number(found.total), say("check_recordings", { count: found.total })],
      found.hours < 1
        ? [(found.hours * 60).toFixed(1), say("check_minutes")]
        : [found.hours.toFixed(2), say("check_hours")],
    ];
    if (found.speakers) facts.push([number(found.speakers), say("check_speakers", { count: found.speakers })]);
    if (found.languages > 1) facts.push([number(found.languages), say("check_languages")]);
    if (found.divided) {
      facts.push([number(found.divided.train), say("check_train_count")]);
      facts.push([number(found.divided.held_out), say("check_held_count")]);
    }
    this.figures.replaceChildren(
      ...facts.map(([value, name]) => {
        const fact = element("span", "figure");
        fact.append(element("b", "", value), ` ${name}`);
        return fact;
      }),
    );
    if (found.measured < found.total) {
      const heard = element("span", "listening", say("check_listening", { done: number(found.measured), total: number(found.total) }));
      const bar = element("progress");
      bar.ariaLabel = heard.textContent;
      bar.max = found.total;
      bar.value = found.measured;
      heard.append(bar);
      this.figures.append(heard);
      this.listening();
    } else if (!Object.keys(found.kinds).length && found.total && !found.useless) {
      this.figures.append(element("span", "fine", say("check_fine")));
    }
    if (found.useless) this.figures.prepend(element("p", "useless", found.useless));
    const there = found.total - found.missing;
    const left = found.missing ? say("check_download_missing", { count: number(found.missing) }) : "";
    this.download.hidden = !there;
    this.download.textContent = `${say("check_download", { count: number(there) })} ${left}`.trim();
    const { trim, trimmed } = found.counts;
    this.trimAll.hidden = !trim || found.measured < found.total; // its count is that of all
    this.trimAll.textContent = say("check_trim_all", { count: number(trim), seconds: found.cut.toFixed(1) });
    this.wholeAll.hidden = !trimmed;
    this.wholeAll.textContent = say("check_whole_all", { count: number(trimmed) });
    this.classList.toggle("one-voice", found.speakers < 2);
    this.classList.toggle("one-language", found.languages < 2);
    const counts = { ...found.counts, removed: found.removed };
    const choices = CHOICES.filter((c) => c === "all" || counts[c] || c === this.show);
    const kinds = Object.entries(found.kinds).filter(([kind]) => !CHOICES.includes(kind));
    this.bar.replaceChildren(
      ...choices.map((c) => this.choice(c, say(`check_choice_${c}`), counts[c])),
      ...kinds.map(([kind, count]) => this.choice(kind, say(`finding_${kind}`), count, "kind")),
    );
    this.search.hidden = found.total <= 10 && !this.find;
  }

  choice(show, text, count, kind = "") {
    const made = button(`choice ${kind}`, text, () => this.choose(show));
    made.dataset.show = show;
    made.setAttribute("aria-pressed", String(this.show === show));
    made.append(element("span", "count", number(count)));
    return made;
  }

  // Recordings are still being heard: look again, and when all were, show their remarks.
  listening() {
    clearTimeout(this.waiting);
    this.waiting = setTimeout(async () => {
      if (!this.isConnected) return;
      if (this.offsetParent === null) return this.listening();
      await this.trying(async () => {
        const found = await this.ask("?show=remarks");
        this.tell(found);
        if (found.measured < found.total) return;
        const busy = this.contains(document.activeElement) || this.first > 0 || this.touched;
        await (busy ? this.remarks() : this.refresh());
      });
    }, LISTENING);
  }

  // The remarks of the rows that are shown, in place.
  async remarks() {
    const query = new URLSearchParams([...this.rows.keys()].map((id) => ["id", id]));
    for (const row of (await this.ask(`/rows?${query}`)).rows) this.rows.get(row.id)?.update(row);
  }

  // Trim all that can be trimmed, put back all that was, or only `ids`; a part at a time.
  async trim(which, ids) {
    const path = which === "trim" ? "/trim" : "/whole";
    this.keep();
    const focused = this.tools.contains(document.activeElement);
    this.trimAll.disabled = this.wholeAll.disabled = true;
    const done = [];
    let cut = 0;
    await this.trying(async () => {
      ids ??= (await this.ask(`?show=${which}`)).order;
      for (let first = 0; first < ids.length; first += TOGETHER) {
        this.trimmed.textContent = say("check_trimming", { done: number(first), total: number(ids.length) });
        const found = await this.ask(path, { ids: ids.slice(first, first + TOGETHER) });
        done.push(...(found.restored ?? Object.keys(found.trimmed)));
        for (const seconds of Object.values(found.trimmed ?? {})) cut += seconds;
        for (const row of found.rows) this.rows.get(row.id)?.update(row);
        this.tell(found);
      }
    });
    this.trimAll.disabled = this.wholeAll.disabled = false;
    const told = { count: number(done.length), seconds: cut.toFixed(1) };
    const said = say(which === "trim" ? "check_trimmed_all" : "check_whole_done", told);
    const left = which === "trimmed" && ids && ids.length - done.length;
    this.trimmed.textContent = done.length ? said : "";
    if (left && !this.problem.textContent) this.problem.textContent = say("check_whole_left", { count: number(left) });
    if (which === "trim" && done.length) {
      this.trimmed.append(" ", button("undo", say("check_undo"), () => this.trim("trimmed", done)));
    }
    if (focused) this.tools.querySelector(".undo, button:not([hidden])")?.focus();
    changed();
  }

  row(row) {
    const entry = new Entry(this, row);
    this.rows.set(row.id, entry);
    return entry.element;
  }

  fillBin() {
    const rows = this.bin.map((row) => {
      const gone = element("div", "row gone");
      gone.setAttribute("role", "listitem");
      const back = button("back", say("check_put_back"), async () => {
        const found = await this.trying(() => this.ask("/back", { id: row.id }));
        if (!found) return;
        gone.remove();
        this.tell(found);
        changed();
      });
      gone.append(element("span", "words", row.text || say("check_no_words")), element("span", "time", seconds(row.seconds)), back);
      return gone;
    });
    let sure = false;
    const forget = button("forget", say("check_forget"), async () => {
      if (!sure) {
        sure = true;
        forget.textContent = say("check_forget_sure", { count: number(this.bin.length) });
        setTimeout(() => {
          sure = false;
          forget.textContent = say("check_forget");
        }, SURE);
        return;
      }
      await this.trying(() => this.ask("/removed", {}));
      this.choose("all");
    });
    this.rows.clear();
    this.list.replaceChildren(element("p", "nothing", say("check_removed_help")), ...rows, forget);
    this.pager.replaceChildren();
  }

  // Save what was written and not yet sent.
  keep(leaving = false) {
    for (const entry of this.rows.values()) entry.save(leaving);
  }
}

customElements.define("stentor-check", StentorCheck);
