// Gradio takes a broken connection for the end of its page, throws the page away and loads it again. Here its requests
// wait until the server is reached, and the page stays as it is. Only where the server is another one meanwhile, the
// page is loaded again, once the person is not in the middle of something; what is kept (keep.js, store.mjs) comes back.
{
  const AGAIN = 1000;  // ms between two looks
  const SAID = 15_000;  // ms that a sentence stays
  const QUIET = 3000;  // ms after a key until typing is over
  const direct = window.fetch.bind(window);
  const waiting = new Set();  // events whose answers are to come through the stream that is open
  let back = null;
  let typed = -QUIET;
  document.addEventListener("keydown", () => { typed = performance.now(); }, true);

  const pause = () => new Promise((done) => setTimeout(done, AGAIN));
  const asked = async (path) => (await direct(path, { signal: AbortSignal.timeout(10_000) })).json();

  /** Whether the person does not type, and no part of the page says that it is in the middle of something. */
  const idle = () => performance.now() - typed > QUIET
    && document.dispatchEvent(new Event("stentor-reload", { cancelable: true }));

  /** A line at the bottom of the page; none for an empty key. */
  function tell(key) {
    let line = document.querySelector(".stentor-lost");
    if (!line) {
      line = document.createElement("div");
      line.className = "stentor-lost";
      line.setAttribute("role", "status");
      document.body.append(line);
    }
    line.textContent = key ? window.stentorTexts[key] : "";
  }

  async function look() {
    tell("connection_lost");
    for (let ready = false; !ready;) {
      await pause();
      ready = await asked("/studio/ready").then((said) => said.ready, () => false);
    }
    back = null;
    tell("");
    renew();
  }

  /** Resolves when the server answers again. */
  const returned = () => (back ??= look());

  async function renew() {
    document.querySelector("#changed")?.click();
    const { app_id: now } = await asked("/gradio_api/app_id").catch(() => ({}));
    if (!now || now === window.gradio_config.app_id) return;
    do await pause(); while (waiting.size || !idle());
    location.reload();
  }

  async function patient(request, options) {
    for (;;) {
      try {
        const answer = await direct(request instanceof Request ? request.clone() : request, options);
        if (![502, 503, 504].includes(answer.status)) return answer;
      } catch (error) {
        if (error.name === "AbortError") throw error;
      }
      await returned();
    }
  }

  /** The stream of answers. Where it breaks, what was still to come has failed; the page says so. */
  function unbroken(answer) {
    const reader = answer.body.getReader();
    const line = (message) => new TextEncoder().encode(`\n\ndata: ${JSON.stringify(message)}\n\n`);
    const body = new ReadableStream({
      async pull(stream) {
        try {
          const { done, value } = await reader.read();
          if (!done) return stream.enqueue(value);
        } catch (error) {
          if (error.name === "AbortError") return stream.close();  // by Gradio, which leaves
          const output = { error: window.stentorTexts.connection_cut, visible: false };
          const failed = [...waiting].map((id) => ({ msg: "process_completed", event_id: id, success: false, output }));
          for (const message of [...failed, { msg: "close_stream" }]) stream.enqueue(line(message));
          returned().then(() => { tell("connection_cut"); setTimeout(tell, SAID); });
        }
        waiting.clear();
        stream.close();
      },
      cancel: (why) => reader.cancel(why),
    });
    return new Response(body, { status: answer.status, headers: answer.headers });
  }

  window.fetch = async (request, options) => {
    const { pathname } = new URL(request.url ?? request, location.href);
    if (pathname.endsWith("/app_id") && !idle()) return new Response("", { status: 503 });  // or Gradio loads it
    if (pathname.endsWith("/queue/data")) return unbroken(await patient(request, options));
    if (!pathname.endsWith("/queue/join")) return direct(request, options);
    const answer = await patient(request, options);
    if (answer.ok) waiting.add((await answer.clone().json()).event_id);
    return answer;
  };
}
