// The top of the page: its name, the switch between light and dark, and the way out.
const chosenLook = () => localStorage.getItem("stentor-look");

function applyLook() {
  const look = chosenLook();
  if (look) document.body.classList.toggle("dark", look === "dark");
}

class StentorHeader extends HTMLElement {
  connectedCallback() {
    if (this.childElementCount) return;
    const say = window.stentorTexts;
    const name = document.createElement("div");
    const title = document.createElement("h1");
    title.textContent = say.title;
    const tagline = document.createElement("p");
    tagline.textContent = say.tagline;
    name.append(title, tagline);
    const look = document.createElement("button");
    look.type = "button";
    look.textContent = "◐";
    look.title = say.light_dark;
    look.setAttribute("aria-label", say.light_dark);
    look.onclick = () => {
      localStorage.setItem("stentor-look", document.body.classList.contains("dark") ? "light" : "dark");
      applyLook();
    };
    this.append(name, look);
    if (this.hasAttribute("signed-in")) {
      const form = document.createElement("form");
      form.method = "post";
      form.action = "/studio/sign-out";
      const out = document.createElement("button");
      out.textContent = say.sign_out;
      form.append(out);
      this.append(form);
    }
    applyLook();
  }
}
customElements.define("stentor-header", StentorHeader);
// Gradio sets the class by the browser's setting when it starts.
new MutationObserver(() => {
  const look = chosenLook();
  if (look && document.body.classList.contains("dark") !== (look === "dark")) applyLook();
}).observe(document.documentElement, { subtree: true, attributes: true, attributeFilter: ["class"] });

// The step stands in the address, so that a page that is opened again comes back to it. The tabs are drawn some times
// while it opens, the last of them when the server has said which steps are possible; whoever clicks one ends the search.
const wanted = /^#[a-z]+$/.test(location.hash) && location.hash.slice(1);
let still = 0;
const seek = wanted && setInterval(() => {
  const tab = document.getElementById(`step_${wanted}-button`);
  if (tab?.getAttribute("aria-selected") === "true") still += 1;
  else {
    still = 0;
    tab?.click();
  }
  if (still === 8) clearInterval(seek);
}, 250);
if (seek) setTimeout(() => clearInterval(seek), 30000); // the step may not be possible any more
document.addEventListener("click", (event) => {
  const tab = event.target.closest?.("#steps button[role=tab]");
  if (!tab?.id.startsWith("step_")) return;
  if (event.isTrusted) clearInterval(seek);
  history.replaceState(null, "", `#${tab.id.replace("-button", "").slice(5)}`);
});
