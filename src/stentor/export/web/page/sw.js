// Service worker: after the first visit the page works without a network. Large files are stored by worker.js.

const CACHE = `stentor ${registration.scope} {{ version }}`;
const PAGE = {{ page }};

self.addEventListener("install", (event) => {
  const store = async () => (await caches.open(CACHE)).addAll(PAGE.map((name) => new Request(name, {cache: "reload"})));
  event.waitUntil(store().then(() => self.skipWaiting()));
});

self.addEventListener("activate", (event) => {
  const others = async () => (await caches.keys()).filter((key) => key.startsWith(`stentor ${registration.scope} `) && key !== CACHE);
  event.waitUntil(others().then((keys) => Promise.all(keys.map((key) => caches.delete(key)))).then(() => clients.claim()));
});

self.addEventListener("fetch", (event) => {
  if (event.request.method !== "GET" || !event.request.url.startsWith(registration.scope)) return;
  const answer = async () => (await (await caches.open(CACHE)).match(event.request, {ignoreSearch: true})) ?? fetch(event.request);
  event.respondWith(answer());
});
