"use strict";
// Shows the values of a chart under the pointer, or under the arrow keys. `area` is the chart's .area; `chart` is
// {bounds, log, percent, ordered, unit, lines: [{name, xs, ys}]} as Python's `hover` makes it.
const showValues = (() => {
function text(value, percent) {
  if (percent) return (100 * value).toFixed(value < 0.1 ? 2 : 1) + " %";
  if (value === 0) return "0";
  const size = Math.abs(value);
  return size < 1e-3 ? value.toExponential(2) : size >= 1e4 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
}

function nearest(xs, x) {
  let low = 0, high = xs.length - 1;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (xs[middle] < x) low = middle + 1; else high = middle;
  }
  return low > 0 && x - xs[low - 1] < xs[low] - x ? low - 1 : low;
}

function showValues(area, chart) {
  const [x0, x1, y0, y1] = chart.bounds;
  const longest = chart.lines.reduce((a, b) => (b.xs.length > a.xs.length ? b : a));
  const cross = area.querySelector(".cross"), tip = area.querySelector(".tip");
  const knobs = chart.lines.map((_, i) => {
    const knob = document.createElement("div");
    knob.className = "knob " + (chart.ordered ? "ramp" : "s" + (i % 6 + 1));
    if (chart.ordered) knob.style.setProperty("--at", 100 * i / Math.max(1, chart.lines.length - 1) + "%");
    knob.hidden = true;
    area.append(knob);
    return knob;
  });
  let at = -1;

  function show(x) {
    at = nearest(longest.xs, x);
    const step = longest.xs[at], left = 100 * (step - x0) / (x1 - x0);
    cross.hidden = tip.hidden = false;
    cross.style.left = left + "%";
    tip.replaceChildren(chart.unit ? step + " " + chart.unit : "step " + step.toLocaleString("en"));
    chart.lines.forEach((line, i) => {
      const k = nearest(line.xs, step), value = line.ys[k], y = chart.log ? Math.log10(value) : value;
      knobs[i].hidden = false;
      knobs[i].style.left = 100 * (line.xs[k] - x0) / (x1 - x0) + "%";
      knobs[i].style.bottom = 100 * Math.min(1, Math.max(0, (y - y0) / (y1 - y0))) + "%";
      const bold = document.createElement("b");
      bold.textContent = text(value, chart.percent);
      tip.append(document.createElement("br"), chart.lines.length > 1 ? line.name + " " : "", bold);
    });
    tip.style.left = left < 55 ? "calc(" + left + "% + 9px)" : "auto";
    tip.style.right = left < 55 ? "auto" : "calc(" + (100 - left) + "% + 9px)";
  }
  function hide() {
    at = -1;
    cross.hidden = tip.hidden = true;
    knobs.forEach((knob) => { knob.hidden = true; });
  }
  function point(event) {
    const box = area.getBoundingClientRect();
    show(x0 + (x1 - x0) * (event.clientX - box.left) / box.width);
  }
  area.addEventListener("pointermove", point);
  area.addEventListener("pointerdown", point);
  area.addEventListener("pointerleave", hide);
  area.addEventListener("blur", hide);
  area.addEventListener("keydown", (event) => {
    const move = { ArrowRight: 1, ArrowLeft: -1, Home: -Infinity, End: Infinity }[event.key];
    if (move === undefined) return;
    event.preventDefault();
    const last = longest.xs.length - 1, from = at < 0 ? (move > 0 ? -1 : last + 1) : at;
    show(longest.xs[Math.min(last, Math.max(0, from + move))]);
  });
}
return showValues;
})();
