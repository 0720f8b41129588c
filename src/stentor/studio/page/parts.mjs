// What the modules of the page have in common. Texts of a person or a file only ever become text, never HTML.

const form = (text, count) => text.other ? text[String(count) === "1" ? "one" : "other"] : text;
/** A sentence of the page with its values filled in, in its form for the value `count`. */
export const say = (key, values = {}) =>
  form(window.stentorTexts[key] ?? key, values.count).replace(/\{(\w+)\}/g, (_, name) => values[name]);

export const element = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};

/** A button of which only a picture is seen; `label` is its name. */
export const button = (name, label) => {
  const made = element("button", name);
  made.type = "button";
  made.title = label;
  made.setAttribute("aria-label", label);
  return made;
};

/** A control under its name, with a line of help in between. */
export const field = (text, control, help) => {
  const label = element("label", "field");
  label.append(element("span", "label", text));
  if (help) label.append(element("span", "help", help));
  label.append(control);
  return label;
};

/** Seconds as they are shown. */
export const clock = (seconds) => say("speak_seconds", { seconds: seconds.toFixed(1) });

// Fields as high as their text where the browser cannot do it by itself: all are measured, then all are set.
const fits = CSS.supports("field-sizing", "content");
export function fit(fields) {
  if (fits) return;
  for (const field of fields) field.style.height = "auto";
  const heights = fields.map((field) => field.scrollHeight);
  fields.forEach((field, i) => (field.style.height = `${heights[i] + 2}px`));
}
