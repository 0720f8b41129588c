// Accessible names that Gradio's editors lack, and the state of the chosen run for those who hear the page.
const told = Object.assign(document.createElement("p"), { className: "stentor-told", role: "status" });
let before, due;

function named() {
  due = undefined;
  for (const code of document.querySelectorAll(".cm-content")) {
    const name = code.closest(".block")?.querySelector("label")?.textContent.trim();
    if (name && code.ariaLabel !== name) Object.assign(code, { ariaLabel: name, ariaDescription: window.stentorTexts.editor_keys, tabIndex: 0 });
  }
  const log = document.querySelector("#log");
  if (log) Object.assign(log, { role: "log", ariaLive: "off", ariaLabel: log.querySelector("label span")?.textContent.trim() });
  if (!told.isConnected) document.body.append(told);
  const run = document.querySelector("#status .state");
  if (run && before && run.dataset.state !== before) told.textContent = run.querySelector(".sentence").textContent;
  before = run?.dataset.state;
}
new MutationObserver(() => { due ??= requestAnimationFrame(named); })
  .observe(document.documentElement, { subtree: true, childList: true });
