// The curves of a run: what was unfolded stays so when they are drawn again.
class StentorCurves extends HTMLElement {
  static observedAttributes = ["data-version"];
  connectedCallback() { this.unfold(); }
  attributeChangedCallback() { this.unfold(); }
  unfold() {
    // Its children may come a moment after itself.
    requestAnimationFrame(() => {
      const more = this.querySelector("details");
      if (!more) return;
      more.open = StentorCurves.more;
      more.ontoggle = () => { StentorCurves.more = more.open; };
    });
  }
}
StentorCurves.more = false;
customElements.define("stentor-curves", StentorCurves);

// One recording at a time.
document.addEventListener("play", (event) => {
  if (!event.target.closest?.(".stentor-run")) return;
  document.querySelectorAll(".stentor-run audio").forEach((player) => { if (player !== event.target) player.pause(); });
}, true);
