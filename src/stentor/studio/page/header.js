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
