// Figures: records of the page's data into Plotly's traces, in the methods' own colours and dashes.
"use strict";

const Charts = (() => {
  const DASHES = { "-": "solid", "--": "dash", ":": "dot", "-.": "dashdot" };
  const SYMBOLS = ["circle", "square", "diamond", "triangle-up", "cross", "x", "star", "hexagon"];
  const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d"] };

  // Plotly reads a few tags in texts; a name with such a tag is to be read as it is written.
  const plain = (text) => String(text).replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");
  const shade = (colour, alpha) => {
    const [r, g, b] = [1, 3, 5].map((at) => parseInt(colour.slice(at, at + 2), 16));
    return `rgba(${r},${g},${b},${alpha})`;
  };
  const short = (value) => (value === null ? "–" : Number(value.toPrecision(4)).toString());
  const withSpread = (mean, sd, n) => `${short(mean)}${sd === null ? "" : ` ± ${short(sd)}`} (n = ${n})`;

  function colours() {
    const style = getComputedStyle(document.documentElement);
    return Object.fromEntries(["ink", "paper", "line"].map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
  }

  function layout(chart, x, more = {}) {
    const { ink, line } = colours();
    const axis = { gridcolor: line, zerolinecolor: line, linecolor: line, automargin: true, title: { standoff: 8 } };
    return {
      paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: { color: ink, size: 12, family: "system-ui, sans-serif" },
      margin: { l: 56, r: 12, t: 8, b: 44 }, showlegend: false, hovermode: "closest", uirevision: x ?? "fixed",
      xaxis: { ...axis, title: { text: plain(x ?? ""), standoff: 8 } },
      yaxis: { ...axis, title: { text: plain(chart.y ?? ""), standoff: 8 }, type: chart.log ? "log" : "linear" },
      ...more,
    };
  }

  function lines(chart, view) {
    const axis = chart.axes[view.axis] ? view.axis : Object.keys(chart.axes)[0];
    const traces = [];
    const share = (chart.y ?? "").includes("(%)"); // a band does not leave what a share can be
    const within = (value) => (share ? Math.min(100, Math.max(0, value)) : value);
    for (const each of chart.lines.filter((each) => view.shown(each.group))) {
      const { colour, dash } = view.looks[each.group];
      const x = each.x[axis];
      const apart = each.note === "diverged" || each.note === "unfinished";
      const banded = each.mean.map((mean, index) => index).filter((index) => each.sd[index] !== null);
      if (banded.length > 1) {
        const back = [...banded].reverse();
        traces.push({
          x: [...banded.map((i) => x[i]), ...back.map((i) => x[i])],
          y: [...banded.map((i) => within(each.mean[i] + each.sd[i])), ...back.map((i) => within(each.mean[i] - each.sd[i]))],
          type: "scatter", mode: "lines", line: { width: 0 }, fill: "toself", fillcolor: shade(colour, 0.16), hoverinfo: "skip",
        });
      }
      const name = plain(each.group) + (each.note ? `, ${plain(each.note)}` : "");
      traces.push({
        x, y: each.mean, type: "scatter", mode: apart || each.mean.length < 30 ? "lines+markers" : "lines",
        line: { color: colour, dash: DASHES[dash], width: apart ? 1 : 2 },
        marker: { color: colour, size: 5, symbol: each.note === "diverged" ? "x" : apart ? "circle-open" : "circle" },
        hoverinfo: "text",
        text: each.mean.map((mean, i) => `${name}<br>${axis} ${short(x[i])}: ${withSpread(mean, each.sd[i], each.n[i])}`),
      });
    }
    const longest = Math.max(1, ...traces.flatMap((trace) => trace.x));
    const few = longest <= 12 ? { dtick: 1 } : {}; // no tick between two whole numbers
    const whole = axis === "epoch" || axis === "rank" ? { tickformat: "d", ...few } : {};
    const made = layout(chart, chart.axes[axis]);
    Object.assign(made.xaxis, whole);
    return { traces, layout: made };
  }

  function points(chart, view) {
    const axis = chart.axes[view.axis] ? view.axis : Object.keys(chart.axes)[0];
    const shown = chart.points.filter((point) => view.shown(point.group) && point.x[axis] !== undefined);
    const { ink } = colours();
    const places = [...new Set(shown.map((point) => view.looks[point.group].place))];
    const traces = places.map((place) => {
      const best = shown.filter((point) => point.front[axis] && view.looks[point.group].place === place);
      best.sort((a, b) => a.x[axis] - b.x[axis]);
      return {
        x: best.map((point) => point.x[axis]), y: best.map((point) => point.y), type: "scatter", mode: "lines",
        line: { color: ink, width: 1, dash: "dot", shape: "hv" }, hoverinfo: "skip",
      };
    });
    // Names that would lie on each other are left out, the legend has them: among neighbours the one on the front keeps its.
    const span = (of) => Math.max(...shown.map(of)) - Math.min(...shown.map(of)) || 1;
    const wide = span((point) => point.x[axis]), high = span((point) => point.y);
    const near = (one, other) => one !== other
      && Math.abs(one.x[axis] - other.x[axis]) < 0.2 * wide && Math.abs(one.y - other.y) < 0.05 * high;
    const named = (point) => shown.length <= 30
      && (point.front[axis] || !shown.some((other) => near(point, other)));
    const every = [...new Set(chart.points.map((point) => point.group))]; // a symbol stays when another method is hidden
    shown.forEach((point) => traces.push({
      x: [point.x[axis]], y: [point.y], type: "scatter", mode: named(point) ? "markers+text" : "markers",
      error_y: { type: "data", array: [point.sd], color: view.looks[point.group].colour },
      marker: {
        color: view.looks[point.group].colour, size: 11, symbol: SYMBOLS[every.indexOf(point.group) % SYMBOLS.length],
        line: { color: ink, width: point.front[axis] ? 1.5 : 0 },
      },
      text: [plain(point.group)], textposition: "middle left", hoverinfo: "text", cliponaxis: false,
      hovertext: [`${plain(point.group)}<br>${withSpread(point.y, point.sd, point.n)} %<br>${short(point.x[axis])} ${axis}`],
    }));
    const made = layout(chart, chart.axes[axis]);
    made.margin.t = 24;
    return { traces, layout: made };
  }

  function bars(chart, view) {
    const every = [...new Set(chart.bars.map((bar) => bar.group))];
    const names = every.filter(view.shown);
    const patterns = ["", "/", "x", ".", "\\", "|", "-", "+"];
    const traces = names.map((name) => {
      const mine = chart.bars.filter((bar) => bar.group === name);
      return {
        type: "bar", x: mine.map((bar) => plain(bar.category)), y: mine.map((bar) => bar.mean),
        error_y: { type: "data", array: mine.map((bar) => bar.sd), color: colours().ink },
        marker: { color: view.looks[name].colour, pattern: { shape: patterns[every.indexOf(name) % patterns.length], solidity: 0.25, fillmode: "overlay", fgcolor: colours().paper } },
        hoverinfo: "text", textposition: "none",
        text: mine.map((bar) => `${plain(name)}, ${plain(bar.category)}: ${withSpread(bar.mean, bar.sd, bar.n)}`),
      };
    });
    return { traces, layout: layout(chart, chart.x ?? null, { barmode: "group" }) };
  }

  const KINDS = { lines, points, bars };

  function draw(figure, chart, view) {
    if (chart.kind === "landscapes") return Landscapes.draw(figure, chart, view);
    const made = KINDS[chart.kind](chart, view);
    return Plotly.react(figure.querySelector(".plot"), made.traces, made.layout, CONFIG);
  }

  return { draw, layout, plain, colours, short, CONFIG };
})();
