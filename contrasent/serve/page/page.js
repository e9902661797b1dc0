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
    text.append(" ", element("small", hit.id));
    row.append(element("span", hit.score.toFixed(3), { class: "score" }), text);
    return row;
  }));
}

const lines = (id) => at(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

const forms = {
  async search() {
    const answer = await call("/search", { queries: at("query").value, top_k: 20 });
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
  async neighbours() {
    const answer = await call("/neighbours", { queries: at("sentence").value });
    at("sides").replaceChildren(...answer.encoders.map((side) => {
      const column = document.createElement("div");
      const list = element("ol", "", { class: "hits" });
      hits(list, side.results[0]);
      column.append(element("h2", side.name), list);
      return column;
    }));
  },
};

function plots() {
  if (window.Plotly) return Promise.resolve();
  return new Promise((done, failed) => {
    const script = element("script", "", { src: "/page/plotly.js" });
    script.onload = done;
    script.onerror = () => failed(new Error("the map needs plotly on the server"));
    document.head.append(script);
  });
}

async function draw() {
  at("shown").textContent = "is being drawn ...";
  const [points] = await Promise.all([call("/map"), plots()]);
  const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  const axis = { visible: false };
  const wrap = (text) => text.replace(/</g, "&lt;").replace(/(.{1,60})(\s|$)/g, "$1<br>");
  await Plotly.react("plot", [{
    type: "scatter", mode: "markers", x: points.x, y: points.y,
    hovertext: points.text.map(wrap), hoverinfo: "text",
    marker: { size: 7, opacity: 0.65, color: colour("--accent") },
  }], {
    margin: { l: 0, r: 0, t: 0, b: 0 }, xaxis: axis, yaxis: { ...axis, scaleanchor: "x" },
    dragmode: "pan", paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
    hoverlabel: { bgcolor: colour("--paper"), bordercolor: colour("--line"), font: { color: colour("--ink") }, align: "left" },
  }, { scrollZoom: true, displayModeBar: false, responsive: true });
  at("shown").textContent = `${points.shown} of ${points.texts} texts; scroll to zoom, double-click to see all`;
}

async function facts(about) {
  const model = await call("/info");
  const shown = { ...model, pooler: model.model_type.embedding.pooling };
  delete shown.model_type;
  if (about.index) {
    const index = await call("/index");
    Object.assign(shown, { "texts in the index": index.texts, "kind of index": index.kind });
    if (index.approximate) shown.recall = index.approximate.recall;
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
  if (name === "map") tell(draw);
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
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => at("map").hidden || tell(draw));

tell(async () => {
  about = await call("/page/about");
  at("model").textContent = about.model;
  at("tab-search").hidden = at("tab-map").hidden = !about.index;
  at("tab-neighbours").hidden = !about.beside;
  const asked = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash && !tab.hidden);
  show(asked ? asked.getAttribute("aria-controls") : about.index ? "search" : "compare");
});
