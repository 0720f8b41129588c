// The page: what one sees and presses. The work is done in worker.js.

const AUTOMATIC = 60e6; // bytes up to which the model is downloaded without being asked for
const at = (id) => document.getElementById(id);
const worker = new Worker("worker.js", {type: "module"});
let ready = false, microphone = null, focused = null;

const megabytes = (bytes) => `${(bytes / 1e6).toFixed(1)} MB`;

function status(text, share = null) {
  if (at("status").textContent !== text) at("status").textContent = text;
  at("progress").hidden = share === null;
  at("progress").value = share ?? 0;
}

function failed(message) {
  at("error").textContent = message;
  at("error").hidden = false;
  status(ready ? "Ready." : "The model is not loaded.");
}

function enable(file, record) {
  if (document.activeElement !== document.body) focused = document.activeElement; // disabling takes the focus away
  at("file").disabled = !file;
  at("record").disabled = !record;
  if (focused?.disabled === false) focused.focus();
}

function show(segments, seconds, took) {
  at("text").textContent = segments.map((segment) => segment.text).join(" ");
  const words = segments.flatMap((segment) => segment.words);
  at("times").hidden = !words.length;
  at("times").querySelector("tbody").replaceChildren(...words.map(({word, start, end}) => {
    const row = document.createElement("tr");
    for (const text of [word, `${start.toFixed(2)} s`, `${end.toFixed(2)} s`]) row.insertCell().textContent = text;
    return row;
  }));
  if (seconds) at("seconds").textContent = `${seconds.toFixed(1)} s`;
  if (seconds) at("factor").textContent = (took / seconds).toFixed(3);
}

worker.onerror = (event) => failed(
  `The program of this page cannot run (${event.message ?? "a file is missing"}). Copy the folder whole, and use a current browser.`);

worker.onmessage = ({data}) => ({
  loading: ({loaded, total}) => status(`Loading the model: ${Math.floor(100 * loaded / total)} %`, loaded / total),
  ready: ({languages}) => {
    ready = true;
    at("language").hidden = !languages.length;
    at("language").querySelector("select").append(...languages.map((code) => new Option(name(code), code)));
    status("Ready.");
    enable(true, true);
  },
  progress: ({share, segments}) => {
    status(`Transcribing: ${Math.floor(100 * share)} %`, share);
    show(segments);
  },
  heard: ({segments, seconds, took}) => show(segments, seconds, took),
  done: ({segments, seconds, took}) => {
    show(segments, seconds, took);
    status(segments.length ? "Done." : "Done. No speech was found.");
    enable(true, true);
  },
  failed: ({during, message}) => {
    stop();
    failed(message);
    if (during !== "load") enable(true, true);
  },
})[data.kind](data);

function name(code) {
  try {
    return new Intl.DisplayNames(["en"], {type: "language"}).of(code);
  } catch {
    return code;
  }
}

function send(kind, facts = {}, moved = []) {
  if (ready) at("error").hidden = true;
  worker.postMessage({kind, language: at("language").querySelector("select").value || null, ...facts}, moved);
}

at("file").onchange = async ({target}) => {
  const [file] = target.files;
  if (!file) return;
  enable(false, false);
  status(`Reading ${file.name}.`);
  show([]);
  try {
    const audio = await decoded(await file.arrayBuffer());
    send("file", {audio}, [audio.buffer]);
  } catch {
    failed(file.size ? `${file.name} cannot be read as audio: it has no sound, or a format that this browser does not know. Convert it to WAV or MP3.`
      : `${file.name} is empty: choose another file.`);
    enable(true, true);
  }
  target.value = "";
};

// Samples at 16 kHz, the mean of the channels.
async function decoded(bytes) {
  const audio = await new OfflineAudioContext(1, 1, 16000).decodeAudioData(bytes);
  const channels = Array.from({length: audio.numberOfChannels}, (_, i) => audio.getChannelData(i));
  return Float32Array.from(channels[0], (_, i) => channels.reduce((sum, channel) => sum + channel[i], 0) / channels.length);
}

at("record").onclick = async () => {
  if (microphone) return stop();
  enable(false, false);
  try {
    if (!navigator.mediaDevices) throw new Error("browsers give it to pages from https:// and localhost only");
    const quiet = {echoCancellation: false, noiseSuppression: false, autoGainControl: false};
    const stream = await navigator.mediaDevices.getUserMedia({audio: {channelCount: 1, ...quiet}});
    const context = new AudioContext();
    microphone = {stream, context};
    await context.audioWorklet.addModule("microphone.js");
    const node = new AudioWorkletNode(context, "microphone", {numberOfOutputs: 0});
    node.port.onmessage = ({data}) => worker.postMessage({kind: "samples", samples: data}, [data.buffer]);
    show([]);
    send("record");
    context.createMediaStreamSource(stream).connect(node);
    at("record").textContent = "Stop";
    at("record").classList.add("on");
    status("Listening.");
    enable(false, true);
  } catch (error) {
    stop();
    failed(`The microphone cannot be used: ${error.message}. Connect one, and allow it for this page in the browser's settings.`);
    enable(true, true);
  }
};

function stop() {
  if (!microphone) return;
  microphone.stream.getTracks().forEach((track) => track.stop());
  microphone.context.close();
  microphone = null;
  at("record").textContent = "Use the microphone";
  at("record").classList.remove("on");
  enable(false, false);
  status("Transcribing the end.");
  worker.postMessage({kind: "stop"});
}

at("load").onclick = () => {
  at("load").hidden = true;
  status("Loading the model.", 0);
  send("load");
};

const listing = await fetch("files.json").then((answer) => answer.json()).catch(() => null);
if (!listing) failed("files.json cannot be read: copy the folder whole, and open the page from a web server.");
else {
  const total = Object.values(listing.files).reduce((sum, file) => sum + file.size, 0);
  at("size").textContent = megabytes(total);
  at("load").textContent = `Download the model (${megabytes(total)})`;
  const stored = await self.caches?.has(`stentor ${new URL("./", location.href).href} ${listing.version}`);
  if (total <= AUTOMATIC || stored) at("load").click();
  else {
    at("load").hidden = false;
    status("The model is not loaded yet.");
  }
  navigator.serviceWorker?.register("sw.js").catch(() => {}); // without one the page needs a network
}
