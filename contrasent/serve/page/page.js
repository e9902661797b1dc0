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

let running = 0, asked = 0;

async function tell(work) {
  at("message").textContent = "";
  running += 1;
  document.body.setAttribute("aria-busy", "true");
  try {
    await work();
  } catch (error) {
    at("message").textContent = error.message;
  } finally {
    running -= 1;
    if (!running) document.body.removeAttribute("aria-busy");
  }
}

const WORD = /\p{Script=Han}|\p{Script=Hiragana}|\p{Script=Katakana}|\p{Script=Thai}|[\p{L}\p{M}\p{N}_]+/gu;

function wordsOf(text) {
  const words = [...text.matchAll(WORD)].map(([word]) => word.toLowerCase());
  const long = words.filter((word) => word.length > 2 || !/[a-z]/.test(word));
  return new Set(long.length ? long : words);
}

function marked(text, words) {
  const parts = [];
  let end = 0;
  for (const { 0: word, index } of text.matchAll(WORD)) {
    if (!words.has(word.toLowerCase())) continue;
    parts.push(text.slice(end, index), element("mark", word));
    end = index + word.length;
  }
  return [...parts, text.slice(end)];
}

function hits(list, found, query) {
  const words = wordsOf(query);
  list.replaceChildren(...found.map((hit) => {
    const row = document.createElement("li"), body = document.createElement("div"), text = element("p", "");
    const { title, heading, path, ...more } = hit.metadata || {};
    const rank = (side) => hit[`${side}_rank`] ? ` (#${hit[`${side}_rank`]})` : "";
    const by = (name, side) => hit[side] ? `${name} ${hit[side].toFixed(3)}${rank(side)}` : "";
    const sides = "dense" in hit ? [by("meaning", "dense"), by("words", "words")] : [];
    const facts = Object.entries(more).map(([name, value]) => `${name} ${value}`);
    const shown = title && heading && heading.startsWith(title) ? [heading] : [title, heading];
    const above = shown.filter(Boolean).join(" > ");
    const start = heading ? `${heading.split(" > ").pop()}\n` : "";
    text.append(...marked(hit.text.startsWith(start) ? hit.text.slice(start.length) : hit.text, words));
    if (above) body.append(element("strong", above));
    body.append(text, element("small", [path || hit.id, ...facts, ...sides].filter(Boolean).join(" · ")));
    row.append(element("span", hit.score.toFixed(3), { class: "score" }), body);
    return row;
  }));
}

const PLAIN = /^(?!(?:and|or|not|in|is|like|true|false|null)$)[\p{L}_][\p{L}\p{N}_]*$/iu;
const spelt = (column) => (PLAIN.test(column) ? column : `\`${column}\``);
const counted = (number) => `${number.toLocaleString("en")} text${number === 1 ? "" : "s"}`;
const lines = (id) => at(id).value.split("\n").map((line) => line.trim()).filter(Boolean);

const forms = {
  async search() {
    const q = at("query").value.trim(), mode = at("mode").value, filter = at("filter").value.trim();
    const said = Object.entries({ q, mode: mode === "auto" ? "" : mode, filter }).filter(([, value]) => value);
    const address = `/${said.length ? "?" : ""}${new URLSearchParams(said)}`;
    if (address !== location.pathname + location.search) history.pushState(null, "", address);
    const query = q || about.index.example;
    if (!query) return;
    const mine = ++asked;
    const { results: [best] } = await call("/search", { queries: query, top_k: 20, mode, filter: filter || undefined })
      .catch((error) => {
        if (mine === asked) at("hits").replaceChildren(at("results").textContent = "");
        throw error;
      });
    if (mine !== asked) return; // a later search is shown
    hits(at("hits"), best, query);
    at("results").textContent = `${q ? "" : "For example: "}${counted(best.length)} for “${query}”`;
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

function folded(box, groups, onToggle) {
  box.replaceChildren(...groups.map(({ name, texts }, number) => {
    const group = document.createElement("details"), list = element("ol", "", { class: "hits", tabindex: 0 });
    group.append(element("summary", name || "no words of its own"), list);
    group.firstChild.append(element("small", ` ${counted(texts.length)}`));
    group.addEventListener("toggle", () => {
      if (!list.firstChild) hits(list, texts.map((text) => ({ ...text, score: text.similarity })), "");
      onToggle(number, group);
    });
    return group;
  }));
}

async function map() {
  at("mapped").textContent = "Comparing texts, which takes some seconds …";
  const { clusters, duplicates, svg } = await call("/index/map").finally(() => (at("mapped").textContent = ""));
  const { texts } = about.index;
  const shown = clusters.groups.reduce((sum, group) => sum + group.texts.length, 0);
  const sample = shown < texts ? `${shown.toLocaleString("en")} of ${counted(texts)}, drawn at random` : counted(shown);
  at("mapped").textContent = `${sample}, in clusters by colour. Near ones are alike; click one to read it. Rings: duplicates.`;
  at("drawn").innerHTML = svg;
  const drawn = at("drawn").firstChild, parts = [...drawn.querySelectorAll("g")];
  folded(at("clusters"), clusters.groups, (number, group) => {
    parts[number].classList.toggle("chosen", group.open);
    drawn.classList.toggle("some", parts.some((part) => part.classList.contains("chosen")));
  });
  [...at("clusters").children].forEach((group, number) => {
    group.firstChild.prepend(element("b", `${number} `, { style: `border-color: ${parts[number].getAttribute("fill")}` }));
  });
  folded(at("duplicates"), duplicates.groups, () => {});
  at("duplicates").prepend(element("p", `Of ${counted(shown)} ${duplicates.chosen}.`));
  drawn.addEventListener("click", (event) => {
    const far = (circle) => {
      const { left, top, width } = circle.getBoundingClientRect();
      return Math.hypot(left + width / 2 - event.clientX, top + width / 2 - event.clientY);
    };
    const near = [...drawn.querySelectorAll("circle")].reduce((a, b) => (far(a) < far(b) ? a : b));
    at("point").textContent = near.textContent;
  });
}

async function facts(about) {
  const model = await call("/info");
  const shown = { ...model, pooler: model.model_type.embedding.pooling };
  delete shown.model_type;
  if (about.index) {
    const { texts, kind, approximate, words } = about.index;
    Object.assign(shown, { "texts in the index": texts, "kind of index": kind });
    if (approximate) shown.recall = approximate.recall;
    if (words) shown["weight of words"] = words.weight;
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
  history.replaceState(null, "", name === "search" ? location.pathname + location.search : `#${name}`);
  if (name === "about") tell(() => facts(about));
  if (name === "map" && !at("drawn").firstChild) tell(map);
}

for (const tab of tabs) {
  tab.addEventListener("click", () => show(tab.getAttribute("aria-controls")));
  tab.addEventListener("keydown", (event) => {
    const shown = tabs.filter((each) => !each.hidden), place = shown.indexOf(tab), last = shown.length - 1;
    const places = { ArrowRight: place + 1, ArrowLeft: place + last, Home: 0, End: last };
    if (!(event.key in places)) return;
    event.preventDefault();
    const next = shown[places[event.key] % shown.length];
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

at("mode").addEventListener("change", () => at("mode").form.requestSubmit());

function load() {
  const sent = new URLSearchParams(location.search);
  at("query").value = sent.get("q") || "";
  at("mode").value = at("mode").hidden ? "auto" : sent.get("mode") || "auto";
  at("mode").value ||= "auto"; // of an address with another
  at("filter").value = sent.get("filter") || "";
  tell(forms.search);
}

tell(async () => {
  const { info, paths } = await call("/openapi.json");
  about = { model: info.summary, index: "/index" in paths, map: "/index/map" in paths };
  at("model").textContent = about.model;
  at("tab-search").hidden = !about.index;
  at("tab-map").hidden = !about.map;
  const asked = tabs.find((tab) => `#${tab.getAttribute("aria-controls")}` === location.hash && !tab.hidden);
  if (about.index) {
    about.index = await call("/index");
    about.index.example = (about.index.example || "").split(/(?<=[.!?。])\s|\n/)[0].slice(0, 80);
    const columns = Object.entries(about.index.columns).filter(([name]) => name !== "_file");
    const conditions = { string: '= "..."', bool: "= true" };
    at("mode").hidden = !about.index.words;
    at("filtered").hidden = !columns.length;
    at("columns").textContent = columns.map(([name]) => spelt(name)).join(", ");
    at("filter").placeholder = columns.slice(-2).map(([name, kind]) => `${spelt(name)} ${conditions[kind] || ">= 10"}`).join(" and ");
    at("query").placeholder = about.index.example;
    window.addEventListener("popstate", load);
    load();
  }
  show(asked ? asked.getAttribute("aria-controls") : about.index ? "search" : "compare");
});
