// What of the page comes back when it is loaded again, or when the data set is chosen again: data set and step are in
// the address, so that a link shows the same; what is filled in is kept by the browser for this tab, by data set.
{
  const MOST = 300_000;  // characters of a value; a longer one is not kept
  const person = () => window.gradio_config?.username ?? "";
  const place = (...parts) => ["stentor", person(), ...parts.map(encodeURIComponent)].join("/");
  let now = null;  // the data set that the page shows
  const first = new Map();  // by field, its value in a new page
  const address = () => Object.fromEntries(new URLSearchParams(location.search));
  let gone = "";

  function show(part, value, how = "pushState") {
    const url = new URL(location.href);
    if (url.searchParams.get(part) === value) return;
    url.searchParams.set(part, value);
    history[how](null, "", url);
  }

  function drop(dataset) {
    const begin = place(dataset, "");
    Object.keys(sessionStorage).filter((key) => key.startsWith(begin)).forEach((key) => sessionStorage.removeItem(key));
  }

  function write(dataset, name, value) {
    const text = JSON.stringify(value ?? null);
    const key = place(dataset, name);
    if (text === "null" || text.length > MOST) return sessionStorage.removeItem(key);
    try {
      sessionStorage.setItem(key, text);
    } catch {  // the browser keeps some megabytes: other data sets give way
      Object.keys(sessionStorage).filter((other) => !other.startsWith(place(dataset, "")))
        .forEach((other) => sessionStorage.removeItem(other));
      try {
        sessionStorage.setItem(key, text);
      } catch (error) {
        console.warn("stentor: the browser does not keep it", error);
      }
    }
  }

  window.stentorKeep = {
    /** Data set and step of the address. */
    wanted: () => [address().dataset ?? "", address().step ?? ""],

    /**
     * The page shows this data set: its name, then the values of the fields: what is kept of them, and otherwise what a
     * new page has. `fields` says of each whether it is a list that is still empty: it gets the one choice,
     * or it would show nothing.
     */
    shown(chosen, fields, values) {
      const names = Object.keys(fields);
      const changed = { __type__: "update" };
      const [before, dataset] = [now, chosen ?? ""];
      if (before === null) names.forEach((name, i) => first.set(name, values[i]));
      show("dataset", dataset, before === null ? "replaceState" : "pushState");
      now = dataset;
      if (before === dataset) return names.concat("").map(() => changed);
      return [dataset, ...names.map((name) => {
        const text = sessionStorage.getItem(place(dataset, name));
        if (text === null) return before === null ? changed : { ...changed, value: first.get(name) };
        const value = JSON.parse(text);
        return { ...changed, ...(fields[name] && before === null ? { choices: [[value, value]] } : {}), value };
      })];
    },

    put(name, value) {
      if (now !== null) write(now, name, value);
    },

    read: (dataset, name) => JSON.parse(sessionStorage.getItem(place(dataset, name)) ?? "null"),
    write,

    /** The data set is to be deleted, and is. */
    deleting: (dataset) => (gone = dataset),
    async deleted() {
      if (!gone) return;
      drop(gone);
      const { drop: dropStored } = await import("/studio/page/store.mjs");
      for (const kind of ["take", "draft", "file"]) dropStored(kind, gone);
    },
  };

  // The tabs are drawn some times while the page opens, the last of them when the server has said which steps are
  // possible; a click on one ends the search. A step may not be possible any more.
  let search = 0;
  function seek(step, seconds = 30) {
    let still = 0;
    let looks = 4 * seconds;
    clearInterval(search);
    search = setInterval(() => {
      const tab = document.getElementById(`step_${step}-button`);
      if (tab?.getAttribute("aria-selected") === "true") still += 1;
      else {
        still = 0;
        tab?.click();
      }
      if (still === 8 || --looks === 0) clearInterval(search);
    }, 250);
  }
  if (address().step) seek(address().step);
  document.addEventListener("click", (event) => {
    const tab = event.target.closest?.("#steps button[role=tab]");
    if (!tab?.id.startsWith("step_")) return;
    if (event.isTrusted) clearInterval(search);
    show("step", tab.id.replace("-button", "").slice(5), event.isTrusted ? "pushState" : "replaceState");
  });
  window.addEventListener("popstate", () => {
    document.querySelector("#address")?.click();
    seek(address().step ?? "speak", 3);
  });
  document.addEventListener("submit", (event) => {
    if (event.target.action?.endsWith("/studio/sign-out")) sessionStorage.clear();
  });
}
