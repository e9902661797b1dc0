"use strict";

const at = (id) => document.getElementById(id);
const tabs = [...document.querySelectorAll("[role=tab]")];

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function headers() {
  const key = sessionStorage.getItem("key");
  return { "Content-Type": "application/json", ...(key ? { Authorization: `Bearer ${key}` } : {}) };
}

async function call(path, body) {
  const options = body ? { method: "POST", body: JSON.stringify(body) } : {};
  const answer = await fetch(path, { ...options, headers: headers() });
  if (answer.status === 401) {
    const key = prompt("The server asks for its API key");
    if (key) {
      sessionStorage.setItem("key", key.trim());
      return call(path, body);
    }
  }
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

async function tell(work) {
  at("message").textContent = "";
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    at("message").textContent = error.message;
  } finally {
    document.body.removeAttribute("aria-busy");
  }
}

function hits(list, found) {
  list.replaceChildren(...found.map((hit) => {
    const row = document.createElement("li");
    const text = element("span", hit.text);
    const rank = (side) => hit[`${side}_rank`] ? ` (#${hit[`${side}_rank`]})` : "";
    const by = (name, side) => hit[side] ? `${name} ${hit[side].toFixed(3)}${rank(side)}` : "";
    const sides = "dense" in hit ? [by("meaning", "dense"), by("words", "words")] : [];
    text.append(" ", element("small", [hit.id, ...sides].filter(Boolean).join(" · ")));
    row.append(element("span", hit.score.toFixed(3), { class: "score" }), text);
    return row;
  }));
}

const lines = (id) => at(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

const forms = {
  async search() {
    const q = at("query").value, mode = at("mode").value;
    history.replaceState(null, "", `?${new URLSearchParams({ q, mode })}#search`);
    const answer = await call("/search", { queries: q, top_k: 20, mode });
    hits(at("hits"), answer.results[0]);
  },
  async compare() {
    const first = lines("first"), second = lines("second");
    const cosines = await call("/matrix", { first, second });
    const head = document.createElement("tr");
    head.append(document.createElement("td"), ...second.map((text) => element("th", text, { scope: "col" })));
    head.firstChild.style.setProperty("--share", 0);
    at("matrix").replaceChildren(head, ...cosines.map((row, number) => {
      const line = document.createElement("tr");
      line.append(element("th", first[number], { scope: "row" }), ...row.map((cosine) => {
        const cell = element("td", cosine.toFixed(3));
        cell.style.setProperty("--share", (Math.max(0, cosine) * 0.6).toFixed(3));
        return cell;
      }));
      return line;
    }));
  },
};

async function facts(about) {
  const model = await call("/info");
  const shown = { ...model, pooler: model.model_type.embedding.pooling };
  delete shown.model_type;
  if (about.index) {
    const index = await call("/index");
    Object.assign(shown, { "texts in the index": index.texts, "kind of index": index.kind });
    if (index.approximate) shown.recall = index.approximate.recall;
    if (index.words) shown["weight of words"] = index.words.weight;
  }
  at("facts").replaceChildren(...Object.entries(shown).filter(([, value]) => value !== null).flatMap(
    ([name, value]) => [element("dt", name.replaceAll("_", " ")), element("dd", String(value))]));
}

let about;

function show(name) {
  for (const tab of tabs) {
    const chosen = tab.getAttribute("aria-controls") === name;
    tab.setAttribute("aria-selected", chosen);
    tab.tabIndex = chosen ? 0 : -1;
    at(tab.getAttribute("aria-controls")).hidden = !chosen;
  }
  history.replaceState(null, "", `#${name}`);
  if (name === "about") tell(() => facts(about));
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const shown = tabs.filter((each) => !each.hidden);
    const next = shown[(shown.indexOf(tab) + step + shown.length) % shown.length];
    next.focus();
    show(next.getAttribute("aria-controls"));
  });
}
for (const [name, work] of Object.entries(forms)) {
  at(name).querySelector("form").addEventListener("submit", (event) => {
    event.preventDefault();
    tell(work);
  });
}

tell(async () => {
  about = await call("/page/about");
  at("model").textContent = about.model;
  at("tab-search").hidden = !about.index;
  if (about.index) at("mode").hidden = !(await call("/index")).words;
  const asked = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash && !tab.hidden);
  const sent = new URLSearchParams(location.search);
  if (about.index && sent.has("q")) {
    at("query").value = sent.get("q");
    if (!at("mode").hidden) at("mode").value = sent.get("mode") || "auto";
    tell(forms.search);
  }
  show(asked ? asked.getAttribute("aria-controls") : about.index ? "search" : "compare");
});
