"use strict";
// Values under the pointer, and the copy button. The page is complete without it.
const charts = JSON.parse(document.getElementById("charts").textContent);
document.querySelectorAll(".charts .area").forEach((area, number) => showValues(area, charts[number]));

document.querySelectorAll("button[data-copy]").forEach((button) => button.addEventListener("click", async () => {
  await navigator.clipboard.writeText(document.getElementById(button.dataset.copy).textContent);
  button.textContent = "Copied";
}));

// One recording at a time.
document.addEventListener("play", (event) => document.querySelectorAll("audio").forEach((player) => {
  if (player !== event.target) player.pause();
}), true);
