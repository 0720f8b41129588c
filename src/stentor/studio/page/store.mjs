// What the browser keeps until the server has it: takes and chosen files, by data set. It outlives a reload, a lost
// connection and a closed tab. Kinds are "take", "draft" (of a take that is being made) and "file".

const DAYS = 7;  // after which what was kept is thrown away
const person = () => window.gradio_config?.username ?? "";  // two people may sign in from one browser, one after the other
const asked = (request) => new Promise((done, failed) => {
  request.onsuccess = () => done(request.result);
  request.onerror = () => failed(request.error);
});

function open() {
  const request = indexedDB.open("stentor", 1);
  const keyPath = ["person", "kind", "dataset", "name"];
  request.onupgradeneeded = () => request.result.createObjectStore("kept", { keyPath });
  return asked(request);
}

let database = null;
async function entries(mode = "readonly") {
  return (await (database ??= open())).transaction("kept", mode).objectStore("kept");
}
const range = (...begin) => IDBKeyRange.bound([person(), ...begin], [person(), ...begin, []]);

/** Keep a value (a Blob, or what JSON can say); answers whether the browser does, which a full disk prevents. */
export async function put(kind, dataset, name, value) {
  try {
    await asked((await entries("readwrite")).put({ person: person(), kind, dataset, name, value, time: Date.now() }));
    return true;
  } catch (error) {
    console.warn("stentor: the browser does not keep it", error);
    return false;
  }
}

/** What is kept, in the order of its names: [{dataset, name, value}], of one data set or of all. */
export async function all(kind, ...dataset) {
  try {
    const found = await asked((await entries()).getAll(range(kind, ...dataset)));
    const old = Date.now() - 86_400_000 * DAYS;
    for (const { dataset: of, name, time } of found) if (time < old) drop(kind, of, name);
    return found.filter(({ time }) => time >= old);
  } catch (error) {
    console.warn("stentor: the browser keeps nothing", error);
    return [];
  }
}

/** Keep it no longer; without a name, nothing of this kind of the data set. */
export async function drop(kind, dataset, ...name) {
  try {
    await asked((await entries("readwrite")).delete(range(kind, dataset, ...name)));
  } catch (error) {
    console.warn("stentor: the browser keeps nothing", error);
  }
}
