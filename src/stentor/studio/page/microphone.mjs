// The browser's microphone as 16-bit mono PCM at its own rate. No MediaRecorder: it gives lossy webm or m4a, another in
// each browser, and a model would learn their artefacts.

const TAIL = 150;  // ms that are recorded after "stop": the microphone runs behind, and fingers are faster than words
const IDLE = 30_000;  // ms after a take until the microphone is let go, and the browser's red dot with it
const MADE = 6;  // pieces after which what has come is handed over
const SILENT = 4_000;  // ms without a single sample until something must be wrong
// The filters of phone calls are off. They cut quiet ends of words, pump the level and differ from browser to browser:
// a model would learn them, and later users do not speak through the same ones. And a background that they hide
// could not be reported.
const PLAIN = { echoCancellation: false, noiseSuppression: false, autoGainControl: false, channelCount: { ideal: 1 } };
const PROBLEMS = {
  NotAllowedError: "speak_mic_refused", SecurityError: "speak_mic_refused", NotFoundError: "speak_mic_missing",
  OverconstrainedError: "speak_mic_missing", NotReadableError: "speak_mic_busy", AbortError: "speak_mic_busy",
};

/** Runs in the audio thread: hands the samples over as 16-bit integers, with the peak of each piece. */
function capture() {
  const PIECE = 2048;  // samples: 43 ms at 48 kHz, twenty pieces a second for the meter

  class Capture extends AudioWorkletProcessor {
    constructor() {
      super();
      this.samples = new Int16Array(PIECE);
      this.filled = 0;
      this.peak = 0;
      this.stopped = false;
      this.port.onmessage = () => {
        this.hand();
        this.port.postMessage(null);
        this.stopped = true;
      };
    }

    process(inputs) {
      const heard = inputs[0][0];  // mono: the node mixes the channels down; absent until the microphone runs
      if (heard && !this.stopped) {
        for (const value of heard) {
          const size = Math.abs(value);
          if (size > this.peak) this.peak = size;
          this.samples[this.filled++] = Math.max(-32768, Math.min(32767, Math.round(value * 32768)));
          if (this.filled === PIECE) this.hand();
        }
      }
      return !this.stopped;
    }

    hand() {
      const samples = this.samples.slice(0, this.filled);
      this.port.postMessage({ samples, peak: this.peak }, [samples.buffer]);
      this.filled = 0;
      this.peak = 0;
    }
  }

  registerProcessor("stentor-capture", Capture);
}
// From memory and not from the server: a take can begin while the connection is broken.
const CAPTURE = URL.createObjectURL(new Blob([`(${capture})()`], { type: "text/javascript" }));

/** What keeps this page from the microphone before anybody is asked: a key of the texts, or null. */
export function blocked() {
  if (navigator.mediaDevices?.getUserMedia && window.AudioWorkletNode) return null;
  return window.isSecureContext ? "speak_mic_old" : "speak_mic_insecure";
}

/** An error whose `message` is a key of the texts. */
export class MicrophoneProblem extends Error {}

export class Microphone {
  #stream = null;
  #context = null;
  #source = null;
  #node = null;
  #idle = 0;
  #take = null;
  device = "";  // id of the chosen input; empty: the browser's choice

  /**
   * Begin a take. `onLevel(peak 0..1, seconds)` is called twenty times a second, `onEnd()` once if the take must end by
   * itself: `most(rate)` seconds are over, or the microphone is gone. Resolves when the first samples have come.
   * `onPiece(Int16Array)`, where there is one, gets the samples, and the take is empty. `onMade([Int16Array], rate)` gets
   * what has come since the last time, a few times a second.
   */
  async start({ onLevel, onEnd, onPiece, onMade, most }) {
    clearTimeout(this.#idle);
    await this.#open();
    const context = this.#context;
    const node = new AudioWorkletNode(context, "stentor-capture", {
      numberOfInputs: 1, numberOfOutputs: 1, channelCount: 1, channelCountMode: "explicit",
    });
    const take = { pieces: [], count: 0, rate: context.sampleRate, limit: most(context.sampleRate), over: null };
    const end = () => {
      if (!take.ended) onEnd();
      take.ended = true;
    };
    const first = new Promise((resolve, reject) => {
      const wait = setTimeout(() => reject(new MicrophoneProblem("speak_mic_dead")), SILENT);
      node.port.onmessage = ({ data }) => {
        if (data === null) return take.over?.();
        clearTimeout(wait);
        resolve();
        if (onPiece) onPiece(data.samples);
        else take.pieces.push(data.samples);
        if (onMade && take.pieces.length % MADE === 0) onMade(take.pieces.slice(-MADE), take.rate);
        take.count += data.samples.length;
        const seconds = take.count / take.rate;
        onLevel(data.peak, seconds);
        if (seconds > take.limit) end();
      };
    });
    const track = this.#stream.getAudioTracks()[0];
    track.onended = () => {
      this.close();
      end();
    };
    this.#take = take;
    this.#node = node;
    this.#source.connect(node);
    node.connect(context.destination);  // it stays silent; some browsers only run what leads somewhere
    try {
      await first;
    } catch (problem) {
      this.#rest();
      this.close();
      throw problem;
    }
  }

  /** End the take: a WAV file and its seconds. */
  async stop() {
    const take = this.#take;
    const node = this.#node;
    if (this.#context) {
      await new Promise((resolve) => setTimeout(resolve, TAIL));
      // A context that was stopped meanwhile answers no more: what has come is the take.
      const over = new Promise((resolve) => { take.over = resolve; setTimeout(resolve, 500); });
      node.port.postMessage("stop");
      await over;
    }
    this.#rest();
    return { wav: wav(take.pieces, take.rate), seconds: take.count / take.rate };
  }

  /** Throw the take away. */
  cancel() {
    this.#node?.port.postMessage("stop");
    this.#rest();
  }

  /** Let the microphone go at once. */
  close() {
    clearTimeout(this.#idle);
    this.#stream?.getTracks().forEach((track) => { track.onended = null; track.stop(); });
    this.#context?.close();
    this.#stream = this.#context = this.#source = null;
  }

  /** The inputs that can be chosen: [{id, label}], known once the microphone was allowed. */
  async inputs() {
    const found = await navigator.mediaDevices.enumerateDevices();
    return found.filter((d) => d.kind === "audioinput" && d.label).map((d) => ({ id: d.deviceId, label: d.label }));
  }

  async #open() {
    if (this.#context && this.#stream.active) {
      await this.#context.resume();
      return;
    }
    this.close();
    const key = blocked();
    if (key) throw new MicrophoneProblem(key);
    const audio = this.device ? { ...PLAIN, deviceId: { exact: this.device } } : PLAIN;
    // Made before anything is waited for: phones start it only right after a touch.
    const context = new AudioContext({ latencyHint: "interactive" });
    try {
      const [stream] = await Promise.all([
        navigator.mediaDevices.getUserMedia({ audio }),
        context.audioWorklet.addModule(CAPTURE),
      ]);
      await context.resume();
      this.#stream = stream;
      this.#source = context.createMediaStreamSource(stream);
      this.#context = context;
    } catch (error) {
      context.close();
      throw new MicrophoneProblem(PROBLEMS[error.name] ?? "speak_mic_dead", { cause: error });
    }
  }

  #rest() {
    this.#node?.disconnect();
    if (this.#source && this.#node) this.#source.disconnect(this.#node);
    this.#node = this.#take = null;
    clearTimeout(this.#idle);
    this.#idle = setTimeout(() => this.close(), IDLE);
  }
}

/** A WAV file (16-bit mono) of pieces of Int16Array. */
export function wav(pieces, rate) {
  const bytes = 2 * pieces.reduce((sum, piece) => sum + piece.length, 0);
  const head = new DataView(new ArrayBuffer(44));
  const write = (at, text) => [...text].forEach((c, i) => head.setUint8(at + i, c.charCodeAt(0)));
  write(0, "RIFF");
  head.setUint32(4, 36 + bytes, true);
  write(8, "WAVEfmt ");
  head.setUint32(16, 16, true);
  head.setUint16(20, 1, true);
  head.setUint16(22, 1, true);
  head.setUint32(24, rate, true);
  head.setUint32(28, 2 * rate, true);
  head.setUint16(32, 2, true);
  head.setUint16(34, 16, true);
  write(36, "data");
  head.setUint32(40, bytes, true);
  return new Blob([head, ...pieces], { type: "audio/wav" });
}
