// Loss landscapes side by side: surfaces whose cameras move together, and the same planes as contours.
"use strict";

const Landscapes = (() => {
  const CAMERA = { eye: { x: 1.7, y: -1.7, z: 1.2 }, center: { x: 0, y: 0, z: -0.15 } };

  function boxes(figure, chart) {
    const plot = figure.querySelector(".plot");
    const rows = [...plot.children];
    if (!rows.length || rows[0].children.length !== chart.planes.length) {
      plot.replaceChildren(...["surface", "contour"].map(() => {
        const row = document.createElement("div");
        row.className = "planes";
        row.append(...chart.planes.map(() => document.createElement("div")));
        return row;
      }));
    }
    return [...plot.children].map((row) => [...row.children]);
  }

  function scene(name) {
    const { ink, line } = Charts.colours();
    return { title: { text: name }, color: ink, gridcolor: line, zerolinecolor: line, showbackground: false };
  }

  function link(surfaces) {
    let moving = false;
    for (const one of surfaces) {
      if (one.linked) continue;
      one.linked = true;
      const follow = (change) => {
        const camera = change["scene.camera"] ?? (one.layout.scene && one.layout.scene.camera);
        if (moving || !Object.keys(change).some((key) => key.startsWith("scene.camera"))) return;
        moving = true;
        const others = surfaces.filter((other) => other !== one && other.data);
        Promise.all(others.map((other) => Plotly.relayout(other, { "scene.camera": camera }))).finally(() => { moving = false; });
      };
      one.on("plotly_relayout", follow);
      one.on("plotly_relayouting", follow);
    }
  }

  async function draw(figure, chart, view) {
    const [above, below] = boxes(figure, chart);
    const { low, high } = chart;
    const surfaces = [];
    const jobs = chart.planes.flatMap((plane, index) => {
      const shown = view.shown(plane.group);
      const [surface, contour] = [above[index], below[index]];
      surface.hidden = contour.hidden = !shown;
      if (!shown) return [];
      surfaces.push(surface);
      const title = { text: `${Charts.plain(plane.group)}, seed ${plane.seed}, epoch ${plane.epoch}`, font: { size: 13 } };
      const loss = plane.loss.map((row) => row.map((value) => (value === null ? high : Math.min(value, high))));
      const colour = { colorscale: "Cividis", colorbar: { title: { text: "loss" }, thickness: 12, len: 0.8 } };
      const plain = Charts.layout({ y: "direction 2" }, "direction 1", { title, margin: { l: 50, r: 8, t: 36, b: 44 } });
      plain.yaxis.scaleanchor = "x";
      const spatial = {
        ...Charts.layout({}, "fixed", { title, margin: { l: 0, r: 0, t: 36, b: 0 } }),
        scene: {
          xaxis: scene("direction 1"), yaxis: scene("direction 2"), zaxis: { ...scene("loss"), range: [low, high] },
          camera: CAMERA, uirevision: "camera",
        },
      };
      const hover = `loss %{z:.4g}<extra></extra>`;
      return [
        Plotly.react(surface, [{ type: "surface", x: plane.x, y: plane.y, z: loss, cmin: low, cmax: high, showscale: false, hovertemplate: hover, ...colour }], spatial, Charts.CONFIG),
        Plotly.react(contour, [{ type: "contour", x: plane.x, y: plane.y, z: loss, zmin: low, zmax: high, autocontour: false, contours: { start: low, end: high, size: (high - low) / 20 }, hovertemplate: hover, ...colour }], plain, Charts.CONFIG),
      ];
    });
    await Promise.all(jobs);
    link(surfaces);
  }

  return { draw };
})();
