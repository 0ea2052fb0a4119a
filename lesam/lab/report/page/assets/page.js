// The page: figures are drawn when they come into view, choices hold for all of them, a served page follows its runs.
"use strict";

(() => {
  const root = document.documentElement;
  const choices = { axis: "epoch", place: "", hidden: new Set() }; // hidden: keys of groups
  let data = read(document);
  let charts, looks, watcher;

  function read(from) {
    return JSON.parse(from.getElementById("data").textContent);
  }

  const view = () => ({
    axis: choices.axis, looks,
    shown: (group) => !choices.hidden.has(looks[group]?.key) && (!choices.place || !looks[group] || looks[group].place === choices.place),
  });

  function drawOne(figure) {
    figure.drawn = true;
    return Promise.resolve(Charts.draw(figure, charts[figure.dataset.chart], view())).catch((error) => {
      figure.querySelector(".plot").textContent = `This figure cannot be drawn: ${error.message}`;
    });
  }

  const figures = () => [...document.querySelectorAll("figure[data-chart]")];
  const redraw = () => figures().filter((figure) => figure.drawn).forEach(drawOne);

  function watchFigures() {
    if (watcher) watcher.disconnect();
    watcher = new IntersectionObserver((seen) => {
      for (const { isIntersecting, target } of seen) {
        if (isIntersecting && !target.drawn) drawOne(target);
      }
    }, { rootMargin: "400px" });
    figures().forEach((figure) => watcher.observe(figure));
  }

  function choosePlace() {
    Tables.choosePlace(document, choices.place);
    for (const label of document.querySelectorAll(".legend label")) {
      label.hidden = Boolean(choices.place) && label.dataset.place !== choices.place;
    }
    redraw();
  }

  function listen() {
    for (const radio of document.querySelectorAll("input[name=axis]")) {
      radio.checked = radio.value === choices.axis;
      radio.addEventListener("change", () => { choices.axis = radio.value; redraw(); });
    }
    for (const box of document.querySelectorAll("input.method")) {
      box.checked = !choices.hidden.has(box.dataset.key);
      box.addEventListener("change", () => {
        choices.hidden[box.checked ? "delete" : "add"](box.dataset.key);
        redraw();
      });
    }
    const place = document.getElementById("place");
    if (place) {
      place.value = choices.place;
      place.addEventListener("change", () => { choices.place = place.value; choosePlace(); });
    }
    document.getElementById("theme").addEventListener("click", () => theme(dark() ? "light" : "dark"));
    document.getElementById("json").addEventListener("click", () =>
      Tables.save("report.json", "application/json", JSON.stringify(data, null, 1)));
  }

  const dark = () => (root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";

  function theme(name) {
    if (name === undefined) delete root.dataset.theme;
    else root.dataset.theme = name;
    redraw();
  }

  function show() {
    charts = Object.fromEntries(data.sections.flatMap((section) => section.charts).map((chart) => [chart.id, chart]));
    looks = Object.fromEntries(data.groups.map((group) => [group.name, group]));
    Tables.prepare(document);
    listen();
    watchFigures();
    if (choices.place) choosePlace();
  }

  // What tells an element from others near it and stays the same when the page is brought up to date.
  const mark = (element) => [
    element.localName, element.className, element.type, element.name, element.getAttribute("href"),
    element.dataset.key ?? element.getAttribute("value"), element.localName === "button" ? element.textContent : "",
  ].join("\n");

  // Where the reader is: the element with the focus and its selected text, and how far tables are scrolled sideways.
  function readersPlace() {
    const active = document.activeElement;
    const box = active && active !== document.body ? active.closest("[id]") : null;
    const wanted = box && mark(active);
    const selected = active && active.type === "search" ? [active.selectionStart, active.selectionEnd] : null;
    const scrolled = [...document.querySelectorAll(".table")].map((table) => [table.id, table.querySelector(".scroll").scrollLeft]);
    const down = window.scrollY;
    return () => {
      for (const [id, left] of scrolled) {
        const table = document.getElementById(id);
        if (table) table.querySelector(".scroll").scrollLeft = left;
      }
      const now = box && document.getElementById(box.id);
      const found = now && [now, ...now.querySelectorAll(active.localName)].find((element) => mark(element) === wanted);
      if (found) found.focus({ preventScroll: true });
      if (found && selected) found.setSelectionRange(...selected);
      window.scrollTo(0, down);
    };
  }

  // A served page: the new content takes the place of the old one, captions included; plots that are drawn already stay.
  function update(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    const old = new Map(figures().filter((figure) => figure.drawn).map((figure) => [figure.dataset.chart, figure]));
    const comeBack = readersPlace();
    data = read(fresh);
    document.getElementById("data").replaceWith(document.importNode(fresh.getElementById("data"), true));
    const content = document.importNode(fresh.getElementById("content"), true);
    for (const figure of content.querySelectorAll("figure[data-chart]")) {
      const before = old.get(figure.dataset.chart);
      if (!before) continue;
      figure.querySelector(".plot").replaceWith(before.querySelector(".plot"));
      figure.drawn = true;
    }
    document.getElementById("content").replaceWith(content);
    show();
    redraw();
    comeBack();
  }

  function follow(seconds) {
    let tag = "";
    const say = (words) => { document.getElementById("state").textContent = words; };
    async function ask() {
      if (!document.hidden) {
        try {
          const answer = await fetch("content", { cache: "no-store", headers: tag ? { "If-None-Match": tag } : {} });
          if (answer.status === 200) {
            tag = answer.headers.get("ETag");
            update(await answer.text());
          } else if (answer.status !== 304) throw new Error(`status ${answer.status}`);
          say("Live.");
        } catch (error) {
          say(`The server does not answer (${error.message}); trying again.`);
        }
      }
      setTimeout(ask, 1000 * seconds);
    }
    setTimeout(ask, 1000 * seconds);
  }

  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
  let before;
  addEventListener("beforeprint", () => {
    before = root.dataset.theme;
    root.dataset.theme = "light";
    figures().forEach(drawOne);
  });
  addEventListener("afterprint", () => theme(before));
  show();
  if (root.dataset.refresh) follow(Number(root.dataset.refresh));
})();
