"use strict";
// Drawings of a recording: a line follows the sound, and a stretch plays when it is clicked. Heard at the document, so
// that it works for drawings that come later.
(() => {
  const ends = new WeakMap();
  function follow(event) {
    const player = event.target, card = player.closest?.(".drawn");
    if (!card || player.tagName !== "AUDIO") return;
    const now = player.currentTime;
    for (const score of card.querySelectorAll(".score")) {
      const line = score.querySelector(".head"), at = (now - (score.dataset.begin || 0)) / score.dataset.seconds;
      line.hidden = at < 0 || at > 1.01;
      line.style.left = Math.min(100, 100 * at) + "%";
    }
    if (now >= ends.get(player)) player.pause();
    if (!player.paused) requestAnimationFrame(() => follow(event));
  }
  for (const kind of ["play", "seeked"]) document.addEventListener(kind, follow, true);
  document.addEventListener("pause", (event) => ends.delete(event.target), true);
  document.addEventListener("click", (event) => {
    const part = event.target.closest?.(".drawn .score [data-start]"), player = part?.closest(".drawn").querySelector("audio");
    if (!player) return;
    player.currentTime = part.dataset.start;
    ends.set(player, Number(part.dataset.end));
    player.play();
  });
})();
