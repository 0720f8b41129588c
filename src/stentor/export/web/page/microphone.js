// Audio of the microphone at 16 kHz, in blocks of a tenth of a second: a windowed sinc from the rate of the device.

const [RATE, BLOCK] = [16000, 1600];

registerProcessor("microphone", class extends AudioWorkletProcessor {
  history = [];
  place = 0; // of the next output sample, in samples of `history`
  block = [];

  process([[input]]) {
    if (!input) return true;
    const cutoff = Math.min(1, RATE / sampleRate), half = 16 / cutoff;
    this.history.push(...input);
    for (; this.place + half < this.history.length; this.place += sampleRate / RATE) {
      let sum = 0;
      for (let i = Math.max(0, Math.ceil(this.place - half)); i < this.place + half; i++) {
        const x = i - this.place, angle = Math.PI * cutoff * x;
        sum += this.history[i] * (angle ? Math.sin(angle) / angle : 1) * (0.5 + 0.5 * Math.cos(Math.PI * x / half));
      }
      this.block.push(cutoff * sum);
    }
    const used = Math.max(0, Math.floor(this.place - half));
    this.history.splice(0, used);
    this.place -= used;
    if (this.block.length >= BLOCK) this.port.postMessage(Float32Array.from(this.block.splice(0)));
    return true;
  }
});
