// The one player of the recording page: a hundred rows share it.
export class Player {
  #audio = new Audio();
  #button = null;
  #blob = null;

  constructor() {
    this.#audio.addEventListener("ended", () => this.quiet());
    this.#audio.addEventListener("error", () => this.quiet());
  }

  /** Play an address or a Blob, or stop if it is this button's that plays. The button has the class `on` meanwhile. */
  toggle(button, sound) {
    const stops = this.#button === button;
    this.quiet();
    if (stops) return;
    if (sound instanceof Blob) this.#blob = URL.createObjectURL(sound);
    this.#audio.src = this.#blob ?? sound;
    this.#button = button;
    button.classList.add("on");
    this.#audio.play().catch(() => this.#button === button && this.quiet());
  }

  quiet() {
    this.#audio.pause();
    this.#button?.classList.remove("on");
    this.#button = null;
    if (this.#blob) URL.revokeObjectURL(this.#blob);
    this.#blob = null;
  }
}
