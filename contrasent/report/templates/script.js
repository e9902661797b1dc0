"use strict";
(() => {
  const number = (cell) => (cell.dataset.value === undefined ? null : Number(cell.dataset.value));

  const compared = (a, b, column) => {
    const [left, right] = [a.cells[column], b.cells[column]];
    const [x, y] = [number(left), number(right)];
    if (x !== null && y !== null) return x - y;
    return left.textContent.localeCompare(right.textContent, "en", { numeric: true });
  };

  const absent = (row, column, numeric) => numeric && number(row.cells[column]) === null;

  const sortBy = (table, column, order) => {
    const body = table.tBodies[0];
    const rows = [...body.rows];
    const numeric = rows.some((row) => number(row.cells[column]) !== null);
    const sign = order === "ascending" ? 1 : -1;
    rows.sort((a, b) => {
      if (order === "none") return a.dataset.place - b.dataset.place;
      const gaps = absent(a, column, numeric) - absent(b, column, numeric);
      return gaps || sign * compared(a, b, column) || a.dataset.place - b.dataset.place;
    });
    body.append(...rows);
    [...table.tHead.rows[0].cells].forEach((head, place) => {
      head.setAttribute("aria-sort", place === column ? order : "none");
    });
  };

  const after = {
    number: { none: "descending", descending: "ascending", ascending: "none" },
    text: { none: "ascending", ascending: "descending", descending: "none" },
  };

  for (const table of document.querySelectorAll("table.sortable")) {
    [...table.tBodies[0].rows].forEach((row, place) => (row.dataset.place = place));
    [...table.tHead.rows[0].cells].forEach((head, column) => {
      const button = document.createElement("button");
      button.type = "button";
      button.append(...head.childNodes);
      head.append(button);
      head.setAttribute("aria-sort", "none");
      const kind = head.classList.contains("number") ? "number" : "text";
      button.addEventListener("click", () => {
        sortBy(table, column, after[kind][head.getAttribute("aria-sort")]);
      });
    });
  }

  for (const control of document.querySelectorAll(".enhanced")) control.hidden = false;

  const holds = (text, words) => words.every((word) => text.includes(word));

  const words = (input) => input.value.toLowerCase().split(/\s+/).filter(Boolean);

  for (const input of document.querySelectorAll("input[data-filter]")) {
    const body = document.getElementById(input.dataset.filter).querySelector("tbody");
    input.addEventListener("input", () => {
      const wanted = words(input);
      for (const row of body.rows) row.hidden = !holds(row.textContent.toLowerCase(), wanted);
    });
  }

  for (const browser of document.querySelectorAll(".browser")) {
    const queries = [...browser.querySelectorAll(".query")];
    const [input, picker] = [browser.querySelector("input"), browser.querySelector("select")];
    const count = browser.querySelector(".count");
    const box = browser.querySelector(".queries");

    const show = (place) => {
      queries.forEach((query, k) => (query.open = k === place));
      if (place < 0) return;
      picker.value = String(place);
      box.scrollTop = queries[place].offsetTop - box.offsetTop;
    };

    const shown = () => queries.flatMap((query, k) => (query.hidden ? [] : [k]));

    const search = () => {
      const wanted = words(input);
      queries.forEach((query, k) => {
        query.hidden = !holds(query.textContent.toLowerCase(), wanted);
        picker.options[k].hidden = query.hidden;
      });
      const left = shown();
      count.textContent = `${left.length} of ${queries.length} queries`;
      show(left.length ? left[0] : -1);
    };

    const step = (by) => {
      const left = shown();
      const now = left.indexOf(Number(picker.value));
      if (left.length) show(left[(now + by + left.length) % left.length]);
    };

    input.addEventListener("input", search);
    picker.addEventListener("change", () => show(Number(picker.value)));
    for (const button of browser.querySelectorAll("[data-step]")) {
      button.addEventListener("click", () => step(Number(button.dataset.step)));
    }
    queries.forEach((query, place) => {
      query.addEventListener("toggle", () => {
        if (query.open) picker.value = String(place);
      });
    });
    search();
  }

  addEventListener("beforeprint", () => {
    for (const it of document.querySelectorAll("details")) it.open = true;
  });
})();
