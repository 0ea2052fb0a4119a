// Tables: sorting by the buttons in their headings, a filter, and the numbers behind them as CSV.
// What a reader chose is kept by the table's id, so that it survives when a served page is brought up to date.
"use strict";

const Tables = (() => {
  const chosen = new Map(); // id -> {column, direction, filter}
  let place = "";

  const choice = (id) => {
    if (!chosen.has(id)) chosen.set(id, { column: -1, direction: "none", filter: "" });
    return chosen.get(id);
  };

  const number = (cell) => (cell.dataset.value === undefined || cell.dataset.value === "" ? NaN : Number(cell.dataset.value));

  function compare(one, other, column) {
    const [a, b] = [one.cells[column], other.cells[column]];
    if (a.dataset.value === undefined && b.dataset.value === undefined) {
      return a.textContent.localeCompare(b.textContent, undefined, { numeric: true });
    }
    return number(a) - number(b);
  }

  function sort(box, { column, direction }) {
    const body = box.querySelector("tbody");
    const rows = [...body.rows];
    rows.forEach((row, index) => { row.dataset.order ??= index; });
    // Numbers, then words such as None, then what is not known: in either order.
    const rank = (row) => (row.cells[column].textContent === "" ? 2 : Number.isNaN(number(row.cells[column])) ? 1 : 0);
    rows.sort((one, other) => {
      if (column < 0 || direction === "none") return one.dataset.order - other.dataset.order;
      if (rank(one) !== rank(other)) return rank(one) - rank(other);
      return (direction === "ascending" ? 1 : -1) * (compare(one, other, column) || 0);
    });
    body.append(...rows);
    box.querySelectorAll("thead th").forEach((head, index) => {
      head.setAttribute("aria-sort", index === column ? direction : "none");
    });
  }

  function filter(box, words) {
    const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
    let shown = 0;
    const rows = [...box.querySelectorAll("tbody tr")];
    for (const row of rows) {
      const text = row.textContent.toLowerCase();
      const here = !place || !row.dataset.place || row.dataset.place === place;
      row.hidden = !(here && wanted.every((word) => text.includes(word)));
      shown += row.hidden ? 0 : 1;
    }
    box.querySelector(".count").textContent = shown === rows.length ? `${rows.length} rows` : `${shown} of ${rows.length} rows`;
  }

  // A text that a spreadsheet would take for a formula is marked as text.
  const quoted = (text) => `"${(/^[=+\-@\t]/.test(text) ? `'${text}` : text).replaceAll('"', '""')}"`;

  function csv(box) {
    const heads = [...box.querySelectorAll("thead th")];
    const titles = heads.flatMap((head) => {
      const title = head.textContent;
      return head.dataset.kind === "spread" ? [title, `${title}, sd`, `${title}, n`] : [title];
    });
    const lines = [...box.querySelectorAll("tbody tr")].filter((row) => !row.hidden).map((row) =>
      [...row.cells].flatMap((cell, index) => {
        const { value, sd, n } = cell.dataset;
        if (heads[index].dataset.kind === "spread") return [value ?? "", sd ?? "", n ?? ""];
        return [value !== undefined ? value : quoted(cell.textContent)];
      }).join(","));
    return [titles.map(quoted).join(","), ...lines].join("\n") + "\n";
  }

  function save(name, type, text) {
    const link = document.createElement("a");
    link.href = URL.createObjectURL(new Blob([text], { type }));
    link.download = name;
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10000);
  }

  function prepare(root) {
    for (const box of root.querySelectorAll(".table")) {
      const mine = choice(box.id);
      const search = box.querySelector("input[type=search]");
      search.value = mine.filter;
      search.addEventListener("input", () => { mine.filter = search.value; filter(box, mine.filter); });
      box.querySelector(".csv").addEventListener("click", () => save(`${box.id}.csv`, "text/csv", csv(box)));
      box.querySelectorAll("thead th").forEach((head, column) => {
        head.querySelector("button").addEventListener("click", () => {
          const next = { none: "descending", descending: "ascending", ascending: "none" };
          mine.direction = mine.column === column ? next[mine.direction] : "descending";
          mine.column = column;
          sort(box, mine);
        });
      });
      sort(box, mine);
      filter(box, mine.filter);
    }
  }

  function choosePlace(root, name) {
    place = name;
    for (const box of root.querySelectorAll(".table")) filter(box, choice(box.id).filter);
  }

  return { prepare, choosePlace, save };
})();
