// What stands above the rows: progress, what is not saved yet, problems, the keys, and which microphone is used.
import { outbox } from "./speak-outbox.mjs";
import { element, say } from "./parts.mjs";

export class Head {
  /** `onDevice(id)` is called when another microphone is chosen. */
  constructor(onDevice) {
    this.count = element("span", "count");
    this.filled = element("div", "filled");
    const whole = element("div", "whole");
    whole.append(this.filled);
    this.waited = element("span");
    const again = element("button", "again", say("speak_again"));
    again.type = "button";
    again.onclick = () => outbox.again();
    this.waiting = element("div", "waiting");
    this.waiting.hidden = true;
    this.waiting.append(this.waited, again);
    const bar = element("div", "head");
    bar.append(this.count, whole, this.waiting);
    this.problem = element("div", "note");
    this.problem.setAttribute("role", "alert");
    this.inputs = element("select", "inputs");
    this.inputs.hidden = true;
    this.inputs.setAttribute("aria-label", say("speak_input"));
    this.inputs.onchange = () => onDevice(this.inputs.value);
    const tools = element("div", "tools");
    tools.append(keys(), this.inputs);
    this.nodes = [bar, this.problem, tools];
  }

  progress(recorded, shown, seconds) {
    this.count.textContent = say("speak_progress", { recorded, shown, minutes: (seconds / 60).toFixed(1) });
    this.filled.style.transform = `scaleX(${shown ? Math.min(1, recorded / shown) : 0})`;
  }

  note(text) {
    this.problem.textContent = text;
  }

  unsent(count) {
    this.waiting.hidden = !count;
    if (count) this.waited.textContent = say("speak_waiting", { count });
  }

  /** Offer the inputs [{id, label}] where there are several. */
  choices(found, chosen) {
    const offered = found.filter(({ id }) => id && id !== "communications");
    this.inputs.hidden = offered.length < 2;
    const known = JSON.stringify(offered);
    if (this.known === known) return;
    this.known = known;
    this.inputs.replaceChildren(...offered.map(({ id, label }) => new Option(label, id, false, id === chosen)));
  }
}

/** Which keys do what, of a text such as "R, Space: record; N: next". */
function keys() {
  const line = element("p", "keys");
  for (const pair of say("speak_keys").split(";")) {
    const [names, what] = pair.split(":");
    const item = element("span");
    item.append(...names.split(",").map((name) => element("kbd", "", name.trim())), ` ${what.trim()}`);
    line.append(item);
  }
  return line;
}
